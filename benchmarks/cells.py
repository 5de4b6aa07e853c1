"""The chapters' cells for a GPU: what each prints there, which a page shows where there is none.

A chapter runs in a process of its own, as in Jupyter, its other cells with short timings.
"""

import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from time import perf_counter

from benchmarks.shared.harness import Size
from ed_lib import records
from ed_lib.gpu_cells import MAGIC, hash_of, needs

SIZE = TINY = Size()


def sources_of(path):
    """{id: source} of the code cells of a notebook that has some for a GPU; none of another."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = {cell["id"]: "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"}
    return sources if any(source.startswith(MAGIC) for source in sources.values()) else {}


def runs_on_gpu(source):
    """Whether a cell is for a GPU, and the one here has what it needs."""
    first, _, _ = source.partition("\n")
    return first.startswith(MAGIC) and needs(first.removeprefix(MAGIC)) is None


def printed(path):
    """Rows of a chapter's GPU cells that print something."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    # As in Jupyter: a cell may read or write a file beside its chapter.
    os.chdir(path.parent)
    shell = InteractiveShell.instance()
    rows = []
    for cell, source in sources_of(path).items():
        on_gpu = runs_on_gpu(source)
        # What a GPU cell times is recorded; what the others time is not.
        if on_gpu:
            os.environ.pop("ED_QUICK", None)
        else:
            os.environ["ED_QUICK"] = "1"
        start = perf_counter()
        with capture_output() as caught:
            done = shell.run_cell(source)
        problem = done.error_before_exec or done.error_in_exec
        text = caught.stdout.strip()
        if problem:
            print(f"{path.stem}: {type(problem).__name__}: {problem}\n{source[:200]}", flush=True)
        elif on_gpu and text:
            times = dict.fromkeys(("seconds", "q1", "q3"), perf_counter() - start)
            rows.append({"cell": cell, "code": hash_of(source)} | times | {"n": 1, "printed": text})
    return rows


def chapter(path, size, device):
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield from process.submit(printed, path).result()


PATHS = [path for path in sorted(records.ROOT.glob("book/*/*.ipynb")) if sources_of(path)]
TABLES = {path.stem: partial(chapter, path) for path in PATHS}
ON_GPU = tuple(TABLES)
ON_CPU = False
