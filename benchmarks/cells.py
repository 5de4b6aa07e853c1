"""The chapters' cells for a GPU: what each prints there, which a page shows where there is none.

A chapter runs in a process of its own, as in Jupyter; but of its other cells only those that define what
these use, and with short timings.
"""

import json
import multiprocessing
import os
import symtable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from time import perf_counter

from benchmarks.harness import Size
from ed_lib import records
from ed_lib.notebook import key_of

MAGIC = "%%gpu"
SIZE = TINY = Size()


def sources_of(path):
    """A notebook's code cells, up to the last one for a GPU; none without."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]
    while sources and not sources[-1].startswith(MAGIC):
        del sources[-1]
    return sources


def needed(sources):
    """The first cell, those for a GPU, and those that assign a name which one of these uses."""
    names, kept = [names_of(source) for source in sources], set()
    more = {0} | {n for n, source in enumerate(sources) if source.startswith(MAGIC)}
    while more - kept:
        kept |= more
        wanted = set().union(*(names[n][1] for n in kept))
        more = {n for n, (assigned, _) in enumerate(names) if assigned & wanted}
    return [sources[n] for n in sorted(kept)]


def names_of(source):
    """The names that a cell assigns, and those that it uses, its functions' global ones too."""
    from IPython.core.inputtransformer2 import TransformerManager

    code = TransformerManager().transform_cell(source.removeprefix(f"{MAGIC}\n"))
    top = symtable.symtable(code, "cell", "exec")
    tables = [top]
    for table in tables:
        tables += table.get_children()
    assigned = {name.get_name() for name in top.get_symbols() if name.is_assigned() or name.is_imported()}
    used = (name for table in tables for name in table.get_symbols() if table is top or name.is_global())
    return assigned, {name.get_name() for name in used if name.is_referenced()}


def printed(path):
    """Rows of a chapter's GPU cells that print something."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    os.chdir(path.parent)
    shell, rows = InteractiveShell.instance(), []
    for source in needed(sources_of(path)):
        on_gpu = source.startswith(MAGIC)
        os.environ.pop("ED_QUICK", None) if on_gpu else os.environ.update(ED_QUICK="1")
        start = perf_counter()
        with capture_output() as caught:
            done = shell.run_cell(source)
        if problem := done.error_before_exec or done.error_in_exec:
            print(f"{path.stem}: {type(problem).__name__}: {problem}\n{source[:200]}", flush=True)
        elif on_gpu and (text := caught.stdout.strip()):
            times = dict.fromkeys(("seconds", "q1", "q3"), perf_counter() - start)
            rows.append({"cell": key_of(source)} | times | {"n": 1, "printed": text})
    return rows


def chapter(path, size, device):
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield from process.submit(printed, path).result()


PATHS = [path for path in sorted(records.ROOT.glob("book/*/*.ipynb")) if sources_of(path)]
TABLES = {path.stem: partial(chapter, path) for path in PATHS}
