"""The command line of the benchmarks."""

import argparse
import importlib
import sys
import time

from ed_lib import arrays, records

BENCHMARKS = ("ed", "parallel", "precision", "lstm")  # what runs by itself
LONG = ("accuracy", "parallel_accuracy", "precision_accuracy")  # whose results are alike anywhere
BY_NAME = (*BENCHMARKS, *LONG)
ON_CPU = ("parallel", "parallel_accuracy", "precision_accuracy")  # whose devices are processes on a CPU


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("benchmark", nargs="?", choices=BY_NAME, help=f"without: {', '.join(BENCHMARKS)}")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: GPU, or CPU")
    parser.add_argument("--out", default="records", help="the folder of the records")
    options = parser.parse_args(arguments)
    device = options.device
    if device == "auto":
        device = "cuda" if arrays.gpu_count() else "cpu"
    if device == "cuda" and not arrays.gpu_count():
        sys.exit("--device cuda: PyTorch sees no GPU on this machine")
    for name in [options.benchmark] if options.benchmark else BENCHMARKS:
        if name in ON_CPU and device == "cuda":
            how = f"`python -m benchmarks {name} --device cpu`"
            print(f"{name}: left out, since its devices are processes on a CPU; {how} runs it")
            continue
        start = time.monotonic()
        record = importlib.import_module(f"benchmarks.{name}").run(device)
        path = records.write(record, options.out)
        print(f"{path} written after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
