"""Timing: what is called, how often, and what is reported. Never how long it took."""

import sys
import time
from types import SimpleNamespace

import pytest

from ed_lib import timing


@pytest.fixture(autouse=True)
def as_long_as_asked(monkeypatch):
    monkeypatch.delenv("ED_QUICK", raising=False)


def test_in_the_books_tests_a_function_gets_one_short_turn(monkeypatch):
    monkeypatch.setenv("ED_QUICK", "1")
    calls = []
    assert timing.measure(lambda: calls.append(time.sleep(0.03)), min_seconds=1000).n == 1 and len(calls) == 2


def test_functions_take_turns_after_a_warm_up():
    calls = []
    result = timing.compare({n: lambda n=n: calls.append(n) for n in "ab"}, min_seconds=0.01, rounds=3)
    turns = [n for n, before in zip(calls, [None, *calls], strict=False) if n != before]
    assert turns == ["a", "b"] * 4  # a warm-up and three rounds
    for timed in result.values():
        assert timed.n >= 3 and 0 < timed.q1 <= timed.median <= timed.q3


def test_quartiles_and_their_units():
    assert str(timing._summary([1.0, 2.0, 3.0, 4.0, 5.0])) == "3 s (quartiles 2 to 4, n = 5)"
    assert str(timing._summary([0.0012])) == "1.2 ms (quartiles 1.2 to 1.2, n = 1)"
    assert str(timing._summary([25e-6])) == "25 µs (quartiles 25 to 25, n = 1)"


def test_a_fault_in_what_is_timed_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        timing.measure(lambda: 1 / 0)


class Clock:
    """A clock that only stands where it is put: what is timed, and the wait, say how long they took."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(timing, "perf_counter", lambda: self.now)

    def takes(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_a_long_function_runs_once_to_warm_up_and_once_a_round(clock):
    runs = {"a": 0, "b": 0}

    def run(name, seconds):
        runs[name] += 1
        clock.takes(seconds)

    timed = timing.compare(
        {"a": lambda: run("a", 3.0), "b": lambda: run("b", 0.5)}, min_seconds=1.5, rounds=3
    )
    assert runs == {"a": 4, "b": 4}
    assert timed == {"a": timing.Timing(3.0, 3.0, 3.0, 3), "b": timing.Timing(0.5, 0.5, 0.5, 3)}


def test_launch_is_until_the_call_returns_and_completion_until_the_device_waited_for_is_idle(clock):
    said = []
    launch, wait = (lambda: said.append("launched") or clock.takes(0.25),
                    lambda: said.append("idle") or clock.takes(1.75))  # fmt: skip
    result = timing.apart(launch, wait=wait, min_seconds=5)
    assert said == ["launched", "idle"] * 6, "a warm-up and five, each waited for before the next"
    assert result == (timing.Timing(0.25, 0.25, 0.25, 5), timing.Timing(2, 2, 2, 5))
    assert str(result[0]) == "250 ms (quartiles 250 to 250, n = 5)"


@pytest.mark.parametrize("min_seconds, min_runs, n", [(5, 1, 3), (4, 1, 2), (1, 1, 1), (1, 4, 4)])
def test_runs_until_both_the_time_and_the_number_are_reached(clock, min_seconds, min_runs, n):
    launch, completion = timing.apart(lambda: clock.takes(2), min_seconds=min_seconds, min_runs=min_runs)
    assert launch.n == completion.n == n


def fake_torch(waited, *, initialized, using=(0, 2)):
    cuda = SimpleNamespace(
        is_initialized=lambda: initialized, device_count=lambda: 3, synchronize=lambda i: waited.append(i)
    )
    return SimpleNamespace(cuda=cuda, _C=SimpleNamespace(_cuda_hasPrimaryContext=lambda i: i in using))


def fake_cupy(waited):
    runtime = SimpleNamespace(deviceSynchronize=lambda: waited.append("cupy"))
    return SimpleNamespace(is_available=lambda: True, cuda=SimpleNamespace(runtime=runtime))


@pytest.mark.parametrize(
    "torch, cupy, wanted",
    [(None, False, []), (False, False, []), (True, False, [0, 2]), (True, True, [0, 2]),
     (False, True, ["cupy"]), (None, True, ["cupy"])],
)  # fmt: skip
def test_waits_for_every_gpu_in_use_and_imports_nothing(monkeypatch, torch, cupy, wanted):
    waited = []
    library = None if torch is None else fake_torch(waited, initialized=torch)
    monkeypatch.setitem(sys.modules, "torch", library)
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(waited) if cupy else None)
    timing.synchronize()
    assert waited == wanted
