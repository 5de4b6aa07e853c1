"""What the analysis says of a network, against plain loops, finite differences, and what can be proved."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ed_lib.ed import EDNetwork, analysis, rules
from ed_lib.ed.rivals import LOSSES

NAMES = ("input.weight", "hidden.weight", "output.weight")


def a_net(depth=2, k=2, **options):
    options = dict(init="fan_in", rule="signed", dtype="float64") | options
    return EDNetwork(5, 3, depth, k, **options)


def batch(rng, net, size=6):
    return rng.random((size, 5)), rng.integers(0, 2, (size, net.n_outputs)).astype(float)


def loss_of(net, state, x, target, loss):
    net.load_state_dict(state)
    out = net.forward(x)
    if loss == "squared":
        return ((target - out) ** 2).sum() / (2 * len(x))
    return -(target * np.log(out) + (1 - target) * np.log(1 - out)).sum() / len(x)


@pytest.mark.oracle
@pytest.mark.parametrize("loss, bias", [(LOSSES[0], "free"), (LOSSES[1], "cells")])
@pytest.mark.parametrize("depth", [0, 2])
def test_descent_is_minus_the_slope_of_the_loss(depth, loss, bias, rng):
    """Against finite differences, one weight at a time."""
    net = a_net(depth, bias=bias)
    x, target = batch(rng, net)
    state, (_, descent) = net.state_dict(), analysis.directions(net, x, target, loss)
    assert len(descent) == depth + 2
    for layer, found in enumerate(descent):
        name = NAMES[0 if layer == 0 else 2 if layer == depth + 1 else 1]
        values = state[name][layer - 1] if name == NAMES[1] else state[name]
        for place, wanted in np.ndenumerate(found):
            old = values[place]
            values[place] = old + 1e-5
            above = loss_of(net, state, x, target, loss)
            values[place] = old - 1e-5
            below = loss_of(net, state, x, target, loss)
            values[place] = old
            assert wanted == pytest.approx(-(above - below) / 2e-5, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("rule", rules.RULES)
@pytest.mark.parametrize("bias", ["free", "cells"])
def test_the_ed_direction_is_what_an_update_adds(rule, bias, rng):
    net = a_net(rule=rule, bias=bias, alpha=0.5)
    x, target = batch(rng, net)
    before, (ed, _) = net.state_dict(), analysis.directions(net, x, target)
    net.step(x, target)
    after = net.state_dict()
    steps = [after[n] - before[n] for n in NAMES]
    steps = [steps[0], *steps[1], steps[2][:, :1]]
    for found, step in zip(ed, steps, strict=True):
        np.testing.assert_allclose(0.5 * found, step, rtol=1e-9, atol=1e-14)


def test_a_network_in_single_precision_is_analysed_in_double(rng):
    net = a_net(dtype="float32", backend="torch")
    x, target = batch(rng, net)
    assert all(part.dtype == float for part in sum(analysis.directions(net, x, target), []))


@given(st.integers(0, 3), st.integers(1, 3), st.sampled_from(rules.RULES), st.integers(0, 10**6))
def test_for_one_sample_ed_never_points_against_the_gradient(depth, k, rule, seed):
    """The proof's claim: element by element, whatever the weights, as long as they have their signs."""
    net, rng = a_net(depth, k, rule=rule, seed=seed), np.random.default_rng(seed)
    for found in analysis.agreement(net, *batch(rng, net, size=1)):
        assert found.same_sign == 1 or (np.isnan(found.same_sign) and found.counted == 0)


@pytest.mark.oracle
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_with_one_hidden_layer_ed_is_cross_entropy_up_to_a_factor_for_each_cell(size, seed):
    net, rng = a_net(0, seed=seed), np.random.default_rng(seed)
    ed, descent = analysis.directions(net, *batch(rng, net, size), "cross_entropy")
    weight = np.abs(net.state_dict()["output.weight"][:, 0, :, :, 0])  # (K, 2, W)
    factor = (2 / net.u0) ** 2 * weight[:, :, None, None]  # (K, 2, 1, 1, W)
    np.testing.assert_allclose(descent[0], factor * ed[0], rtol=1e-9, atol=1e-15)


def test_two_samples_can_disagree():
    """The chapter's counterexample: the second output is wrong and saturated, so that its slope is small."""
    net = EDNetwork(1, 1, 0, rule="signed", dtype="float64")
    state = {name: np.zeros_like(value) for name, value in net.state_dict().items()}
    state["input.weight"][0, :, :, 0, 0] = [[2, -1], [2, -1]]
    state["input.bias"][0] = -0.5
    state["output.weight"][0, 0, :, 0, 0] = 1.6, -1.6
    state["output.bias"][0, 0] = 0.39
    net.load_state_dict(state)
    x, target = np.array([[0.4], [0.6]]), np.array([[1.0], [0.0]])
    np.testing.assert_allclose(net.forward(x)[:, 0], [0.5, 0.98], atol=0.01)
    (ed, _), (squared, _) = analysis.directions(net, x, target)
    _, (entropy, _) = analysis.directions(net, x, target, "cross_entropy")
    assert (ed < 0).all() and (squared > 0).all() and (entropy < 0).all()
    assert analysis.agreement(net, x, target)[0].same_sign == 0
    for one in (slice(0, 1), slice(1, 2)):  # alone, each agrees
        assert analysis.agreement(net, x[one], target[one])[0].same_sign == 1


@pytest.mark.oracle
def test_comparing_two_directions_by_hand():
    found = analysis.compare(np.array([1.0, -2.0, 3.0, 0.0, 1.0]), np.array([2.0, 1.0, 1.0, 5.0, 0.0]))
    assert found.same_sign == pytest.approx(2 / 3) and found.counted == pytest.approx(3 / 5)
    assert found.cosine == pytest.approx((2 - 2 + 3) / np.sqrt(15 * 31))
    tiny = analysis.compare(np.full(4, 1e-200), np.full(4, 3e-170))
    assert tiny.cosine == pytest.approx(1), "squares would underflow"
    nothing = analysis.compare(np.zeros(3), np.ones(3))
    assert np.isnan(nothing.same_sign) and np.isnan(nothing.cosine) and nothing.counted == 0


@pytest.mark.oracle
def test_adjoints_are_slopes_and_have_the_cells_signs(rng):
    net = a_net(2)
    x, _ = batch(rng, net, size=4)
    found = analysis.adjoints(net, x)  # (3, K, 2, B, W)
    assert found.shape == (3, 2, 2, 4, 3)
    assert (found[:, :, 0] > 0).all() and (found[:, :, 1] < 0).all()
    state = net.state_dict()

    def finish(y, start):  # y (K, 2, B, W): what hidden layer ``start`` answers → (K, B)
        for d in range(start, 2):
            y = rules.layer(y, state["hidden.weight"][d], state["hidden.bias"][d], net.u0)
        return rules.layer(y, state["output.weight"], state["output.bias"], net.u0)[:, 0, :, 0]

    for start, layer in enumerate(analysis.trace(net, x)[:-1]):
        y = layer.answered.detach().numpy()
        for k, q, b, o in np.ndindex(y.shape):
            up, down = y.copy(), y.copy()
            up[k, q, b, o] += 1e-6
            down[k, q, b, o] -= 1e-6
            slope = (finish(up, start) - finish(down, start))[k, b] / 2e-6
            assert found[start, k, q, b, o] == pytest.approx(slope, rel=1e-5, abs=1e-9)
