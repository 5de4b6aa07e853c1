"""The deep network that only a record needs, against EDNetwork and autograd; and the search for a
rate.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.shared import grid, harness
from benchmarks.shared.networks import RULES, Residual
from ed_lib.ed import EDNetwork

INPUTS, W, D = 5, 4, 3


def example(n=6, depth=D, seed=0, **options):
    """A deep network after three steps, and n samples with their targets."""
    rng, net = (
        np.random.default_rng(seed),
        Residual(INPUTS, W, depth, dtype="float64", seed=seed, **options),
    )
    x, target = net.asarray(rng.normal(size=(n, INPUTS))), net.asarray(rng.integers(0, 2, (n, 1)))
    for _ in range(3):
        net.step(x, target)
    return net, x, target


def directions(net, x, target):
    """Of the parameters, in the network's order, by its own step."""
    found = {
        name: p for name, p in net.parameters.items() if p.numel()
    }  # at depth 0 none between hidden layers
    return zip(
        found, torch.autograd.grad(-net.loss(net.forward(x), target), found.values()), strict=True
    )


def run(net, x, p):
    """The outputs by the formula, from other parameters, for autograd."""
    sigma = lambda v: torch.sigmoid(v * 2 / net.u0)  # noqa: E731
    z = sigma(x @ p["input.weight"] + p["input.bias"]) - net.inhibitory
    for weight, bias in zip(p["hidden.weight"], p["hidden.bias"], strict=True):
        z = z + (sigma(z @ weight + bias) - net.inhibitory) / len(p["hidden.weight"]) ** 0.5
    return sigma(z @ p["output.weight"] + p["output.bias"])


def test_its_first_layer_is_that_of_an_ed_network():
    mine = Residual(INPUTS, W, D, seed=3, dtype="float64")
    ed = EDNetwork(INPUTS, W, D, init="fan_in", seed=3, dtype="float64")
    x = np.random.default_rng(0).random((6, INPUTS))
    mine.forward(mine.asarray(x)), ed.forward(x)
    turned = np.abs(
        mine.inhibitory.numpy() - mine.y[0].detach().numpy()
    )  # of inhibitory cells 1 − y
    np.testing.assert_allclose(turned, ed.states[0, 0], atol=1e-14)


@pytest.mark.oracle
@pytest.mark.parametrize("loss", RULES[1:])
@pytest.mark.parametrize("size", [1, 2, 6])  # a batch of one hides whatever differs by sample
@pytest.mark.parametrize("depth", [0, 1, D])
def test_backpropagation_is_the_gradient_of_its_loss(depth, size, loss):
    net, x, target = example(size, depth, rule=loss)
    leaf = {name: p.detach().clone().requires_grad_() for name, p in net.parameters.items()}
    output = run(net, x, leaf)
    torch.testing.assert_close(output, net.forward(x), rtol=0, atol=1e-14)
    squared = ((target - output) ** 2).mean() / 2
    (squared if loss == "squared" else F.binary_cross_entropy(output, target)).backward()
    for name, found in directions(net, x, target):
        torch.testing.assert_close(found, -leaf[name].grad, rtol=1e-10, atol=1e-15)


@pytest.mark.oracle
@given(st.integers(0, 4), st.integers(0, 10**6))
def test_the_output_grows_with_every_cell_and_one_samples_ed_direction_has_the_gradients_signs(
    depth, seed
):
    net, x, target = example(1, depth, seed, rule="ed")
    leaf = {name: p.detach().clone().requires_grad_() for name, p in net.parameters.items()}
    ((target - run(net, x, leaf)) ** 2).sum().backward()
    for name, ed in directions(net, x, target):
        assert (ed * leaf[name].grad <= 0).all()


@pytest.mark.oracle
def test_eds_direction_against_loops():
    net, x, target = example(4, 2, rule="ed")
    error, z = target - net.forward(x), 0
    given_, y = [x], [*(one.detach() for one in net.y), net.forward(x)]
    for n, own in enumerate(y[:-1]):
        z = z + (own - net.inhibitory) / (2**0.5 if n else 1)
        given_.append(z)
    found = dict(directions(net, x, target))
    layers = [found["input.weight"], *found["hidden.weight"], found["output.weight"]]
    for direction, sent, own in zip(layers, given_, y, strict=True):
        wanted = torch.zeros_like(direction)
        for b, i, o in np.ndindex(4, *wanted.shape):
            wanted[i, o] += error[b, 0] * own[b, o] * (1 - own[b, o]) * sent[b, i] / 4
        torch.testing.assert_close(direction, wanted, rtol=1e-10, atol=1e-15)


def test_a_frozen_stack_stays_and_weights_keep_their_sign():
    net, _, _ = example(stack=False)
    start = Residual(INPUTS, W, D, dtype="float64")
    assert torch.equal(net.parameters["hidden.weight"], start.parameters["hidden.weight"])
    assert not torch.equal(net.parameters["input.weight"], start.parameters["input.weight"])
    net, _, _ = example(rate=0.5)
    assert all((net.parameters[f"{name}.weight"] >= 0).all() for name in ("hidden", "output"))


LADDER = grid.LADDER


@given(st.integers(0, len(LADDER) - 1), st.integers(0, len(LADDER) - 3))
def test_a_grid_grows_until_its_best_is_inside(best, start):
    tried = []

    def reach(rates):
        tried.extend(rates)
        return [-abs(LADDER.index(rate) - best) for rate in rates]

    scores = grid.widened(reach, LADDER[start : start + 3])
    none = grid.widened(lambda rates: [0.5] * len(rates), LADDER[3:6])
    assert none == dict.fromkeys(LADDER, 0.5), "where none learns, all"
    assert list(scores) == sorted(scores) and len(tried) == len(set(tried)) == len(scores)
    rate, edge = grid.inner(scores)
    assert rate == LADDER[best] and edge == (best in (0, len(LADDER) - 1))
    worst = grid.widened(
        lambda rates: [-one for one in reach(rates)], LADDER[start : start + 3], min
    )
    assert grid.inner(worst, min)[0] == LADDER[best]


@pytest.mark.parametrize("scores, found", [
    ({1: 5.0, 2: 4.0, 3: 3.0}, (1, True)), ({1: 3.0, 2: 4.0, 3: 5.0}, (3, True)),
    ({1: 3.0, 2: 5.0, 3: 4.0}, (2, False)), ({1: 3.0, 2: 5.0, 3: 5.0, 4: 5.0, 5: 4.0}, (3, False)),
    ({1: 5.0, 2: 5.0, 3: 3.0}, (1, True)), ({1: 5.0, 2: 5.0, 3: 5.0}, (2, True)), ({1: 0.5}, (1, False)),
])  # fmt: skip
def test_a_best_rate_at_an_edge_is_told(scores, found):
    assert grid.inner(scores) == found


def square(x, rate, seed, searching, add, size):
    score = (rate - x) ** 2 + add * seed if rate < 5 else float("nan")
    return {"seconds": 1.0, "score": score, "searching": searching}


def test_a_rate_is_searched_by_one_run_each_and_taken_by_every_seed():
    options = {"score": "score", "best": min, "ladder": (1, 2, 3, 4, 5), "add": 10}
    rows = grid.search(
        square, [{"x": 1}, {"x": 4}], (2, 3), harness.Size(seeds=2, workers=1), **options
    )
    keys = "x", "rate", "score", "searching", "rates", "kept", "n", "edge"
    assert [tuple(row[key] for key in keys) for row in rows] == [
        (1, 1, [0, 10], [False, False], [1, 2, 3], [0, 1, 4], 2, True),
        (4, 4, [0, 10], [False, False], [2, 3, 4, 5], [4, 1, 0, float("inf")], 2, False),
    ]
