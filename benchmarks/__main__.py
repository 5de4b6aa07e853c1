"""The command line of the benchmarks."""

import argparse
import importlib
import sys

from benchmarks.shared import harness
from ed_lib import arrays

TIMED = "ed", "precision", "finetuning", "lstm"  # what runs by itself
LONG = (  # whose results are alike anywhere, or nearly
    "accuracy", "relatives", "deep", "language", "parallel_accuracy", "critical_batch",
    "precision_accuracy", "few_bits", "one_token",
)  # fmt: skip
# The tables that are about a GPU too; the others are about a CPU, or as good on one
ON_GPU = {
    "ed": ("paths", "article", "by hand"),
    "precision": ("training step",),
    "finetuning": ("fine-tuning",),
    "lstm": ("ladder", "combine"),
    "cells": (),
}


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = f"of {', '.join(TIMED + LONG)}; without: {', '.join(TIMED)}"
    parser.add_argument("benchmark", nargs="*", metavar="NAME", help=names)
    parser.add_argument("--only", nargs="+", default=(), metavar="TABLE", help="without: all")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: GPU, or CPU"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="at sizes that say nothing, for a rehearsal"
    )
    parser.add_argument("--out", help="the folder of the records; without: records, or _build/tiny")
    options = parser.parse_args(arguments)
    if unknown := set(options.benchmark) - {*TIMED, *LONG, *ON_GPU}:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; NAME is {names}")
    if options.only and len(options.benchmark) != 1:
        parser.error("--only is of one benchmark; name it")
    device, out = options.device, options.out or ("_build/tiny" if options.tiny else "records")
    if device == "auto":
        device = "cuda" if arrays.gpu_count() else "cpu"
    if device == "cuda" and not arrays.gpu_count():
        sys.exit("--device cuda: PyTorch sees no GPU on this machine")
    states = []
    for name in options.benchmark or (ON_GPU if device == "cuda" else TIMED):
        if (device == "cuda" and name not in ON_GPU) or (device == "cpu" and name == "cells"):
            print(f"{name}: left out, since it is about {'a CPU' if device == 'cuda' else 'a GPU'}")
            continue
        benchmark = importlib.import_module(f"benchmarks.{name}")
        mine = ON_GPU[name] if device == "cuda" else ()
        if unknown := set(options.only) - set(tables := mine or tuple(benchmark.TABLES)):
            parser.error(f"{name} has no table {', '.join(sorted(unknown))}; {', '.join(tables)}")
        states += harness.run(
            benchmark, device, out, only=options.only or mine, tiny=options.tiny
        ).values()
    sys.exit(any(state != "done" for state in states))


if __name__ == "__main__":
    main()
