"""All-reduce and its parts against torch.distributed, bit by bit, with messages and bytes
counted.
"""

import pytest
import torch

from ed_lib.parallel import launch
from ed_lib.parallel.collectives import SUMMED, Traffic
from tests.parallel import ranks


@pytest.fixture(scope="module")
def found():
    """What each of eight ranks found."""
    return launch(ranks.collectives_in_groups, 8, timeout=300.0)


def every_case(found, what):
    """(rank, case, what the rank found) for each."""
    return [(rank, case, it) for rank, one in enumerate(found) for case, it in one[what].items()]


@pytest.fixture(scope="module")
def traffic(found):
    """{(p, n): the traffic of each rank}, of float32."""
    sent = {}
    for _, (p, n, dtype), (*_, traffic) in every_case(found, "sums"):
        if dtype == torch.float32:
            sent.setdefault((p, n), []).append(traffic)
    return sent


@pytest.mark.oracle
def test_a_ring_gives_torchs_bits_in_every_group_and_was_counted(found, traffic):
    for rank, case, (ours, right, _) in every_case(found, "sums"):
        assert ours.tolist() == right.tolist() and ours.dtype == right.dtype, (rank, case)
    assert {dtype for _, (p, _, dtype), _ in every_case(found, "sums") if p == 5} == set(SUMMED)
    assert set(traffic) == {(p, n) for p in ranks.GROUPS for n in ranks.LENGTHS + (101,) * (p == 5)}
    assert all(len(each) == key[0] for key, each in traffic.items())


@pytest.mark.oracle
def test_views_are_summed_and_nothing_beside_them_changes(found):
    """Floats that round: near torch's sum, the same bits on all ranks, as much sent as of
    contiguous tensors.
    """
    cases = every_case(found, "views")
    assert len(cases) == sum(ranks.GROUPS) * 2 + 3 * 2 * (len(ranks.VIEWS) - 1)
    for rank, case, (ours, right, of_all, sent, memory, wanted) in cases:
        where = f"rank {rank}, (p, view, every) {case}"
        torch.testing.assert_close(
            ours, right, rtol=1e-5, atol=1e-5, msg=lambda m, where=where: f"{where}: {m}"
        )
        for other, its in enumerate(of_all):
            assert its.tolist() == ours.tolist(), f"{where}: rank {other} has other bits"
        assert memory.tolist() == wanted.tolist(), f"{where}: changed beside the view"
        assert sent[0] == sent[1], where


@pytest.mark.oracle
def test_the_two_halves_of_a_ring_leave_what_they_should(found):
    for rank, (p, n), part in every_case(found, "scattered"):
        right = p * torch.arange(n) + 1000 * sum(range(p))
        assert part.tolist() == right.tensor_split(p)[rank].tolist(), (rank, p, n)
    for rank, (p, n), (whole, traffic) in every_case(found, "gathered"):
        parts = torch.arange(n).tensor_split(p)
        right = torch.cat([part + 1000 * owner for owner, part in enumerate(parts)])
        assert whole.tolist() == right.tolist(), (rank, p, n)
        if n % p == 0:
            assert traffic.bytes == (p - 1) * n // p * 8, (rank, p, n)


def test_rank_0s_values_are_copied_whatever_the_strides_and_the_dtype(found):
    base = torch.arange(24.0).view(4, 6)
    for rank, name, values in every_case(found, "copied"):
        wanted = ranks.COPIED[name](base).float()
        assert values.tolist() == wanted.tolist(), (rank, name)


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


DIFFER = (
    "float32 (3,)",
    "(4,)",
    "float64",
    "torch.sparse_coo",
    "torch.strided expanded",
    "all_reduce of a list",
)
WANTED = (
    "TypeError: tensor has the dtype torch.bool; wanted one of float64,",
    "TypeError: tensor has the dtype torch.uint16; wanted one of float64,",
    "TypeError: tensor has the dtype torch.float8_e4m3fn; wanted one of float64,",
    "TypeError: tensor is a list; wanted a torch.Tensor",
    "ValueError: tensor is expanded to (3,); wanted memory for every element",
    "TypeError: tensor has the layout torch.sparse_coo; wanted torch.strided",
    "ValueError: tensor is on meta; wanted it on cpu",
)


def test_ranks_that_call_different_things_or_the_same_wrong_one_all_get_an_error(found):
    """And none hangs: all sum what they are called with next."""
    for rank, one in enumerate(found[:3]):
        *messages, total = one["told"]
        assert len(messages) == len(DIFFER) + len(WANTED), messages
        for message, words in zip(messages[: len(DIFFER)], DIFFER, strict=True):
            assert words in message and "the ranks call different things" in message, rank
        for message, start in zip(messages[len(DIFFER) :], WANTED, strict=True):
            assert message.startswith(start), (rank, message)
        assert total == [3.0, 3.0, 3.0], rank
