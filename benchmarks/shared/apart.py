"""A training step in a process of its own, since a process decides once how it gets memory."""

import json
import os
import subprocess
import sys

import torch

from benchmarks import own_steps
from benchmarks.shared.harness import Size
from ed_lib import diagnose, machine, timing

# PyTorch's switch for pages of 2 MB, where the system has them
LARGER_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
CURES = ("keep memory", "larger pages")


def tried(name, *, size, cure=None):
    """Of a step of ``own_steps`` in a new process, with one of CURES or none: its median time, and
    what its report promises of "keep memory".
    """
    options = json.dumps([vars(size), torch.get_num_threads(), cure])
    environment = os.environ | (LARGER_PAGES if cure == "larger pages" else {})
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __name__, name, options],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(ran.stdout.splitlines()[-1])


def main(name, options):
    """Prints them."""
    values, threads, cure = json.loads(options)
    if cure == "keep memory" and not machine.keep_memory():
        raise RuntimeError("keep memory: the C library is not glibc")
    torch.set_num_threads(threads)
    size = Size(**values)
    make, _ = own_steps.STEPS[name]
    one = own_steps.made(make, size, "cpu")
    one.set_rate(own_steps.RATE)
    one.go()  # makes the optimizer's state
    seconds = timing.measure(one.go, min_seconds=size.seconds).median
    promise = {}
    if cure is None:
        report = diagnose.step(one, restore=[one.model, one.optimizer])
        promise = own_steps.promise(report, "keep memory")
    print(json.dumps([seconds, promise]))


if __name__ == "__main__":
    main(*sys.argv[1:])
