"""What chapters start with: the line about the machine, exercises, cells for a GPU."""

import sys

import numpy as np
import pytest

from ed_lib import arrays, notebook


def test_the_card_is_one_line_that_names_machine_and_versions():
    card = notebook.card()
    assert "\n" not in card and card.startswith("CPU: ") and f"NumPy {np.__version__}" in card
    assert "GPU" in card and "PyTorch" in card and "/" not in card


@pytest.mark.parametrize(
    "answer, wanted",
    [(2, "Exercise 7: solved.\n"), (None, "Exercise 7: not yet. the function returns nothing\n"),
     ("x", "Exercise 7: not yet. TypeError: unsupported operand type(s) for -: 'str' and 'int'\n")],
)  # fmt: skip
def test_an_exercise_says_whether_it_is_solved_and_never_raises(answer, wanted, capsys):
    @notebook.exercise(7)
    def check(solution):
        assert solution() - 2 == 0

    check(lambda: answer)
    assert capsys.readouterr().out == wanted


def test_a_solution_that_ends_the_program_ends_no_chapter_but_an_interruption_does(capsys):
    check = notebook.exercise(1)(lambda solution: solution())
    check(lambda: sys.exit("the end"))
    assert capsys.readouterr().out == "Exercise 1: not yet. SystemExit: the end\n"

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(interrupted)


@pytest.mark.parametrize("gpus, wanted", [(0, "Skipped here: this cell needs a GPU"), (1, "ran")])
def test_a_cell_for_a_gpu_runs_only_where_there_is_one(monkeypatch, capsys, gpus, wanted):
    shell = pytest.importorskip("IPython").InteractiveShell.instance()
    monkeypatch.setattr(arrays, "gpu_count", lambda backend="torch": gpus)
    monkeypatch.setattr(notebook, "card", lambda: "card")
    notebook.setup()
    shell.run_cell("%%gpu\nprint('ran')").raise_error()
    assert capsys.readouterr().out.splitlines()[1].startswith(wanted)
    if gpus:
        with pytest.raises(ZeroDivisionError):
            shell.run_cell("%%gpu\n1 / 0").raise_error()


def test_a_table_shows_texts_and_numbers_and_nothing_unescaped(monkeypatch):
    pytest.importorskip("IPython")
    displayed = []
    monkeypatch.setattr("IPython.display.display", displayed.append)
    notebook.table([{"what": "a < b", "n": 12345, "ratio": 2745.45}], "a & b")
    shown = displayed[0].data
    assert "<caption>a &amp; b</caption>" in shown and "a &lt; b" in shown
    assert ">12,345</td>" in shown and ">2,745</td>" in shown
    notebook.table(iter("ab"), "letters", {"letter": str, "code": ord})
    assert ">a</td>" in displayed[1].data and ">98</td>" in displayed[1].data
