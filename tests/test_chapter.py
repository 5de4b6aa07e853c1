"""What chapters start with: the line about the machine, exercises, cells for a GPU."""

import sys

import numpy as np
import pytest
from IPython import InteractiveShell

from ed_lib import arrays, chapter, gpu_cells


def test_the_card_is_one_line_that_names_machine_and_versions():
    card = chapter.card()
    assert "\n" not in card and card.startswith("CPU: ") and f"NumPy {np.__version__}" in card
    assert "GPU" in card and "PyTorch" in card and "/" not in card


def interrupted():
    raise KeyboardInterrupt


@pytest.mark.parametrize("solution, said", [
    (lambda: 2, "solved."),
    (lambda: None, "not yet. the function returns nothing"),
    (lambda: "x", "not yet. TypeError: unsupported operand type(s) for -: 'str' and 'int'"),
    (lambda: sys.exit("the end"), "not yet. SystemExit: the end"),
])  # fmt: skip
def test_an_exercise_says_whether_it_is_solved_and_only_an_interruption_ends_the_chapter(
    solution, said, capsys
):
    @chapter.exercise(7)
    def check(solution):
        assert solution() - 2 == 0

    check(solution)
    assert capsys.readouterr().out == f"Exercise 7: {said}\n"
    with pytest.raises(KeyboardInterrupt):
        check(interrupted)


@pytest.mark.parametrize("gpus, wanted", [(0, "Skipped here: this cell needs a GPU"), (1, "ran")])
def test_a_cell_for_a_gpu_runs_only_where_there_is_one(monkeypatch, capsys, gpus, wanted):
    shell = InteractiveShell.instance()
    monkeypatch.setattr(arrays, "gpu_count", lambda backend="torch": gpus)
    monkeypatch.setattr(chapter, "card", lambda: "card")
    chapter.setup()
    shell.run_cell("%%gpu\nprint('ran')").raise_error()
    assert capsys.readouterr().out.splitlines()[1].startswith(wanted)
    if gpus:
        with pytest.raises(ZeroDivisionError):
            shell.run_cell("%%gpu\n1 / 0").raise_error()


def test_a_table_shows_texts_and_numbers_and_nothing_unescaped(monkeypatch):
    displayed = []
    monkeypatch.setattr("IPython.display.display", displayed.append)
    chapter.table([{"what": "a < b", "n": 12345, "ratio": 2745.45}], "a & b")
    chapter.table(iter("ab"), "letters", {"letter": str, "code": ord})
    chapter.table([{"just below": 999.6, "whole": np.int64(4096), "half": np.float32(0.5)}], "")
    shown, letters, numbers = (one.data for one in displayed)
    assert "<caption>a &amp; b</caption>" in shown and "a &lt; b" in shown
    assert ">12,345</td>" in shown and ">2,745</td>" in shown
    assert ">a</td>" in letters and ">98</td>" in letters
    assert all(f'right">{told}</td>' in numbers for told in ("1,000", "4,096", "0.5"))


SAME = ["%%gpu\nx = f(1)  # one\n!ls", "x = f( 1 )\n\n!ls", "%%gpu 8.0\nx = f(1)\n!ls"]


def test_a_gpu_cell_is_known_by_its_code_and_not_by_its_layout_or_what_it_asks_for():
    same = {gpu_cells.hash_of(cell) for cell in SAME}
    assert len(same) == 1 and gpu_cells.hash_of("x = f(2)\n!ls") not in same
    assert same == {"7615d5ee4b77"}  # on every version of Python
