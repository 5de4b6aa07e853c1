"""What `make book` does: chapters executed once, committed outputs where data are missing, live buttons."""

import importlib.metadata
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import nbformat
import psutil
import pytest
import yaml

from ed_lib import data, gates, machine
from tools import book, notebooks
from tools.notebooks import ROOT, code_cells

BANNER = "Not executed in this build"
WITH_DATA, WITHOUT = (Path(f"book/{name}.ipynb") for name in ("ed/error_diffusion", "ed/every_layer_at_once"))
PATHS = [WITH_DATA, WITHOUT]


@pytest.fixture
def build(tmp_path, monkeypatch):
    """_build elsewhere, and the list of the chapters that were executed, which costs no time here."""
    executed = []

    def execute(nb, path):
        executed.append(path)
        nb.metadata.ed_lib.code = notebooks.fingerprint(nb)
        return nb

    for name, folder in (("BUILD", ""), ("EXECUTED", "executed"), ("SOURCE", "source")):
        monkeypatch.setattr(book, name, tmp_path / folder)
    monkeypatch.setattr(notebooks, "execute", execute)
    notebooks._why_missing.cache_clear()
    yield executed
    notebooks._why_missing.cache_clear()


def failing(monkeypatch, error):
    """Lets every load of data raise this."""

    def load(*arguments, **options):
        raise error

    for name in ("load", "text", "sick", "minilm"):
        monkeypatch.setattr(data, name, load, raising=False)


def shown(path):
    return notebooks.read(book.SOURCE / path)


def test_without_data_chapters_that_need_them_are_not_executed_and_the_end_says_so(
    build, monkeypatch, capsys
):
    failing(monkeypatch, ConnectionError("No network, and no copy"))
    for module, name, here in ((book, "stage", None), (book, "render", None), (notebooks, "chapters", PATHS)):
        monkeypatch.setattr(module, name, lambda here=here: here)
    book.main([])
    assert build == [WITHOUT] and BANNER not in shown(WITHOUT).cells[1].source
    last = capsys.readouterr().out.splitlines()[-2]
    assert last == "1 of 2 chapters were not executed here. No network, and no copy"
    nb, banner = notebooks.read(ROOT / WITH_DATA), shown(WITH_DATA).cells[1].source
    assert BANNER in banner and "No network, and no copy" in banner and nb.metadata.ed_lib.executed in banner
    there, wanted = ([len(c.outputs) for c in code_cells(one) if c.outputs] for one in (shown(WITH_DATA), nb))
    assert there == wanted, "an output is lost"


def test_a_chapter_is_executed_once_and_rendering_executes_nothing(build, monkeypatch):
    monkeypatch.setattr(data, "load", lambda name, **options: None)
    assert book.prepare(WITH_DATA, render_only=True) == "committed outputs" and build == []
    assert BANNER in shown(WITH_DATA).cells[1].source
    assert "executed" in book.prepare(WITH_DATA) and "unchanged" in book.prepare(WITH_DATA, render_only=True)
    assert build == [WITH_DATA] and BANNER not in shown(WITH_DATA).cells[1].source


def test_broken_copies_are_made_again(build):
    for _ in range(2):
        book.prepare(WITHOUT)
    made = shown(WITHOUT)
    (book.SOURCE / WITHOUT).write_bytes(b"{")
    assert "unchanged" in book.prepare(WITHOUT) and shown(WITHOUT) == made
    for content in (b'{"cells": [', b"", b"[]", b"\xff"):
        (book.EXECUTED / WITHOUT).write_bytes(content)
        assert "executed in" in book.prepare(WITHOUT) and "unchanged" in book.prepare(WITHOUT)


def test_what_stops_a_build_is_said_in_a_line(build, tmp_path, monkeypatch):
    monkeypatch.setattr(book, "stage", lambda: pytest.fail("the build went on"))
    for error, options, said in (
        (data.DataError("t10k-labels is damaged"), [], "t10k-labels is damaged$"),
        (ConnectionError("No network, and no copy"), ["--need-data"], "No network, and no copy$"),
    ):
        failing(monkeypatch, error)
        notebooks._why_missing.cache_clear()
        with pytest.raises(SystemExit, match=f"^No book: {said}"):
            book.main(options)
    (tmp_path / "chapter.ipynb").write_text((ROOT / WITHOUT).read_text()[:5000])
    monkeypatch.setattr(book, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "chapters", lambda: [Path("chapter.ipynb")])
    with pytest.raises(SystemExit, match=r"^No book: .*chapter\.ipynb is no notebook: .*JSON"):
        book.main([])
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.1.0")
    with pytest.raises(
        SystemExit, match=r"jupyter-book 2\.1\.0 is installed.*needs version 1\. .*pip install"
    ):
        book.main([])


def test_a_chapter_is_really_executed(tmp_path, monkeypatch):
    """A short one, in a folder with the package beside it; with drawings in the place of pictures."""
    monkeypatch.setattr(book, "EXECUTED", tmp_path / "executed")
    monkeypatch.setattr(book, "SOURCE", tmp_path / "source")
    for module in (book, notebooks):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "ed_lib").symlink_to(ROOT / "ed_lib")
    draw = (
        "import matplotlib.pyplot as plt\nfrom ed_lib import figures\nfigures.show(plt.figure(), 'A figure.')"
    )
    sources = "from ed_lib import machine\nprint(machine.card())", "answer = 6 * 7", "answer", draw
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebooks.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "chapter.ipynb")
    path = Path("chapter.ipynb")
    assert book.prepare(path).startswith("executed in ") and "unchanged" in book.prepare(path)
    made = shown(path)
    assert [len(cell.outputs) for cell in made.cells] == [1, 0, 1, 1] and "42" in str(made.cells[2])
    assert machine.card() in str(made) and notebooks.read(book.EXECUTED / path).metadata.ed_lib.executed
    (data_of_figure,) = (output.data for output in made.cells[3].outputs)
    assert list(data_of_figure) == ["text/html"] and "<figure" in data_of_figure["text/html"]


def test_a_second_build_ends_at_once(build):
    with book.alone(), pytest.raises(SystemExit, match="^No book: another build is at work in "):
        book.main([])


EXECUTE = """
import sys
from pathlib import Path
from tools import notebooks

notebooks.ROOT, path = Path(sys.argv[1]), Path("chapter.ipynb")
notebooks.execute(notebooks.read(notebooks.ROOT / path), path)
"""


def test_an_interrupted_chapter_leaves_no_kernel(tmp_path):
    pid = tmp_path / "pid"
    sleep = f"import os, time\nopen({str(pid)!r}, 'w').write(f'{{os.getpid()}}\\n')\ntime.sleep(1000)"
    cells = [nbformat.v4.new_code_cell(sleep)]
    notebooks.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "chapter.ipynb")
    heard = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # wherever it runs
    call = [sys.executable, "-c", EXECUTE, tmp_path]
    with subprocess.Popen(call, cwd=ROOT, preexec_fn=heard, stderr=subprocess.PIPE, text=True) as run:
        while not pid.exists() or not pid.read_text().endswith("\n"):
            assert run.poll() is None, run.stderr.read()
            time.sleep(0.1)
        time.sleep(1)  # as the kernel is at work, and nbclient waits
        run.send_signal(signal.SIGINT)
        errors = run.communicate(timeout=60)[1]
    assert errors.endswith("KeyboardInterrupt\n") and not psutil.pid_exists(int(pid.read_text()))


def test_outputs_of_a_busy_machine_are_refused_and_a_readers_are_not(tmp_path, monkeypatch):
    path = tmp_path / "chapter.ipynb"
    code = "from ed_lib import gates\ngates.floors({'a call': 1.0}, 2.0)"
    notebooks.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]), path)
    before, waited = path.read_text(), []
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "raise_ceilings", lambda: None)
    monkeypatch.setattr(gates, "wait_for_quiet", waited.append)
    with pytest.raises(
        SystemExit, match="(?s)chapter.ipynb stays as it was.*a call took 1 s, below its floor"
    ):
        notebooks.main([str(path), "--patience", "5"])
    assert path.read_text() == before and waited == [5, 5, 5]
    monkeypatch.setattr(notebooks, "fingerprint", lambda nb: "")
    (cell,) = notebooks.execute(notebooks.read(path), path.relative_to(tmp_path)).cells
    assert cell.outputs[-1].text.startswith("These times say little")


@pytest.mark.parametrize("url, live", [("OWNER/REPOSITORY", False), ("somebody/their-book", True)])
def test_buttons_and_words_about_them_only_where_they_lead_somewhere(url, live, tmp_path, monkeypatch):
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    config["repository"]["url"] = f"https://github.com/{url}"
    config["html"]["baseurl"] = "https://somebody.org/book" * live
    (tmp_path / "_config.yml").write_text(yaml.safe_dump(config))
    (tmp_path / "_toc.yml").write_text("")
    for name in ("index.md", "book"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setattr(book, "ROOT", tmp_path)
    monkeypatch.setattr(book, "SOURCE", tmp_path / "made")
    monkeypatch.setattr(notebooks, "chapters", lambda: [])
    book.stage()
    made = yaml.safe_load((tmp_path / "made" / "_config.yml").read_text())
    assert ("launch_buttons" in made) == ("repository" in made) == live
    assert made["html"]["use_repository_button"] == made["html"]["use_issues_button"] == live
    assert ("ogp_image" in made["sphinx"]["config"]) == live, "a picture's address would lead nowhere"
    assert ("rocket" in (tmp_path / "made" / "index.md").read_text()) == live


def test_folded_code_without_outputs_is_one_line_with_what_follows():
    def cell(source, tag="other", output=False):
        made = nbformat.v4.new_code_cell(source, metadata={"tags": [tag]})
        made.outputs = [nbformat.v4.new_output("stream", text="said")] * output
        return made

    text = nbformat.v4.new_markdown_cell("text")
    cells = [cell("a", "hide-input"), cell("b", "hide-input", output=True), cell("c")]
    cells += [cell("d", "hide-input"), cell("e", "hide-input"), text, cell("f", "hide-input")]
    cells += [cell("g", "hide-cell"), cell("h", output=True)]
    cells[1].metadata["mystnb"] = {"code_prompt_show": "Show the code, part 2"}
    found = book.joined(cells)
    assert [one.source for one in found] == ["a\n\n\nb", "c", "d\n\n\ne", "text", "f", "g", "h"]
    assert found[0].metadata.mystnb.code_prompt_show == "Show the code" and found[0].outputs
