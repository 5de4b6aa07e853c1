"""All-reduce and its parts against torch.distributed, bit by bit, with messages and bytes counted."""

import pytest

from ed_lib.parallel import collectives, launch, links
from ed_lib.parallel.collectives import Traffic
from tests.parallel import ranks


@pytest.fixture(scope="module")
def found():
    """What each of eight ranks found while it checked the results."""
    return launch(ranks.check_collectives, 8, timeout=300.0)


@pytest.fixture(scope="module")
def traffic(found):
    """{(p, algorithm, n): the traffic of each rank}."""
    keys = {key for one, _ in found for key in one}
    return {key: [one[key] for one, _ in found if key in one] for key in keys}


@pytest.mark.oracle
def test_every_algorithm_is_right_in_every_group_and_was_counted(traffic):
    assert set(traffic) == {
        (p, a, n)
        for p in ranks.GROUPS
        for a in collectives.ALGORITHMS
        for n in ranks.LENGTHS + (101,) * (p == 5)
    }
    assert all(len(each) == key[0] for key, each in traffic.items())


def test_the_counted_traffic_is_that_of_the_formulas(traffic):
    for (p, algorithm, n), each in traffic.items():
        total = sum(each, Traffic())
        assert total.bytes == 2 * (p - 1) * 4 * n, (p, algorithm, n)
        if n >= p:
            assert total.messages == links.counts(algorithm, p)[2], (p, algorithm, n)


@pytest.mark.oracle
def test_each_rank_of_a_ring_sends_2_p_minus_1_over_p_of_the_bytes(traffic):
    for p in ranks.GROUPS:
        bytes = 840 * 4
        assert traffic[p, "ring", 840] == [Traffic(2 * (p - 1), 2 * (p - 1) * bytes // p)] * p
        assert links.counts("ring", p)[1] * bytes == pytest.approx(2 * (p - 1) * bytes / p)


@pytest.mark.oracle
def test_the_busiest_rank_of_each_algorithm_is_that_of_its_cost(traffic):
    """The cost formulas count the messages on the longest path; a power of two makes them plain."""
    for p in (2, 4, 8):
        levels = p.bit_length() - 1
        most = {a: max(t.bytes for t in traffic[p, a, 840]) / (840 * 4) for a in collectives.ALGORITHMS}
        assert most["naive"] == p - 1  # rank 0 sends the sum to each, after it has received as much
        assert most["tree"] == levels  # rank 0 sends to log₂ p others
        assert most["ring"] == pytest.approx(2 * (p - 1) / p)
        assert most["halving_doubling"] == pytest.approx(2 * (p - 1) / p)
        assert traffic[p, "halving_doubling", 840][0].messages == 2 * levels


def test_ranks_that_call_different_things_all_get_an_error_and_none_hangs(found):
    for _, messages in found[:3]:
        for text in ("float32 (3,)", "(4,)", "float64", "tree"):
            assert any(text in message for message in messages[:4]), text
        assert all("the ranks call different things" in message for message in messages[:4])
        assert messages[4:] == [
            "TypeError: tensor has the dtype torch.bool; wanted integers or floats",
            "ValueError: algorithm is 'fastest'; wanted one of 'naive', 'tree', 'ring', 'halving_doubling'",
            "TypeError: tensor is a list; wanted a torch.Tensor",
        ]
