"""All-reduce and its parts against torch.distributed, bit by bit, with messages and bytes
counted.
"""

import pytest

from ed_lib.parallel import launch
from ed_lib.parallel.collectives import Traffic
from tests.parallel import ranks


@pytest.fixture(scope="module")
def found():
    """What each of eight ranks found while it checked the results."""
    return launch(ranks.check_collectives, 8, timeout=300.0)


@pytest.fixture(scope="module")
def traffic(found):
    """{(p, n): the traffic of each rank}."""
    keys = {key for one, _ in found for key in one}
    return {key: [one[key] for one, _ in found if key in one] for key in keys}


@pytest.mark.oracle
def test_a_ring_is_right_in_every_group_and_was_counted(traffic):
    assert set(traffic) == {(p, n) for p in ranks.GROUPS for n in ranks.LENGTHS + (101,) * (p == 5)}
    assert all(len(each) == key[0] for key, each in traffic.items())


def test_the_counted_traffic_is_that_of_the_formulas(traffic):
    for (p, n), each in traffic.items():
        total = sum(each, Traffic())
        assert total.bytes == 2 * (p - 1) * 4 * n, (p, n)
        if n >= p:
            assert total.messages == 2 * p * (p - 1), (p, n)


@pytest.mark.oracle
def test_each_rank_of_a_ring_sends_2_p_minus_1_over_p_of_the_bytes(traffic):
    for p in ranks.GROUPS:
        assert traffic[p, 840] == [Traffic(2 * (p - 1), 2 * (p - 1) * 840 * 4 // p)] * p


def test_ranks_that_call_different_things_all_get_an_error_and_none_hangs(found):
    for _, messages in found[:3]:
        for text in ("float32 (3,)", "(4,)", "float64"):
            assert any(text in message for message in messages[:3]), text
        assert all("the ranks call different things" in message for message in messages[:3])
        assert messages[3:] == [
            "TypeError: tensor has the dtype torch.bool; wanted integers or floats",
            "TypeError: tensor is a list; wanted a torch.Tensor",
        ]
