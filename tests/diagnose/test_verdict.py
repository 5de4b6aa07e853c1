"""How a step's time is divided, on made-up measurements whose sums are known."""

import pytest

from ed_lib.diagnose import verdict
from ed_lib.diagnose.profiled import Profiled
from tests.diagnose.made_up import COSTS, MICRO, RATES, call, measured

MS = 1e-3
# One kernel of a millisecond at its floor, on a machine of 1 GB/s and 1 GFLOP/s
TRAFFIC = call("mul", bytes=1_000_000, seconds=MS)
PRODUCT = call("mm", flops=1_000_000, seconds=MS)
SLOW = call("gather", bytes=10_000, seconds=MS)
COPY = call("copy_", bytes=0, seconds=MS, moves_between=True)
SENT = call("c10d::allreduce_", seconds=MS)
QUICK = [call("neg") for _ in range(100)]
PYTHON = call("neg", outside=2 * MS)
# A thousand pages: a millisecond to hand them out, half of one to take them back
PAGED = call("mul", bytes=1_000_000, seconds=3 * MS, pages=1000, outside=0.7 * MS)

CASES = {
    # part: (seconds of the step, calls, what else was measured, seconds of the part)
    verdict.DATA: (3 * MS, [TRAFFIC], {"waited": 2 * MS}, 2 * MS),
    verdict.COPIES: (1 * MS, [COPY], {}, 1 * MS),
    verdict.CALLS: (1 * MS, QUICK, {}, 1 * MS),
    verdict.MEMORY: (1 * MS, [TRAFFIC], {}, 1 * MS),
    verdict.ARITHMETIC: (1 * MS, [PRODUCT], {}, 1 * MS),
    verdict.FRESH: (3.5 * MS, [PAGED], {}, 1.5 * MS),
    verdict.ABOVE: (1 * MS, [SLOW], {}, 0.99 * MS),
    verdict.RANKS: (1 * MS, [SENT], {}, 1 * MS),
    verdict.OUTSIDE: (2 * MS, [PYTHON], {}, 2 * MS),
    verdict.REST: (1 * MS, [call("neg")], {}, 0.98 * MS),
    verdict.SYNCHRONISATION: (
        4 * MS,
        [TRAFFIC],
        {"device": "cuda:0", "profile": Profiled(span=8 * MS, after_waits=6 * MS)},
        3 * MS,
    ),
}


def test_every_part_has_its_case():
    assert set(CASES) == set(verdict.PARTS)


@pytest.mark.parametrize("part", CASES)
def test_each_part_can_be_the_verdict(part):
    seconds, calls, more, wanted = CASES[part]
    found = measured(seconds, calls, **more)
    assert verdict.verdict(found.parts) == part
    assert found.parts[part] == pytest.approx(wanted)
    assert sum(found.parts.values()) == pytest.approx(seconds)
    assert list(found.parts) == list(verdict.PARTS)


@pytest.mark.parametrize("waited", [0.0, 1 * MS, 7 * MS])
@pytest.mark.parametrize("seconds", [2 * MS, 9 * MS])
@pytest.mark.parametrize("calls", [[], [TRAFFIC], [TRAFFIC, PRODUCT, SLOW, COPY, SENT, *QUICK]])
def test_the_parts_add_up_whatever_was_measured(seconds, waited, calls):
    """Also where the parts were longer than the whole: what is watched is slower."""
    parts = measured(seconds, [*calls, PYTHON], waited=waited).parts
    assert sum(parts.values()) == pytest.approx(seconds)
    assert min(parts.values()) >= 0


def test_two_parts_that_are_about_equal_are_both_named():
    parts = measured(2 * MS, [TRAFFIC, PRODUCT]).parts
    assert parts[verdict.MEMORY] == pytest.approx(MS)
    assert parts[verdict.ARITHMETIC] == pytest.approx(MS)
    assert verdict.verdict(parts) == "memory traffic and arithmetic"


@pytest.mark.parametrize(
    "second, wanted",
    [(0.79, "data"), (0.81, "data and calls"), (1.0, "data and calls"), (1.3, "calls")],
)
def test_the_second_is_named_from_four_fifths_of_the_first_on(second, wanted):
    parts = dict.fromkeys(verdict.PARTS, 0.0) | {verdict.DATA: 1.0, verdict.CALLS: second}
    assert verdict.verdict(parts) == wanted


def test_a_kernel_faster_than_its_floor_is_no_longer_than_it_was():
    """Its data was nearer than was thought: all of its time is traffic, and no more than that."""
    parts = measured(1 * MS, [call("mul", bytes=4_000_000, seconds=MS)]).parts
    assert parts[verdict.MEMORY] == pytest.approx(1 * MS)


def test_bytes_of_a_cache_and_of_a_format_have_their_prices():
    product = call("mm", flops=1_000_000, seconds=MS, dtype="bfloat16")
    parts = measured(1 * MS, [product]).parts
    assert parts[verdict.ARITHMETIC] == pytest.approx(1_000_000 / RATES["bfloat16"])
    assert parts[verdict.ABOVE] == pytest.approx(MS - 1_000_000 / RATES["bfloat16"])


def test_calls_cost_no_more_than_calls_can():
    """100 calls at ten times what one costs by itself; what is left is not explained."""
    parts = measured(10 * MS, QUICK).parts
    assert parts[verdict.CALLS] == pytest.approx(100 * 10 * COSTS.differentiated)
    assert parts[verdict.REST] == pytest.approx(10 * MS - parts[verdict.CALLS])


def test_long_gaps_are_outside_pytorch():
    found = measured(1 * MS, [call("neg", outside=0.2 * MS), call("neg")], tail=0.3 * MS)
    assert found.outside == pytest.approx(0.5 * MS)
    assert found.parts[verdict.OUTSIDE] == pytest.approx(0.5 * MS)


def test_long_gaps_leave_the_calls_their_least():
    """The watcher saw 2 ms of gaps in a step of 1 ms, of which calls cost at least 0.3 ms."""
    parts = measured(1 * MS, [*QUICK, PYTHON], calling=0.3 * MS).parts
    assert parts[verdict.CALLS] == pytest.approx(0.3 * MS)
    assert parts[verdict.OUTSIDE] == pytest.approx(0.7 * MS)


def test_messages_that_the_profiler_saw_are_waits_for_other_ranks():
    found = measured(2 * MS, [SENT], profile=Profiled(messages=1.5 * MS))
    assert found.parts[verdict.RANKS] == pytest.approx(1.5 * MS)
    assert found.parts[verdict.ABOVE] == 0


def test_a_step_of_nothing_but_time_is_not_explained():
    parts = measured(5 * MICRO).parts
    assert verdict.verdict(parts) == verdict.REST
