"""The rules against plain loops over single cells, written from Kaneko's formulas alone."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ed_lib.ed import rules

pytestmark = pytest.mark.oracle
SIGN = (1, -1)  # type 0 excites, type 1 inhibits


def sigma(u, u0):
    return 1 / (1 + math.exp(-2 * u / u0))


def loop_layer(x, weight, bias, u0):
    """x (K, 2, B, I), weight (K, 2, 2, I, O), bias (K, 2, 1, O), one cell after another."""
    k_n, _, b_n, i_n = x.shape
    y = np.zeros((k_n, 2, b_n, weight.shape[-1]))
    for k, p, b, o in np.ndindex(y.shape):
        total = bias[k, p, 0, o]
        for q in range(2):
            for i in range(i_n):
                total += x[k, q, b, i] * weight[k, p, q, i, o]
        y[k, p, b, o] = sigma(SIGN[p] * total, u0)
    return y


def loop_update(x, y, error, alpha, rule):
    """One weight after another; the batch's mean last."""
    k_n, _, b_n, i_n = x.shape
    dw = np.zeros((k_n, 2, 2, i_n, y.shape[-1]))
    for k, p, q, i, o in np.ndindex(dw.shape):
        for b in range(b_n):
            d = error[b, k]
            gain = d if rule == "signed" or (d > 0) == (q == 0) else 0.0
            dw[k, p, q, i, o] += (
                alpha * gain * y[k, p, b, o] * (1 - y[k, p, b, o]) * x[k, q, b, i] / b_n
            )
    return dw


sizes = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))


@given(size=sizes, seed=st.integers(0, 999))
def test_a_layer_equals_plain_loops(size, seed):
    k, b, i, o = size
    rng = np.random.default_rng(seed)
    layer = (
        rng.random((k, 2, b, i)),
        rng.normal(size=(k, 2, 2, i, o)),
        rng.normal(size=(k, 2, 1, o)),
    )
    np.testing.assert_allclose(rules.layer(*layer, 0.4), loop_layer(*layer, 0.4), rtol=1e-12)


@pytest.mark.parametrize("rule", rules.RULES)
@given(size=sizes, seed=st.integers(0, 999))
def test_an_update_equals_plain_loops_and_a_stack_is_updated_as_its_layers_are(rule, size, seed):
    k, b, i, o = size
    rng = np.random.default_rng(seed)
    x, y, error = (
        rng.random((2, k, 2, b, i)),
        rng.random((2, k, 2, b, o)),
        rng.uniform(-1, 1, (b, k)),
    )
    ours = rules.weight_update(x, y, error, 0.8, rule)  # of two layers
    wanted = [loop_update(*each, error, 0.8, rule) for each in zip(x, y, strict=True)]
    np.testing.assert_allclose(ours, wanted, rtol=1e-12, atol=1e-15)


def test_the_sigmoid_neither_overflows_nor_loses_its_symmetry():
    u = np.array([-1e30, -50.0, -1.0, 0.0, 1.0, 50.0, 1e30])
    with np.errstate(all="raise", under="ignore"):
        y = rules.sigmoid(u, 0.4)
    np.testing.assert_allclose(y[[2, 3, 4]], [sigma(-1, 0.4), 0.5, sigma(1, 0.4)], rtol=1e-15)
    np.testing.assert_allclose(y + y[::-1], 1, rtol=1e-15)
    assert 0 < y[1] < 1e-100  # e^-250: not rounded to 0, where 1 - y would have been
