"""The gates, with planted bad numbers: what is refused where outputs are made, and said
elsewhere.
"""

import pytest

from ed_lib import gates, timing

NAN = float("nan")
GOOD = {"slow": 3.0, "fast": timing.Timing(1.0, 0.9, 1.1, 5)}
BAD = [
    (gates.floors, (GOOD, 1.5), "fast took 1 s, below its floor of 1.5 s"),
    (gates.floors, (GOOD, {"slow": 3.1, "fast": 0.5}), "slow took 3 s, below its floor of 3.1 s"),
    (gates.floors, ({"a": timing.Timing(1.0, 0.9, 1.5, 9)}, 0.5), "which is far from steady"),
    (gates.order, (GOOD, "fast", "slow"), "slow took 3 s, no less than fast with 1 s"),
    (gates.order, ({"a": 1.0, "b": 1.0}, "a", "b"), "b took 1 s, no less than a with 1 s"),
    (gates.floors, ({"a": NAN}, 0.5), "a took nan s, which is no time"),
    (gates.floors, ({"a": float("inf")}, 0.5), "a took inf s, which is no time"),
    (gates.floors, ({"a": -1.0}, {"a": -2.0}), "a took -1 s, which is no time"),
    (gates.floors, ({"a": 1.0}, NAN), "a has a floor of nan s, which is no time"),
    (gates.floors, ({"a": 1.0}, {"a": -1.0}), "a has a floor of -1 s, which is no time"),
    (gates.floors, ({"a": timing.Timing(1.0, 0.9, NAN, 9)}, 0.5), "which is far from steady"),
    (gates.floors, ({"a": timing.Timing(1.0, NAN, 1.1, 9)}, 0.5), "which is far from steady"),
    (gates.order, ({"a": 1.0, "b": NAN}, "a", "b"), "b took nan s, which is no time"),
    (gates.order, ({"a": NAN, "b": 1.0}, "a", "b"), "a took nan s, which is no time"),
    (gates.order, ({"a": 1.0, "b": -1.0}, "a", "b"), "b took -1 s, which is no time"),
]


@pytest.mark.parametrize("gate, times, words", BAD)
def test_a_bad_number_is_refused_where_outputs_are_made_and_said_elsewhere(
    gate, times, words, monkeypatch, capsys
):
    monkeypatch.setenv("ED_GATES", "strict")
    with pytest.raises(gates.Busy, match=words):
        gate(*times)
    gates.floors(GOOD, {"slow": 3.0, "fast": 0.0, "not timed": 9.0})  # at the floor is not below it
    gates.order(GOOD, "slow", "fast")
    assert capsys.readouterr().out == "", "good numbers pass in silence"
    monkeypatch.delenv("ED_GATES")
    gate(*times)
    said = capsys.readouterr().out
    assert said.startswith("These times say little: ") and words in said
