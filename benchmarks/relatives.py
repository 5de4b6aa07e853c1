"""Rules that learn without a backward pass, on one perceptron: every rule at every rate of the same grid.

A rate is chosen by one run of each on 50,000 training images, held to account on the 10,000 that are kept
out. At that rate each rule then learns from all 60,000, from several seeds, and the test images are looked at
once. Runs go side by side, with one thread each: their seconds are no measure of speed.
"""

import dataclasses
from dataclasses import dataclass

import torch

from benchmarks.old_harness import Plan, Shown, Table, images, one_thread, side_by_side, summary
from benchmarks.old_records import Row
from ed_lib import data, timing
from ed_lib.ed import relatives, vectors
from ed_lib.ed.learner import accuracy

TASKS = {"MNIST": "mnist", "Fashion-MNIST": "fashion-mnist"}
CASES = [(network, rule) for network in ("free", "one-signed") for rule in relatives.RULES]
CASES += [("vectors", rule) for rule in vectors.RULES]


@dataclass(frozen=True)
class Size:
    """``hidden``: cells of each hidden layer; of vectors, fewer. ``rates``: of Adam, the same for all."""

    hidden: tuple = (400, 400)
    of_vectors: tuple = (128, 128)
    cases: tuple = tuple(CASES)
    rates: tuple = (3e-4, 1e-3, 3e-3, 1e-2)
    epochs: int = 6
    batch: int = 128
    kept: int = 10_000
    seeds: int = 3
    offline: bool = False
    workers: int | None = None  # None: as many as the machine has threads


TINY = Size(
    (12,), (6,), (("free", "backprop"), ("one-signed", "broadcast"), ("vectors", "vector")),
    (1e-3, 1e-2), 1, 32, 200, 2, True, 1,
)  # fmt: skip


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`; ``device`` is "cpu"."""
    size, table = size or Size(), Table()
    works = {task: (lambda task=task: rows(size, task)) for task in TASKS}
    return Plan(table, table.filled_by(works), dataclasses.asdict(size), context=one_thread, tables=True)


def rows(size, task):
    """One for each network and rule; results: "rates" and "kept", what was tried and the shares of the kept
    images that it got right; of each seed "test", the same of the test images, and "before" and "cosine", of
    each layer's direction with the gradient, at the start and at the end.
    """
    tried = [(case, rate) for case in size.cases for rate in size.rates]
    found = side_by_side(run, [(task, *case, rate, 0, True, size) for case, rate in tried], size.workers)
    kept = dict(zip(tried, (each["right"] for each in found), strict=True))
    best = {case: max(size.rates, key=lambda rate, case=case: kept[case, rate]) for case in size.cases}
    jobs = [(task, *case, best[case], n, False, size) for case in size.cases for n in range(size.seeds)]
    runs = side_by_side(run, jobs, size.workers)
    for network, rule in size.cases:
        case = {"table": task, "network": network, "rule": rule, "rate": best[network, rule]}
        of_seeds = [next(runs) for _ in range(size.seeds)]
        results = {"rates": list(size.rates), "kept": [kept[(network, rule), rate] for rate in size.rates]}
        results |= {"test": [each["right"] for each in of_seeds]}
        results |= {name: [each[name] for each in of_seeds] for name in ("before", "cosine")}
        yield Row(case, summary([each["seconds"] for each in of_seeds]), results=results)


def run(task, network, rule, rate, seed, searching, size):
    """Trains one network → {"right", "before", "cosine", "seconds"}."""
    (x, labels), test = images(TASKS[task], size.offline)
    if searching:
        test, x, labels = (x[-size.kept :], labels[-size.kept :]), x[: -size.kept], labels[: -size.kept]
    K = int(labels.max()) + 1
    net = make(network, rule, x.shape[1], K, size, rate, seed, size.epochs * -(-len(x) // size.batch))
    inputs, targets = torch.from_numpy(x), torch.from_numpy(data.one_hot(labels, K))
    before, start = cosines(net, inputs[:2000], targets[:2000]), timing.now()
    for epoch in range(size.epochs):
        for some in data.batches(len(x), size.batch, seed=1000 * seed + epoch):
            net.step(inputs[some], targets[some])
    seconds, after = timing.now() - start, cosines(net, inputs[:2000], targets[:2000])
    return {"right": accuracy(net, *test), "before": before, "cosine": after, "seconds": seconds}


def make(network, rule, inputs, outputs, size, rate, seed, steps):
    if network == "vectors":
        widths = (inputs, *size.of_vectors, outputs)
        return vectors.VectorPerceptron(widths, rule, rate, steps=steps, seed=seed)
    widths, one_signed = (inputs, *size.hidden, outputs), network == "one-signed"
    return relatives.Perceptron(widths, rule, rate, one_signed=one_signed, steps=steps, seed=seed)


def cosines(net, x, target):
    """Of each layer's direction with minus the gradient, for a batch."""
    net.forward(x)
    pairs = zip(net.directions(target), net.directions(target, "backprop"), strict=True)
    found = [(ours.flatten(), theirs.flatten()) for (ours, _), (theirs, _) in pairs]
    return [round(float(a @ b / (a.norm() * b.norm()).clamp(min=1e-30)), 4) for a, b in found]


# The page
TITLE = "Rules without a backward pass"
MEANING = """Perceptrons of two hidden layers, by each rule. One-signed: all weights from a hidden cell have
one sign; vectors: cells that hold a number for each class, and weights ≥ 0. The rate is chosen on 10,000
training images kept out of one run; then each rule learns from all 60,000. Shares in per cent, one for each
seed; the cosines are of the first seed, layer by layer, with minus the gradient."""


def percent(name):
    """The shares, one after another."""
    return lambda row: ", ".join(f"{100 * share:.2f}" for share in row.results[name])


def cosine(row):
    """Of the first seed, from the first layer to the last."""
    return ", ".join(f"{value:.2f}" for value in row.results["cosine"][0])


COLUMNS = ("kept out, at each rate", percent("kept")), ("test", percent("test")), ("cosine", cosine)
PAGE = {task: [Shown(task, ("network", "rule", "rate"), COLUMNS)] for task in TASKS}
