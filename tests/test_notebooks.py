"""The chapters as files: fresh outputs, clean JSON, the manner of the book, exercises that work."""

import re

import pytest

from ed_lib import figures, gates
from tools import citations, front, notebooks
from tools.notebooks import ROOT, code_cells, tags
from tools.pages import pages

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("yaml")
CHAPTERS = notebooks.chapters()
chapters = pytest.mark.parametrize("path", CHAPTERS, ids=str)


@pytest.fixture
def nb(path):
    return notebooks.read(ROOT / path)


def text_of(output):
    """What an output shows as plain text."""
    return output.get("text") or output.get("data", {}).get("text/plain", "")


def test_every_notebook_is_in_the_table_of_contents():
    there = {
        p.relative_to(ROOT) for p in (ROOT / "book").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts
    }
    assert there == set(CHAPTERS) and there


@chapters
def test_the_outputs_are_those_of_this_code(path, nb):
    made = nb.metadata.get("ed_lib")
    assert made, f"{path} was never executed by `python -m tools.notebooks`"
    assert (
        re.fullmatch(r"\d{4}-\d\d-\d\d", made.executed) and made.machine.startswith("CPU: ") and made.versions
    )


LIMITS = {"words": 2500, "cells": 70}  # of a chapter: words of prose, and cells
FLOORS = """every_layer_at_once honest_timing fast_forward forward_at_once relatives language_model one_step
            many_steps breaking_the_chain training_in_eight_bits one_token_at_a_time""".split()


@chapters
def test_no_time_is_below_its_floor(path, nb):
    outputs = [output.get("data", {}) for cell in code_cells(nb) for output in cell.outputs]
    found = [data[gates.TIMES] for data in outputs if gates.TIMES in data]
    assert bool(found) == (path.stem in FLOORS)
    for cell in found:
        below = [name for name, seconds in cell["seconds"].items() if seconds < cell["floors"][name]]
        assert not below and cell["seconds"]


def test_all_pages_of_a_machine_print_the_same_ceilings():
    line, found = re.compile(r"[\d.]+ GB/s \(\w+\), [\d.]+ GFLOP/s in (float\d+: .*threads)"), {}
    for path in CHAPTERS:
        for cell in code_cells(notebooks.read(ROOT / path)):
            for match in line.finditer("".join(map(text_of, cell.outputs))):
                found.setdefault(match[1], set()).add(match[0])
    assert len(found) >= 2 and all(len(lines) == 1 for lines in found.values()), found


def test_outputs_of_a_busy_machine_are_refused_and_a_readers_are_not(tmp_path, monkeypatch):
    path = tmp_path / "chapter.ipynb"
    code = "from ed_lib import gates\ngates.floors({'a call': 1.0}, 2.0)"
    notebooks.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]), path)
    before, waited = path.read_text(), []
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "raise_ceilings", lambda: None)
    monkeypatch.setattr(gates, "wait_for_quiet", waited.append)
    with pytest.raises(
        SystemExit, match="chapter.ipynb: refused.* 3 tries.*a call took 1 s, below its floor"
    ):
        notebooks.main([str(path), "--patience", "5"])
    assert path.read_text() == before and waited == [5, 5, 5]
    monkeypatch.setattr(notebooks, "fingerprint", lambda nb: "")
    (cell,) = notebooks.execute(notebooks.read(path), path.relative_to(tmp_path)).cells
    assert text_of(cell.outputs[-1]).startswith("This machine was busy while this cell ran")


@chapters
def test_the_file_is_valid_and_canonical(path, nb):
    nbformat.validate(nb)
    assert (ROOT / path).read_text() == nbformat.writes(notebooks.canonical(nb)).rstrip("\n") + "\n"


@chapters
def test_nothing_in_it_belongs_to_one_machine(path, nb):
    text = (ROOT / path).read_text()
    assert not re.search(r"/(home|root|tmp|work|Users|opt|mnt)/\w", text), "a local path"
    for cell in code_cells(nb):
        for output in cell.outputs:
            assert output.output_type != "error", f"an error: {output.get('evalue')}"
            assert output.get("name") != "stderr", f"output on stderr: {text_of(output)[:200]}"
        assert cell.execution_count, f"never executed: {cell.source[:80]}"


@chapters
def test_no_claim_depends_on_which_data_came(nb):
    """Without its data a chapter is not executed; with them, all of its claims are."""
    for cell in code_cells(nb):
        assert not re.search(r"(mnist|fashion|clothes|digits)\.(name|source)\b.*[!=]=|offline", cell.source)


@chapters
def test_the_manner_of_a_chapter(nb):
    first = nb.cells[0].source
    assert first.startswith("# ") and first.split("\n\n")[1].strip("*").endswith("?"), (
        "the question comes first"
    )
    before = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown").partition("\n## ")[0]
    assert "Before you start" in before, "a box before the first section"
    headings = [
        line for cell in nb.cells if cell.cell_type == "markdown" for line in cell.source.splitlines()
    ]
    assert all(f"## {name}" in headings for name in ("Summary", "Exercises", "References"))
    summary = next(c.source for c in nb.cells if c.cell_type == "markdown" and "## Summary" in c.source)
    assert 1 <= summary.count("\n- ") <= 6
    assert any("claim" in tags(cell) for cell in code_cells(nb))


@chapters
def test_the_reading_time_that_a_chapter_states_is_the_one_counted(nb):
    assert abs(front.minutes(nb) - front.stated_minutes(nb)) <= 5


def prose(nb):
    """The words of a chapter that are read as text: no markup, no addresses, no formulas."""
    text = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    text = re.sub(r"<[^>]+>|\]\([^)]*\)|\$\$.*?\$\$|\$[^$]*\$", " ", text, flags=re.DOTALL)
    return len(re.findall(r"[^\W\d_][\w’'-]*", text))


@chapters
def test_a_chapter_is_within_its_limits(path, nb):
    found = {"words": prose(nb), "cells": len(nb.cells)}
    print(path, found)
    assert all(found[what] <= most for what, most in LIMITS.items()), found


def test_words_are_counted_without_markup():
    text = 'Two words <p class="a">three</p> [four](five "cite:six") $x + y$.\n\n$$ z $$\n- five, two-fold'
    assert prose(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])) == 6


@chapters
def test_code_cells_are_short_and_introduced(nb):
    previous = None
    for cell in nb.cells:
        if cell.cell_type == "code":
            lines = [line for line in cell.source.splitlines() if line.strip()]
            assert len(lines) <= 15, f"{len(lines)} lines: {cell.source[:80]}"
            folded = {"hide-input", "hide-cell"} & set(tags(cell))
            assert folded or previous == "markdown", f"no sentence before: {cell.source[:80]}"
            width = 88 if not folded else 110
            assert max(map(len, lines)) <= width, f"wider than the page: {max(lines, key=len)}"
        previous = cell.cell_type


@chapters
def test_figures_are_a_drawing_a_picture_and_a_text(nb):
    for cell in code_cells(nb):
        for output in cell.outputs:
            data = output.get("data", {})
            drawn, pictures = figures.FOR_THE_PAGE in data, {"image/png", "image/jpeg", "image/svg+xml"}
            assert drawn == bool(pictures & set(data)), "shown without figures.show"
            assert not drawn or (len(data["text/plain"]) >= 20 and data["image/png"])
            assert "<svg" not in data.get("text/html", ""), "GitHub and Colab take drawings out of HTML"


PHONE = 390  # CSS pixels, the width that a figure has on a phone


def smallest_text(svg):
    """The height in CSS pixels of a drawing's smallest letters, when it is as wide as a phone."""
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])  # points
    texts = re.split(r'<g [^>]*transform="[^"]*scale\(([\d.]+) -[\d.]+\)">', svg)  # points / 100
    sizes = [10.0]
    for size, glyphs in zip(texts[1::2], texts[2::2], strict=True):
        smaller = [float(s) for s in re.findall(r'<use [^>]*transform="[^"]*scale\(([\d.]+)\)', glyphs)]
        sizes.append(100 * float(size) * min([1.0, *smaller]))
    return min(sizes) * PHONE / width


def test_small_letters_are_found(monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")
    with plt.rc_context():
        figures.use_style()
        fig, ax = plt.subplots(figsize=(5.2, 3))
        ax.set_title("a title", fontsize=12)
        assert smallest_text(figures.to_html(fig, "text")) > 8
        ax.set_xlabel("$x^{10}$", fontsize=9)
        exponent = 0.7 * 9 * PHONE / (5.2 * 72)
        assert smallest_text(figures.to_html(fig, "text")) == pytest.approx(exponent, rel=1e-3)
        plt.close(fig)


@chapters
def test_letters_in_figures_can_be_read_on_a_phone(nb):
    for cell in code_cells(nb):
        for output in cell.outputs:
            if svg := output.get("data", {}).get(figures.FOR_THE_PAGE):
                assert smallest_text(svg) >= 8, output.data["text/plain"]


@chapters
def test_citations_read_as_text_and_lead_somewhere(nb):
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            assert "{cite" not in cell.source
            for text, key in citations.LINK.findall(cell.source):
                assert re.search(r"\d{4}|n\.d\.", text), key


@chapters
def test_folded_cells_are_folded_in_colab_too(nb):
    for cell in code_cells(nb):
        assert (cell.metadata.get("cellView") == "form") == notebooks.folded_in_colab(cell)
        if "gpu" in tags(cell) or "setup" in tags(cell):
            assert notebooks.FOLDED & set(tags(cell)), "one line in the page"


@chapters
def test_exercises_fail_as_stubs_and_pass_with_their_solutions(nb):
    """nbval executes the same cells again and compares these outputs."""
    counts = {"exercise": 0, "exercise-check": 0, "solution": 0}
    for cell in code_cells(nb):
        for tag in counts.keys() & set(tags(cell)):
            counts[tag] += 1
            number = counts[tag]
            shown = "".join(map(text_of, cell.outputs))
            if tag == "exercise-check":
                assert re.match(rf"Exercise {number}: not yet\. .*\w", shown)
            if tag == "solution":
                assert shown == f"Exercise {number}: solved.\n" and "hide-cell" in tags(cell)
            if tag != "exercise":
                assert "nbval-check-output" in tags(cell)
    assert counts["exercise"] == counts["exercise-check"] == counts["solution"] >= 2


def test_the_set_up_cell_is_the_same_everywhere():
    cells = [[c.source for c in code_cells(notebooks.read(ROOT / p)) if "setup" in tags(c)] for p in CHAPTERS]
    assert all(len(found) == 1 for found in cells) and len({found[0] for found in cells}) == 1


def test_the_fingerprint_sees_code_and_modules_but_not_prose(tmp_path, monkeypatch):
    (tmp_path / "ed_lib").mkdir()
    for name, source in {"__init__": "", "a": "from ed_lib import b", "b": "x = 1", "c": "y = 1"}.items():
        (tmp_path / "ed_lib" / f"{name}.py").write_text(source)
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)

    def nb(code="from ed_lib import a\n!ls", prose="text"):
        cells = [nbformat.v4.new_markdown_cell(prose), nbformat.v4.new_code_cell(code)]
        return nbformat.v4.new_notebook(cells=cells)

    before = notebooks.fingerprint(nb())
    assert notebooks.fingerprint(nb(prose="other")) == before
    assert notebooks.fingerprint(nb(code="from ed_lib import a")) != before
    (tmp_path / "ed_lib" / "c.py").write_text("y = 2")  # not reached
    assert notebooks.fingerprint(nb()) == before
    (tmp_path / "ed_lib" / "b.py").write_text("x = 2")  # reached through a
    assert notebooks.fingerprint(nb()) != before


def test_canonical_form_does_not_depend_on_who_saved_it():
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1") for _ in range(2)])
    cell = nb.cells[0]
    cell.metadata = nbformat.from_dict({"tags": ["claim"], "execution": {"iopub.execute_input": "now"}})
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=t) for t in ("a", "b")]
    nb.metadata["widgets"] = {"state": 1}
    made = notebooks.canonical(nb)
    assert made.cells[0].metadata == {"tags": ["claim"]} and "widgets" not in made.metadata
    assert [o.text for o in made.cells[0].outputs] == ["ab"]
    assert [c.id for c in made.cells] == [made.cells[0].id, f"{made.cells[0].id}-2"]
    assert notebooks.canonical(made) == made


def test_a_notebook_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path, nb = tmp_path / "a" / "chapter.ipynb", nbformat.v4.new_notebook()
    notebooks.write(nb, path)
    before = path.read_text()
    monkeypatch.setattr(notebooks.os, "replace", lambda *paths: pytest.fail("killed before the end"))
    nb.cells.append(nbformat.v4.new_markdown_cell("more"))
    with pytest.raises(pytest.fail.Exception):
        notebooks.write(nb, path)
    assert path.read_text() == before
    monkeypatch.undo()
    notebooks.write(nb, path)
    assert notebooks.read(path) == nb and [file.name for file in path.parent.iterdir()] == ["chapter.ipynb"]


def test_every_page_of_the_table_of_contents_exists():
    for name in pages():
        assert len([s for s in (".md", ".ipynb") if (ROOT / f"{name}{s}").exists()]) == 1, name
