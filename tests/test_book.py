"""What `make book` does: chapters executed once, committed outputs where data are missing, live buttons."""

import contextlib
import importlib.metadata
import os
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

from ed_lib import data, gates, notebook
from tools import book, notebooks
from tools.notebooks import ROOT, code_cells

BANNER = "Not executed in this build"
WITH_DATA, WITHOUT = (Path(f"book/{name}.ipynb") for name in ("ed/error_diffusion", "ed/every_layer_at_once"))


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


@pytest.mark.parametrize("path, needs", [(WITH_DATA, True), (WITHOUT, False)])
def test_without_data_a_chapter_that_needs_them_is_not_executed(path, needs, build, monkeypatch):
    failing(monkeypatch, ConnectionError("No network, and no copy"))
    nb, done = notebooks.read(ROOT / path), book.prepare(path)
    banner = shown(path).cells[1].source
    assert build == ([] if needs else [path]) and needs == ("not executed" in done) == (BANNER in banner)
    if needs:
        assert "No network, and no copy" in banner and nb.metadata.ed_lib.executed in banner
        there, wanted = ([c.outputs for c in code_cells(one) if c.outputs] for one in (shown(path), nb))
        assert list(map(len, there)) == list(map(len, wanted)), "an output is lost"


def test_a_chapter_is_executed_once_and_rendering_executes_nothing(build, monkeypatch):
    monkeypatch.setattr(data, "load", lambda name, **options: None)
    assert book.prepare(WITH_DATA, render_only=True) == "committed outputs" and build == []
    assert BANNER in shown(WITH_DATA).cells[1].source
    assert "executed" in book.prepare(WITH_DATA) and "unchanged" in book.prepare(WITH_DATA)
    assert build == [WITH_DATA] and BANNER not in shown(WITH_DATA).cells[1].source
    assert "unchanged" in book.prepare(WITH_DATA, render_only=True)


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


def test_the_end_of_a_build_says_what_was_not_executed(build, monkeypatch, capsys):
    failing(monkeypatch, ConnectionError("No network, and no copy"))
    monkeypatch.setattr(book, "stage", lambda: None)
    monkeypatch.setattr(book, "render", lambda: None)
    monkeypatch.setattr(notebooks, "chapters", lambda: [WITH_DATA, WITHOUT])
    book.main([])
    last = capsys.readouterr().out.splitlines()[-2]
    assert last == "1 of 2 chapters were not executed here. No network, and no copy"


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
    sources = "from ed_lib import notebook\nprint(notebook.card())", "answer = 6 * 7", "answer", draw
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebooks.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "chapter.ipynb")
    path = Path("chapter.ipynb")
    assert book.prepare(path).startswith("executed in ") and "unchanged" in book.prepare(path)
    made = shown(path)
    assert [len(cell.outputs) for cell in made.cells] == [1, 0, 1, 1] and "42" in str(made.cells[2])
    assert notebook.card() in str(made) and notebooks.read(book.EXECUTED / path).metadata.ed_lib.executed
    (data_of_figure,) = (output.data for output in made.cells[3].outputs)
    assert list(data_of_figure) == ["text/html"] and "<figure" in data_of_figure["text/html"]


BUILD = """
import sys
from pathlib import Path
from tools import book, notebooks

book.ROOT = notebooks.ROOT = Path(sys.argv[1])
book.BUILD = book.ROOT / "_build"
book.EXECUTED, book.SOURCE = book.BUILD / "executed", book.BUILD / "source"
book.stage = lambda: None
notebooks.chapters = lambda: [Path("chapter.ipynb")]
book.main(sys.argv[2:])
"""


@pytest.fixture
def sleeping_build(tmp_path):
    """A build whose only chapter waits in its second cell, and the kernel's process."""
    first = f"import os\nopen({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getpid()}}\\n')"
    cells = [nbformat.v4.new_code_cell(source) for source in (first, "import time; time.sleep(1000)")]
    notebooks.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "chapter.ipynb")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    heard = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # wherever it runs
    build = subprocess.Popen([sys.executable, "-c", BUILD, tmp_path], cwd=ROOT, preexec_fn=heard, **pipes)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):
        assert build.poll() is None, build.stderr.read()
        time.sleep(0.1)
    kernel = psutil.Process(int((tmp_path / "pid").read_text()))
    yield build, kernel
    build.kill()
    build.communicate()
    with contextlib.suppress(psutil.NoSuchProcess):
        kernel.kill()


def test_a_second_build_ends_at_once_and_an_interrupted_one_leaves_no_kernel(sleeping_build, tmp_path):
    build, kernel = sleeping_build
    second = [sys.executable, "-c", BUILD, tmp_path, "--render-only"]
    done = subprocess.run(second, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == "" and build.poll() is None
    assert done.stderr.startswith("No book: another build is at work in ") and done.stderr.count("\n") == 1
    build.send_signal(signal.SIGINT)
    said, errors = build.communicate(timeout=60)
    assert build.returncode == 130 and said == "" and not kernel.is_running()
    assert errors.startswith("Interrupted. ") and errors.count("\n") == 1


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
    for page, words in (("index.md", "rocket"), ("book/preface.md", "GitHub mark")):
        assert (words in (tmp_path / "made" / page).read_text()) == live, page


def test_pages_tell_the_day_of_the_last_commit(tmp_path, monkeypatch):
    (tmp_path / "_config.yml").write_bytes((ROOT / "_config.yml").read_bytes())
    monkeypatch.setattr(book, "ROOT", tmp_path)
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x", "--date=now"]):
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        day = os.environ | {"GIT_COMMITTER_DATE": "2026-03-04T12:00:00Z"}
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True, env=day)
    assert "04 March 2026" in book.configuration()


def test_folded_code_without_outputs_is_one_line_with_what_follows():
    def cell(source, *tags, output=False, title=None):
        made = nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})
        made.outputs = [nbformat.v4.new_output("stream", text="said")] * output
        if title:
            made.metadata["mystnb"] = {"code_prompt_show": title}
        return made

    folded = [cell("a", "hide-input"), cell("b", "hide-input", output=True, title="Show the code, part 2")]
    text = nbformat.v4.new_markdown_cell("text")
    silent = [cell("d", "hide-input"), cell("e", "hide-input"), text, cell("f", "hide-input")]
    found = book.joined([*folded, cell("c"), *silent, cell("g", "hide-cell"), cell("h", output=True)])
    assert [one.source for one in found] == ["a\n\n\nb", "c", "d\n\n\ne", "text", "f", "g", "h"]
    assert found[0].metadata.mystnb.code_prompt_show == "Show the code" and found[0].outputs
