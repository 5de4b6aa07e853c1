"""Timing: what is called, how often, and what is reported. Never how long it took."""

import pytest

from ed_lib import timing


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


@pytest.mark.parametrize("rounds, error", [(0, ValueError), (2.5, TypeError)])
def test_a_bad_number_of_rounds_is_named(rounds, error):
    with pytest.raises(error, match=f"rounds is {rounds}"):
        timing.compare({"a": lambda: None}, rounds=rounds)
