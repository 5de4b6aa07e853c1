"""The chapters as files: clean JSON, the manner of the book, figures, exercises that work."""

import ast
import re
import shutil
import subprocess
import sys

import matplotlib.pyplot as plt
import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell

from ed_lib import chapter, figures
from tools import notebooks, repository, usage_errors
from tools.notebooks import ROOT, code_cells, tags
from tools.pages import pages

CHAPTERS = notebooks.tested()
LIMITS = {"words": 2500, "cells": 70}  # of a chapter: words of prose, and cells
PHONE = 390  # CSS pixels, the width that a figure has on a phone
chapters = pytest.mark.parametrize("path", CHAPTERS, ids=str)


@pytest.fixture
def nb(path):
    return notebooks.read(ROOT / path)


def text_of(output):
    """What an output shows as plain text."""
    return output.get("text") or output.get("data", {}).get("text/plain", "")


def prose_of(nb):
    return "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")


def test_the_table_of_contents_holds_every_notebook_and_every_page_is_there_or_made():
    found = (ROOT / "book").rglob("*.ipynb")
    there = {path.relative_to(ROOT) for path in found if ".ipynb_checkpoints" not in path.parts}
    listed = set(notebooks.chapters())
    assert there - set(notebooks.drafts()) == listed and listed
    for name in pages():
        files = [suffix for suffix in (".md", ".ipynb") if (ROOT / f"{name}{suffix}").exists()]
        assert len(files) == (not name.startswith("book/appendix/api/")), name


@chapters
def test_the_file_is_canonical_executed_and_of_no_machine(path, nb):
    nbformat.validate(nb)
    assert (ROOT / path).read_text() == nbformat.writes(notebooks.canonical(nb)).rstrip("\n") + "\n"
    assert not re.search(r"/(home|root|tmp|work|Users|opt|mnt)/\w", (ROOT / path).read_text()), (
        "a local path"
    )
    made = nb.metadata.get("ed_lib")
    assert made and made.machine.startswith("CPU: ") and made.versions, (
        "run python -m tools.notebooks"
    )
    assert not notebooks.left_out(nb), "committed outputs are whole"
    for cell in code_cells(nb):
        assert cell.execution_count, f"never executed: {cell.source[:80]}"
        for output in cell.outputs:
            assert output.output_type != "error", f"an error: {output.get('evalue')}"
            assert output.get("name") != "stderr", f"output on stderr: {text_of(output)[:200]}"


@chapters
def test_the_manner_of_a_chapter(nb):
    """A question first, a box with the time, a summary, exercises, references; nothing too long."""
    first, text = nb.cells[0].source, prose_of(nb)
    question = first.split("\n\n")[1].strip("*")
    assert first.startswith("# ") and question.endswith("?"), "the question comes first"
    assert "Before you start" in text.partition("\n## ")[0], "a box before the first section"
    assert {"## Summary", "## Exercises", "## References"} <= set(text.splitlines())
    assert 1 <= re.search(r"## Summary.*?(?=\n## |\Z)", text, re.S)[0].count("\n- ") <= 6
    assert any("claim" in tags(cell) for cell in code_cells(nb)) and "{cite" not in text
    words = re.sub(
        r"<[^>]+>|\]\([^)]*\)|\$\$.*?\$\$|\$[^$]*\$", " ", text, flags=re.DOTALL
    )  # read as text
    found = {"words": len(re.findall(r"[^\W\d_][\w’'-]*", words)), "cells": len(nb.cells)}
    assert all(found[what] <= most for what, most in LIMITS.items()), found


@chapters
def test_the_reading_time_that_a_chapter_states_is_the_one_counted(nb):
    """A minute for 200 words, and half a minute for a cell of code that is not folded; no
    exercises.
    """
    told = int(re.search(r"\*\*Time:\*\* (\d+) min", prose_of(nb))[1])
    assert abs(notebooks.reading_minutes(nb) - told) <= 5


@chapters
def test_code_cells_are_short_introduced_and_folded_alike_in_page_and_colab(nb):
    previous = None
    for cell in nb.cells:
        if cell.cell_type == "code":
            lines = [line for line in cell.source.splitlines() if line.strip()]
            most = 25 if "program" in tags(cell) else 15
            assert len(lines) <= most, f"{len(lines)} lines: {cell.source[:80]}"
            folded = bool(notebooks.FOLDED & set(tags(cell)))
            assert folded or previous == "markdown", f"no sentence before: {cell.source[:80]}"
            assert folded or not {"gpu", "setup"} & set(tags(cell)), "one line in the page"
            assert max(map(len, lines)) <= (110 if folded else 88), (
                f"too wide: {max(lines, key=len)}"
            )
        previous = cell.cell_type


def smallest_text(svg):
    """The height in CSS pixels of a drawing's smallest letters, when it is as wide as a phone."""
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])  # points
    texts = re.split(r'<g [^>]*transform="[^"]*scale\(([\d.]+) -[\d.]+\)">', svg)  # points / 100
    sizes = [10.0]
    for size, glyphs in zip(texts[1::2], texts[2::2], strict=True):
        smaller = [
            float(s) for s in re.findall(r'<use [^>]*transform="[^"]*scale\(([\d.]+)\)', glyphs)
        ]
        sizes.append(100 * float(size) * min([1.0, *smaller]))
    return min(sizes) * PHONE / width


@chapters
def test_figures_are_a_drawing_a_picture_and_a_text_with_letters_for_a_phone(nb):
    for cell in code_cells(nb):
        for data in (output.get("data", {}) for output in cell.outputs):
            svg, pictures = (
                data.get(figures.FOR_THE_PAGE),
                {"image/png", "image/jpeg", "image/svg+xml"},
            )
            assert bool(svg) == bool(pictures & set(data)), "shown without figures.show"
            assert not svg or (len(data["text/plain"]) >= 20 and data["image/png"])
            assert not svg or smallest_text(svg) >= 8, data["text/plain"]
            assert "<svg" not in data.get("text/html", ""), (
                "GitHub and Colab take drawings out of HTML"
            )


@chapters
def test_exercises_fail_as_stubs_and_pass_with_their_solutions(nb):
    """nbval executes the same cells again and compares these outputs."""
    counts = {"exercise": 0, "exercise-check": 0, "solution": 0}
    for cell in code_cells(nb):
        for tag in counts.keys() & set(tags(cell)):
            counts[tag] += 1
            number, shown = counts[tag], "".join(map(text_of, cell.outputs))
            if tag == "exercise-check":
                assert re.match(rf"Exercise {number}: not yet\. .*\w", shown)
            if tag == "solution":
                assert shown == f"Exercise {number}: solved.\n" and "hide-cell" in tags(cell)
            if tag != "exercise":
                assert "nbval-check-output" in tags(cell)
    assert counts["exercise"] == counts["exercise-check"] == counts["solution"] >= 2


@chapters
def test_the_set_up_cell_is_that_of_the_original(nb):
    found = [cell.source for cell in code_cells(nb) if "setup" in tags(cell)]
    assert found == [repository.setup_cell()], "run make repository URL=..."


@pytest.fixture(scope="module")
def magics():
    """{"line": names, "cell": names} of the magics that there are after the set-up cell."""
    shell = InteractiveShell.instance()
    with plt.rc_context():
        chapter.setup()
    yield {kind: {*names} for kind, names in shell.magics_manager.magics.items()}
    InteractiveShell.clear_instance()


@chapters
def test_every_magic_of_a_cell_is_there(nb, magics):
    for cell in code_cells(nb):
        code = TransformerManager().transform_cell(cell.source)
        for kind, name in re.findall(r"get_ipython\(\)\.run_(line|cell)_magic\('(\w+)'", code):
            assert name in magics[kind], f"%{name} is no {kind} magic: {cell.source[:80]}"


MAGICS = {  # a cell, and whether it passes
    "%%capture\n%time 1": True,
    "import sys\nprint('careful', file=sys.stderr)": True,
    "%%gpuu\nraise TypeError": False,
    "%gpuu": False,
}


class Cell:
    """What nbval makes of a cell, which has printed this on stderr."""

    def __init__(self, printed):
        self.test_outputs = [{"name": "stderr", "text": printed}]

    def raise_cell_error(self, message, text):
        raise AssertionError(message, text)


@pytest.mark.parametrize("printed, passes", [
    ("careful", True), ("UsageError: Cell magic `%%gpuu` not found.", False),
])  # fmt: skip
def test_a_cell_that_has_printed_that_a_magic_is_unknown_fails(printed, passes):
    hook = usage_errors.pytest_runtest_call(Cell(printed))
    next(hook)
    with pytest.raises(StopIteration if passes else AssertionError):
        hook.send(None)


@pytest.mark.slow
def test_a_cell_with_an_unknown_magic_fails_under_nbval(tmp_path):
    """As `make colab` runs it: with the hook beside the chapters, and no other conftest.py."""
    shutil.copy(ROOT / "tools" / "usage_errors.py", tmp_path / "conftest.py")
    nb = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, MAGICS)])
    nbformat.write(nb, tmp_path / "some.ipynb")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--rootdir=."]
    command += ["--nbval-lax", "--nbval-current-env", "some.ipynb"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    found = dict(re.findall(r"Cell (\d)\S* (PASSED|FAILED)", said))
    assert found == {
        str(n): "PASSED" if ok else "FAILED" for n, ok in enumerate(MAGICS.values())
    }, said


def test_the_hash_sees_code_and_modules_but_neither_prose_nor_comments(tmp_path, monkeypatch):
    (tmp_path / "ed_lib").mkdir()
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)

    def code(code="from ed_lib import a\n!ls", prose="text", b="x = 1"):
        for name, source in {"a": "from ed_lib import b", "b": b}.items():
            (tmp_path / "ed_lib" / f"{name}.py").write_text(source)
        cells = [nbformat.v4.new_markdown_cell(prose), nbformat.v4.new_code_cell(code)]
        return notebooks.fingerprint(nbformat.v4.new_notebook(cells=cells))

    before = code()
    same = code(prose="other"), code("from ed_lib import a  # b\n!ls"), code(b='"""B."""\nx = 1')
    same += (
        code("%%needs SICK\nfrom ed_lib import a\n!ls"),
        code("%%gpu\nfrom ed_lib import a\n!ls"),
    )
    assert {*same} == {before} and before not in (code("from ed_lib import a"), code(b="x = 2"))


def test_a_notebook_is_canonical_and_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path, nb = (
        tmp_path / "a" / "chapter.ipynb",
        nbformat.v4.new_notebook(metadata={"widgets": {"state": 1}}),
    )
    nb.cells = [
        nbformat.v4.new_code_cell("1 + 1", metadata={"tags": ["hide-input"], "execution": {}})
    ]
    made = notebooks.canonical(nb)
    assert made.cells[0].metadata == {"tags": ["hide-input"], "cellView": "form"}
    assert "widgets" not in made.metadata
    notebooks.write(made, path)
    monkeypatch.setattr(
        notebooks.os, "replace", lambda *paths: pytest.fail("killed before the end")
    )
    with pytest.raises(pytest.fail.Exception):
        notebooks.write(nb, path)
    assert notebooks.read(path) == made


@chapters
def test_every_claim_names_its_sentence(nb):
    """So that a record, or a machine, that contradicts the text says which sentence."""
    for cell in code_cells(nb):
        if "claim" in tags(cell):
            for node in ast.walk(ast.parse(notebooks.as_python(cell))):
                assert not isinstance(node, ast.Assert) or node.msg, ast.unparse(node)
