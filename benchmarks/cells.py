"""The chapters' cells for a GPU: what each prints there, which a page shows where there is none.

Each chapter runs in a process of its own, as in Jupyter, but of its other cells only those that define what
these use, with short timings. All chapters come to their first cell side by side; then they go on one after
another, since these cells time what they run.
"""

import contextlib
import json
import multiprocessing
import os
import symtable
import threading
from functools import partial
from time import perf_counter

from benchmarks.harness import Size
from ed_lib import records
from ed_lib.notebook import key_of

MAGIC, PATIENCE, CORES = "%%gpu", 120, 2  # seconds until all have come to their first cell; for each chapter
SIZE = Size(chapters="*/*")
TINY = SIZE(chapters="lstm/cudnn_weights")


def cells(size, device):
    """A row for each cell that prints something."""
    processes = multiprocessing.get_context("spawn")
    paths = sorted(records.ROOT.glob(f"book/{size.chapters}.ipynb"))
    chapters = [(path, needed(sources)) for path in paths if (sources := sources_of(path))]
    shared = processes.Barrier(len(chapters)), processes.Lock(), processes.Queue()
    running = [processes.Process(target=run, args=(n, *one, *shared)) for n, one in enumerate(chapters)]
    for process in running:
        process.start()
    for _ in running:
        yield from iter(partial(shared[-1].get, timeout=4 * PATIENCE), None)
    for process in running:
        process.join()


def sources_of(path):
    """A notebook's code cells, up to the last one for a GPU; none without."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]
    while sources and not sources[-1].startswith(MAGIC):
        del sources[-1]
    return sources


def needed(sources):
    """The first cell, those for a GPU, and those that assign a name which a later one of these uses."""
    from IPython.core.inputtransformer2 import TransformerManager

    kept, wanted = [], set()
    for source in reversed(sources):
        code = TransformerManager().transform_cell(source.removeprefix(f"{MAGIC}\n"))
        top = symtable.symtable(code, "cell", "exec")
        assigned = {name.get_name() for name in top.get_symbols() if name.is_assigned() or name.is_imported()}
        if source.startswith(MAGIC) or source == sources[0] or assigned & wanted:
            kept.insert(0, source)
            tables = [top]
            for table in tables:
                tables += table.get_children()
                used = (name for name in table.get_symbols() if name.is_referenced())
                wanted |= {name.get_name() for name in used if table is top or name.is_global()}
    return kept


def run(n, path, sources, together, turn, found):
    """Puts a row for each GPU cell of chapter ``n`` into ``found``, and None at the end."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    os.chdir(path.parent)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[(n * CORES + k) % len(cores)] for k in range(CORES)})
    shell, mine = InteractiveShell.instance(), False
    try:
        for source in sources:
            on_gpu = source.startswith(MAGIC)
            if on_gpu and not mine:
                with contextlib.suppress(threading.BrokenBarrierError):  # one is late, or has come to grief
                    together.wait(PATIENCE)
                mine = turn.acquire()
            os.environ.pop("ED_QUICK", None) if on_gpu else os.environ.update(ED_QUICK="1")
            start = perf_counter()
            with capture_output() as printed:
                done = shell.run_cell(source)
            row = dict.fromkeys(("seconds", "q1", "q3"), perf_counter() - start) | {"n": 1}
            if problem := done.error_before_exec or done.error_in_exec:
                print(f"{path.stem}: {type(problem).__name__}: {problem}\n{source[:200]}", flush=True)
            elif on_gpu and (text := printed.stdout.strip()):
                found.put({"chapter": path.stem, "cell": key_of(source)} | row | {"printed": text})
    finally:
        if mine:
            turn.release()
        found.put(None)


TABLES = {"cells": cells}
