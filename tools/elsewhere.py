"""`make elsewhere`: executes the chapters as other machines do, and lists the claims that fail.

The libraries of this machine are told to do without some of its instructions, or without its other
threads; caches and memory stay what they are. A claim that fails elsewhere is about one machine:
draw it from that machine's record and name it, or claim what holds on all. Outputs are thrown away.
"""

import argparse
import contextlib
import copy
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient.exceptions import CellExecutionError, DeadKernelError

from tools import notebooks
from tools.notebooks import ROOT, code_cells, tags

LIBRARIES = ("OMP", "MKL", "OPENBLAS", "NUMBA")
ONE_CORE = "one-core"
# What tells the libraries, before Python starts, what machine they are on.
WAYS: dict[str, dict[str, str]] = {
    "here": {},
    "one-thread": {f"{library}_NUM_THREADS": "1" for library in LIBRARIES},
    # Of this one the system tells them: it is the whole machine that has one.
    ONE_CORE: {},
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CPU_NAME": "haswell",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    "sse": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CPU_NAME": "nehalem",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Nehalem",
    },
}
# Each has ceilings of its own, which are not the user's.
CEILINGS = ROOT / "_build" / "elsewhere"
DOUBT = "These times say little: "  # how a gate begins that does not believe them


def failed(nb: nbformat.NotebookNode, path: Path, way: str) -> tuple[list[str], list[str]]:
    """Executes a copy of the notebook ``path`` (relative to the root) in one of WAYS → what the
    claims that fail say, and the times that its gates doubt.
    """
    nb = copy.deepcopy(nb)
    for cell in code_cells(nb):
        if "claim" in tags(cell):
            # The cells after a claim that fails are executed all the same.
            cell.metadata["tags"] = [*tags(cell), "raises-exception"]
    environment = WAYS[way] | {"ED_CEILINGS": str(CEILINGS / f"{way}.json")}
    with one_core() if way == ONE_CORE else contextlib.nullcontext():
        try:
            nb = notebooks.execute(nb, path, **environment)
        except (CellExecutionError, DeadKernelError) as error:
            return [f"it ends early: {notebooks.plain(error).strip().splitlines()[-1]}"], []
    claims, doubts = [], []
    for cell in code_cells(nb):
        for output in cell.outputs:
            if output.output_type == "error":
                # A compiler's error goes on for pages.
                said, *_ = (output.evalue or output.ename).splitlines()
                claims.append(f"cell {cell.id}: {said}")
            elif DOUBT in output.get("text", ""):
                said = output.text.splitlines()
                doubts += [f"cell {cell.id}: {line}" for line in said if line.startswith(DOUBT)]
    return claims, doubts


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Processes that are begun meanwhile have one core, as on a machine that has no more."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.elsewhere", description=__doc__)
    parser.add_argument("chapter", nargs="*", help="paths of notebooks; without: all chapters")
    parser.add_argument("--way", nargs="+", choices=WAYS, default=[*WAYS], help="without: all")
    options = parser.parse_args(arguments)
    named = [Path(name).resolve().relative_to(ROOT) for name in options.chapter]
    count = 0
    for path in named or notebooks.chapters():
        for way in options.way:
            claims, doubts = failed(notebooks.read(ROOT / path), path, way)
            count += len(claims)
            print(f"{path.stem}, {way}: {'; '.join(claims) or 'all claims hold'}")
            print(*(f"  {line}" for line in doubts), sep="\n", end="\n" * bool(doubts), flush=True)
    if count:
        sys.exit(f"{count} claims fail elsewhere.")


if __name__ == "__main__":
    main()
