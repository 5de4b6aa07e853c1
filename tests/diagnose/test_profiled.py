"""What the profiler's clock tells of a device and of messages, on events that are made up, and sets
of moments with known lengths.
"""

from itertools import pairwise
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch.autograd import DeviceType

from ed_lib.diagnose import intervals, profiled
from ed_lib.diagnose.profiled import Profiled

MICRO = 1e-6


def event(name, start, end, *, parent=None, device=DeviceType.CPU, marks=False, **more):
    """As the profiler has it; moments in microseconds."""
    return SimpleNamespace(
        name=name,
        time_range=SimpleNamespace(start=start, end=end),
        cpu_parent=parent,
        device_type=device,
        is_user_annotation=marks,
        cpu_time_total=end - start,
        **more,
    )


def kernel(name, start, end, **more):
    return event(name, start, end, device=DeviceType.CUDA, **more)


def of_the_device(events):
    found = Profiled()
    profiled.of_the_device(found, [e for e in events if e.device_type != DeviceType.CPU], events)
    return found


def test_kernels_are_busy_once_though_they_overlap():
    found = of_the_device([kernel("a", 0, 10), kernel("b", 5, 15), kernel("c", 20, 30)])
    assert found.busy == pytest.approx(25 * MICRO)
    assert found.span == pytest.approx(30 * MICRO)
    assert found.kernels == 3
    assert found.after_waits == found.messages == 0


def test_a_gap_after_a_wait_of_the_host_is_idle_time_of_it():
    """The host waited from 5 to 12, so from 10 to 20 there was no work; the other gap has no
    wait.
    """
    events = [kernel("a", 0, 10), kernel("b", 20, 30), kernel("c", 37, 40)]
    waits = [event("cudaStreamSynchronize", 5, 12)]
    assert of_the_device(events + waits).after_waits == pytest.approx(10 * MICRO)
    waits += [event("cudaDeviceSynchronize", 29, 31)]
    assert of_the_device(events + waits).after_waits == pytest.approx((10 + 7) * MICRO)


@pytest.mark.parametrize(
    "wait",
    [
        ("cudaStreamSynchronize", 2, 8),
        ("cudaStreamSynchronize", 40, 50),
        ("cudaLaunchKernel", 5, 12),
    ],
    ids=["while busy", "after the last", "no wait"],
)
def test_a_wait_that_left_no_gap_costs_nothing(wait):
    events = [kernel("a", 0, 10), kernel("b", 20, 30), event(*wait)]
    assert of_the_device(events).after_waits == 0


def test_messages_count_where_nothing_else_runs():
    """NCCL's kernel runs from 5 to 25, beside others until 10 and from 20."""
    found = of_the_device(
        [kernel("a", 0, 10), kernel("ncclDevKernel_AllReduce", 5, 25), kernel("b", 20, 30)]
    )
    assert found.messages == pytest.approx(10 * MICRO)
    assert found.busy == pytest.approx(20 * MICRO)
    assert found.span == pytest.approx(30 * MICRO)


def test_a_mark_of_the_user_is_no_kernel():
    found = of_the_device([kernel("Optimizer.step", 0, 99, marks=True), kernel("a", 10, 20)])
    assert (found.kernels, found.busy) == (1, pytest.approx(10 * MICRO))
    assert found.span == pytest.approx(10 * MICRO)


def test_a_mark_of_a_message_is_no_message():
    events = [kernel("nccl:all_reduce", 0, 99, marks=True), kernel("a", 10, 20)]
    assert of_the_device(events).messages == 0


def test_a_step_without_kernels_has_no_span():
    found = of_the_device([kernel("Optimizer.step", 0, 99, marks=True)])
    assert (found.kernels, found.span, found.busy) == (0, 0, 0)


@pytest.mark.parametrize("on_gpu, wanted", [(False, 30), (True, 7)])
def test_an_operators_time_has_what_it_calls_inside(on_gpu, wanted):
    linear = event("aten::linear", 0, 50, device_time_total=12)
    copied = event("aten::copy_", 0, 5, parent=linear, device_time_total=4)
    product = event("aten::addmm", 10, 40, parent=linear, device_time_total=7)
    inside = event("aten::copy_", 10, 15, parent=product, device_time_total=2)
    found = profiled.of_operators([linear, copied, product, inside], {"addmm", "copy_"}, on_gpu)
    assert found["addmm"] == pytest.approx(wanted * MICRO)
    assert found["copy_"] == pytest.approx((4 if on_gpu else 5) * MICRO)  # not the one inside
    assert set(found) == {"addmm", "copy_"}


def test_an_operator_of_another_library_has_its_own_name():
    events = [event("ours::cell", 0, 5), event("ours::cell", 10, 12)]
    assert profiled.of_operators(events, {"ours::cell"}, False) == {
        "ours::cell": pytest.approx(7e-6)
    }


def test_a_profiled_step_on_a_processor_tells_its_operators(monkeypatch):
    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")
    x = torch.ones(64, 64)
    found = profiled.profiled(lambda: (x @ x).relu(), {"mm", "relu"}, "cpu")
    assert found.operators.keys() == {"mm", "relu"} and min(found.operators.values()) > 0
    assert found.compiled is None and found.messages == found.span == found.kernels == 0


SETS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda t: (t[0], t[0] + t[1])), max_size=8
)


def moments(found):
    """Which units of time belong to a set, asked one by one."""
    there = np.zeros(60, bool)
    for start, end in found:
        there[start:end] = True
    return there


@given(SETS, SETS)
def test_lengths_are_those_of_moments_asked_one_by_one(one, other):
    assert intervals.length(one) == moments(one).sum()
    assert intervals.without(one, other) == (moments(one) & ~moments(other)).sum()
    assert (moments(intervals.merged(one)) == moments(one)).all()
    row = intervals.merged(one)
    ends = [(left[1], right[0]) for left, right in pairwise(row)]
    assert all(left < right for left, right in ends) and intervals.gaps(one) == ends


def test_moments_in_any_order_and_within_each_other():
    assert intervals.merged([(5, 6), (0, 3), (1, 2), (3, 4)]) == [(0, 4), (5, 6)]
    assert intervals.gaps([(5, 6), (0, 3), (1, 2), (3, 4)]) == [(4, 5)]
    assert intervals.length([]) == intervals.without([], [(0, 1)]) == 0
    assert intervals.merged([]) == intervals.gaps([]) == []
