"""LSTMs on a CPU at small batches: rungs that remove calls, weights that threads keep, and what bounds both.

The floor is the longest of three times: the operations; the bytes from memory; and what no cache can spare,
reading W_hh, in its own bits, in every step, at the rate measured here for that many bytes.
"""

import functools
from dataclasses import dataclass
from functools import partial

from benchmarks import harness
from benchmarks.lstm import NN, TOLERANCE, Subject, forward, training
from ed_lib import machine, roofline
from ed_lib.lstm import LSTM, ladder
from ed_lib.lstm.caches import cache_rate
from ed_lib.lstm.frozen import Frozen, by_onednn

FROZEN, BITS = ("packed", "threads", "threads, int8"), {"threads, int8": 8}
ONEDNN = "oneDNN, packed"  # what runs nn.LSTM on a CPU, without packing its weights in each call
SWEPT = (*FROZEN, ONEDNN, NN)
TRAINED = ("combined_gemms", "one_call", "one_call, threads", NN)
ROUNDED = 5e-2  # relative: what rounding the weights to eight bits may change


@dataclass(frozen=True)
class Size:
    """What is run: one layer of ``hidden`` at batch 1 by default. ``kilobytes``: read again and again."""

    steps: int = 100
    hidden: int = 256
    hiddens: tuple = (64, 128, 256, 512, 1024)
    batches: tuple = (1, 2, 4, 8, 16, 32, 64)
    kilobytes: tuple = tuple(2**n for n in range(4, 15))
    seconds: float = 0.5


SIZE, TINY = Size(), Size(3, 8, (8,), (1, 3), (16, 32), 0.001)
# PyTorch has all threads, as the compiled loops have, whose first call may set its number
context = partial(harness.one_thread, threads=machine.threads())


@functools.cache
def rates(size):
    """{bytes: the best rate at which so many, read a moment ago, are read again}."""
    tries = 3 * [1, machine.threads()]
    rate = lambda bytes: max(cache_rate(bytes, n, size.seconds / 2) for n in tries)  # noqa: E731
    return {1024 * n: rate(1024 * n) for n in size.kilobytes}


def floor(row, size, trained=False):
    """Seconds at the least, W_hh being read at the rate of the next smaller size that was read."""
    weights = BITS.get(row["what"], 32) // 8 * 4 * row["hidden"] ** 2  # bytes of W_hh
    reads = row["steps"] * (2 if trained else 1)
    near = max([bytes for bytes in rates(size) if bytes <= weights], default=min(rates(size)))
    least = roofline.ceilings().floor(row["floor_bytes"], row["floor_flops"])
    return max(least, reads * weights / rates(size)[near])


def versus(size, whats, trained=False, **changes):
    """Rows of versions of one LSTM, in turns."""
    sizes = {"steps": size.steps, "batch": 1, "hidden": size.hidden} | changes
    subject = Subject(ladder.Shape(inputs=sizes["hidden"], **sizes), "cpu")
    versions = []
    for what in whats:
        module, tolerance = made(what, subject.module), ROUNDED if what in BITS else TOLERANCE
        run = training(module, subject.x, subject.dy) if trained else forward(module, subject.x)
        versions.append(subject.checked(subject.case(what), run, trained=trained, tolerance=tolerance))
    for row in harness.measure(versions, "cpu", size.seconds, rounds=9):
        yield row | {"floor": floor(row, size, trained)}


def made(what, module):
    """What computes a case: ours, with the module's weights, or the module."""
    threads = machine.threads() if "threads" in what else 1
    if what in FROZEN:
        return Frozen(module, threads=threads, bits=BITS.get(what, 32))
    if what in (NN, ONEDNN):
        return module if what == NN else by_onednn(module)
    return LSTM.from_torch(module, rung=what.split(",")[0], threads=threads)


def sweep(size, device, table):
    """At a batch of one by hidden size; by batch; and forward and backward at three of the batches."""
    sizes = {"hidden": [{"hidden": n} for n in size.hiddens], "batch": [{"batch": n} for n in size.batches]}
    sizes["training"] = sizes["batch"][:: len(size.batches) // 2]
    for changes in sizes[table]:
        yield from versus(size, TRAINED if table == "training" else SWEPT, table == "training", **changes)


TABLES = {table: partial(sweep, table=table) for table in ("hidden", "batch", "training")}
