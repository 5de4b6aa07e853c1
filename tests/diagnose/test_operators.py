"""Calls become operators, each with its floor, by prices that are made up; and what a machine's
prices are.
"""

import pytest
import torch

from ed_lib import roofline
from ed_lib.diagnose import machine_costs, operators
from ed_lib.diagnose.machine_costs import Memory
from ed_lib.diagnose.watching import Touch
from tests.diagnose.made_up import COSTS, call, prices

MS = 1e-3
MILLION = 1_000_000


def test_calls_of_one_operator_in_one_phase_and_format_are_one():
    calls = [
        call("mm", bytes=10, flops=20, seconds=3 * MS, place="a.py:1"),
        call("mm", bytes=30, flops=40, seconds=4 * MS, place="a.py:2"),
        call("mm", phase="backward", seconds=1 * MS),
        call("mm", dtype="bfloat16", seconds=2 * MS),
    ]
    one, two, three = operators.grouped(calls, prices())
    assert (one.phase, one.name, one.dtype, one.calls) == ("forward", "mm", "float32", 2)
    assert (one.bytes, one.flops, one.seconds) == (40, 60, pytest.approx(7 * MS))
    assert one.place == "a.py:2", "the line that took longest"
    assert (two.dtype, three.phase) == ("bfloat16", "backward")


def test_each_call_waits_for_its_bytes_or_for_its_flops():
    """Two calls of one operator: 3 ms for bytes and 1 for FLOPs, then 1 for bytes and 2 for FLOPs."""
    calls = [
        call("mm", bytes=3 * MILLION, flops=1 * MILLION, seconds=4 * MS),
        call("mm", bytes=1 * MILLION, flops=2 * MILLION, seconds=4 * MS),
    ]
    (one,) = operators.grouped(calls, prices())
    assert (one.memory, one.arithmetic) == (pytest.approx(3 * MS), pytest.approx(2 * MS))
    assert one.floor == pytest.approx(5 * MS) and one.above == pytest.approx(3 * MS)


def test_an_operator_below_its_floor_is_nothing_above_it():
    (one,) = operators.grouped([call("mul", bytes=9 * MILLION, seconds=MS)], prices())
    assert one.above == 0


def test_a_copy_between_host_and_device_and_a_message_are_told_apart():
    calls = [call("copy_", moves_between=True), call("mul"), call("c10d::allreduce_")]
    found = {one.name: (one.copies, one.sends) for one in operators.grouped(calls, prices())}
    assert found == {
        "copy_": (True, False),
        "mul": (False, False),
        "c10d::allreduce_": (False, True),
    }


def test_a_calls_own_time_is_without_what_any_call_takes():
    calls = [call(seconds=MS), call()]
    calls[1].seconds = COSTS.watched / 2
    prices().set_own(calls)
    assert [each.own for each in calls] == [pytest.approx(MS), 0.0]


def test_times_longer_than_the_step_become_shorter_alike():
    calls = [call("mm", seconds=3 * MS), call("add", seconds=1 * MS)]
    found = operators.grouped(calls, prices())
    operators.shorten(found, calls, at_most=5 * MS)
    assert [one.seconds for one in found] == pytest.approx([3 * MS, 1 * MS])
    operators.shorten(found, calls, at_most=2 * MS)
    assert [one.seconds for one in found] == pytest.approx([1.5 * MS, 0.5 * MS])
    assert [each.own for each in calls] == pytest.approx([1.5 * MS, 0.5 * MS])


def test_a_format_that_was_not_measured_has_float32s_rate(monkeypatch):
    """And 16 bits no less than float32's: what a processor has no products for it converts."""
    rates = {"float32": 4.0, "bfloat16": 1.0, "float16": 9.0, "float64": 2.0}

    def ceilings(device, dtype="float32", *, threads=None):
        assert (device, threads) == ("cpu", 3)
        return roofline.Ceilings("a machine", dtype, bandwidth=1.0, rate=rates[dtype])

    monkeypatch.setattr(roofline, "ceilings", ceilings)
    price = operators.Prices("cpu", 3)
    found = {dtype: price.rate(dtype) for dtype in (*rates, "int64", "complex64")}
    assert found == rates | {"bfloat16": 4.0, "int64": 4.0, "complex64": 4.0}


def test_bytes_come_from_the_smallest_cache_that_holds_what_has_moved_since():
    memory = Memory(((100, 8.0), (1000, 4.0)), bandwidth=2.0)
    speeds = {0: 8.0, 100: 8.0, 101: 4.0, 1000: 4.0, 1001: 2.0, None: 2.0}
    assert {distance: memory.speed(distance) for distance in speeds} == speeds
    one = call()
    one.touches = [Touch(16, 50), Touch(16, 500), Touch(16, 5000), Touch(16, None)]
    assert memory.seconds(one) == 16 / 8 + 16 / 4 + 16 / 2 + 16 / 2


def test_a_smaller_working_set_is_never_slower(monkeypatch):
    """Whatever was measured: here the second smallest set was disturbed, and the largest was slower
    than memory.
    """
    sizes = machine_costs.WORKING_SETS
    speeds = dict(zip(sizes, (10e9, 1e9, 6e9, 3e9, 1e9), strict=True))

    def fastest(copy, seconds, device):
        (y,) = (each for each in copy.__defaults__ if each.data_ptr() == copy().data_ptr())
        size = 8 * y.numel()
        return size / speeds[size]

    roof = roofline.Ceilings("a machine", "float32", bandwidth=2e9, rate=1.0)
    monkeypatch.setattr(roofline, "ceilings", lambda device, threads: roof)
    monkeypatch.setattr(roofline, "fastest", fastest)
    monkeypatch.setattr(machine_costs, "call_costs", lambda *_: machine_costs.CallCosts(0, 0, 0))
    found = machine_costs.memory.__wrapped__("cpu", 1)
    assert found.bandwidth == 2e9
    assert [size for size, _ in found.cached] == list(sizes)
    assert [speed for _, speed in found.cached] == pytest.approx([10e9, 6e9, 6e9, 3e9, 2e9])


def test_what_a_call_costs_is_measured_in_three_ways(monkeypatch):
    monkeypatch.setattr(machine_costs, "CALLS", 80)
    threads = torch.get_num_threads()
    costs = machine_costs.call_costs.__wrapped__("cpu", threads)
    assert 0 < costs.plain <= costs.differentiated
    assert costs.watched > 0
