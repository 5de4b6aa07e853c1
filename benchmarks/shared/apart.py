"""A training step in a process of its own, which keeps its memory from step to step or not: once
told to, a process cannot go back.
"""

import json
import subprocess
import sys

import torch

from benchmarks import own_steps
from benchmarks.shared.harness import Size
from ed_lib import machine, timing


def seconds(name, *, size, keeps):
    """The median time of a step of ``own_steps``, in a new process."""
    options = json.dumps([vars(size), torch.get_num_threads(), keeps])
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __name__, name, options],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(ran.stdout.splitlines()[-1])


def main(name, options):
    """Prints them."""
    values, threads, keeps = json.loads(options)
    if keeps and not machine.keep_memory():
        raise RuntimeError("keep memory: the C library is not glibc")
    torch.set_num_threads(threads)
    size = Size(**values)
    make, _ = own_steps.STEPS[name]
    one = own_steps.made(make, size)
    one.set_rate(own_steps.RATE)
    one.go()  # makes the optimizer's state
    print(json.dumps(timing.measure(one.go, min_seconds=size.seconds).median))


if __name__ == "__main__":
    main(*sys.argv[1:])
