"""What `make book` does: chapters executed once, what is left out told, live buttons."""

import atexit
import errno
import importlib.metadata
import shutil
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
from nbclient import NotebookClient

from benchmarks.shared import quiet
from ed_lib import figures, machine, needs, published
from tools import book, found, lighten, notebooks, page_cells
from tools.notebooks import ROOT

PATH = Path("chapter.ipynb")


@pytest.fixture
def chapter(tmp_path, monkeypatch):
    """chapter(source of a code cell, …) makes a book of one chapter, with the package beside it."""
    for module in (book, notebooks):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    for name, folder in (("BUILD", ""), ("EXECUTED", "executed"), ("SOURCE", "source")):
        monkeypatch.setattr(book, name, tmp_path / folder)
    for module, name, it in (
        (book, "stage", None),
        (book, "render", None),
        (notebooks, "chapters", [PATH]),
    ):
        monkeypatch.setattr(module, name, lambda it=it: it)
    (tmp_path / "ed_lib").symlink_to(ROOT / "ed_lib")

    def make(*sources):
        title = nbformat.v4.new_markdown_cell(
            "# Title\n\n## A section\n\n```python\n# no heading\n```"
        )
        cells = [title, *map(nbformat.v4.new_code_cell, sources)]
        nb = nbformat.v4.new_notebook(cells=cells)
        nb.metadata["ed_lib"] = {"executed": "2026-01-02", "machine": "CPU: of ours"}
        nb.cells[1].outputs = [nbformat.v4.new_output("stream", text="committed")]
        notebooks.write(nb, tmp_path / PATH)

    monkeypatch.setattr(needs, "why_not", lambda name: "")
    return make


def shown():
    return notebooks.read(book.SOURCE / PATH).cells


DRAW = "import matplotlib.pyplot as plt\nfrom ed_lib import figures\nfigures.show(plt.figure(), 'A figure.')"


def test_a_chapter_is_executed_once_and_rendering_executes_nothing(chapter):
    chapter("from ed_lib import machine\nprint(machine.card())", "answer = 6 * 7", "answer", DRAW)
    assert book.prepare(PATH, render_only=True) == "committed outputs"
    assert shown()[1].outputs[0].text == "committed"
    assert book.prepare(PATH).startswith("executed in ") and "unchanged" in book.prepare(
        PATH, render_only=True
    )
    made = shown()
    assert [len(cell.get("outputs", ())) for cell in made] == [0, 1, 0, 1, 1] and "42" in str(
        made[3]
    )
    assert machine.card() in str(made)
    (output,) = made[4].outputs
    assert list(output.data) == ["text/html"] and "<figure" in output.data["text/html"]
    (book.SOURCE / PATH).write_bytes(b"{")
    assert "unchanged" in book.prepare(PATH) and shown() == made
    for content in (b'{"cells": [', b"", b"[]", b"\xff"):
        (book.EXECUTED / PATH).write_bytes(content)
        assert notebooks.read_copy(book.EXECUTED / PATH) is None, "a broken copy counts as none"


@pytest.fixture
def no_network(tmp_path, monkeypatch):
    monkeypatch.delenv("ED_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # refuses at once


def test_a_part_whose_data_cannot_be_had_is_left_out_and_told(chapter, no_network, capsys):
    begin = "from ed_lib import needs\nget_ipython().register_magic_function(needs.run, 'cell', 'needs')"
    chapter(begin, "%%needs SICK\n1 / 0", "%%needs SICK, as above\n1 / 0", "print(6 * 7)")
    committed = (book.ROOT / PATH).read_text()
    told = "This part is left out here, because SICK cannot be had. No download of sick/SICK.txt"
    book.main([])
    assert capsys.readouterr().out.splitlines()[-2].startswith(f"chapter, 'A section': {told}")
    outputs = [cell.outputs for cell in shown()[2:]]
    assert outputs[0][0].text.startswith(told) and outputs[1] == [] and "42" in str(outputs[2])
    with pytest.raises(SystemExit, match=f"^No book: chapter, 'A section': {told}"):
        book.main(["--need-data"])
    assert ": executed in " in capsys.readouterr().out, "not what is there, with a part left out"
    notebooks.main([str(book.ROOT / PATH)])
    assert f"{PATH}: left as it is. {told}" in capsys.readouterr().out
    assert (book.ROOT / PATH).read_text() == committed


def test_what_stops_a_build_is_said_in_a_line(chapter, tmp_path, monkeypatch):
    def why_not(name):
        raise published.DataError("SICK.txt is damaged")

    chapter("6 * 7")
    monkeypatch.setattr(book, "stage", lambda: pytest.fail("the build went on"))
    monkeypatch.setattr(needs, "why_not", why_not)
    with book.alone(), pytest.raises(SystemExit, match="^No book: another build is at work in "):
        book.main([])
    with pytest.raises(SystemExit, match="^No book: SICK.txt is damaged$"):
        book.main([])
    monkeypatch.setattr(needs, "why_not", lambda name: "")
    monkeypatch.setattr(book, "stage", lambda: None)
    (tmp_path / PATH).write_text((tmp_path / PATH).read_text()[:50])
    with pytest.raises(SystemExit, match=r"^No book: .*chapter\.ipynb is no notebook: .*JSON"):
        book.main([])
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.1.0")
    with pytest.raises(
        SystemExit, match=r"jupyter-book 2\.1\.0 is installed.*needs version 1\. .*pip install"
    ):
        book.main([])


EXECUTE = """
import sys
from pathlib import Path
from tools import notebooks

notebooks.ROOT, path = Path(sys.argv[1]), Path("chapter.ipynb")
notebooks.execute(notebooks.read(notebooks.ROOT / path), path)
"""


@pytest.mark.slow
def test_an_interrupted_chapter_leaves_no_kernel(chapter, tmp_path):
    pid = tmp_path / "pid"
    chapter(
        f"import os, time\nopen({str(pid)!r}, 'w').write(f'{{os.getpid()}}\\n')\ntime.sleep(1000)"
    )
    heard = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # wherever it runs
    pipe = {"preexec_fn": heard, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", EXECUTE, tmp_path], cwd=ROOT, **pipe) as run:
        while not pid.exists() or not pid.read_text().endswith("\n"):
            time.sleep(0.1)
        time.sleep(1)  # as the kernel is at work, and nbclient waits
        run.send_signal(signal.SIGINT)
        errors = run.communicate(timeout=60)[1]
    assert errors.endswith("KeyboardInterrupt\n") and not psutil.pid_exists(int(pid.read_text()))


def test_a_kernel_that_does_not_start_is_not_ended_as_python_ends(chapter, tmp_path, monkeypatch):
    async def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    chapter("6 * 7")
    later = []
    monkeypatch.setattr(atexit, "register", later.append)
    monkeypatch.setattr(atexit, "unregister", later.remove)
    monkeypatch.setattr(NotebookClient, "async_start_new_kernel", full)
    with pytest.raises(OSError, match="No space left"):
        notebooks.execute(notebooks.read(tmp_path / PATH), PATH)
    assert not later


def test_a_home_that_cannot_be_written_into_is_named_on_no_page(chapter, tmp_path, monkeypatch):
    chapter("import os\nprint(os.environ['MPLCONFIGDIR'])")
    monkeypatch.setattr(notebooks.os, "access", lambda *_: False)
    cell = notebooks.execute(notebooks.read(tmp_path / PATH), PATH).cells[1]
    assert Path(cell.outputs[0].text.strip()) == tmp_path / "_build" / "home"


def test_chapters_run_by_two_and_one_that_fails_ends_the_other(chapter, tmp_path):
    pid, other = tmp_path / "pid", Path("other.ipynb")
    chapter(
        f"import os, time\nopen({str(pid)!r}, 'w').write(f'{{os.getpid()}}\\n')\ntime.sleep(1000)"
    )
    (tmp_path / PATH).rename(tmp_path / other)
    chapter(f"import os, time\nwhile not os.path.exists({str(pid)!r}):\n    time.sleep(0.1)\n1 / 0")
    # those that have not begun are not waited for either
    waiting = [Path(f"waiting{n}.ipynb") for n in range(3)]
    for path in waiting:
        shutil.copy(tmp_path / other, tmp_path / path)
    with pytest.raises(SystemExit, match=r"(?s)chapter\.ipynb: a cell failed.*ZeroDivisionError"):
        list(book.prepared([other, PATH, *waiting], render_only=False))
    assert not psutil.pid_exists(int(pid.read_text()))


def test_outputs_of_a_busy_machine_are_refused_and_a_readers_are_not(
    chapter, tmp_path, monkeypatch
):
    chapter("from ed_lib import gates\ngates.floors({'a call': 1.0}, 2.0)")
    before, waited = (tmp_path / PATH).read_text(), []
    monkeypatch.setattr(notebooks, "raise_ceilings", lambda: None)
    monkeypatch.setattr(quiet, "wait", lambda patience, reached: waited.append(patience))
    with pytest.raises(
        SystemExit, match="(?s)chapter.ipynb stays as it was.*a call took 1 s, below its floor"
    ):
        notebooks.main([str(tmp_path / PATH), "--patience", "5"])
    assert (tmp_path / PATH).read_text() == before and waited == [5, 5, 5]
    cell = notebooks.execute(notebooks.read(tmp_path / PATH), PATH).cells[1]
    assert cell.outputs[-1].text.startswith("These times say little: a call took 1 s")


@pytest.mark.parametrize("source, waits", [
    ("print(6 * 7)", 0),
    ("%%gpu\nfrom ed_lib import timing\nprint(timing.now())", 0),
    ("from ed_lib import timing\nprint(timing.now() > 0)", 1),
])  # fmt: skip
def test_only_a_chapter_that_times_something_waits_for_a_quiet_machine(
    chapter, source, waits, tmp_path, monkeypatch
):
    waited = []
    monkeypatch.setattr(quiet, "wait", lambda patience, reached: waited.append(patience))
    # what is executed, and how, is the tests' above
    monkeypatch.setattr(notebooks, "execute", lambda nb, path, **environment: nb)
    chapter(source)
    notebooks.main([str(tmp_path / PATH)])
    assert len(waited) == waits


@pytest.mark.parametrize("url, live", [("OWNER/REPOSITORY", False), ("somebody/their-book", True)])
def test_buttons_and_words_about_them_only_where_they_lead_somewhere(
    url, live, tmp_path, monkeypatch
):
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    config["repository"]["url"] = f"https://github.com/{url}"
    config["html"]["baseurl"] = "https://somebody.org/book" * live
    (tmp_path / "_config.yml").write_text(yaml.safe_dump(config))
    for name in ("_toc.yml", "index.md", "book"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setattr(book, "ROOT", tmp_path)
    monkeypatch.setattr(book, "SOURCE", tmp_path / "made")
    book.stage()
    made = yaml.safe_load((tmp_path / "made" / "_config.yml").read_text())
    assert ("launch_buttons" in made) == ("repository" in made) == live
    assert made["html"]["use_repository_button"] == made["html"]["use_issues_button"] == live
    assert ("ogp_image" in made["sphinx"]["config"]) == live, (
        "a picture's address would lead nowhere"
    )
    assert ("rocket" in (tmp_path / "made" / "index.md").read_text()) == live


def test_a_chapters_first_figure_is_its_picture_where_the_book_has_an_address(
    tmp_path, monkeypatch
):
    data = {figures.FOR_THE_PAGE: "<figure>", "image/png": "AAAA", "text/plain": "A curve. From 1."}
    cell = nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("display_data", data)])
    nb = nbformat.v4.new_notebook(cells=[cell])
    found.picture(nb, PATH, tmp_path)
    assert not nb.metadata and not list(tmp_path.iterdir())
    monkeypatch.setattr(found, "address", lambda: "https://somebody.org/book")
    found.picture(nb, PATH, tmp_path)
    assert nb.metadata["og:image"] == "_static/previews/chapter.png"
    assert nb.metadata["og:image:alt"] == "A curve"
    assert (tmp_path / "book" / nb.metadata["og:image"]).read_bytes() == b"\0\0\0"


def test_folded_code_without_outputs_goes_into_the_fold_after_it():
    cells = [nbformat.v4.new_code_cell(source) for source in "abcde"]
    for n in (0, 1, 3, 4):
        cells[n].metadata["tags"] = ["hide-input"]
    cells[1].outputs = [nbformat.v4.new_output("stream", text="said")]
    found = page_cells.joined(cells)
    assert [cell.source for cell in found] == ["a\n\n\nb", "c", "d\n\n\ne"] and found[0].outputs


def test_the_first_screens_figure_comes_before_the_code_that_makes_it():
    words = nbformat.v4.new_markdown_cell("words")
    cells = [
        nbformat.v4.new_code_cell(source, metadata={"tags": ["hide-input"]}) for source in "abc"
    ]
    cells[0].outputs = [nbformat.v4.new_output("stream", text="a machine")]
    cells[1].outputs = [
        nbformat.v4.new_output("display_data", {"text/html": '<svg role="img"></svg>'})
    ]
    assert page_cells.figure_first([cells[0], words, *cells[1:]]) == [cells[0], words, *cells[1:]]
    _, shown, fold, after = page_cells.figure_first([words, *cells])
    assert notebooks.tags(shown) == ["remove-input"] and "svg" in str(shown.outputs)
    assert fold.source == "a\n\n\nb" and "a machine" in str(fold.outputs) and after.source == "c"


def test_a_page_that_moved_leads_to_where_it_stands_now(tmp_path):
    for old, new in book.MOVED.items():
        (tmp_path / old).parent.mkdir(parents=True, exist_ok=True)
        assert (
            not (ROOT / f"{old}.ipynb").exists() and (ROOT / old).with_name(f"{new}.ipynb").exists()
        )
    book.redirect(tmp_path)
    assert 'url=fast_forward.html"' in (tmp_path / "book/ed/forward_at_once.html").read_text()


PAGE = """<link rel="stylesheet" href="_static/sphinx-design.min.css?v=1" />
<script defer src="_static/scripts/fontawesome.js?digest=1"></script>
<script src="_static/searchtools.js"></script> <script src="searchindex.js"></script>
<script src="_static/book.js"></script><i class="fa-solid fa-bars"></i>"""


def test_pages_lose_what_they_do_not_use_and_no_more(tmp_path):
    pages = {"a.html": PAGE, "search.html": PAGE, "b.html": f'{PAGE}<p class="sd-card">'}
    (tmp_path / "_static/styles").mkdir(parents=True)
    for name, text in pages.items():
        (tmp_path / name).write_text(text)
    styles = tmp_path / "_static/styles/pydata-sphinx-theme.css"
    styles.write_text('a{b:c}.fa-bars:before,.fa-x:before{content:"1"}.fa-y:before{content:"2"}')
    for _ in range(2):  # a second time changes nothing
        lighten.lighten(tmp_path)
        assert styles.read_text() == 'a{b:c}.fa-bars:before,.fa-x:before{content:"1"}'
        found = {name: (tmp_path / name).read_text() for name in pages}
        assert all('<i aria-hidden="true" class="fa-' in text for text in found.values())
        assert all("fontawesome" not in text and "book.js" in text for text in found.values())
        assert [name for name in pages if "searchindex" in found[name]] == ["search.html"]
        assert [name for name in pages if "sphinx-design" in found[name]] == ["b.html"]
