"""The transformer against PyTorch's modules and optimizer, and its schedule against the rates that
it is said to have.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ed_lib import transformer
from ed_lib.ed.language import EDTransformer
from ed_lib.transformer import Transformer

V, T, C, HEADS, LAYERS = 5, 6, 8, 2, 2


def network(kind=Transformer, **options):
    net = kind(V, T, LAYERS, HEADS, C, **options)
    for p in net.parameters.values():
        p.data = 8 * p.data.double()  # far from where everything is nearly linear
    return net


def batch(n=3, seed=0):
    numbers = torch.randint(V, (n, T + 1), generator=torch.Generator().manual_seed(seed))
    return numbers[:, :-1], numbers[:, 1:]


class Block(nn.Module):
    """A block of PyTorch's parts, with the weights of the block of this number."""

    def __init__(self, p, n):
        super().__init__()
        self.norm = nn.LayerNorm(C, elementwise_affine=False, dtype=torch.float64)
        self.attention = nn.MultiheadAttention(
            C, HEADS, bias=False, batch_first=True, dtype=torch.float64
        )
        self.attention.in_proj_weight.data = p[f"{n}.ask"].detach().T.clone()
        self.attention.out_proj.weight.data = p[f"{n}.answer"].detach().T.clone()
        self.up, self.down = (nn.Linear(1, 1, bias=False) for _ in range(2))
        self.up.weight.data = p[f"{n}.up"].detach().T.clone()
        self.down.weight.data = p[f"{n}.down"].detach().T.clone()

    def forward(self, x):
        y = self.norm(x)
        mask = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.down(self.up(self.norm(x)).relu())


def by_modules(net, x, target):
    """(scores, {parameter: its gradient}) of the same network from PyTorch's modules."""
    p = net.parameters
    blocks = [Block(p, n) for n in range(LAYERS)]
    leaves = {
        name: p[name].detach().clone().requires_grad_()
        for name in ("embedding", "places", "scores")
    }
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
@pytest.mark.parametrize("kind", [Transformer, EDTransformer])
def test_scores_and_gradients_are_those_of_pytorchs_modules(kind):
    net, (x, target) = network(kind), batch()
    scores, grads = by_modules(net, x, target)
    torch.testing.assert_close(net.forward(x), scores, rtol=0, atol=1e-12)
    loss = net.learn(x, target)
    assert loss == pytest.approx(F.cross_entropy(scores.flatten(0, 1), target.flatten()).item())
    assert grads.keys() == net.parameters.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(
            net.parameters[name].grad,
            grad,
            rtol=0,
            atol=1e-12,
            msg=lambda m, name=name: f"{name}: {m}",
        )


@pytest.mark.oracle
def test_steps_are_adams_at_the_schedules_rates():
    """The rates in numbers, from the formula with nothing but the published constants in it."""
    steps, rate = 160, 0.02
    net, twin = network(rate=rate, steps=steps), network(rate=rate, steps=steps)
    adam = torch.optim.Adam(twin.parameters.values(), betas=(0.9, 0.99))
    for n in range(3):
        x, target = batch(seed=n)
        wave = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * n / steps))
        adam.param_groups[0]["lr"] = rate * (n + 1) / 100 * wave
        for name, grad in by_modules(twin, x, target)[1].items():
            twin.parameters[name].grad = grad.contiguous()
        adam.step()
        net.step(x, target)
    for name, p in twin.parameters.items():
        torch.testing.assert_close(
            net.parameters[name], p, rtol=0, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_the_rate_rises_for_a_hundred_steps_and_falls_to_a_tenth():
    steps = 300
    net = Transformer(V, T, 1, 2, 8, rate=1.0, steps=steps)
    rates = []
    for _ in range(steps + 20):
        rates.append(net.optimizer.param_groups[0]["lr"])
        net.optimizer.step()
        net.schedule.step()
    # step: the rate. Halfway between 0 and 300 half of what falls is gone: 0.1 + 0.9 / 2.
    wanted = {0: 0.01, 150: 0.55, 300: 0.1, 319: 0.1}
    assert {step: round(rates[step], 6) for step in wanted} == wanted
    assert rates.index(max(rates)) == 99, "the highest is that of the hundredth step"
    assert all(rates[n] > rates[n + 1] for n in range(99, 300)), "then each is below the one before"


def test_what_adds_to_the_stream_starts_small_in_every_layer():
    net = Transformer(V, T, 12, HEADS, 32)
    for name, p in net.parameters.items():
        wanted = 0.02 / 24**0.5 if name.endswith(("answer", "down")) else 0.02
        assert wanted / 1.5 < p.detach().std() < 1.5 * wanted, name


@pytest.mark.oracle
def test_the_held_out_loss_is_over_all_places():
    model, numbers = Transformer(5, 6, 1, 2, 8), torch.randint(5, (25,))
    scores = [model.forward(numbers[None, at : at + 6])[0] for at in (0, 6, 12, 18)]
    expected = F.cross_entropy(torch.cat(scores), numbers[1:25]).item()
    assert transformer.held_out_loss(model, numbers) == pytest.approx(expected, rel=1e-5)
    first = F.cross_entropy(scores[0], numbers[1:7]).item()
    assert transformer.held_out_loss(model, numbers, places=1) == pytest.approx(first, rel=1e-5)


def test_the_transformer_knows_nothing_of_error_diffusion():
    with open(transformer.__file__) as file:
        assert "ed_lib.ed" not in file.read()
