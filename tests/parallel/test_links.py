"""The cost model against the textbook's formulas, and the fit against links that are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ed_lib.parallel import links

ALPHA, BETA = 5e-5, 1e-9


@pytest.mark.oracle
@given(st.integers(1, 64), st.integers(0, 10**9))
def test_a_ring_costs_what_the_textbook_says(p, n):
    ring = 2 * (p - 1) * ALPHA + 2 * (p - 1) / p * n * BETA
    assert links.all_reduce_seconds(n, p, links.Link(ALPHA, BETA)) == pytest.approx(ring)


@pytest.mark.oracle
def test_two_levels_send_between_nodes_only_a_share_of_the_bytes():
    n, inside, between = 10**9, links.Link(0, 1e-12), links.Link(0, 1e-11)
    by_hand = 2 * 7 / 8 * n * 1e-12 + 2 * 3 / 4 * n / 8 * 1e-11
    assert links.two_levels(n, 4, 8, inside, between) == pytest.approx(by_hand)
    assert by_hand < links.all_reduce_seconds(n, 32, between) / 4
    assert links.two_levels(n, 1, 8, inside, between) == links.all_reduce_seconds(n, 8, inside)


@pytest.mark.oracle
@given(st.floats(1e-7, 1e-2), st.floats(1e-12, 1e-6))
def test_a_link_is_found_again_from_the_times_of_its_messages(alpha, beta):
    sizes = [0, 1000, 10**5, 10**7]
    link = links.Link(alpha, beta)
    found = links.fit_link(sizes, [link.seconds(n) for n in sizes])
    assert found.alpha == pytest.approx(alpha, rel=1e-6) and found.beta == pytest.approx(
        beta, rel=1e-6
    )


@pytest.mark.oracle
def test_a_fit_minimises_relative_errors_and_allows_no_negative_latency():
    rng, sizes = np.random.default_rng(0), np.array([0, 10**3, 10**5, 10**6, 10**7])
    seconds = (ALPHA + sizes * BETA) * rng.uniform(0.9, 1.1, 5)
    found = links.fit_link(sizes, seconds)

    def loss(alpha, beta):
        return np.sum(((alpha + sizes * beta) / seconds - 1) ** 2)

    least = loss(found.alpha, found.beta)
    for a, b in ((1.01, 1), (0.99, 1), (1, 1.01), (1, 0.99)):
        assert loss(a * found.alpha, b * found.beta) > least
    assert links.fit_link([10, 20], [1e-6, 9e-6]).alpha == 0
