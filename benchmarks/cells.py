"""The chapters' cells for a GPU: what each prints there, which a page shows where there is none.

Each chapter runs in a process of its own, as in Jupyter, up to its last such cell. All come to their first
side by side, with short timings; then they go on one after another, since these cells time what they run.
"""

import json
import multiprocessing
import os
from functools import partial
from time import perf_counter

from benchmarks.harness import Size
from ed_lib import records
from ed_lib.notebook import key_of

MAGIC, PATIENCE = "%%gpu", 300  # seconds until the slowest chapter has come to its first cell
SIZE = Size(chapters="*/*")
TINY = SIZE(chapters="lstm/cudnn_weights")


def cells(size, device):
    """A row for each cell that prints something."""
    processes = multiprocessing.get_context("spawn")
    paths = sorted(records.ROOT.glob(f"book/{size.chapters}.ipynb"))
    chapters = {path: sources for path in paths for sources in [sources_of(path)] if sources}
    shared = processes.Barrier(len(chapters)), processes.Lock(), processes.Queue()
    running = [processes.Process(target=run, args=(*one, *shared)) for one in chapters.items()]
    for process in running:
        process.start()
    for _ in running:
        yield from iter(partial(shared[-1].get, timeout=2 * PATIENCE), None)
    for process in running:
        process.join()


def sources_of(path):
    """A notebook's code cells, up to the last one for a GPU; none without."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]
    while sources and not sources[-1].startswith(MAGIC):
        del sources[-1]
    return sources


def run(path, sources, together, turn, found):
    """Puts a row for each GPU cell into ``found``, and None at the end."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    os.chdir(path.parent)
    shell, mine = InteractiveShell.instance(), False
    try:
        for source in sources:
            on_gpu = source.startswith(MAGIC)
            if on_gpu and not mine:
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
