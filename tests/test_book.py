"""What `make book` shows: chapters executed here, committed outputs where data are missing, live buttons."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

nbformat, yaml = pytest.importorskip("nbformat"), pytest.importorskip("yaml")
from ed_lib import data, figures, gates, notebook  # noqa: E402
from tools import book, notebooks  # noqa: E402
from tools.notebooks import ROOT, code_cells  # noqa: E402

BANNER = "Not executed in this build"
CHAPTERS = notebooks.chapters()
WITH_DATA, WITHOUT = (Path(f"book/{name}.ipynb") for name in ("ed/error_diffusion", "ed/every_layer_at_once"))


@pytest.fixture
def build(tmp_path, monkeypatch):
    """_build elsewhere, and the list of the chapters that were executed, which costs no time here."""
    executed = []

    def execute(nb, path):
        executed.append(path)
        nb.metadata.ed_lib.fingerprint = notebooks.fingerprint(nb)
        return nb

    monkeypatch.setattr(book, "BUILD", tmp_path)
    monkeypatch.setattr(book, "EXECUTED", tmp_path / "executed")
    monkeypatch.setattr(book, "SOURCE", tmp_path / "source")
    monkeypatch.setattr(notebooks, "execute", execute)
    notebooks._why_missing.cache_clear()
    yield executed
    notebooks._why_missing.cache_clear()


@pytest.fixture
def no_data(monkeypatch):
    def load(name, **options):
        raise ConnectionError(f"No network, and no copy of {name}")

    monkeypatch.setattr(data, "load", load)
    monkeypatch.setattr(data, "text", load)


def shown(path):
    return notebooks.read(book.SOURCE / path)


WITH_TEXT = Path("book/parallel/when_it_does_not_fit.ipynb")


@pytest.mark.parametrize("path, needs", [(WITH_DATA, True), (WITH_TEXT, True), (WITHOUT, False)])
def test_without_data_a_chapter_that_needs_them_is_not_executed(path, needs, build, no_data):
    nb = notebooks.read(ROOT / path)
    done = book.prepare(path)
    page = shown(path)
    assert build == ([] if needs else [path])
    assert needs == ("not executed" in done) == (BANNER in page.cells[1].source)
    if needs:
        banner = page.cells[1].source
        assert "No network, and no copy of" in banner and nb.metadata.ed_lib.executed in banner
        for one in (page, nb):  # all outputs are there, whichever cells are one on the page
            one.outputs = [len(c.outputs) for c in code_cells(one) if c.outputs]
        assert page.outputs == nb.outputs


@pytest.mark.parametrize("path", [WITH_DATA, WITHOUT])
def test_with_data_a_chapter_is_executed_once(path, build, monkeypatch):
    monkeypatch.setattr(data, "load", lambda name, **options: None)
    assert "executed" in book.prepare(path) and "unchanged" in book.prepare(path)
    assert build == [path] and BANNER not in shown(path).cells[1].source


def test_a_book_that_is_only_rendered_executes_nothing_and_says_so(build, monkeypatch):
    monkeypatch.setattr(data, "load", lambda name, **options: None)
    assert book.prepare(CHAPTERS[0], render_only=True) == "committed outputs" and build == []
    assert BANNER in shown(CHAPTERS[0]).cells[1].source
    book.prepare(CHAPTERS[0])
    assert "unchanged" in book.prepare(CHAPTERS[0], render_only=True)
    assert BANNER not in shown(CHAPTERS[0]).cells[1].source


def test_the_end_of_a_build_says_what_was_not_executed(build, no_data, monkeypatch, capsys):
    monkeypatch.setattr(book, "stage", lambda: None)
    monkeypatch.setattr(book, "render", lambda: None)
    monkeypatch.setattr(notebooks, "chapters", lambda: [WITH_DATA, WITHOUT])
    book.main([])
    last = capsys.readouterr().out.splitlines()[-2]
    assert last.startswith("1 of 2 chapters were not executed here. ")
    assert "No network, and no copy of" in last


@pytest.mark.parametrize("content", [b'{"cells": [', b"", b"[]", b"{}", b"\xff"])
def test_a_broken_copy_counts_as_none(content, tmp_path):
    assert notebooks.read_copy(tmp_path / "copy.ipynb") is None
    (tmp_path / "copy.ipynb").write_bytes(content)
    assert notebooks.read_copy(tmp_path / "copy.ipynb") is None


def test_broken_copies_are_made_again(build):
    for _ in range(2):
        book.prepare(WITHOUT)
    made = shown(WITHOUT)
    (book.SOURCE / WITHOUT).write_bytes(b"{")
    assert "unchanged" in book.prepare(WITHOUT) and shown(WITHOUT) == made
    (book.EXECUTED / WITHOUT).write_bytes(b"{")
    assert "executed in" in book.prepare(WITHOUT) and "unchanged" in book.prepare(WITHOUT)


def test_a_broken_chapter_is_an_error_that_names_it(build, tmp_path, monkeypatch):
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "chapter.ipynb").write_text((ROOT / CHAPTERS[0]).read_text()[:5000])
    monkeypatch.setattr(book, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "chapters", lambda: [Path("book/chapter.ipynb")])
    monkeypatch.setattr(book, "stage", lambda: None)
    with pytest.raises(SystemExit, match=r"chapter\.ipynb is no notebook: .*JSON"):
        book.main([])


def test_a_chapter_is_really_executed(tmp_path, monkeypatch):
    """A short one, in a folder with the package beside it."""
    monkeypatch.setattr(book, "EXECUTED", tmp_path / "executed")
    monkeypatch.setattr(book, "SOURCE", tmp_path / "source")
    for module in (book, notebooks):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "ed_lib").symlink_to(ROOT / "ed_lib")
    sources = "from ed_lib import notebook\nprint(notebook.card())", "answer = 6 * 7", "answer"
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebooks.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "chapter.ipynb")
    path = Path("chapter.ipynb")
    assert book.prepare(path).startswith("executed in ")
    made = shown(path)
    assert [len(cell.outputs) for cell in made.cells] == [1, 0, 1] and "42" in str(made.cells[2])
    assert notebook.card() in str(made) and made.metadata.ed_lib.executed
    assert "unchanged" in book.prepare(path)


def test_a_page_has_drawings_and_roles(build, monkeypatch):
    monkeypatch.setattr(data, "load", lambda name, **options: None)
    path = CHAPTERS[0]
    book.prepare(path)
    page = shown(path)
    bundles = [o.data for c in code_cells(page) for o in c.outputs if "data" in o]
    assert any("<figure" in b.get("text/html", "") for b in bundles)
    assert not any(figures.FOR_THE_PAGE in b or "image/png" in b for b in bundles)
    prose = "".join(c.source for c in page.cells if c.cell_type == "markdown")
    assert "{cite:" in prose and '"cite:' not in prose


def test_a_build_with_a_damaged_file_stops_in_one_line(build, monkeypatch):
    def load(name, **options):
        raise data.DataError("t10k-labels is damaged")

    monkeypatch.setattr(data, "load", load)
    monkeypatch.setattr(book, "stage", lambda: pytest.fail("the build went on"))
    with pytest.raises(SystemExit, match="^No book: t10k-labels is damaged$"):
        book.main([])


def test_a_build_that_needs_data_stops_without_them(build, no_data, monkeypatch):
    monkeypatch.setattr(book, "stage", lambda: pytest.fail("the build went on"))
    with pytest.raises(SystemExit, match="No book: No network, and no copy of"):
        book.main(["--need-data"])


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
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("No book: another build is at work in ") and done.stderr.count("\n") == 1
    assert build.poll() is None
    build.send_signal(signal.SIGINT)
    said, errors = build.communicate(timeout=60)
    assert build.returncode == 130 and said == ""
    assert errors.startswith("Interrupted. ") and errors.count("\n") == 1
    assert not kernel.is_running()


def test_interrupting_the_command_that_writes_chapters_ends_it_in_a_line(monkeypatch, capsys):
    def execute(nb, path, **environment):
        raise KeyboardInterrupt

    monkeypatch.setattr(notebooks, "raise_ceilings", lambda: None)
    monkeypatch.setattr(gates, "wait_for_quiet", lambda patience: None)
    monkeypatch.setattr(notebooks, "execute", execute)
    monkeypatch.setattr(notebooks, "write", lambda nb, path: pytest.fail("written"))
    with pytest.raises(SystemExit) as ended:
        notebooks.main([str(ROOT / WITHOUT)])
    said = capsys.readouterr()
    assert ended.value.code == 130 and said.out == "" and said.err.count("\n") == 1


@pytest.mark.parametrize("url, buttons", [("OWNER/REPOSITORY", False), ("somebody/their-book", True)])
def test_buttons_only_where_they_lead_somewhere(url, buttons, tmp_path, monkeypatch):
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    config["repository"]["url"] = f"https://github.com/{url}"
    (tmp_path / "_config.yml").write_text(yaml.safe_dump(config))
    monkeypatch.setattr(book, "ROOT", tmp_path)
    made = yaml.safe_load(book.configuration())
    assert ("launch_buttons" in made) == ("repository" in made) == buttons
    assert made["html"]["use_repository_button"] == made["html"]["use_issues_button"] == buttons


@pytest.mark.parametrize("url, said", [("OWNER/REPOSITORY", False), ("somebody/their-book", True)])
def test_pages_speak_of_buttons_only_where_there_are_some(url, said, tmp_path, monkeypatch):
    config = (ROOT / "_config.yml").read_text().replace("OWNER/REPOSITORY", url)
    (tmp_path / "book").mkdir()
    (tmp_path / "_config.yml").write_text(config)
    for page in ("index.md", "book/preface.md"):
        shutil.copy(ROOT / page, tmp_path / page)
    monkeypatch.setattr(book, "ROOT", tmp_path)
    monkeypatch.setattr(book, "SOURCE", tmp_path / "made")
    monkeypatch.setattr(notebooks, "chapters", lambda: [])
    book.stage()
    for page, words in (("index.md", "rocket"), ("book/preface.md", "GitHub mark")):
        assert (words in (tmp_path / "made" / page).read_text()) == said, page


def test_pages_tell_the_day_of_the_last_commit(tmp_path, monkeypatch):
    shutil.copy(ROOT / "_config.yml", tmp_path)
    monkeypatch.setattr(book, "ROOT", tmp_path)
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x", "--date=now"]):
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        day = os.environ | {"GIT_COMMITTER_DATE": "2026-03-04T12:00:00Z"}
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True, env=day)
    made = yaml.safe_load(book.configuration())
    assert made["sphinx"]["config"]["html_last_updated_fmt"] == "04 March 2026"


@pytest.mark.parametrize("seconds, text", [(3.2, "3 s"), (89, "89 s"), (200, "3 min")])
def test_durations(seconds, text):
    assert book.duration(seconds) == text


def test_folded_code_without_outputs_is_one_line_with_what_follows():
    def cell(source, *tags, output=False, title=None):
        made = nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})
        made.outputs = [nbformat.v4.new_output("stream", text="said")] * output
        if title:
            made.metadata["mystnb"] = {"code_prompt_show": title}
        return made

    folded = [cell("a", "hide-input"), cell("b", "hide-input", output=True, title="Show the code, part 2")]
    shown = [cell("c"), nbformat.v4.new_markdown_cell("text")]
    silent = [cell("d", "hide-input"), cell("e", "hide-input"), shown[1], cell("f", "hide-input")]
    found = book.joined([*folded, *shown, *silent, cell("g", "hide-cell"), cell("h", output=True)])
    wanted = ["a\n\n\nb", "c", "text", "d\n\n\ne", "text", "f", "g", "h"]
    assert [one.source for one in found] == wanted
    assert found[0].metadata.mystnb.code_prompt_show == "Show the code" and found[0].outputs
