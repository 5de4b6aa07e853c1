"""The transformer against PyTorch's modules, and each way of teaching against what it is said to
be.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ed_lib.ed import language
from ed_lib.ed.language import RULES, Transformer

V, T, C, HEADS, LAYERS = 5, 6, 8, 2, 2


def network(attention="backprop", mlp="backprop", **options):
    net = Transformer(V, T, LAYERS, HEADS, C, attention=attention, mlp=mlp, **options)
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
        y, mask = (
            self.norm(x),
            nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64),
        )
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
def test_scores_and_gradients_are_those_of_pytorchs_modules():
    net, (x, target) = network(), batch()
    scores, grads = by_modules(net, x, target)
    torch.testing.assert_close(net.forward(x), scores, rtol=0, atol=1e-12)
    net.learn(x, target)
    for name, grad in grads.items():
        torch.testing.assert_close(net.parameters[name].grad, grad, rtol=0, atol=1e-12)


def told(error, cells):
    """Each cell's error, by a loop."""
    return torch.stack(
        [error[:, :, c % V] * (1 if c // V % 2 == 0 else -1) for c in range(cells)], 2
    )


def what_moves(net, x, target, attention, mlp):
    """{parameter: what it is to descend, by its own part's rule, None if that is "frozen"}."""
    p, found = net.parameters, net.answers(x)
    error = (found["scores"].detach().softmax(2) - F.one_hot(target, V)) / target.numel()
    by_gradient = by_modules(net, x, target)[1]
    parts = {name: mlp if name.endswith(("up", "down")) else attention for name in p} | {
        "scores": "backprop"
    }
    stream, by_telling = found["embedding"].detach(), {}
    places = torch.autograd.grad(found["embedding"], [p["embedding"], p["places"]], told(error, C))
    by_telling |= dict(zip(("embedding", "places"), places, strict=True))
    for n in range(LAYERS):  # each part alone, from what it was given
        block = Block(p, n)
        y, mask = (
            block.norm(stream),
            nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64),
        )
        answer = block.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        answer.backward(told(error, C))
        by_telling[f"{n}.ask"] = block.attention.in_proj_weight.grad.T
        by_telling[f"{n}.answer"] = block.attention.out_proj.weight.grad.T
        given = block.norm(stream + answer.detach())
        wide = (given @ p[f"{n}.up"].detach()).relu()
        by_telling[f"{n}.up"] = torch.einsum("bti,bto->io", given, told(error, 4 * C) * (wide > 0))
        by_telling[f"{n}.down"] = torch.einsum("bti,bto->io", wide, told(error, C))
        stream = stream + answer.detach() + wide @ p[f"{n}.down"].detach()
    of_rule = {"backprop": by_gradient, "broadcast": by_telling}
    return {name: of_rule[rule][name] if rule in of_rule else None for name, rule in parts.items()}


@pytest.mark.oracle
@pytest.mark.parametrize("attention", RULES)
@pytest.mark.parametrize("mlp", RULES)
def test_each_part_is_moved_by_its_own_rule_whatever_the_others_and_what_is_frozen_stays(
    attention, mlp
):
    net, (x, target) = network(attention, mlp), batch()
    wanted, before = what_moves(net, x, target, attention, mlp), copy.deepcopy(net.parameters)
    net.step(x, target)
    for name, grad in wanted.items():
        found = net.parameters[name]
        assert torch.equal(found, before[name]) == (grad is None) == (found.grad is None), name
        if grad is not None:
            torch.testing.assert_close(found.grad, grad, rtol=0, atol=1e-12, msg=name)


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
    assert language.held_out_loss(model, numbers) == pytest.approx(expected, rel=1e-5)
    first = F.cross_entropy(scores[0], numbers[1:7]).item()
    assert language.held_out_loss(model, numbers, places=1) == pytest.approx(first, rel=1e-5)
