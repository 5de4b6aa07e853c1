"""How many steps a network takes to learn, by its batch: where larger batches stop saving any.

A perceptron on Fashion-MNIST is trained until it gets ``target`` of the test images right, at every rate of
a grid, by SGD and by Adam. Runs go side by side, with one thread each: steps are counted, not seconds.
Source: S. McCandlish and others, "An empirical model of large-batch training" (2018).
"""

import dataclasses
import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from benchmarks.old_harness import Plan, Shown, Table, by_seed, images, one_thread
from benchmarks.old_records import Row
from ed_lib import data, models, timing, training

OPTIMIZERS = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}


@dataclass(frozen=True)
class Size:
    """``rates``: of the smallest batch's grid, {optimizer: the first}, each twice the one before; ``samples``
    and ``steps``: a run ends, without success, after so many samples or steps, whichever are more.
    """

    batches: tuple = (32, 128, 512, 2048, 8192)
    first: tuple = (("SGD", 0.02), ("Adam", 2.5e-4))
    grid: int = 8
    target: float = 0.8
    widths: tuple = (784, 64, 10)
    looks: int = 2000
    samples: int = 300_000
    steps: int = 300
    seeds: int = 3
    offline: bool = False
    workers: int | None = None  # None: as many as the machine has threads


TINY = Size((8, 32), (("SGD", 0.1),), 2, 0.3, (784, 8, 10), 100, 600, 20, 2, True, 1)


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`; ``device`` is "cpu"."""
    size, table = size or Size(), Table()
    works = {f"steps, {name}": (lambda name=name: steps(size, name)) for name, _ in size.first}
    return Plan(table, table.filled_by(works), dataclasses.asdict(size), context=one_thread, tables=True)


def steps(size, optimizer):
    """{table, batch, rate} → rows; results: "steps" of each seed, 0 if it never got there."""
    first = dict(size.first)[optimizer]
    cases = [(optimizer, b, first * 2**n) for b in size.batches for n in range(size.grid)]
    for (_, batch, rate), seconds, results in by_seed(reach, cases, size.seeds, size, workers=size.workers):
        case = {"table": f"steps, {optimizer}", "batch": batch, "rate": rate, "target": size.target}
        yield Row(case, seconds, results=results)


def reach(optimizer, batch, rate, seed, size):
    """Trains until the target is reached → {"steps", "seconds"}."""
    (x, y), (test_x, test_y) = images("fashion-mnist", size.offline, tensors)
    test = test_x[: size.looks], test_y[: size.looks]
    net = models.mlp(size.widths, seed)
    update = OPTIMIZERS[optimizer](net.parameters(), rate)
    start, most = timing.now(), max(size.steps, size.samples // batch)
    epochs = (data.batches(len(x), batch, seed=1000 * seed + epoch) for epoch in itertools.count())
    for n, rows in enumerate(itertools.islice(itertools.chain.from_iterable(epochs), most), start=1):
        update.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        update.step()
        every = max(1, n // 50)  # to two per cent
        if n % every == 0 and training.accuracy(net, *test) >= size.target:
            return {"steps": n, "seconds": timing.now() - start}
    return {"steps": 0, "seconds": timing.now() - start}


def tensors(pictures, labels):
    return torch.from_numpy(data.as_inputs(pictures)), torch.from_numpy(labels).long()


# The page
TITLE = "Steps to learn, by the batch"
MEANING = """A perceptron of 64 hidden units on Fashion-MNIST, until it gets 80 % of 2,000 test images right;
the rates double from row to row. A dash: a seed did not get there in 300,000 images or 300 steps."""


def taken(row):
    """The steps of each seed."""
    return ", ".join(f"{n:,}" if n else "–" for n in row.results["steps"])


PAGE = {
    f"steps, {name}": [Shown(f"Steps by {name}", ("batch", "rate"), (("steps of each seed", taken),))]
    for name in OPTIMIZERS
}
