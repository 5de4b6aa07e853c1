"""The cost model against the textbook's formulas, and the fit against links that are known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ed_lib.parallel import launch
from ed_lib.parallel.ranks import costs

ALPHA, BETA = 5e-5, 1e-9


@given(st.integers(1, 64), st.integers(0, 10**9))
def test_all_reduce_costs_what_the_textbook_says(p, n):
    link, log = costs.Link(ALPHA, BETA), math.ceil(math.log2(p))
    assert costs.all_reduce("naive", n, p, link) == pytest.approx(2 * (p - 1) * (ALPHA + n * BETA))
    assert costs.all_reduce("tree", n, p, link) == pytest.approx(2 * log * (ALPHA + n * BETA))
    ring = 2 * (p - 1) * ALPHA + 2 * (p - 1) / p * n * BETA
    assert costs.all_reduce("ring", n, p, link) == pytest.approx(ring)
    if p == 2**log:
        halving = 2 * log * ALPHA + 2 * (p - 1) / p * n * BETA
        assert costs.all_reduce("halving_doubling", n, p, link) == pytest.approx(halving)


@given(st.floats(1e-7, 1e-2), st.floats(1e-12, 1e-6))
def test_a_link_is_found_again_from_the_times_of_its_messages(alpha, beta):
    sizes = [0, 1000, 10**5, 10**7]
    link = costs.Link(alpha, beta)
    found = costs.fit(sizes, [link.seconds(n) for n in sizes])
    assert found.alpha == pytest.approx(alpha, rel=1e-6) and found.beta == pytest.approx(beta, rel=1e-6)


def test_a_fit_minimises_relative_errors_and_allows_no_negative_latency():
    rng, sizes = np.random.default_rng(0), np.array([0, 10**3, 10**5, 10**6, 10**7])
    seconds = (ALPHA + sizes * BETA) * rng.uniform(0.9, 1.1, 5)
    found = costs.fit(sizes, seconds)

    def loss(alpha, beta):
        return np.sum(((alpha + sizes * beta) / seconds - 1) ** 2)

    least = loss(found.alpha, found.beta)
    for a, b in ((1.01, 1), (0.99, 1), (1, 1.01), (1, 0.99)):
        assert loss(a * found.alpha, b * found.beta) > least
    assert costs.fit([10, 20], [1e-6, 9e-6]).alpha == 0


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: costs.all_reduce("smoke", 8, 2, costs.Link(ALPHA, BETA)), "algorithm is 'smoke'"),
        (lambda: costs.fit([8, 8], [1, 1]), "sizes is .*two different"),
        (lambda: costs.fit([8, 9], [1]), "seconds has the shape"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_both_ranks_measure_a_link():
    sizes = [0, 10**5, 4 * 10**6]
    for times in launch(costs.ping_pong, 2, sizes, 5, timeout=120.0):
        assert len(times) == 3 and all(t > 0 for t in times)
        assert costs.fit(sizes, times).beta > 0


def test_all_algorithms_are_timed_and_all_ranks_agree_on_the_times():
    first, second = launch(costs.time_all_reduces, 2, [0, 40_000], 3, timeout=120.0)
    assert first == second and set(first) == set(costs.ALGORITHMS)
    assert all(len(times) == 2 and min(times) > 0 for times in first.values())
