"""Each way of teaching a transformer's parts against what it is said to be."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ed_lib.ed.language import RULES, EDTransformer
from tests.test_transformer import LAYERS, C, T, V, batch, by_modules, network
from tests.test_transformer import Block as OfModules


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
        block = OfModules(p, n)
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
    net, (x, target) = network(partial(EDTransformer, attention=attention, mlp=mlp)), batch()
    wanted, before = what_moves(net, x, target, attention, mlp), copy.deepcopy(net.parameters)
    net.step(x, target)
    for name, grad in wanted.items():
        found = net.parameters[name]
        assert torch.equal(found, before[name]) == (grad is None) == (found.grad is None), name
        if grad is not None:
            torch.testing.assert_close(
                found.grad, grad, rtol=0, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}"
            )
