"""Sweeps over all layers at once: what they answer is what a walk answers, however long it takes them."""

import numpy as np
import pytest

from ed_lib.ed import EDNetwork, layout, sweeps
from ed_lib.ed.sweeps import EFFORT, TOLERANCE, WALKED, Swept, settle
from tests.ed.test_network import assert_state

RNG = np.random.default_rng


def stack(depth, networks=1, batch=6, cells=8, seed=0, dtype="float64", scale=1.0):
    """states (D + 1, K, B, C), of which only the first count, weight and bias of a network that forgets."""
    rng = RNG(seed)
    states = rng.random((depth + 1, networks, batch, cells)).astype(dtype)
    weight = scale * rng.normal(size=(depth, networks, cells, cells)).astype(dtype) / np.sqrt(cells)
    return states, weight.astype(dtype), rng.normal(size=(depth, networks, 1, cells)).astype(dtype) / 2


def walked(states, weight, bias, u0):
    right = states.copy()
    layout.forward(right, weight, bias, u0)
    return right


def permutations(depth, cells=8, batch=6, seed=0):
    """A network that hands on each cell's state: cell i sends to one cell alone, with a gain that keeps
    states apart (u0 = 0.4: a weight of 2 around its threshold), so that the last layer still knows the first.
    """
    rng = RNG(seed)
    weight = np.stack([2 * np.eye(cells)[rng.permutation(cells)] for _ in range(depth)])[:, None]
    states = rng.random((depth + 1, 1, batch, cells))
    states[0] = states[0] > 0.5
    return states, weight, np.full((depth, 1, 1, cells), -1.0)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_after_k_sweeps_the_first_k_layers_are_exact_whatever_the_network(k):
    states, weight, bias = permutations(12)
    right, new = walked(states, weight, bias, 0.4), states.copy()
    for _ in range(k):
        old = new.copy()
        layout.fire(old[:-1], weight, bias, 0.4, out=new[1:])
    np.testing.assert_array_equal(new[: k + 1], right[: k + 1])
    assert np.abs(new[k + 1] - right[k + 1]).max() > 0.5  # and the next one is not


@pytest.mark.parametrize("first", [0, 5])
def test_what_is_settled_answers_itself_everywhere(first):
    """Whatever it began with: only what changed is swept again, and no layer is left that would answer
    otherwise. Two networks; one of them forgets at once, and a wrong guess in one layer costs one sweep more.
    """
    states, weight, bias = stack(40, networks=2, batch=3, scale=0.5)
    start = states.copy()
    layout.forward(states, weight, bias, 2.0)
    right, unsettled = states.copy(), states[:]
    assert settle(unsettled, weight, bias, 2.0, first) == (Swept(1, 40 - first, False), 40)
    np.testing.assert_array_equal(states, right)
    states[21] += 1  # one layer is wrong: its own sweep mends it, and the layer above is looked at again
    how, left = settle(states, weight, bias, 2.0, first)
    assert how.sweeps >= 2 and 40 - first < how.layers < 60 and left == 40
    np.testing.assert_allclose(states, right, atol=20 * TOLERANCE)
    states[first + 1 :] = start[first + 1 :]
    how, left = settle(states, weight, bias, 2.0, first)
    assert not how.walk and left == 40
    answers = np.empty_like(states[1:])
    layout.fire(states[:-1], weight, bias, 2.0, out=answers)
    assert np.abs(answers - states[1:]).max() <= TOLERANCE
    np.testing.assert_allclose(states, right, atol=20 * TOLERANCE)


def test_a_residual_is_no_error():
    """A network of gain 1.5 makes of 5e-7, which no sweep sees, a difference of a half at the top."""
    depth, u0 = 60, 0.4
    weight, bias = np.full((depth, 1, 1, 1), 1.5 * 2 * u0), np.full((depth, 1, 1, 1), -1.5 * u0)
    states = np.full((depth + 1, 1, 1, 1), 0.5)  # the fixed point, at which the slope is 1.5
    states[17:] += 5e-7
    layout.forward(states[17:], weight[17:], bias[17:], u0)
    how, unsettled = settle(states, weight, bias, u0, 16)
    assert unsettled == depth and 0 < how.residual <= TOLERANCE and not how.walk
    assert abs(states[-1] - walked(states, weight, bias, u0)[-1]) > 0.3


def swept(states, weight, bias, first, u0=0.4, atol=0.0):
    """Sweeps for a new batch → how it went, once it is known to have found what ``layout.forward`` finds."""
    states[0] = first
    right = walked(states, weight, bias, u0)
    how = sweeps.forward(states, weight, bias, u0)
    np.testing.assert_allclose(states, right, rtol=0, atol=atol)
    return how


@pytest.mark.parametrize("networks, dtype, tolerance", [(3, "float64", 5e-6), (1, "float32", 1e-5)])
def test_where_layers_forget_a_few_sweeps_do(networks, dtype, tolerance):
    states, *stacked = stack(60, networks, dtype=dtype, scale=0.5)
    states[...] = 0.5
    for seed in (1, 2):
        how = swept(states, *stacked, RNG(seed).random(states[0].shape), 2.0, tolerance)
        assert not how.walk and 1 <= how.sweeps <= 20
        assert 60 - WALKED <= how.layers <= EFFORT * 60


def test_where_layers_remember_what_is_new_travels_a_layer_a_sweep():
    """The guess, all states ½, is what a walk from ½ finds: only a front of one layer is wrong."""
    states, *stacked = permutations(WALKED + 30)
    states[...] = 0.5
    first = RNG(1).random(states[0].shape) > 0.5
    assert swept(states, *stacked, first)[:3] == (30, 30 + 29, False)


def test_where_the_guess_is_no_ones_states_the_walk_is_taken_and_is_exact():
    states, *stacked = permutations(WALKED + 30)
    for seed in (1, 2):
        states[WALKED:] = RNG(seed).random(states[WALKED:].shape)
        how = swept(states, *stacked, RNG(seed).random(states[0].shape) > 0.5)
        assert how[:3] == (27, sum(range(4, 31)), True)  # the next 3 would be more than 10 · 46


def test_samples_seen_before_are_found_again_in_any_order():
    """Even where layers remember: the states of the nearest sample are those of the same one."""
    states, *stacked = permutations(WALKED + 50)
    states[...] = 0.5
    assert swept(states, *stacked, np.eye(6, 8)).sweeps == 50
    assert swept(states, *stacked, np.eye(6, 8)[[3, 0, 5, 1, 1, 2]])[:3] == (1, 50, False)


def test_the_states_of_another_sample_are_not_taken_for_its_own():
    """They satisfy the equations of all layers but the first: a residual alone would prove nothing."""
    states, *stacked = permutations(WALKED + 50)
    states[...] = 0.5
    swept(states, *stacked, 0)
    assert swept(states, *stacked, np.eye(6, 8)).sweeps == 50  # as many as a walk has layers


@pytest.mark.parametrize("depth", [1, WALKED, WALKED + 1, WALKED + 3])
def test_few_layers(depth):
    states, *stacked = stack(depth)
    how = swept(states, *stacked, RNG(5).random(states[0].shape), atol=1e-12)
    assert (how.sweeps == 0) == (depth <= WALKED)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_deep_network_in_training_converges_in_a_few_sweeps(backend):
    """Two classes, the article's rule: after a step or two every batch follows orbits that it has seen."""
    rng, classes = RNG(0), RNG(1).random((2, 40)) < 0.3
    options = dict(rule="signed", init="half_normal", alpha=0.8, seed=1)
    exact = EDNetwork(40, 16, 200, **options, dtype="float64", path="layers")
    net = EDNetwork(40, 16, 200, **options, backend=backend, path="sweeps")
    seen = []
    for _ in range(12):
        labels = rng.integers(0, 2, 32)
        x, target = classes[labels] * rng.random((32, 40)), labels[:, None].astype(float)
        right, found = exact.step(x, target), net.step(net.asarray(x), net.asarray(target))
        np.testing.assert_allclose(np.asarray(found), right, atol=1e-4)
        seen.append(net.swept)
    assert sum(one.sweeps <= 5 and one.layers < 1.1 * 200 for one in seen[-8:]) >= 6, seen
    assert_state(net, exact.state_dict(), rtol=1e-7, atol=1e-4)
