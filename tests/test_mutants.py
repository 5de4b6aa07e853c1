"""The run of mutants on a toy: what it changes and leaves alone, what it counts, and that it draws
the same for the same seed.
"""

from pathlib import Path

import pytest

from tools.mutants import caught_by, mutants, sample, survey

TOY = '''"""A toy."""

__all__ = ["share"]


def share(part, whole):
    """What part of 1 whole: 0.0 to 1.0."""
    if whole == 0:
        return 0.0
    return min(part / whole, 1.0)
'''
TEST = """from ed_lib.toy import share


def test_a_quarter():
    assert share(1, 4) == 0.25


def test_nothing():
    assert share(0, 0) == 0
"""
FOUND = {  # each mutant of the toy, and what catches it
    "whole == 0 → whole != 0": "caught by test_toy.py::test_a_quarter",
    "whole == 0 → whole == 1": "caught by test_toy.py::test_nothing",
    "return 0.0 → return 1.0": "caught by test_toy.py::test_nothing",
    "min(part / whole, 1.0) → max(part / whole, 1.0)": "caught by test_toy.py::test_a_quarter",
    "part / whole → part * whole": "caught by test_toy.py::test_a_quarter",
    "min(part / whole, 1.0) → min(part / whole, 1.25)": "SURVIVED",
}


@pytest.fixture
def toy(tmp_path):
    for name, text in {"ed_lib/__init__": "", "ed_lib/toy": TOY, "tests/test_toy": TEST}.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def changes(source):
    return [f"{mutant.before} → {mutant.after}" for mutant in mutants(source)]


def test_each_mutant_has_one_change_and_says_which():
    before = {"a + b - c": 2, "a // b % c": 2, "a ** -b": 2, "a < b <= c": 2, "not a": 1}
    before |= {"a and b or c": 2, "a is b": 1, "a in b": 1, "x.max()": 1, "True": 1, "7": 1}
    before |= {"'zrn'": 1, "'aab'": 0, "'two words'": 0, "''": 0, "None": 0, "a @ b": 0}
    assert {source: len(mutants(f"v = {source}")) for source in before} == before
    assert changes("order = 'zrn'\nn += 1") == [
        "order = 'zrn' → order = 'rzn'",
        "n += 1 → n -= 1",
        "n += 1 → n += 2",
    ]


def test_what_computes_nothing_is_left_alone():
    source = '''"""Text."""
__all__ = ["f"]
@jit(cache=True)
def f(x: "tensor | int") -> "int | None":
    """Text."""
    y: list[1] = []
    check.choice("name", x, ("ab", x))
    assert x, "text" + "more"
    raise ValueError(f"x is {x + 1:.2f}; wanted {'ab'}" + "more")
    return zip(x, y, strict=True)
'''
    assert changes(source) == ["('ab', x) → ('ba', x)"]


def test_it_counts_what_is_caught_and_what_survives(toy, capsys):
    before = {path: path.read_text() for path in toy.rglob("*") if path.is_file()}
    survivors = survey(toy, "toy", [], 50, 0)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8 and "6 of 6 mutants" in lines[0] and "5 of 6 caught" in lines[-1]
    assert {tuple(line.split("  ", 2)[2].split("   ")) for line in lines[1:-1]} == {*FOUND.items()}
    assert [mutant.line for mutant in survivors] == [10]
    assert {path: path.read_text() for path in toy.rglob("*") if path.is_file()} == before


def test_the_draw_is_that_of_the_seed():
    every = mutants("\n".join(f"v = {number}" for number in range(50)))
    drawn = [sample(every, 20, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    for some in drawn:
        assert len({mutant.line for mutant in some}) == 20 and some == sorted(some)
    assert sample(every, 100, 1) == every


def test_what_hangs_or_cannot_be_imported_is_caught(toy):
    module, tests = Path("ed_lib/toy.py"), ["tests/test_toy.py"]
    assert caught_by(toy, module, TOY, tests, 60) == ""
    assert caught_by(toy, module, "while True:\n    pass", tests, 1) == "the limit of 1 s"
    assert caught_by(toy, module, "import nothing_at_all", tests, 60) == "test_toy.py"


def test_tests_that_fail_already_are_told(toy):
    (toy / "tests/test_toy.py").write_text(TEST.replace("0.25", "0.2"))
    with pytest.raises(SystemExit, match="fail already: test_toy.py::test_a_quarter"):
        survey(toy, "toy", [], 2, 0)
