"""Linear recurrences on a CPU: ways to have all their states, and what a network of them learns of a text.

Scans are compared with the loop in float64 first. Networks are trained in turns, step by step, so that a
second means the same for each: an LSTM and two layers of minGRU with as many parameters, each at the rate of
those tried at which the first seed ends lowest.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.old_harness import Plan, Shown, Table, Version, ceilings, deviation, summary
from benchmarks.old_records import Row
from ed_lib import data, timing
from ed_lib.lstm import minimal, scans


@dataclass(frozen=True)
class Size:
    """``steps`` and ``numbers``: of scans, T and a state's size. ``length``, ``batch``: of the text."""

    steps: int = 1024
    numbers: tuple = (16, 64, 256, 1024, 4096)
    seconds: float = 0.3
    length: int = 128
    batch: int = 32
    training: int = 600
    every: int = 50
    seeds: int = 3
    rates: tuple = (1e-3, 3e-3, 1e-2, 3e-2)
    embedded: int = 128
    hidden: tuple = (256, 384)  # of the LSTM, and of minGRU


TINY = Size(8, (2, 3), 0.001, 4, 2, 4, 2, 2, (1e-3, 3e-3), 3, (4, 5))  # of a rehearsal
NETWORKS = ("LSTM", "minGRU, 2 layers")


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`; ``device`` is "cpu"."""
    size = size or Size()
    roofs = partial(ceilings, device, ("float32",))
    table = Table(roofs(), size.seconds, device)
    parts = {"scans": lambda: [scanned(table, size.steps, n) for n in size.numbers]}
    parts["text"] = lambda: read(table, size)
    return Plan(table, parts, dataclasses.asdict(size), roofs)


def scanned(table, steps, numbers):
    """{table: "scans"}: all states of a recurrence, by each of the ways."""
    torch.manual_seed(0)
    a, b, h = torch.rand(steps, numbers), torch.randn(steps, numbers), torch.randn(numbers)
    right = scans.step_by_step(a.double(), b.double(), h.double())
    cost = 3 * b.numel() * b.itemsize, 2 * b.numel()
    versions = []
    for what, scan in scans.SCANS.items():
        case = {"table": "scans", "what": what, "numbers": numbers, "steps": steps, "format": "float32"}
        call = partial(scan, a, b, h)
        versions.append(Version(case, call, cost, deviation([call().double()], [right]), 1e-5))
    table.measure(versions)


class Reader(nn.Module):
    """Which character comes next, by a network of ``NETWORKS``: x (T, B) → (T, B, characters)."""

    def __init__(self, what, characters, size):
        super().__init__()
        make, hidden = dict(
            zip(NETWORKS, zip((nn.LSTM, minimal.Stack), size.hidden, strict=True), strict=True)
        )[what]
        self.embedding, self.rnn = nn.Embedding(characters, size.embedded), make(size.embedded, hidden)
        self.head = nn.Linear(hidden, characters)

    def forward(self, x):
        return self.head(self.rnn(self.embedding(x))[0])


def read(table, size):
    """{table: "text"}: the loss on the held-out text by training steps, and seconds of a training step."""
    text = data.text()
    first = contest(text, size, [(what, rate) for what in NETWORKS for rate in size.rates], 0)
    best = {what: min(size.rates, key=lambda rate: first[what, rate]["loss"][-1]) for what in NETWORKS}
    runs = [first, *(contest(text, size, list(best.items()), seed) for seed in range(1, size.seeds))]
    for what, rate in best.items():
        mine = [run[what, rate] for run in runs]
        case = {"table": "text", "what": what, "rate": rate, "parameters": mine[0]["parameters"]}
        case |= {"length": size.length, "batch": size.batch, "every": size.every}
        results = {f"loss, seed {seed}": run["loss"] for seed, run in enumerate(mine)}
        results |= {f"rate {r:g}": [first[what, r]["loss"][-1]] for r in size.rates}
        table.add(Row(case, summary([time for run in mine for time in run["seconds"]]), results=results))


def contest(text, size, entries, seed):
    """Trains in turns → {(network, rate): its parameters, losses and seconds of each step}."""
    found, trainees = {}, {}
    for what, rate in entries:
        torch.manual_seed(seed)
        network = Reader(what, len(text.characters), size)
        trainees[what, rate] = network, torch.optim.Adam(network.parameters(), rate)
        number = sum(p.numel() for p in network.parameters())
        found[what, rate] = {"parameters": number, "loss": [], "seconds": []}
    batches = data.stretches(text.train, size.batch, size.length, seed=seed)
    for n in range(size.training + 1):
        x, wanted = next(batches)
        for key, (network, adam) in trainees.items():
            if n % size.every == 0:
                found[key]["loss"].append(round(held_out(network, text, size), 4))
            if n < size.training:
                start = timing.now()
                adam.zero_grad()
                F.cross_entropy(network(x).flatten(0, 1), wanted.flatten()).backward()
                nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                adam.step()
                found[key]["seconds"].append(timing.now() - start)
        if n % size.every == 0:
            print(n, {what: run["loss"][-1] for what, run in found.items()}, flush=True)
    return found


@torch.no_grad()
def held_out(network, text, size):
    """The mean loss, in nats a character, on eight batches of the held-out text, always the same."""
    batches = data.stretches(text.held_out, size.batch, size.length, seed=0)
    losses = [
        F.cross_entropy(network(x).flatten(0, 1), y.flatten()) for x, y in (next(batches) for _ in range(8))
    ]
    return float(np.mean(losses))


# The page
TITLE = "Linear recurrences on a CPU"
MEANING = """All states of *h_t = a_t h_{t−1} + b_t*, elementwise, by the scans of `ed_lib.lstm.scans`; and
tiny Shakespeare by character, learnt by an LSTM and by two layers of minGRU with about as many parameters,
trained in turns on the same batches. The loss is of the held-out tenth, in nats a character."""


def last(row):
    """The loss at the end, of every seed."""
    losses = [values[-1] for name, values in row.results.items() if name.startswith("loss")]
    return f"{np.mean(losses):.3f}", ", ".join(f"{loss:.3f}" for loss in losses)


PAGE = {
    "scans": [Shown("All states of a linear recurrence", (("numbers", "numbers"), "what"),
                    ("time", "× floor"), ("deviation",))],
    "text": [Shown("Tiny Shakespeare by character", ("what", "parameters", "rate"),
                   ("time", ("loss at the end", last)))],
}  # fmt: skip
