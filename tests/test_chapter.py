"""What chapters start with: the line about the machine, exercises, cells that need something."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from IPython import InteractiveShell

from benchmarks import __main__ as benchmarks
from ed_lib import arrays, chapter, gpu_cells, machine, needs, published
from ed_lib.ed.space import space
from tools import notebooks


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


CARDS = {
    "GTX 1080": (6, 1, 8.5e9),
    "T400": (7, 5, 2e9),
    "T4": (7, 5, 15.8e9),
    "A100": (8, 0, 42e9),
    "L4": (8, 9, 23.6e9),
    "B200": (10, 0, 190e9),
}


@pytest.fixture
def card(request, monkeypatch):
    """The GPU of that name, as PyTorch would tell of it, on a machine that has none."""
    major, minor, memory = CARDS[request.param]
    gpu = SimpleNamespace(name=request.param, major=major, minor=minor, total_memory=memory)
    told = {"is_available": True, "device_count": 1, "get_device_properties": gpu}
    for name, answer in told.items():
        monkeypatch.setattr(torch.cuda, name, lambda *device, answer=answer: answer)
    return request.param


GPU_CELLS = {
    (path.stem, cell.id): cell.source
    for path in notebooks.chapters()
    for cell in notebooks.code_cells(notebooks.read(notebooks.ROOT / path))
    if "gpu" in notebooks.tags(cell)
}
LEAST = {"one_token_at_a_time": "8.0", "training_in_eight_bits": "8.9"}
OLD = "a GPU with compute capability 7.5 or more; the GTX 1080 here has 6.1"
SMALL = "a GPU with 6 GB of memory; the T400 here has 2.0 GB"


def more_than(card, has, *chapters):
    """What the cells of these chapters need that a card lacks."""
    needed = "a GPU with compute capability {} or more; the {} here has {}"
    return {name: needed.format(LEAST[name], card, has) for name in chapters}


SKIPPED = [  # a card, and what the cells of a chapter (None: of all others) need that it lacks
    ("GTX 1080", {None: OLD} | more_than("GTX 1080", "6.1", *LEAST)),
    ("T400", {None: SMALL} | more_than("T400", "7.5", *LEAST)),
    ("T4", more_than("T4", "7.5", *LEAST)),
    ("A100", more_than("A100", "8.0", "training_in_eight_bits")),
    ("L4", {}),
    ("B200", {}),
]


# Chapters whose cell no GPU has run so far, so that there is nothing to show in its place.
NEVER_RUN = {"your_own_step"}


@pytest.mark.parametrize("card, wanted", SKIPPED, indirect=["card"])
def test_on_any_card_each_gpu_cell_runs_or_is_skipped_with_a_line(
    card, wanted, monkeypatch, capsys
):
    """As far as the guard: what would run is noted."""
    ran = []
    done = SimpleNamespace(raise_error=lambda: None)
    shell = SimpleNamespace(run_cell=lambda source: ran.append(source) or done)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    for (name, _), source in GPU_CELLS.items():
        first, _, body = source.partition("\n")
        ran.clear()
        gpu_cells.run(first.removeprefix(gpu_cells.MAGIC), body)
        said = capsys.readouterr().out
        if needed := wanted.get(name, wanted.get(None)):
            assert not ran and said.startswith(f"Skipped here: this cell needs {needed}.\n"), name
            # What was recorded stands below.
            assert said.count("Skipped here") == 1, name
            assert "print" not in body or "H100" in said or name in NEVER_RUN, name
        else:
            assert ran == [body] and not said, name


@pytest.mark.parametrize("card", ["GTX 1080", "T4"], indirect=True)
def test_a_card_that_is_not_enough_counts_as_none_and_is_named(card):
    enough = card == "T4"
    assert arrays.gpu_count() == enough
    told = f"GPU: {card}" if enough else f"no {OLD.removeprefix('a ')}"
    assert machine.card().split(" · ")[1] == told
    if not enough:
        with pytest.raises(ValueError, match=f"backend is 'cupy'; wanted {OLD}"):
            space("cupy", "cuda")
        with pytest.raises(SystemExit, match=f"--device cuda: wanted {OLD}"):
            benchmarks.main(["--device", "cuda"])


@pytest.mark.parametrize("there, wanted", [
    ({"sick", "minilm"}, "first\nlater\n"),
    ({"minilm"}, "This part is left out here, because SICK cannot be had. No sick.\n"),
    (set(), "This part is left out here, because SICK and MiniLM cannot be had. No sick.\n"),
])  # fmt: skip
def test_a_cell_runs_only_where_the_data_that_it_needs_can_be_had(
    monkeypatch, capsys, there, wanted
):
    def find(name, file):
        if name not in there:
            raise ConnectionError(f"No {name}")

    shell = InteractiveShell.instance()
    monkeypatch.setattr(published, "find", find)
    needs.why_not.cache_clear()
    chapter.setup()
    capsys.readouterr()
    shell.run_cell("%%needs SICK MiniLM\nprint('first')").raise_error()
    shell.run_cell("%%needs SICK MiniLM, as above\nprint('later')").raise_error()
    needs.why_not.cache_clear()
    assert capsys.readouterr().out == wanted


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
