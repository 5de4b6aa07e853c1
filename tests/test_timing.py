"""Timing: what is called, how often, and what is reported. Never how long it took."""

import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from ed_lib import timing


@pytest.fixture(autouse=True)
def as_long_as_asked(monkeypatch):
    monkeypatch.delenv("ED_QUICK", raising=False)


def test_functions_take_turns_after_a_warm_up_or_one_short_turn_in_the_books_tests(monkeypatch):
    calls = []
    result = timing.compare(
        {n: lambda n=n: calls.append(n) for n in "ab"}, min_seconds=0.01, rounds=3
    )
    turns = [n for n, before in zip(calls, [None, *calls], strict=False) if n != before]
    assert turns == ["a", "b"] * 4  # a warm-up and three rounds
    for timed in result.values():
        assert timed.n >= 3 and 0 < timed.q1 <= timed.median <= timed.q3
    monkeypatch.setenv("ED_QUICK", "1")
    calls.clear()
    assert (
        timing.measure(lambda: calls.append(time.sleep(0.03)), min_seconds=1000).n == 1
        and len(calls) == 2
    )


def test_quartiles_and_their_units():
    assert str(timing._summary([1.0, 2.0, 3.0, 4.0, 5.0])) == "3 s (quartiles 2 to 4, n = 5)"
    assert str(timing._summary([0.0012])) == "1.2 ms (quartiles 1.2 to 1.2, n = 1)"
    assert str(timing._summary([25e-6])) == "25 µs (quartiles 25 to 25, n = 1)"
    assert str(timing.Timing(0.9, 0.8, 1.2, 5)) == "900 ms (quartiles 800 to 1,200, n = 5)"


@pytest.mark.parametrize("seconds, told", [
    (9.996e-4, "1 ms"), (9.994e-4, "999 µs"), (0.9996, "1 s"), (0.9994, "999 ms"), (1e-3, "1 ms"), (1.0, "1 s"),
    (999.4, "999 s"), (999.6, "1,000 s"), (12345.0, "12,345 s"), (0.0, "0 µs"), (2.5e-9, "0.0025 µs"),
    (-9.996e-4, "-1 ms"), (-2.0, "-2 s"), (float("nan"), "nan s"), (float("inf"), "inf s"),
])  # fmt: skip
def test_a_time_is_told_in_the_unit_in_which_it_is_short(seconds, told):
    assert timing.tell(seconds) == told


@pytest.mark.parametrize("number, told", [
    (0.25, "0.25"), (999.4, "999"), (999.6, "1,000"), (-1234.5, "-1,234"), (9.99e14, "999,000,000,000,000"),
    (1e15, "1e+15"), (1e38, "1e+38"), (0, "0"), (float("nan"), "nan"), (float("-inf"), "-inf"),
])  # fmt: skip
def test_a_number_has_three_digits_or_all_before_the_point(number, told):
    assert timing.three_digits(number) == told


@pytest.mark.oracle
@pytest.mark.parametrize("bytes, flops, seconds", [
    (2e9, 0, 2), (0, 2e9, 0.5), (1e9, 4e9, 1), (1e9, 8e9, 2), (3e9, 8e9, 3), (0, 0, 0), (10**12, 1, 1000),
])  # fmt: skip
def test_the_floor_is_the_longer_of_moving_and_computing(bytes, flops, seconds):
    found = timing.floor(bytes, flops, bandwidth=1e9, rate=4e9)
    assert type(found) is float and found == seconds
    assert timing.floor(np.int64(bytes), np.float32(flops), bandwidth=10**9, rate=4e9) == seconds


@pytest.fixture
def takes(monkeypatch):
    """takes(seconds): a clock goes on by so much, and stands otherwise."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(timing, "perf_counter", lambda: clock.now)
    return lambda seconds: setattr(clock, "now", clock.now + seconds)


def test_a_long_function_runs_once_to_warm_up_and_once_a_round(takes):
    runs, seconds = [], {"a": 3.0, "b": 0.5}
    functions = {
        name: lambda name=name: runs.append(name) or takes(seconds[name]) for name in seconds
    }
    timed = timing.compare(functions, min_seconds=1.5, rounds=3)
    assert runs == ["a", "b"] * 4
    assert timed == {name: timing.Timing(each, each, each, 3) for name, each in seconds.items()}


def test_launch_is_until_the_call_returns_and_completion_until_the_device_waited_for_is_idle(takes):
    said = []
    launch, wait = (lambda word=word, seconds=seconds: said.append(word) or takes(seconds)
                    for word, seconds in (("launched", 0.25), ("idle", 1.75)))  # fmt: skip
    result = timing.apart(launch, wait=wait, min_seconds=5)
    assert said == ["launched", "idle"] * 6, "a warm-up and five, each waited for before the next"
    assert result == (timing.Timing(0.25, 0.25, 0.25, 5), timing.Timing(2, 2, 2, 5))


@pytest.mark.parametrize("min_seconds, min_runs, n", [(5, 1, 3), (4, 1, 2), (1, 1, 1), (1, 4, 4)])
def test_runs_until_both_the_time_and_the_number_are_reached(takes, min_seconds, min_runs, n):
    launch, completion = timing.apart(lambda: takes(2), min_seconds=min_seconds, min_runs=min_runs)
    assert launch.n == completion.n == n


@pytest.mark.parametrize("torch, cupy, wanted", [
    (False, False, []), (True, True, [0, 2]), (False, True, ["cupy"]), (None, True, ["cupy"]),
])  # fmt: skip
def test_waits_for_every_gpu_in_use_and_imports_nothing(monkeypatch, torch, cupy, wanted):
    """torch: whether it is initialized, with three GPUs of which it uses two; None: it is not
    imported.
    """
    waited = []
    cuda = {
        "is_initialized": lambda: torch,
        "device_count": lambda: 3,
        "synchronize": waited.append,
    }
    uses = SimpleNamespace(_cuda_hasPrimaryContext=lambda index: index != 1)
    runtime = SimpleNamespace(deviceSynchronize=lambda: waited.append("cupy"))
    fakes = {
        "torch": None if torch is None else SimpleNamespace(cuda=SimpleNamespace(**cuda), _C=uses),
        "cupy": SimpleNamespace(is_available=lambda: cupy, cuda=SimpleNamespace(runtime=runtime)),
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    timing.synchronize()
    assert waited == wanted
