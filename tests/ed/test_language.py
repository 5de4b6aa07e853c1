"""The transformer against PyTorch's modules, each way of teaching against what it is said to be; and models
of characters on texts whose answer is known.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ed_lib.ed import language
from ed_lib.ed.language import RULES, Transformer, WindowModel, known_signs

V, T, C, HEADS, LAYERS = 5, 6, 8, 2, 2
TOLD = ("direct", "broadcast")


def network(attention="backprop", mlp="backprop", **options):
    net = Transformer(V, T, LAYERS, HEADS, C, attention=attention, mlp=mlp, **options)
    for p in net.parameters.values():
        p.data = 8 * p.data.double()  # far from where everything is nearly linear
    net.signs = {cells: s.double() for cells, s in net.signs.items()}
    net.direct = {name: m.double() for name, m in net.direct.items()}
    return net


def batch(n=3, seed=0):
    numbers = torch.randint(V, (n, T + 1), generator=torch.Generator().manual_seed(seed))
    return numbers[:, :-1], numbers[:, 1:]


class Block(nn.Module):
    """A block of PyTorch's parts, with the weights of the block of this number."""

    def __init__(self, p, n):
        super().__init__()
        self.norm = nn.LayerNorm(C, elementwise_affine=False, dtype=torch.float64)
        self.attention = nn.MultiheadAttention(C, HEADS, bias=False, batch_first=True, dtype=torch.float64)
        self.attention.in_proj_weight.data = p[f"{n}.ask"].detach().T.clone()
        self.attention.out_proj.weight.data = p[f"{n}.answer"].detach().T.clone()
        self.up, self.down = (nn.Linear(1, 1, bias=False) for _ in range(2))
        self.up.weight.data = p[f"{n}.up"].detach().T.clone()
        self.down.weight.data = p[f"{n}.down"].detach().T.clone()

    def forward(self, x):
        y, mask = self.norm(x), nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.down(self.up(self.norm(x)).relu())


def by_modules(net, x, target):
    """(scores, {parameter: its gradient}) of the same network from PyTorch's modules."""
    p = net.parameters
    blocks = [Block(p, n) for n in range(LAYERS)]
    leaves = {name: p[name].detach().clone().requires_grad_() for name in ("embedding", "places", "scores")}
    stream = leaves["embedding"][x] + leaves["places"]
    for block in blocks:
        stream = block(stream)
    scores = F.layer_norm(stream, (C,)) @ leaves["scores"]
    F.cross_entropy(scores.flatten(0, 1), target.flatten()).backward()
    found = {name: leaf.grad for name, leaf in leaves.items()}
    for n, block in enumerate(blocks):
        found |= {f"{n}.ask": block.attention.in_proj_weight.grad.T}
        found |= {f"{n}.answer": block.attention.out_proj.weight.grad.T}
        found |= {f"{n}.up": block.up.weight.grad.T, f"{n}.down": block.down.weight.grad.T}
    return scores, found


@pytest.mark.oracle
def test_scores_and_gradients_are_those_of_pytorchs_modules():
    net, (x, target) = network(), batch()
    scores, grads = by_modules(net, x, target)
    torch.testing.assert_close(net.forward(x), scores, rtol=0, atol=1e-12)
    net.directions(x, target)
    for name, grad in grads.items():
        torch.testing.assert_close(net.parameters[name].grad, grad, rtol=0, atol=1e-12)


def error_of(net, x, target):
    return (net.forward(x).detach().softmax(2) - F.one_hot(target, V)) / target.numel()


@pytest.mark.oracle
@pytest.mark.parametrize("attention", [*TOLD, "frozen", "backprop"])
def test_a_broadcast_perceptron_learns_from_what_its_ends_know(attention):
    net, (x, target) = network(attention, "broadcast"), batch()
    error = error_of(net, x, target)
    net.directions(x, target)
    for n in range(LAYERS):
        for name, on in ((f"{n}.up", net.given[f"{n}.down"] > 0), (f"{n}.down", None)):
            weight, want = net.parameters[name], 0.0
            for o in range(weight.shape[1]):
                sign = 1 if o // V % 2 == 0 else -1
                told = sign * error[:, :, o % V] * (1 if on is None else on[:, :, o])
                want = torch.einsum("bt,bti->i", told, net.given[name])
                torch.testing.assert_close(weight.grad[:, o], want, rtol=0, atol=1e-12)


@pytest.mark.oracle
@pytest.mark.parametrize("rule", TOLD)
def test_told_attention_is_the_gradient_of_its_answer_times_what_it_is_told(rule):
    net, (x, target) = network(rule, rule), batch()
    error = error_of(net, x, target)
    net.directions(x, target)
    got = {name: net.parameters[name].grad.clone() for name in ("1.ask", "1.answer", "embedding")}
    net.forward(x)
    for part, names in (("1.answer", ("1.ask", "1.answer")), ("embedding", ("embedding",))):
        if rule == "direct":
            told = error @ net.direct[part]
        else:
            told = torch.stack([error[:, :, c % V] * (-1) ** (c // V) for c in range(C)], 2)
        grads = torch.autograd.grad((net.answered[part] * told).sum(), [net.parameters[n] for n in names])
        for name, grad in zip(names, grads, strict=True):
            torch.testing.assert_close(got[name], grad, rtol=0, atol=1e-12)


@pytest.mark.oracle
def test_with_told_perceptrons_attention_by_gradient_has_the_whole_gradient():
    net, (x, target) = network("backprop", "broadcast"), batch()
    _, grads = by_modules(net, x, target)
    net.directions(x, target)
    for name in ("embedding", "places", "0.ask", "0.answer", "1.ask", "scores"):
        torch.testing.assert_close(net.parameters[name].grad, grads[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", RULES)
@pytest.mark.parametrize("mlp", RULES)
def test_what_is_frozen_stays_and_all_else_moves(attention, mlp):
    net, (x, target) = Transformer(V, T, LAYERS, HEADS, C, attention=attention, mlp=mlp), batch()
    before = {name: p.detach().clone() for name, p in net.parameters.items()}
    net.step(x, target)
    frozen = {f"{n}.{part}" for n in range(LAYERS) for part in ("ask", "answer") if attention == "frozen"}
    frozen |= {f"{n}.{part}" for n in range(LAYERS) for part in ("up", "down") if mlp == "frozen"}
    frozen |= {"embedding", "places"} if attention == mlp == "frozen" else set()
    assert {name for name, p in net.parameters.items() if torch.equal(p, before[name])} == frozen


def test_what_adds_to_the_stream_starts_small_in_every_layer():
    net = Transformer(V, T, 12, HEADS, 32)
    for name, p in net.parameters.items():
        wanted = 0.02 / 24**0.5 if name.endswith(("answer", "down")) else 0.02
        assert wanted / 1.5 < p.detach().std() < 1.5 * wanted, name


@pytest.mark.parametrize("rule", ["backprop", "direct", "broadcast"])
def test_it_learns_what_follows_and_keeps_its_signs(rule):
    numbers = torch.arange(T + 1) % V + torch.zeros(4, 1, dtype=torch.int64)
    options = dict(attention=rule, mlp=rule, steps=300, rate=0.03, one_signed=True)
    net = Transformer(V, T, LAYERS, HEADS, 4 * C, **options)
    losses = [net.step(numbers[:, :-1], numbers[:, 1:]) for _ in range(300)]
    assert losses[-1] < 0.2 < 1 < losses[0]
    assert len(net.kept) == 1 + 2 * LAYERS
    for name, sign in net.kept.items():
        assert (net.parameters[name] * sign >= 0).all()


def test_signs_are_known_where_nothing_breaks_them(monkeypatch):
    """Without layer norm each channel raises or lowers the scores as its sign says; with it, many do not."""
    net, (x, _) = network(one_signed=True), batch()
    shares = known_signs(net, x)
    assert list(shares) == list(net.answered) and min(shares.values()) < 0.9
    assert known_signs(net, x, every=2).keys() == shares.keys()
    monkeypatch.setattr("ed_lib.ed.language.normal", lambda y: y)
    for n in range(LAYERS):  # nor attention
        net.parameters[f"{n}.answer"].data.zero_()
    assert set(known_signs(net, x).values()) == {1.0}


TEXT = torch.arange(400) % 5  # 0 1 2 3 4 0 1 …
OPTIONS = dict(vocabulary=5, context=3, hidden=(30,), rate=0.01)


@pytest.mark.parametrize("rule", ["backprop", "direct", "broadcast"])
def test_a_window_model_learns_what_follows(rule):
    model, draw = WindowModel(rule=rule, **OPTIONS), language.windows(TEXT, 3, 64, 0)
    assert language.held_out_loss(model, TEXT) == pytest.approx(math.log(5), abs=1)
    losses = [model.step(*next(draw)) for _ in range(100)]
    assert losses[-1] < 0.1 < 1 < losses[0]
    assert language.held_out_loss(model, TEXT) < 0.1
    assert language.sample(model, "ade", 7, "abcde") == "abcdeab"


@pytest.mark.oracle
def test_a_step_gives_the_cross_entropy_before_it():
    model, (x, target) = WindowModel(**OPTIONS), next(language.windows(TEXT, 3, 16, 1))
    expected = F.cross_entropy(model.scores(x), target).item()
    assert model.step(x, target) == pytest.approx(expected, rel=1e-5)
    assert not torch.allclose(model.scores(x), torch.zeros(1))


def test_windows_are_pieces_of_the_text():
    x, target = next(language.windows(TEXT, 3, 16, 1))
    assert torch.equal(x[:, 1:], (x[:, :-1] + 1) % 5) and torch.equal(target, (x[:, -1] + 1) % 5)


@pytest.mark.oracle
def test_the_held_out_loss_of_a_transformer_is_over_all_its_places():
    model, numbers = Transformer(5, 6, 1, 2, 8), torch.randint(5, (25,))
    scores = [model.forward(numbers[None, at : at + 6])[0] for at in (0, 6, 12, 18)]
    expected = F.cross_entropy(torch.cat(scores), numbers[1:25]).item()
    assert language.held_out_loss(model, numbers) == pytest.approx(expected, rel=1e-5)
    first = F.cross_entropy(scores[0], numbers[1:7]).item()
    assert language.held_out_loss(model, numbers, places=1) == pytest.approx(first, rel=1e-5)


def test_a_sample_of_a_transformer_is_longer_than_its_context_and_the_seeds():
    model = Transformer(5, 6, 1, 2, 8)
    first = language.sample(model, "a", 20, "abcde", seed=1)
    assert len(first) == 20 and set(first) <= set("abcde")
    assert first == language.sample(model, "a", 20, "abcde", seed=1)
    assert first != language.sample(model, "a", 20, "abcde", seed=2)


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
    assert language.counting_loss(train, held_out, 2, 3, more=0.5) == pytest.approx(total / 18)
