"""How well ED learns: against backpropagation in its own architecture and against an ordinary network of as
many cells, by depth and start, with layers frozen, with routed errors.

The last of the training images are held out: all choices (rates, optimizers) are made by the accuracy on
those, the mean over the seeds of short runs.
"""

import functools
import time
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from benchmarks import harness
from benchmarks.harness import Version
from benchmarks.networks import RoutedNetwork
from ed_lib import data
from ed_lib.ed import EDNetwork, learner
from ed_lib.ed.rivals import Ordinary

BATCH = 64
RUN = {"data": "mnist", "task": "ten classes", "method": "ed", "rule": "signed", "optimizer": "sgd",
       "rate": 0.1, "width": 32, "depth": 0, "init": "fan_in", "passes": 1, "few": None, "decay": True,
       "learns": None, "network": "one a class"}  # fmt: skip
METHODS = [
    {"method": "ed", "rule": "kaneko"}, {"method": "ed", "rule": "signed"},
    {"method": "squared", "rule": "signed"}, {"method": "cross_entropy", "rule": "signed"},
    {"method": "ordinary", "rule": ""},  # as many cells, joined as usual, by backpropagation
]  # fmt: skip
KANEKO, ED, _, ENTROPY, ORDINARY = METHODS
# Epochs by (inputs, hidden cells): Kaneko's tables, and his program, compiled without its graphics and run
# with the seeds 1 to 100: mean and standard error.
PUBLISHED = {(2, 8): 75.14, (2, 16): 28.00, (2, 32): 8.26, (2, 64): 5.97, (2, 128): 5.09, (2, 256): 4.62,
             (2, 512): 4.47, (3, 128): 10.04, (3, 512): 7.94, (4, 256): 22.09, (4, 512): 17.09}  # fmt: skip
PROGRAM = {(3, 128): (9.02, 0.21), (3, 512): (6.93, 0.15), (4, 256): (13.96, 0.53), (4, 512): (12.32, 0.35)}


@dataclass(frozen=True)
class Size(harness.Training):
    """``few``: training images of a short run; a long one takes ``passes`` over all. ``starts``: of each
    network that learns parity.
    """

    few: int = 12_000
    held_out: int = 6_000
    passes: int = 5
    width: int = 64
    routed: int = 32  # pairs for each class of a routed network
    stack: int = 1024
    article: int = 4096
    depths: tuple = (0, 1, 2, 4, 8, 16, 32)
    sets: tuple = ("mnist", "fashion-mnist")
    sgd: tuple = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # rates
    adam: tuple = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
    starts: int = 100
    seconds: float = 3.0  # for which a step is timed


SIZE = Size()
TINY = Size(128, 6_000, 1, 3, 3, 2, 4, (0, 1), ("mnist",), (0.05, 0.2), (1e-3, 3e-3), 2, 0.01,
            **harness.REHEARSAL | {"seeds": 1})  # fmt: skip


def grid(sgd, adam):
    """Each optimizer at each of its rates."""
    rates = {"sgd": sgd, "adam": adam}
    return [{"optimizer": name, "rate": rate} for name in rates for rate in rates[name]]


@functools.cache
def by_rate(size):
    """Short runs of the ten-class task: every method and optimizer at every rate."""
    return list(measured(size, [
        {"data": of, "width": size.width, "few": size.few} | method | rate
        for of in size.sets for method in METHODS for rate in grid(size.sgd, size.adam)
    ]))  # fmt: skip


def ten_classes(size, device):
    """The ten-class task in full, each method and optimizer at its best rate."""
    return measured(size, [
        again(size, by_rate(size), data=of, optimizer=optimizer, **method)
        for of in size.sets for method in METHODS for optimizer in ("sgd", "adam")
    ])  # fmt: skip


def by_depth(size, device):
    """Even or odd by depth, for each start, method and rate: short runs."""
    starts = "half_normal", "uniform", "fan_in"
    methods = [{"init": init} | method for init in starts for method in (KANEKO, ED, ENTROPY)]
    methods, rates = [*methods, {"init": ""} | ORDINARY], grid(size.sgd, size.adam[1:4])
    return measured(size, [
        {"task": "even or odd", "depth": depth, "few": size.few} | method | rate
        for method in methods for depth in size.depths for rate in rates
    ])  # fmt: skip


def frozen(size, device):
    """Only some layers learning, in a deep stack and in the article's own network; and no stack at all."""
    ours = {"task": "zero or one", "rule": "kaneko", "rate": 0.2, "depth": size.stack, "decay": False}
    article = ours | {"rule": "signed", "rate": 0.8, "depth": size.article, "init": "half_normal"}
    stacks = [ours, ours | {"task": "even or odd"}, article]
    learns = None, ("input",), ("hidden",), ("output",)  # None: all
    runs = [one | {"learns": names} for one in stacks for names in learns]
    return measured(size, runs + [one | {"depth": 0} for one in stacks])


def routing(size, device):
    """Routed networks, and one network a class with as many cells in all: each at the best of short runs."""
    variants = "plain", "walls", "walls, centred"
    networks = {"one a class": size.routed} | dict.fromkeys(variants, 10 * size.routed)
    kinds = [{"network": name, "width": width, "few": size.few} for name, width in networks.items()]
    rates = grid(size.sgd[1:5], size.adam[1:4])
    rows = list(measured(size, [kind | rate for kind in kinds for rate in rates]))
    return measured(size, [again(size, rows, network=network) for network in networks])


def again(size, rows, **case):
    """The run of the row with these items that is best on the images held out, over all images and longer."""
    best = max((row for row in rows if row | case == row), key=lambda row: np.mean(row["held_out"]))
    return {name: best[name] for name in RUN} | {"few": None, "passes": size.passes}


def measured(size, runs):
    """A row for each run, RUN but for some items; results: of each seed the last "loss", the shares right of
    the images "held_out" and of the test images, "accuracy"; of long runs the "curve" of that.
    """
    return harness.runs(do, [RUN | one for one in runs], size.seeds, workers=size.workers, size=size)


def do(seed, size, **case):
    """One run with one seed → what it came to, as plain numbers."""
    one = SimpleNamespace(**case)
    torch.set_flush_denormal(True)
    (inputs, labels), test = images(one.data, one.task, size.offline)
    out = min(size.held_out, len(labels) // 6)
    judge, kept = (inputs[-out:], labels[-out:]), min(one.few or len(labels), len(labels) - out)
    steps = one.passes * -(-kept // BATCH)
    pupil = a_learner(one, seed, steps, classes=int(labels.max()) + 1)
    learn, every = (inputs[:kept], labels[:kept]), steps if one.few else max(1, steps // (2 * one.passes))
    options = {"epochs": one.passes, "batch": BATCH, "every": every, "seed": 1000 * seed}
    history = learner.fit(pupil, learn, judge if one.few else test, **options)
    accuracies = history.accuracy[-1], learner.accuracy(pupil.net, *(test if one.few else judge))
    on_judge, on_test = (round(each, 5) for each in (accuracies if one.few else accuracies[::-1]))
    found = {"loss": round(history.mean_losses()[-1], 5), "held_out": on_judge, "accuracy": on_test}
    found |= {} if one.few else {"curve": np.round(history.accuracy, 5).tolist()}
    return found | {"seconds": sum(history.seconds)}


def a_learner(one, seed, steps, classes):
    """The learner of a run; ``steps`` of them in all."""
    k, decay = classes if classes > 2 else 1, steps if one.decay else None
    if one.method == "ordinary":
        widths = 784, *[2 * one.width * k] * (one.depth + 1), k
        return Ordinary(widths, one.optimizer, one.rate, steps=decay, seed=seed)
    sizes = 784, one.width, one.depth, k
    if one.network == "one a class":
        net = EDNetwork(*sizes, rule=one.rule, init=one.init, seed=seed, backend="torch")
    else:
        options = {"walls": "walls" in one.network, "centred": "centred" in one.network}
        net = RoutedNetwork(*sizes, **options, seed=seed)
    learns = None if one.learns is None else learner.mask(net, *one.learns)
    return learner.Learner(net, one.method, one.optimizer, one.rate, steps=decay, layers=learns)


@functools.cache
def images(name, task, offline):
    """((inputs, labels), (inputs, labels)): the training and the test images of a task."""
    pairs = harness.images(name, offline)
    if task == "zero or one":
        return [data.pick(*pair, [0, 1]) for pair in pairs]
    return [(x, y % 2 if task == "even or odd" else y) for x, y in pairs]


def parity(size, device):
    """Kaneko's own tasks with his network: the epochs that each of many starts needs, beside his."""
    options = {"n_outputs": size.starts, "bias": "cells", "seed": 1, "dtype": "float64"}
    for (bits, cells), published in PUBLISHED.items():
        start = time.perf_counter()
        nets = EDNetwork(bits, cells // 2, 0, **options)
        epochs = learner.epochs_to_solve(nets, *learner.parity(bits)).tolist()
        row = {"inputs": bits, "hidden cells": cells} | harness.summary([time.perf_counter() - start])
        yield row | {"epochs": epochs, "published": published, "program": PROGRAM.get((bits, cells))}


def step_times(size, device):
    """The time of a training step of the ten-class task, all methods and optimizers in turns."""
    rng, versions = np.random.default_rng(0), []
    x, target = rng.random((BATCH, 784)), data.one_hot(rng.integers(0, 10, BATCH), 10)
    for method in METHODS:
        for optimizer in ("sgd", "adam"):
            case = RUN | method | {"optimizer": optimizer, "rate": 1e-6, "width": size.width}
            pupil = a_learner(SimpleNamespace(**case), 0, 1, classes=10)
            call = functools.partial(pupil.step, pupil.net.asarray(x), pupil.net.asarray(target))
            versions.append(Version(case, call, (None, None)))
    return harness.measure(versions, "cpu", size.seconds, rounds=5)


TABLES = {"rates": lambda size, device: by_rate(size), "ten": ten_classes, "depth": by_depth,
          "freeze": frozen, "routing": routing, "parity": parity, "seconds": step_times}  # fmt: skip
context = functools.partial(harness.one_thread, flush_denormal=True)
