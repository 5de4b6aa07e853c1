"""The chapters as files: which there are, what their outputs depend on, how they are executed and
written.

python -m tools.notebooks [book/ed/error_diffusion.ipynb ...]

executes the chapters (all of them, or those named) and writes them back with their outputs. Before
a chapter that times something it waits for a quiet machine, and it refuses times that no quiet
machine shows.
"""

import argparse
import ast
import atexit
import contextlib
import copy
import datetime
import os
import re
import sys
import time
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from benchmarks.shared import provenance, quiet
from ed_lib import gates, gpu_cells, machine, needs, roofline
from tools import record_reads
from tools.pages import ROOT, pages

# The tags of cells that the page shows folded.
FOLDED = {"hide-input", "hide-cell"}
# No bars of progress in outputs.
QUIET = {"TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore:IProgress not found"}
# Of its ceilings: what a shared machine may reach, since a page's cells check their times too
SHARED = 0.5
# A line of a cell's text that begins a section.
HEADING = re.compile(r"^##+ (.+)$", re.MULTILINE)
# What a cell has that measures a time, judges one, or starts processes.
TIMES = re.compile(r"\btiming\b|\bgates\.(floors|order)\(|\blaunch\(")
# How fast one reads: words, and cells of code that are not folded.
WORDS_A_MINUTE = 200
MINUTES_A_CELL = 0.5


def chapters():
    """The notebooks of the table of contents, as paths relative to the root, in reading order."""
    paths = (Path(f"{name}.ipynb") for name in pages(ROOT))
    return [path for path in paths if (ROOT / path).exists()]


def drafts():
    """The notebooks that are marked as drafts, and that the table of contents does not hold."""
    found = {path.relative_to(ROOT) for path in (ROOT / "book").glob("*/*.ipynb")}
    return [path for path in sorted(found.difference(chapters())) if is_draft(read(ROOT / path))]


def is_draft(nb):
    return nb.metadata.get("ed_lib", {}).get("draft", False)


def tested():
    """The notebooks that the tests are about: the chapters; or the one, which may be a draft, that
    ``make test CHAPTER=book/parallel/my_question.ipynb`` names.
    """
    if named := os.environ.get("CHAPTER"):
        return [(ROOT / named).relative_to(ROOT)]
    return chapters()


def read(path):
    """The notebook in a file; ValueError, which names the file, if it holds none."""
    text = path.read_bytes()
    try:
        return nbformat.reads(text.decode(), as_version=4)
    except Exception as error:  # no text, no JSON, no notebook
        raise ValueError(f"{path} is no notebook: {error}") from error


def read_copy(path):
    """The notebook in a file that can be made again; None if there is none, or it is broken."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return read(path)


def tags(cell):
    return cell.metadata.get("tags", [])


def plain(error):
    """What a cell's error prints, without the terminal's colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", str(error))


def code_cells(nb):
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def as_python(cell):
    """A code cell's source as Python, without the line of a magic that runs it as it stands."""
    source = re.sub(rf"\A({gpu_cells.MAGIC}|{needs.MAGIC}).*\n", "", cell.source)
    # What is no Python, such as !ls, becomes Python.
    return TransformerManager().transform_cell(source)


def reading_minutes(nb):
    """The time that a chapter's box states: of its words and its cells, exercises left out, in
    steps of five minutes.
    """
    minutes = 0.0
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            text, found, _ = cell.source.partition("## Exercises")
            minutes += len(text.split()) / WORDS_A_MINUTE
            if found:
                break
        elif not {"claim", *FOLDED} & set(tags(cell)):
            minutes += MINUTES_A_CELL
    return 5 * -(-minutes // 5)


def times_nothing(nb):
    """Whether a chapter, where there is no GPU, neither measures a time nor starts processes."""
    sources = [cell.source for cell in code_cells(nb)]
    return not any(TIMES.search(text) for text in sources if not text.startswith(gpu_cells.MAGIC))


def left_out(nb):
    """{heading: why} of the parts of an executed notebook whose data could not be had."""
    found = {}
    heading = ""
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            heading = (HEADING.findall(cell.source) or [heading])[-1]
        for output in cell.get("outputs", []):
            for line in output.get("text", "").splitlines():
                if line.startswith(needs.LEFT_OUT):
                    found[heading] = line
    return found


def fingerprint(nb):
    """A hash of what of ours decides the outputs: the code cells, the ed_lib modules that they
    reach, and the records that those read.

    Comments and docstrings do not count (as in provenance.code_hash), nor does the set-up cell: the
    book's address stands in it, and changes no output.
    """
    found = [cell for cell in code_cells(nb) if "setup" not in tags(cell)]
    cells = [as_python(cell) for cell in found]
    with provenance.PARSING:
        modules = {"ed_lib.chapter"}.union(*map(provenance.imported, cells))
        files = [ROOT / path for path in provenance.reached(modules, ROOT)]
        reached = [path.read_text(encoding="utf-8") for path in files]
        read = record_reads.contents(cells, reached, {cell.id for cell in found})
        own = [gpu_cells.tree_text(ast.parse(cell)) for cell in cells]
        return provenance.code_hash(modules, ROOT, "\0".join([*own, read]))


def execute(nb, path, **environment):
    """A copy of the notebook ``path`` (relative to the root) with the outputs that this machine
    gives.

    Raises CellExecutionError when a cell fails, DeadKernelError when the kernel does.
    """
    # Of now: a record may be measured again while the cells run.
    code = fingerprint(nb)
    client = NotebookClient(
        copy.deepcopy(nb),
        # Seconds for a cell; generous, for a machine that is busy.
        timeout=600,
        kernel_name="python3",
        # a kernel that is asked to end in the middle of a cell complains
        shutdown_kernel="immediate",
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str((ROOT / path).parent)}},
        record_timing=False,
        # Pieces of a stream arrive cut at random.
        coalesce_streams=True,
    )
    try:
        client.execute(env=os.environ | QUIET | own_folders() | environment)
    except AssertionError:  # at a Ctrl-C nbclient ends its kernel, and then trips over its absence
        raise KeyboardInterrupt from None
    finally:  # where the kernel did not even start, nbclient would end it again as Python ends
        atexit.unregister(client._cleanup_kernel)  # noqa: SLF001, it has no other name
    made = {
        "executed": datetime.date.today().isoformat(),
        "machine": " · ".join(machine.card().split(" · ")[:2]),
        "versions": machine.versions(),
        "code": code,
    }
    # Once the table of contents holds it, a draft is one no more.
    if is_draft(nb) and path not in chapters():
        made["draft"] = True
    client.nb.metadata["ed_lib"] = made
    return canonical(client.nb)


def own_folders() -> dict[str, str]:
    """Where the user's home cannot be written into: folders of our own for what would say so in
    the middle of a page.
    """
    if os.access(Path.home(), os.W_OK):
        return {}
    home = ROOT / "_build" / "home"
    home.mkdir(parents=True, exist_ok=True)
    return {"MPLCONFIGDIR": str(home), "IPYTHONDIR": str(home)}


def canonical(nb):
    """The notebook with nothing in it that depends on who saved it: no metadata but ours."""
    nb = copy.deepcopy(nb)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    # Of Colab a chapter wants a GPU if it has cells for one.
    wants = {"accelerator": "GPU"} if any("gpu" in tags(cell) for cell in nb.cells) else {}
    made = nb.metadata.get("ed_lib", {})
    about = {"ed_lib": made, "kernelspec": kernel, "language_info": {"name": "python"}}
    nb.metadata = nbformat.from_dict(wants | about)
    for cell in nb.cells:
        kept = {key: cell.metadata[key] for key in ("tags", "mystnb") if key in cell.metadata}
        cell.metadata = nbformat.from_dict(kept)
        # What is folded in the page is folded in Colab, but for what one opens its GPU for.
        if cell.cell_type == "code" and FOLDED & set(tags(cell)) and "gpu" not in tags(cell):
            cell.metadata["cellView"] = "form"
    nb.nbformat_minor = 5
    return nb


def write(nb, path):
    """Writes the file whole or not at all, whatever ends this process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A rename is done whole or not at all; writing is not.
    beside = path.with_suffix(".part")
    beside.write_text(nbformat.writes(nb).rstrip("\n") + "\n", encoding="utf-8")
    os.replace(beside, path)


def make(path, patience):
    """The chapter with outputs of a quiet machine, or of any if it times nothing. ``gates.Busy``,
    or CellExecutionError, if it gets none.
    """
    nb = read(ROOT / path)
    for left in (2, 1, 0):
        if not times_nothing(nb):
            quiet.wait(patience, SHARED)
        try:
            return execute(nb, path, ED_GATES="strict")
        except CellExecutionError as error:
            if error.ename != "Busy" or not left:
                raise
            print(f"{path}: {error.evalue}; once more", flush=True)
            # A time that is below its floor may be right, and the ceilings too low.
            raise_ceilings()


def raise_ceilings():
    for dtype in ("float32", "float64"):
        print(roofline.raised(dtype=dtype), flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m tools.notebooks", description="Executes chapters."
    )
    parser.add_argument("chapter", nargs="*", help="paths of notebooks; without: all chapters")
    parser.add_argument(
        "--patience", type=float, default=600, help="seconds to wait for a quiet machine"
    )
    options = parser.parse_args(arguments)
    path = None
    try:
        # All pages print the same ceilings.
        if not options.chapter:
            raise_ceilings()
        named = [Path(name).resolve().relative_to(ROOT) for name in options.chapter]
        for path in named or chapters():
            start = time.monotonic()
            made = make(path, options.patience)
            if reasons := [*left_out(made).values()]:
                print(f"{path}: left as it is. {reasons[0]}", flush=True)
                continue
            write(made, ROOT / path)
            print(f"{path}: outputs written after {time.monotonic() - start:.0f} s", flush=True)
    except (CellExecutionError, DeadKernelError, gates.Busy, ValueError) as error:
        sys.exit(f"\n{path} stays as it was. {plain(error)}")
    except KeyboardInterrupt:
        sys.exit(f"Interrupted: {path} stays as it was.")


if __name__ == "__main__":
    main()
