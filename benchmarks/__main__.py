"""The command line of the benchmarks."""

import argparse
import importlib
import math
import sys
import time
import traceback

from benchmarks import harness
from ed_lib import arrays

BENCHMARKS = (
    "ed",
    "parallel",
    "precision",
    "finetuning",
    "lstm",
    "lstm_cpu",
    "recurrences",
)  # what runs by itself
# Whose results are alike anywhere, or nearly:
LONG = (
    "accuracy",
    "relatives",
    "deep",
    "language",
    "controls",
    "parallel_accuracy",
    "critical_batch",
    "precision_accuracy",
    "few_bits",
    "one_token",
    "optimizer_states",
)
# Never on a GPU:
ON_CPU = [*LONG[1:], "lstm_cpu", "parallel", "recurrences"]


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = f"of {', '.join(BENCHMARKS + LONG)}; without: {', '.join(BENCHMARKS)}"
    parser.add_argument("benchmark", nargs="*", metavar="NAME", help=names)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: GPU, or CPU")
    parser.add_argument("--out", default="records", help="the folder of the records")
    parser.add_argument("--parts", nargs="*", default=(), help="of the benchmark; without: all")
    parser.add_argument("--resume", action="store_true", help="leave out parts that this code has measured")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no part begins")
    parser.add_argument("--tiny", action="store_true", help="at sizes that say nothing, for a rehearsal")
    options = parser.parse_args(arguments)
    if unknown := set(options.benchmark) - {*BENCHMARKS, *LONG}:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; NAME is {names}")
    device, deadline = options.device, time.monotonic() + options.seconds
    if device == "auto":
        device = "cuda" if arrays.gpu_count() else "cpu"
    if device == "cuda" and not arrays.gpu_count():
        sys.exit("--device cuda: PyTorch sees no GPU on this machine")
    states = []
    for name in options.benchmark or BENCHMARKS:
        if name in ON_CPU and device == "cuda":
            how = f"`python -m benchmarks {name} --device cpu`"
            print(f"{name}: left out, since it is about a CPU; {how} runs it")
            continue
        how = {"wanted": options.parts, "resume": options.resume, "deadline": deadline}
        try:
            benchmark = importlib.import_module(f"benchmarks.{name}")
            size = benchmark.TINY if options.tiny else None
            states += harness.run(benchmark, device, options.out, size=size, **how).values()
        except Exception:  # the other benchmarks go on
            traceback.print_exc()
            states.append("failed")
    kinds = {state.partition(":")[0] for state in states}
    sys.exit(1 if "failed" in kinds else harness.LEFT if "left" in kinds else 0)


if __name__ == "__main__":
    main()
