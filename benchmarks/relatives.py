"""Rules that learn without a backward pass, on one perceptron: every rule at every rate of the same grid.

Each run is held to account on images that are kept out of training; which rate is taken is decided by those,
and the test images are only reported. Runs go side by side, with one thread each.
"""

import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.harness import Plan, Shown, Table, by_seed, images, one_thread
from ed_lib import data, timing
from ed_lib.ed.relatives import RULES, Perceptron
from ed_lib.ed.training import accuracy
from ed_lib.records import Row

TASKS = {"MNIST": "mnist", "Fashion-MNIST": "fashion-mnist"}


@dataclass(frozen=True)
class Size:
    """``rates``: of Adam, for every rule; ``kept``: training images that are kept out, to choose the rate."""

    widths: tuple = (784, 256, 256, 10)
    rules: tuple = RULES
    rates: tuple = (1e-4, 3e-4, 1e-3, 3e-3)
    epochs: int = 8
    batch: int = 128
    kept: int = 10_000
    seeds: int = 3
    offline: bool = False
    workers: int | None = None  # None: as many as the machine has threads


TINY = Size((784, 12, 10), ("backprop", "broadcast"), (1e-3, 1e-2), 1, 32, 200, 2, True, 1)


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`; ``device`` is "cpu"."""
    size, table = size or Size(), Table()
    works = {task: (lambda task=task: runs(size, task)) for task in TASKS}
    return Plan(table, table.filled_by(works), dataclasses.asdict(size), context=one_thread, tables=True)


def runs(size, task):
    """{table, rule, one_signed, rate} → rows; results of each seed: "kept" and "test", shares of images that
    are right, and "cosine", of each layer's direction with the gradient, at the end.
    """
    cases = list(itertools.product([task], size.rules, (False, True), size.rates))
    for (_, rule, one_signed, rate), seconds, results in by_seed(
        run, cases, size.seeds, size, workers=size.workers
    ):
        case = {"table": task, "rule": rule, "one_signed": one_signed, "rate": rate, "epochs": size.epochs}
        yield Row(case, seconds, results=results)


def run(task, rule, one_signed, rate, seed, size):
    """Trains one network → {"kept", "test", "cosine", "seconds"}."""
    (x, labels), test = images(TASKS[task], size.offline)
    kept, x, labels = (x[-size.kept :], labels[-size.kept :]), x[: -size.kept], labels[: -size.kept]
    steps = size.epochs * -(-len(x) // size.batch)
    net = Perceptron(size.widths, rule, rate, one_signed=one_signed, steps=steps, seed=seed)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(data.one_hot(labels, size.widths[-1]))
    start = timing.now()
    for epoch in range(size.epochs):
        for rows in data.batches(len(x), size.batch, seed=1000 * seed + epoch):
            net.step(inputs[rows], targets[rows])
    seconds = timing.now() - start
    cosine = [round(c, 4) for c in cosines(net, inputs[:2000], targets[:2000])]
    return {"kept": accuracy(net, *kept), "test": accuracy(net, *test), "cosine": cosine, "seconds": seconds}


def cosines(net, x, target):
    """Of each layer's direction with minus the gradient, for a batch."""
    net.forward(x)
    pairs = zip(net.given, net.deltas(target), net.deltas(target, "backprop"), strict=True)
    pairs = [((given.T @ ours).flatten(), (given.T @ theirs).flatten()) for given, ours, theirs in pairs]
    return [float(a @ b / (a.norm() * b.norm()).clamp(min=1e-30)) for a, b in pairs]


def best(rows):
    """{(rule, one_signed): the row of the rate that is best on the images kept out, mean over the seeds}."""
    found = {}
    for row in rows:
        key = row.case["rule"], row.case["one_signed"]
        if key not in found or np.mean(row.results["kept"]) > np.mean(found[key].results["kept"]):
            found[key] = row
    return found


# The page
TITLE = "Rules without a backward pass"
MEANING = """A perceptron of two hidden layers of 256, by each rule at each rate; one-signed: all weights from
a hidden cell have one sign. The rate is chosen on 10,000 training images that are kept out. Shares in per
cent, one for each seed; the cosines are of the first seed, layer by layer, with minus the gradient."""


def percent(name):
    """The shares of each seed."""
    return lambda row: ", ".join(f"{100 * share:.2f}" for share in row.results[name])


def cosine(row):
    """Of the first seed, from the first layer to the last."""
    return ", ".join(f"{value:.2f}" for value in row.results["cosine"][0])


COLUMNS = ("kept out", percent("kept")), ("test", percent("test")), ("cosine", cosine)
PAGE = {task: [Shown(task, ("rule", "one_signed", "rate"), COLUMNS)] for task in TASKS}
