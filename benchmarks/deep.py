"""Can ED go deep? Even against odd by depth, for starts, skips and centred sums; and an ablation.

Of each network every rate of one grid is tried by one run on 50,000 training images, held to account on the
10,000 kept out; at the best three seeds learn from all 60,000. Runs go side by side, with one thread each.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.old_harness import Plan, Shown, Table, images, one_thread, side_by_side, summary
from benchmarks.old_records import Row
from ed_lib import data, timing
from ed_lib.ed.learner import Learner, accuracy
from ed_lib.ed.residual import ResidualNetwork
from ed_lib.ed.routing import RoutedNetwork

NETWORKS = {  # how a deep network differs from EDNetwork
    "plain": {"start": "fan_in", "residual": False, "centred": False},
    "gain one": {"start": "gain_one", "residual": False, "centred": False},
    "permutation, centred": {"start": "permutation", "residual": False, "centred": True},
    "residual": {"start": "gain_one", "residual": True, "centred": False},
    "residual, centred": {"start": "gain_one", "residual": True, "centred": True},
}
DEPTH_CASES = [(name, rule, True) for name in NETWORKS for rule in ("ed", "backprop")]
DEPTH_CASES += [("residual, centred", "ed", False)]  # the stack as it was drawn
PARTS = {  # of "Diffusing Blame": what is taken away
    "everything": {}, "without centring": {"centred": False},
    "the article's sigmoid": {"u0": 0.4}, "one start for both types": {"uneven": False},
}  # fmt: skip
TASKS = {"MNIST": "mnist", "Fashion-MNIST": "fashion-mnist"}


@dataclass(frozen=True)
class Size:
    """``width``: pairs a layer; ``pairs``: those of the ablation, of one hidden-to-hidden layer."""

    depths: tuple = (0, 1, 2, 4, 8, 16, 32, 64)
    cases: tuple = tuple(DEPTH_CASES)
    width: int = 32
    pairs: int = 100
    rates: tuple = (1e-3, 3e-3, 1e-2)
    epochs: int = 1
    ablation_epochs: int = 3
    batch: int = 64
    kept: int = 10_000
    seeds: int = 3
    offline: bool = False
    workers: int | None = None  # None: as many as the machine has threads


TINY = Size(
    (0, 3), (DEPTH_CASES[0], DEPTH_CASES[-1]), 4, 10, (1e-3, 1e-2), 1, 1, 64, 200, 2, True, 1
)  # fmt: skip


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`; ``device`` is "cpu"."""
    size, table = size or Size(), Table()
    by_depth = [("depth", "MNIST", *case, depth) for depth in size.depths for case in size.cases]
    ablation = [("ablation", task, part) for task in TASKS for part in PARTS]
    works = {"depth": lambda: rows(size, by_depth), "ablation": lambda: rows(size, ablation)}
    return Plan(table, table.filled_by(works), dataclasses.asdict(size), context=one_thread, tables=True)


NAMES = {
    "depth": ("table", "task", "network", "rule", "stack", "depth"),
    "ablation": ("table", "task", "part"),
}


def rows(size, cases):
    """One for each case; results: "rates" and "kept", what was tried and the shares of the kept images that
    it got right; of each seed "test", and "cosine", of each layer's direction with the gradient at the end.
    """
    tried = [(case, rate) for case in cases for rate in size.rates]
    found = side_by_side(run, [(case, rate, 0, True, size) for case, rate in tried], size.workers)
    kept = dict(zip(tried, (each["right"] for each in found), strict=True))
    best = {case: max(size.rates, key=lambda rate, case=case: kept[case, rate]) for case in cases}
    jobs = [(case, best[case], n, False, size) for case in cases for n in range(size.seeds)]
    runs = side_by_side(run, jobs, size.workers)
    for case in cases:
        of_seeds = [next(runs) for _ in range(size.seeds)]
        results = {"rates": list(size.rates), "kept": [kept[case, rate] for rate in size.rates]}
        results |= {"test": [each["right"] for each in of_seeds]}
        results |= {"cosine": [each["cosine"] for each in of_seeds]}
        named = dict(zip(NAMES[case[0]], case, strict=True)) | {"rate": best[case]}
        yield Row(named, summary([each["seconds"] for each in of_seeds]), results=results)


def run(case, rate, seed, searching, size):
    """Trains one network → {"right", "cosine", "seconds"}."""
    kind, task, *rest = case
    (x, labels), test = images(TASKS[task], size.offline)
    if kind == "depth":
        labels, test = labels % 2, (test[0], test[1] % 2)
    if searching:
        test, x, labels = (x[-size.kept :], labels[-size.kept :]), x[: -size.kept], labels[: -size.kept]
    epochs = size.epochs if kind == "depth" else size.ablation_epochs
    steps = epochs * -(-len(x) // size.batch)
    if kind == "depth":
        network, rule, stack, depth = rest
        options = NETWORKS[network] | {"stack": stack, "steps": steps, "seed": seed}
        learner = net = ResidualNetwork(x.shape[1], size.width, depth, rule, rate, **options)
        targets = labels[:, None].astype(np.float32)
    else:
        net = published(x.shape[1], size.pairs, seed=seed, **PARTS[rest[0]])
        learner, targets = Learner(net, "ed", "adam", rate, steps=steps), data.one_hot(labels, 10)
    inputs, targets, start = torch.from_numpy(x), torch.from_numpy(targets), timing.now()
    for epoch in range(epochs):
        for some in data.batches(len(x), size.batch, seed=1000 * seed + epoch):
            learner.step(inputs[some], targets[some])
    seconds = timing.now() - start
    cosine = cosines(net, inputs[:1000], targets[:1000]) if kind == "depth" else []
    return {"right": accuracy(net, *test), "cosine": cosine, "seconds": seconds}


def published(inputs, pairs, *, centred=True, u0=6.0, uneven=True, seed=0):
    """A RoutedNetwork with one hidden-to-hidden layer, as "Diffusing Blame" has its dense layers: sigmoids of
    width 6, centred errors, excitatory weights of the start times 1.5 and inhibitory ones times 0.5, but for
    the output's.
    """
    net = RoutedNetwork(inputs, pairs, 1, 10, u0=u0, centred=centred, seed=seed)
    if uneven:  # [..., p, q, i, o]
        for name in ("input.weight", "hidden.weight"):
            net.parameters[name].mul_(torch.tensor([1.5, 0.5])[:, None, None])
    return net


def cosines(net, x, target):
    """Of each layer's direction with minus the gradient, for a batch."""
    net.forward(x)
    pairs = zip(net.directions(target), net.directions(target, "backprop"), strict=True)
    found = [(ours.flatten(), theirs.flatten()) for (ours, _), (theirs, _) in pairs]
    return [round(float(a @ b / (a.norm() * b.norm()).clamp(min=1e-30)), 4) for a, b in found]


# The page
TITLE = "Can ED go deep?"
MEANING = """Even against odd digits, one pass over the 60,000 images, by depth, the number of
hidden-to-hidden layers of 32 pairs. The rate is chosen on 10,000 training images kept out of one run.
Shares in per cent, one for each seed; cosines of the first seed's first and last hidden-to-hidden layer with
minus the gradient. Then parts of "Diffusing Blame" taken away one by one, three passes over ten classes."""


def percent(name):
    """The shares, one after another."""
    return lambda row: ", ".join(f"{100 * share:.2f}" for share in row.results[name])


def ends(row):
    """The cosines of the first and the last hidden-to-hidden layer, where there are some."""
    found = row.results["cosine"][0][1:-1]
    return f"{found[0]:.2f}, {found[-1]:.2f}" if found else ""


COLUMNS = ("kept out, at each rate", percent("kept")), ("test", percent("test"))
PAGE = {
    "depth": [Shown("depth", ("depth", "network", "rule", "stack", "rate"), (*COLUMNS, ("cosine", ends)))],
    "ablation": [Shown("ablation", ("task", "part", "rate"), COLUMNS)],
}
