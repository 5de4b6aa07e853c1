"""LSTMs on a CPU at small batches: rungs that remove calls, weights that threads keep, and what bounds both.

Each version is compared with ``nn.LSTM`` in float64 first. The floor is the longest of three times: the
operations; the bytes from memory; and what no cache can spare, reading W_hh in every step, at the rate
measured here for that many bytes. Weights in fewer bits count their own bytes.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from benchmarks.lstm import B, H, L, times
from benchmarks.lstm_subjects import NN, TOLERANCE, Subject, forward, least, training
from benchmarks.old_harness import Plan, Shown, Table, Version, ceilings, deviation, summary
from benchmarks.old_records import Row
from ed_lib import machine, roofline, timing
from ed_lib.lstm import LSTM, ON_CPU, cpu_kernels, cpu_ladder, ladder
from ed_lib.lstm.frozen import Frozen, by_onednn

FROZEN = {  # {what: options of Frozen}
    "packed": {},
    "threads": {},
    "threads, bfloat16": {"bits": 16},
    "threads, int8": {"bits": 8},
    "threads, parts in turns": {"split": "in turns"},
    "layers on threads": {"split": "layers"},
}
ONEDNN = "oneDNN, packed"  # what runs nn.LSTM on a CPU, without packing its weights in each call
CLIMB = (
    "combined_gemms", *ON_CPU, "packed", "threads", "threads, bfloat16", "threads, int8",
    "threads, parts in turns", ONEDNN, NN,
)  # fmt: skip
SWEPT = ("packed", "threads", "threads, int8", ONEDNN, NN)
STACKED = ("packed", "threads", "layers on threads", NN)
TRAINED = ("combined_gemms", "one_call", "one_call, threads", NN)
LOW = {16: 2e-2, 8: 5e-2}  # relative: what rounding the weights to so many bits may change


@dataclass(frozen=True)
class Size:
    """What is run: one layer of ``hidden`` at batch 1 by default. ``kilobytes``: read again and again."""

    steps: int = 100
    hidden: int = 256
    layers: int = 4
    hiddens: tuple = (64, 128, 256, 512, 1024)
    batches: tuple = (1, 2, 4, 8, 16, 32, 64)
    kilobytes: tuple = tuple(2**n for n in range(4, 15))
    seconds: float = 0.5

    def subject(self, **changes):
        sizes = {"steps": self.steps, "batch": 1, "hidden": self.hidden, "layers": 1} | changes
        return Subject(ladder.Shape(inputs=sizes["hidden"], **sizes), "cpu")


TINY = Size(3, 8, 2, (8,), (1, 3), (16, 32), 0.001)  # of a rehearsal


class CachedTable(Table):
    """A table whose floor knows how fast W_hh can be read, of its own part "caches"."""

    def floor(self, row):
        floor = super().floor(row)
        if not (known := row.results or {}).get("W_hh"):
            return floor
        (size,), (reads,) = known["W_hh"], known["reads"]
        rows = self.select(table="caches")
        near = max((row.bytes for row in rows if row.bytes <= size), default=rows[0].bytes)
        rate = max(row.bytes / row.completion.median for row in rows if row.bytes == near)
        return max(floor, reads * size / rate)


def compared(case, seconds, turns):
    """The results of a row: "GFLOP/s"; "against …", how many times as fast as nn.LSTM and the one before."""
    whats = [other["what"] for other, _ in turns]
    others = {NN: whats.index(NN)} | ({"before": n - 1} if (n := whats.index(case["what"])) else {})
    found = {"GFLOP/s": least(case)[1] / seconds / 1e9}
    found |= {f"against {name}": turns[place][1] / seconds for name, place in others.items()}
    return {name: [float(f"{value:.4g}")] for name, value in found.items()}


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`; ``device`` is "cpu"."""
    size = size or Size()
    roofs = partial(ceilings, device, ("float32",))
    table = CachedTable(roofs(), size.seconds, device, compared)
    parts = {"caches": lambda: read(table, size), "calls": lambda: calls(table, size)}
    parts["climb"] = lambda: versus(table, "climb", size.subject(), CLIMB)
    parts["layers"] = lambda: versus(table, "layers", size.subject(layers=size.layers), STACKED)
    parts["hidden"] = lambda: [versus(table, "hidden", size.subject(hidden=n), SWEPT) for n in size.hiddens]
    parts["batch"] = lambda: [versus(table, "batch", size.subject(batch=n), SWEPT) for n in size.batches]
    parts["training"] = lambda: [
        versus(table, "training", size.subject(batch=n), TRAINED)
        for n in size.batches[:: len(size.batches) // 2]
    ]
    return Plan(table, parts, dataclasses.asdict(size), roofs)


def read(table, size):
    """{table: "caches", kilobytes, threads}: reading what was read a moment ago, at the best rate seen."""
    for kilobytes in size.kilobytes:
        for threads in dict.fromkeys((1, machine.threads())):
            rate = max(roofline.cache_rate(1024 * kilobytes, threads, size.seconds / 2) for _ in range(3))
            case = {"table": "caches", "what": "read", "kilobytes": kilobytes, "threads": threads}
            seconds = summary([1024 * kilobytes / rate])
            table.add(Row(case, seconds, bytes=1024 * kilobytes, results={"GB/s": [round(rate / 1e9, 1)]}))


def calls(table, size):
    """{table: "calls"}: what does next to nothing, called; a barrier of all threads; and the pointwise work
    of a step, in calls of PyTorch's, by its compiler, and in one call of ours.
    """
    number, counters = torch.zeros(1), np.zeros((machine.threads(), cpu_kernels.LINE), np.int64)
    works = {"a call of PyTorch's": lambda: number.add_(1)}
    works["a compiled call"] = lambda: cpu_kernels.barriers(counters[:1], 0)
    took = {what: timing.measure(work, min_seconds=size.seconds) for what, work in works.items()}
    many = timing.measure(lambda: cpu_kernels.barriers(counters, 1000), min_seconds=size.seconds)
    took["a barrier of all threads"] = timing.Timing(
        many.median / 1000, many.q1 / 1000, many.q3 / 1000, many.n
    )
    for what, time in took.items():
        table.add(Row({"table": "calls", "what": what}, time))
    layer = a_layer(size.subject())
    cells = {"pointwise: 23 calls of PyTorch's": partial(ladder.separate_cell, layer, 0, 0, 1)}
    arrays = layer.gates[0], layer.recurrent, layer.b_ih, layer.cells[0]
    cells["pointwise: torch.compile"] = partial(torch.compile(inductor_cell), *arrays)
    cells["pointwise: a compiled call"] = partial(cpu_ladder.pointwise, layer, 0)
    with torch.no_grad():
        for what, time in timing.compare(cells, min_seconds=size.seconds).items():
            table.add(Row({"table": "calls", "what": what}, time))


def inductor_cell(gates, recurrent, bias, c):
    """The pointwise work for PyTorch's compiler: (B, 4H) twice, (4H,), (B, H) → h and c."""
    i, f, g, o = (gates + recurrent + bias).chunk(4, 1)  # (B, H) each
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def a_layer(subject):
    """A ``ladder.Layer`` with the subject's weights, before its first step."""
    weights, zeros = (
        [weight.detach() for weight in subject.module.all_weights[0]],
        torch.zeros(2, 1, subject.shape.hidden),
    )
    layer = ladder.Layer(subject.x, *weights, *zeros, torch.empty_like(subject.dy))
    layer.gates.normal_(), layer.recurrent.normal_()
    return layer


def versus(table, name, subject, whats):
    """{table: name}: versions of one subject, in turns."""
    table.measure([version(name, subject, what) for what in whats], rounds=9)


def version(name, subject, what):
    """The :class:`Version` of a case, compared with ``nn.LSTM`` in float64."""
    shape, bits = subject.shape, FROZEN.get(what, {}).get("bits", 32)
    case = {"table": name, "what": what, "layers": shape.layers, "hidden": shape.hidden}
    case |= {"batch": shape.batch, "steps": shape.steps, "format": "float32", "how": "eager"}
    run = training(made(what, subject.module), subject.x, subject.dy) if name == "training" else forward(
        made(what, subject.module), subject.x)  # fmt: skip
    right = subject.right_gradients if name == "training" else subject.right
    reads = shape.steps * shape.layers * (2 if name == "training" else 1)
    results = {"W_hh": [bits // 8 * 4 * shape.hidden**2], "reads": [reads]}
    tolerance = LOW.get(bits, TOLERANCE["float32"])
    return Version(case, run, least(case), deviation(run(), right), tolerance, results)


def made(what, module):
    """What computes a case: ours, with the module's weights, or the module."""
    threads = machine.threads() if "threads" in what else 1
    if what in FROZEN:
        return Frozen(module, threads=threads, **FROZEN[what])
    if what == ONEDNN:
        return by_onednn(module)
    return module if what == NN else LSTM.from_torch(module, rung=what.split(",")[0], threads=threads)


# The page
TITLE = "LSTMs on a CPU, at small batches"
MEANING = """LSTMs with as many inputs as hidden numbers, in float32, on all threads of a CPU: rungs that
remove calls, weights that are packed once and shared out to the threads, and `nn.LSTM`. *T* steps, *B* batch,
*H* hidden, *L* layers; where a table does not say, *T* = 100, *B* = 1, *H* = 256, *L* = 1. The floor is the
longest of three times: the operations, the bytes from memory, and reading *W_hh* in every step from where it
lies, at the rates of the first table. Weights in few bits count their own bytes, and deviate by their
rounding."""


def shown(title, names, *ratios, also=()):
    return Shown(title, (*names, "what"), ("time", "× floor", *ratios), ("deviation",))


PAGE = {
    "caches": [Shown("Reading what was read a moment ago", (("kB", "kilobytes"), "threads"),
                     (("GB/s", lambda row: f"{row.results['GB/s'][0]:g}"),))],
    "calls": [Shown("What a call costs", ("what",), ("time",))],
    "climb": [shown("One sequence, rung by rung", (), times("before", "nn.LSTM"))],
    "layers": [shown("Several layers", (L,), times("nn.LSTM"))],
    "hidden": [shown("By hidden size", (H,), times("nn.LSTM"))],
    "batch": [shown("By batch", (B,), times("nn.LSTM"))],
    "training": [shown("Forward and backward", (B,), times("nn.LSTM"))],
}  # fmt: skip
