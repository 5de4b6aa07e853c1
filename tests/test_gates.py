"""The gates, with planted bad numbers: what is refused where outputs are made, and said elsewhere."""

from functools import partial
from types import SimpleNamespace

import pytest

from ed_lib import gates, roofline, timing

GOOD = {"slow": 3.0, "fast": timing.Timing(1.0, 0.9, 1.1, 5)}
BAD = [
    (partial(gates.floors, GOOD, 1.5), "fast took 1 s, below its floor of 1.5 s"),
    (partial(gates.floors, GOOD, {"slow": 3.1, "fast": 0.5}), "slow took 3 s, below its floor of 3.1 s"),
    (partial(gates.floors, {"a": timing.Timing(1.0, 0.9, 1.5, 9)}, 0.5), "which is far from steady"),
    (partial(gates.order, GOOD, "fast", "slow"), "slow took 3 s, no less than fast with 1 s"),
    (partial(gates.order, {"a": 1.0, "b": 1.0}, "a", "b"), "b took 1 s, no less than a with 1 s"),
]


@pytest.mark.parametrize("gate, words", BAD)
def test_a_bad_number_is_refused_where_outputs_are_made_and_said_elsewhere(gate, words, monkeypatch, capsys):
    monkeypatch.setenv("ED_GATES", "strict")
    with pytest.raises(gates.Busy, match=words):
        gate()
    monkeypatch.delenv("ED_GATES")
    gate()
    said = capsys.readouterr().out
    assert said.startswith("These times say little: ") and words in said


def test_good_numbers_pass_in_silence(monkeypatch, capsys):
    monkeypatch.setenv("ED_GATES", "strict")
    gates.floors(GOOD, 1.0)  # at the floor is not below it
    gates.floors(GOOD, {"slow": 3.0, "fast": 0.0, "not timed": 9.0})
    gates.order(GOOD, "slow", "fast")
    assert capsys.readouterr().out == ""


@pytest.fixture
def machines(monkeypatch):
    """set(load, share): what others use, and how much of the ceilings a probe reaches."""
    best = roofline.Ceilings("x", "float32", 10e9, 100e9)

    def set(load, share):
        probe = roofline.Ceilings("x", "float32", 10e9, share * 100e9)
        measured = SimpleNamespace(ceilings=lambda: best, probe=lambda seconds: probe)
        monkeypatch.setattr(gates, "machine", SimpleNamespace(load=lambda: load))
        monkeypatch.setattr(gates, "roofline", measured)

    return set


@pytest.mark.parametrize(
    "load, share, words", [(0.9, 1.0, "0.90 of its cores"), (0.0, 0.5, "50 of the 100 GFL")]
)
def test_a_busy_machine_is_waited_for_and_then_refused(machines, load, share, words):
    said = []
    machines(load, share)
    with pytest.raises(gates.Busy, match=f"{words}.*Waited"):
        gates.wait_for_quiet(0.05, say=said.append)
    assert said and words in said[0]
    times = []
    gates.wait_for_quiet(0.4, say=lambda reason: times.append(machines(0.0, 0.9)))  # meanwhile it gets quiet
    assert len(times) == 1
