"""`make book`: executes every chapter on this machine, renders the book, and says where it is.

The chapters under book/ stay as they are. Copies are executed (_build/executed), made into pages
(_build/source) and rendered (_build/html). A chapter whose code and machine are those of its last execution
keeps the outputs it has there; one whose data cannot be had is shown with the outputs it was committed with.
`make test` only renders: nbval executes the chapters there, and once is enough.
"""

import argparse
import contextlib
import datetime
import fcntl
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml
from nbclient.exceptions import CellExecutionError

from ed_lib import figures, gates, notebook
from tools import citations, notebooks
from tools.notebooks import ROOT, code_cells

BUILD = ROOT / "_build"
EXECUTED = BUILD / "executed"
SOURCE = BUILD / "source"
PAGE = BUILD / "html" / "index.html"
PUBLISHED = re.compile(rb"<!-- published: -->.*?<!-- end of published -->", re.DOTALL)
BANNER = """\
```{{admonition}} Not executed in this build
:class: warning
{problem} What its cells print and draw below came with the book: made on {executed} ({machine}).
```
"""


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tools.book", description=__doc__.split("\n")[0])
    parser.add_argument("--need-data", action="store_true", help="stop where a chapter's data cannot be had")
    parser.add_argument("--render-only", action="store_true", help="execute nothing: committed outputs")
    options = parser.parse_args(arguments)
    try:
        with alone():
            build(options.need_data, options.render_only)
    except notebooks.BrokenNotebook as error:
        sys.exit(f"No book: {error}")
    except KeyboardInterrupt:
        print("Interrupted. The next build goes on with the chapter where this one ended.", file=sys.stderr)
        sys.exit(130)


@contextlib.contextmanager
def alone():
    """While one build is at work in _build, a second one leaves at once. The lock ends with its process."""
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"No book: another build is at work in {BUILD}. Wait for it, or end it.")
        yield


def build(need_data, render_only):
    """The whole book, or SystemExit with what is in its way."""
    start, chapters = time.monotonic(), notebooks.chapters()
    try:
        problem = first_problem(chapters)
    except (OSError, ValueError) as error:  # a damaged file, a folder that is not there
        sys.exit(f"No book: {error}")
    if need_data and problem:
        sys.exit(f"No book: {problem}")
    stage()
    cells = [len(code_cells(notebooks.read(ROOT / path))) for path in chapters]
    left_out, seconds, executed = 0, 0.0, 0
    for number, path in enumerate(chapters):
        began = time.monotonic()
        try:
            done = prepare(path, render_only)
        except CellExecutionError as error:
            sys.exit(f"\n{path}: a cell failed, so there is no new book.\n{notebooks.plain(error)}")
        left_out += done.startswith("not executed")
        if done.startswith("executed"):
            seconds, executed = seconds + time.monotonic() - began, executed + cells[number]
            done += f"; {duration(seconds / executed * sum(cells[number + 1 :]))} left"
        print(f"chapter {number + 1} of {len(chapters)}, {path.stem}: {done}", flush=True)
    render()
    if left_out:
        print(f"{left_out} of {len(chapters)} chapters were not executed here. {problem}")
    print(f"The book is ready ({duration(time.monotonic() - start)}): {PAGE.as_uri()}")


def first_problem(chapters):
    """Why the first chapter that cannot be executed cannot; None if all can."""
    problems = (notebooks.missing(notebooks.read(ROOT / path)) for path in chapters)
    return next(filter(None, problems), None)


def duration(seconds):
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def stage():
    """Brings _build/source up to date with what the book is made of, chapters apart; keeps files' times."""
    wanted = {path.relative_to(ROOT) for path in (ROOT / "book").rglob("*") if path.is_file()}
    wanted = {path for path in wanted if path.suffix != ".ipynb" and ".ipynb_checkpoints" not in path.parts}
    wanted |= {Path(name) for name in ("_config.yml", "_toc.yml", "index.md") if (ROOT / name).exists()}
    keep = wanted | set(notebooks.chapters())
    for old in list(SOURCE.rglob("*")):
        if old.is_file() and old.relative_to(SOURCE) not in keep:
            old.unlink()
    for path in wanted:
        content = (ROOT / path).read_bytes()
        content = configuration().encode() if path.name == "_config.yml" else content
        content = b"".join(PUBLISHED.split(content)) if path.suffix == ".md" and not published() else content
        (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
        if not (SOURCE / path).exists() or (SOURCE / path).read_bytes() != content:
            (SOURCE / path).write_bytes(content)


def published():
    """Whether the book knows its address; without it no page speaks of buttons that lead there."""
    return "OWNER/REPOSITORY" not in (ROOT / "_config.yml").read_text()


def configuration():
    """_config.yml with the date of the last commit, and without buttons that would lead nowhere."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    ask = ["git", "log", "-1", "--format=%cs"]
    date = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    if date:  # in a clone; else the day of the build
        config["sphinx"]["config"]["html_last_updated_fmt"] = f"{datetime.date.fromisoformat(date):%d %B %Y}"
    if not published():
        del config["repository"], config["launch_buttons"]
        config["html"] |= {"use_repository_button": False, "use_issues_button": False}
    return yaml.safe_dump(config, allow_unicode=True, sort_keys=False)


def prepare(path, render_only=False):
    """Puts one chapter into _build/source as a page; executes it if something has changed → what it did."""
    nb, copy = notebooks.read(ROOT / path), EXECUTED / path
    old = notebooks.read_copy(copy)
    made_on, made_of = notebook.card(), notebooks.fingerprint(nb)
    if old and old.metadata.get("made_on") == made_on and old.metadata.ed_lib.fingerprint == made_of:
        for cell, done in zip(code_cells(nb), code_cells(old), strict=True):
            cell.outputs, cell.execution_count = done.outputs, done.execution_count
        page(nb, path)
        return f"unchanged since it was executed here on {old.metadata.ed_lib.executed}"
    problem = notebooks.missing(nb)
    if problem or render_only:
        why = f"This chapter needs what this machine does not have ({problem})." if problem else ""
        page(nb, path, BANNER.format(problem=why, **nb.metadata.ed_lib))
        return "not executed: committed outputs" if problem else "committed outputs"
    start = time.monotonic()
    made = notebooks.execute(nb, path)
    made.metadata["made_on"] = made_on
    notebooks.write(made, copy)
    page(made, path)
    return f"executed in {duration(time.monotonic() - start)}"


def page(nb, path, banner=None):
    """Writes a chapter into _build/source: figures as drawings, citations as roles, a banner on top."""
    import nbformat

    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = citations.as_roles(cell.source)
        for output in cell.get("outputs", []):
            if figures.FOR_THE_PAGE in output.get("data", {}):
                output.data = {"text/html": output.data[figures.FOR_THE_PAGE]}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if gates.TIMES not in output.get("data", {})]
    nb.cells = joined(nb.cells)
    if banner:
        nb.cells.insert(1, nbformat.v4.new_markdown_cell(banner, id="banner"))
    if notebooks.read_copy(SOURCE / path) != nb:
        notebooks.write(nb, SOURCE / path)


def joined(cells):
    """The cells of a page: folded code without outputs goes into the folded cell after it."""
    kept, before = [], []
    for cell in cells:
        folded = cell.cell_type == "code" and "hide-input" in notebooks.tags(cell)
        if folded:
            before.append(cell)
        if not folded or cell.outputs:
            kept += merged(before)
            before = []
        if not folded:
            kept.append(cell)
    return kept + merged(before)


def merged(cells):
    """Folded cells as a list of one, the last with the code of all; of none, if there are none."""
    if len(cells) < 2:
        return cells
    last = cells[-1]
    last.source = "\n\n\n".join(cell.source for cell in cells)
    look = last.metadata.setdefault("mystnb", {})
    look["code_prompt_show"] = re.sub(r", part \d$", "", look.get("code_prompt_show", "Show the code"))
    return [last]


def render():
    """Jupyter Book 1, with warnings as errors; what it prints is shown when it fails."""
    print("rendering ...", flush=True)
    program = Path(sys.executable).with_name("jupyter-book")
    options = ["--path-output", ROOT, "--builder", "html", "-W", "--keep-going", "-q"]
    try:
        result = subprocess.run(
            [program, "build", SOURCE, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if result.returncode:
            sys.exit(f"{result.stdout}\nThe book was not rendered; the reason is above.")
    except BaseException:  # so that the next build passes over neither a fault nor half a page
        for folder in ("html", ".doctrees"):
            shutil.rmtree(BUILD / folder, ignore_errors=True)
        raise


if __name__ == "__main__":
    main()
