"""LSTMs on a CPU at small batches: rungs that remove calls, weights that threads keep, and what bounds both.

Each version is compared with ``nn.LSTM`` in float64 first. The floor is the longest of three times: the
operations; the bytes from memory; and what no cache can spare, reading W_hh in every step, at the rate
measured here for that many bytes. Weights in fewer bits count their own bytes.
"""

import functools
from dataclasses import dataclass
from functools import partial

from benchmarks import harness
from benchmarks.lstm import NN, Subject, forward, training
from ed_lib import machine, roofline
from ed_lib.lstm import LSTM, ladder
from ed_lib.lstm.caches import cache_rate
from ed_lib.lstm.frozen import Frozen, by_onednn

FROZEN = {"packed": {}, "threads": {}, "threads, int8": {"bits": 8}}  # {what: options of Frozen}
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
def read(size, device="cpu"):
    """Reading what was read a moment ago, at the best rate seen."""
    rows = []
    for kilobytes in size.kilobytes:
        for threads in dict.fromkeys((1, machine.threads())):
            rate = max(cache_rate(1024 * kilobytes, threads, size.seconds / 2) for _ in range(3))
            case = {"what": "read", "kilobytes": kilobytes, "threads": threads}
            found = harness.summary([1024 * kilobytes / rate])
            rows.append(case | found | {"floor_bytes": 1024 * kilobytes, "GB/s": round(rate / 1e9, 1)})
    return rows


def floor(row, size):
    """Seconds at the least, W_hh being read at the rate of the next smaller size that was read."""
    rows = read(size)
    sizes = [found["floor_bytes"] for found in rows]
    near = max([size for size in sizes if size <= row["W_hh"]], default=sizes[0])
    least = min(found["seconds"] for found in rows if found["floor_bytes"] == near) / near * row["W_hh"]
    return max(roofline.ceilings().floor(row["floor_bytes"], row["floor_flops"]), row["reads"] * least)


def versus(size, whats, trained=False, **changes):
    """Rows of versions of one LSTM, in turns: "against …", how many times as fast as nn.LSTM."""
    sizes = {"steps": size.steps, "batch": 1, "hidden": size.hidden} | changes
    subject = Subject(ladder.Shape(inputs=sizes["hidden"], **sizes), "cpu")
    versions = [version(subject, what, trained) for what in whats]
    rows = harness.measure(versions, "cpu", size.seconds, rounds=9)
    for row in rows:
        rates = {"GFLOP/s": row["floor_flops"] / row["seconds"] / 1e9}
        yield row | rates | {"floor": floor(row, size), f"against {NN}": rows[-1]["seconds"] / row["seconds"]}


def version(subject, what, trained=False):
    """The :class:`harness.Version` of a case, compared with ``nn.LSTM`` in float64."""
    module, bits = made(what, subject.module), FROZEN.get(what, {}).get("bits", 32)
    run = training(module, subject.x, subject.dy) if trained else forward(module, subject.x)
    results = {"W_hh": bits // 8 * 4 * subject.shape.hidden**2}  # bytes, and how often they are read
    results["reads"] = subject.shape.steps * (2 if trained else 1)
    tolerance = None if bits == 32 else ROUNDED
    return subject.checked(subject.case(what), run, trained=trained, tolerance=tolerance, results=results)


def made(what, module):
    """What computes a case: ours, with the module's weights, or the module."""
    threads = machine.threads() if "threads" in what else 1
    if what in FROZEN:
        return Frozen(module, threads=threads, **FROZEN[what])
    if what in (NN, ONEDNN):
        return module if what == NN else by_onednn(module)
    return LSTM.from_torch(module, rung=what.split(",")[0], threads=threads)


def sweep(size, device, table):
    """At a batch of one by hidden size; by batch; and forward and backward at three of the batches."""
    numbers = size.hiddens if table == "hidden" else size.batches
    if trained := table == "training":
        numbers = numbers[:: len(numbers) // 2]
    for number in numbers:
        changes = {"hidden" if table == "hidden" else "batch": number}
        yield from versus(size, TRAINED if trained else SWEPT, trained, **changes)


TABLES = {"caches": read} | {table: partial(sweep, table=table) for table in ("hidden", "batch", "training")}
