"""Models of characters on texts whose answer is known."""

import math

import pytest
import torch
from torch.nn import functional as F

from ed_lib.ed import characters
from ed_lib.ed.characters import WindowModel
from ed_lib.ed.gpt import Transformer

TEXT = torch.arange(400) % 5  # 0 1 2 3 4 0 1 …
OPTIONS = dict(vocabulary=5, context=3, hidden=(30,), rate=0.01)


@pytest.mark.parametrize("rule", ["backprop", "direct", "broadcast"])
def test_a_window_model_learns_what_follows(rule):
    model, draw = WindowModel(rule=rule, **OPTIONS), characters.windows(TEXT, 3, 64, 0)
    assert characters.held_out_loss(model, TEXT) == pytest.approx(math.log(5), abs=1)
    losses = [model.step(*next(draw)) for _ in range(100)]
    assert losses[-1] < 0.1 < 1 < losses[0]
    assert characters.held_out_loss(model, TEXT) < 0.1
    assert characters.sample(model, "ade", 7, "abcde") == "abcdeab"


@pytest.mark.oracle
def test_a_step_gives_the_cross_entropy_before_it():
    model, (x, target) = WindowModel(**OPTIONS), next(characters.windows(TEXT, 3, 16, 1))
    expected = F.cross_entropy(model.scores(x), target).item()
    assert model.step(x, target) == pytest.approx(expected, rel=1e-5)
    assert not torch.allclose(model.scores(x), torch.zeros(1))


def test_windows_are_pieces_of_the_text():
    x, target = next(characters.windows(TEXT, 3, 16, 1))
    assert torch.equal(x[:, 1:], (x[:, :-1] + 1) % 5) and torch.equal(target, (x[:, -1] + 1) % 5)


@pytest.mark.oracle
def test_the_held_out_loss_of_a_transformer_is_over_all_its_places():
    model, numbers = Transformer(5, 6, 1, 2, 8), torch.randint(5, (25,))
    scores = [model.forward(numbers[None, at : at + 6])[0] for at in (0, 6, 12, 18)]
    expected = F.cross_entropy(torch.cat(scores), numbers[1:25]).item()
    assert characters.held_out_loss(model, numbers) == pytest.approx(expected, rel=1e-5)
    first = F.cross_entropy(scores[0], numbers[1:7]).item()
    assert characters.held_out_loss(model, numbers, places=1) == pytest.approx(first, rel=1e-5)


def test_a_sample_of_a_transformer_is_longer_than_its_context_and_the_seeds():
    model = Transformer(5, 6, 1, 2, 8)
    first = characters.sample(model, "a", 20, "abcde", seed=1)
    assert len(first) == 20 and set(first) <= set("abcde")
    assert first == characters.sample(model, "a", 20, "abcde", seed=1)
    assert first != characters.sample(model, "a", 20, "abcde", seed=2)


@pytest.mark.oracle
def test_counting_follows_a_plain_loop():
    train, held_out = (torch.randint(3, (n,), generator=torch.Generator().manual_seed(n)) for n in (60, 20))
    total = 0.0
    for at in range(2, 20):
        seen = [0.5] * 3
        for k in range(2, 60):
            if torch.equal(train[k - 2 : k], held_out[at - 2 : at]):
                seen[train[k]] += 1
        total -= math.log(seen[held_out[at]] / sum(seen))
    assert characters.counting_loss(train, held_out, 2, 3, more=0.5) == pytest.approx(total / 18)
