"""`make book`: executes every chapter on this machine, renders the book, and says where it is.

Copies of the chapters are executed (_build/executed), made into pages (_build/source) and rendered
(_build/html). One whose code, records and machine are those of its last execution keeps the outputs
it has there, if nothing was left out. `make test` only renders.
"""

import argparse
import contextlib
import fcntl
import importlib.metadata
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import psutil
import yaml
from nbclient.exceptions import CellExecutionError, DeadKernelError

from ed_lib import figures, machine, needs
from tools import api, found, hero, lighten, measurements, notebooks, page_cells
from tools.notebooks import ROOT, code_cells

BUILD = ROOT / "_build"
EXECUTED, SOURCE = BUILD / "executed", BUILD / "source"
# What a page says only where the book has an address.
PUBLISHED = re.compile(r"<!-- published: -->.*?<!-- end of published -->", re.DOTALL)
# Pages that are no more, and the pages beside them that have taken them in.
MOVED = {"book/ed/forward_at_once": "fast_forward", "book/ed/what_depth_does": "why_it_learns"}
FRONT = Path("index.md")
# The front page's figure, as tools.front draws it.
FIGURE = ROOT / "book" / "_static" / "front.svg"


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m tools.book", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--need-data", action="store_true", help="stop where a page leaves out a part"
    )
    parser.add_argument(
        "--render-only", action="store_true", help="execute nothing: committed outputs"
    )
    options = parser.parse_args(arguments)
    try:
        with alone():
            build(options.need_data, options.render_only)
    except (OSError, ValueError) as error:  # no notebook, a damaged file, no folder of data
        sys.exit(f"No book: {error}")
    except KeyboardInterrupt:
        sys.exit("Interrupted. The next build goes on with the chapter where this one ended.")


@contextlib.contextmanager
def alone():
    """While one build is at work in _build, a second one leaves at once. The lock ends with its
    process.
    """
    BUILD.mkdir(exist_ok=True)
    # The system gives up a lock when its process ends, however it ends.
    with open(BUILD / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"No book: another build is at work in {BUILD}. Wait for it, or end it.")
        yield


def build(need_data, render_only):
    """The whole book, or SystemExit with what is in its way."""
    start = time.monotonic()
    chapters = notebooks.chapters()
    check_program()
    if not render_only:
        # An ED_DATA that names no folder, or a damaged file, is told at once.
        needs.why_not("SICK")
    stage()
    left_out = []
    for number, (path, done) in enumerate(prepared(chapters, render_only), 1):
        print(f"chapter {number} of {len(chapters)}, {path.stem}: {done}", flush=True)
        for part, why in notebooks.left_out(notebooks.read(SOURCE / path)).items():
            left_out.append(f"{path.stem}, {part!r}: {why}")
        if need_data and left_out:
            sys.exit(f"No book: {left_out[0]}")
    render()
    print(*left_out, sep="\n", end="\n" * bool(left_out))
    print(
        f"The book is ready ({time.monotonic() - start:.0f} s): "
        f"{(BUILD / 'html' / 'index.html').as_uri()}"
    )


def check_program():
    """SystemExit unless Jupyter Book is version 1: version 2 is another program, without Sphinx."""
    version = importlib.metadata.version("jupyter-book")
    if not version.startswith("1."):
        sys.exit(
            f"No book: jupyter-book {version} is installed here, and this book needs version 1. "
            "Install it with: pip install 'jupyter-book>=1.0.4,<2'"
        )


def stage():
    """Brings _build/source up to date with what the book is made of, chapters apart; keeps files'
    times.
    """
    files = [ROOT / "_toc.yml", *ROOT.glob("index*.md"), *(ROOT / "book").rglob("*")]
    files = [path for path in files if path.is_file() and path.suffix != ".ipynb"]
    pages = {path.relative_to(ROOT): path.read_bytes() for path in files}
    made = {Path("_config.yml"): configuration()} | api.pages() | measurements.pages()
    for path in pages.keys() - made.keys():
        if path.suffix == ".md":
            text = page_cells.inline(pages[path].decode(), FIGURE)
            made[path] = hero.on_first_page(text)
    made[FRONT] = found.promise() + made[FRONT]
    for path, text in made.items():
        pages[path] = (text if published() else PUBLISHED.sub("", text)).encode()
    # What is no page any more goes; prepare() writes the chapters.
    kept = pages.keys() | set(notebooks.chapters())
    for old in [path for path in SOURCE.rglob("*") if path.is_file()]:
        if old.relative_to(SOURCE) not in kept:
            old.unlink()
    for path, content in pages.items():
        (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
        # Sphinx reads anew what has a new time, and forgets the {index} of what it does not read.
        is_new = not (SOURCE / path).exists() or (SOURCE / path).read_bytes() != content
        if is_new or b"```{index}" in content:
            (SOURCE / path).write_bytes(content)


def published():
    """Whether the book knows its address; without it no page speaks of buttons that lead there."""
    return "OWNER/REPOSITORY" not in (ROOT / "_config.yml").read_text()


def configuration():
    """_config.yml with the date of the last commit, and without what would lead nowhere."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    sphinx = config["sphinx"]["config"]
    ask = ["git", "log", "-1", "--format=%cs"]
    date = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    # What is no clone has no commit; there it is the day of the build.
    sphinx["html_last_updated_fmt"] = date or "%Y-%m-%d"
    if base := config["html"]["baseurl"]:
        sphinx |= {"ogp_site_url": f"{base.rstrip('/')}/", "ogp_image": "_static/front.png"}
    if not published():
        del config["repository"], config["launch_buttons"]
        config["html"] |= {"use_repository_button": False, "use_issues_button": False}
    return yaml.safe_dump(config, allow_unicode=True, sort_keys=False)


def prepared(chapters, render_only):
    """Prepares the chapters, first, by two, those that time nothing → (path, what was done), as
    each ends.
    """
    by_two = []
    if not render_only:
        by_two = [path for path in chapters if notebooks.times_nothing(read_chapter(path))]
    # A chapter computes in its kernel, which is a process: threads that wait for it are enough.
    with ThreadPoolExecutor(2) as pool:
        jobs = {pool.submit(prepare, path, OMP_NUM_THREADS="1"): path for path in by_two}
        try:
            yield from ((jobs[job], job.result()) for job in as_completed(jobs))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            # Of those that are at work a kernel may begin, or be gone, only now. (What was
            # cancelled before it began is never "done", so ``wait`` would wait for ever.)
            while any(job.running() for job in jobs):
                time.sleep(0.2)
                with contextlib.suppress(psutil.NoSuchProcess):
                    for child in psutil.Process().children():
                        if "ipykernel_launcher" in child.cmdline():
                            child.kill()
    yield from ((path, prepare(path, render_only)) for path in chapters if path not in by_two)


def read_chapter(path):
    return notebooks.read(ROOT / path)


def prepare(path, render_only=False, **environment):
    """Puts a chapter into _build/source as a page; executes it if something has changed → what it
    did.
    """
    nb = read_chapter(path)
    copy = EXECUTED / path
    old = notebooks.read_copy(copy)
    made_on = machine.card()
    made_of = notebooks.fingerprint(nb)
    is_same = old and (old.metadata.get("made_on"), old.metadata.ed_lib.code) == (made_on, made_of)
    if is_same and not notebooks.left_out(old):
        for cell, done in zip(code_cells(nb), code_cells(old), strict=True):
            cell.outputs, cell.execution_count = done.outputs, done.execution_count
        page(nb, path)
        return f"unchanged since it was executed here on {old.metadata.ed_lib.executed}"
    if render_only:
        page(nb, path)
        return "committed outputs"
    start = time.monotonic()
    try:
        made = notebooks.execute(nb, path, **environment)
    except (CellExecutionError, DeadKernelError) as error:
        sys.exit(f"\n{path}: a cell failed, so there is no new book.\n{notebooks.plain(error)}")
    made.metadata["made_on"] = made_on
    notebooks.write(made, copy)
    page(made, path)
    return f"executed in {time.monotonic() - start:.0f} s"


def page(nb, path):
    """Writes a chapter into _build/source: figures as drawings, neighbouring folds as one."""
    found.picture(nb, path, SOURCE)
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            # A source with no address of its own is found on the page of references.
            cell.source = cell.source.replace("](#References ", "](../appendix/references.md ")
        if "claim" in notebooks.tags(cell):
            cell.metadata.setdefault("mystnb", {"code_prompt_show": "Show the check"})
        for output in cell.get("outputs", []):
            if figures.FOR_THE_PAGE in output.get("data", {}):
                drawing = output.data[figures.FOR_THE_PAGE]
                if cell.id == hero.FIGURE:
                    drawing = hero.runnable(drawing, "../../")
                output.data = {"text/html": drawing}
    nb.cells[0].source += found.index(path)
    nb.cells = page_cells.joined(page_cells.figure_first(nb.cells))
    # This lexer knows cells with ! and %.
    nb.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    # The search index forgets what a build does not read anew.
    if path.stem in found.INDEX or notebooks.read_copy(SOURCE / path) != nb:
        notebooks.write(nb, SOURCE / path)


def render():
    """Jupyter Book 1, with warnings as errors; what it prints is shown when it fails."""
    print("rendering ...", flush=True)
    program = [Path(sys.executable).with_name("jupyter-book"), "build", SOURCE]
    options = ["--path-output", ROOT, "--builder", "html", "-W", "--keep-going", "-q"]
    try:
        result = subprocess.run(
            [*program, *options], stdout=-1, stderr=subprocess.STDOUT, text=True
        )
        if result.returncode:
            sys.exit(f"{result.stdout}\nThe book was not rendered; the reason is above.")
    except BaseException:  # so that the next build passes over neither a fault nor half a page
        for folder in ("html", ".doctrees"):
            shutil.rmtree(BUILD / folder, ignore_errors=True)
        raise
    lighten.lighten(BUILD / "html")
    redirect(BUILD / "html")


def redirect(site):
    """Writes, for each page that is no more, one that leads on."""
    for old, new in MOVED.items():
        (site / f"{old}.html").write_text(
            f'<meta http-equiv="refresh" content="0; url={new}.html">\n'
        )


if __name__ == "__main__":
    main()
