"""How well ED learns: against backpropagation in its own architecture and against an ordinary network of as
many cells, by depth and start, with layers frozen, with routed errors.

Runs of one configuration that differ in their seed (the start, and the order of the images) make one row:
the accuracy on the test images for each seed. The last of the training images are held out: all choices
(rates, optimizers) are made by the accuracy on those. On a CPU as many runs go side by side as there are
threads, with one thread each.
"""

import dataclasses
import functools
import time
from dataclasses import dataclass

import numpy as np

from benchmarks import old_harness as harness
from benchmarks import old_records as records
from benchmarks.old_harness import Plan, Shown, Table, by_seed, mean_of
from ed_lib import data, timing
from ed_lib.ed import EDNetwork, learner
from ed_lib.ed.baselines import Ordinary
from ed_lib.ed.learner import Learner, accuracy, fit, mask
from ed_lib.ed.routing import RoutedNetwork

BATCH = 64
METHODS = (("ed", "kaneko"), ("ed", "signed"), ("squared", "signed"), ("cross_entropy", "signed"))
ORDINARY = ("ordinary", "")  # as many cells, joined as usual, by backpropagation: as many FLOPs in a step
RATES = {"sgd": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0), "adam": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)}
STARTS = ("half_normal", "uniform", "fan_in")
SETS = ("mnist", "fashion-mnist")
# Epochs by (inputs, hidden cells): Kaneko's tables, and his program, compiled without its graphics and run
# with the seeds 1 to 100: mean and standard error.
PUBLISHED = {(2, 8): 75.14, (2, 16): 28.00, (2, 32): 8.26, (2, 64): 5.97, (2, 128): 5.09, (2, 256): 4.62,
             (2, 512): 4.47, (3, 128): 10.04, (3, 512): 7.94, (4, 256): 22.09, (4, 512): 17.09}  # fmt: skip
PROGRAM = {(3, 128): (9.02, 0.21), (3, 512): (6.93, 0.15), (4, 256): (13.96, 0.53), (4, 512): (12.32, 0.35)}
FROZEN = (None, ("input",), ("hidden",), ("output",))  # the layers that learn; None: all
VARIANTS = ("plain", "walls", "walls, centred")  # of a routed network


@dataclass(frozen=True)
class Size:
    """How much is run. ``few``: training images of a short run; a long one takes ``passes`` over all."""

    few: int = 12_000
    held_out: int = 6_000
    passes: int = 5
    best_passes: int = 8
    width: int = 64
    best_width: int = 128
    stack: int = 1024
    article: int = 4096
    depths: tuple = (0, 1, 2, 4, 8, 16, 32)
    seeds: int = 3
    starts: int = 100  # of each network that learns parity
    seconds: float = 3.0  # for which a step is timed
    workers: int | None = None  # None: as many as the machine has threads


TINY = Size(128, 6_000, 1, 1, 3, 5, 2, 4, (0, 1), 1, 2, 0.01)  # of a rehearsal


@dataclass(frozen=True)
class Run:
    """One training run, but for its seed. ``few``: None for all training images."""

    table: str
    data: str = "mnist"
    task: str = "ten classes"
    method: str = "ed"
    rule: str = "signed"
    optimizer: str = "sgd"
    rate: float = 0.1
    width: int = 32
    depth: int = 0
    init: str = "fan_in"
    passes: int = 1
    few: int | None = None
    decay: bool = True
    learns: tuple | None = None
    network: str = "one a class"


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`, of a part for each table, on "cpu" or "cuda"."""
    size = size or Size()
    table = Table(harness.ceilings(device))

    def rows(name):
        return table.select(table=name)

    runs = {
        "rates": lambda: rates_of_ten(size),
        "ten": lambda: long_runs(size, rows("rates")),
        "rates, two classes": lambda: rates_of_tasks(size),
        "tasks": lambda: two_classes(size, rows("rates, two classes")) + logistic(size),
        "depth": lambda: by_depth(size),
        "freeze": lambda: frozen(size),
        "rates, routing": lambda: rates_of_routing(size),
        "routing": lambda: routing(size, rows("rates, routing")),
        "best": lambda: widest(size, rows("ten")),
    }
    works = {name: lambda find=find: measured(find(), device, size) for name, find in runs.items()}
    works["parity"] = lambda: parity(size)
    works["seconds"] = lambda: step_times(device, size)
    parameters = dataclasses.asdict(size) | {"rates": RATES, "batch": BATCH, "flush_denormal": True}
    context = functools.partial(harness.one_thread, flush_denormal=True)
    ceilings = functools.partial(harness.ceilings, device)
    return Plan(table, table.filled_by(works), parameters, ceilings, context, tables=True)


def rates_of_ten(size):
    """Short runs of the ten-class task: every method and optimizer at every rate."""
    return [
        Run("rates", of, "ten classes", *method, optimizer, rate, size.width, few=size.few)
        for of in SETS
        for method in (*METHODS, ORDINARY)
        for optimizer, rates in RATES.items()
        for rate in rates
    ]


def long_runs(size, rates):
    """The ten-class task in full, each method and optimizer at its best rate."""
    return [
        again(best(rates, data=of, method=method, rule=rule, optimizer=optimizer), "ten", size)
        for of in SETS
        for method, rule in (*METHODS, ORDINARY)
        for optimizer in RATES
    ]


def rates_of_tasks(size):
    """Short runs of the tasks with two classes."""
    return [
        Run("rates, two classes", of, task, *method, optimizer, rate, few=size.few)
        for of in SETS
        for task in ("zero or one", "even or odd")
        for method in (*METHODS, ORDINARY)
        for optimizer, rates in RATES.items()
        for rate in rates
    ]


def two_classes(size, rates):
    """The tasks with two classes in full, each method at its best optimizer and rate."""
    return [
        again(best(rates, data=of, task=task, method=method, rule=rule), "tasks", size)
        for of in SETS
        for task in ("zero or one", "even or odd")
        for method, rule in (*METHODS, ORDINARY)
    ]


def logistic(size):
    """Logistic regression, the yardstick of each task."""
    tasks = ("zero or one", "even or odd", "ten classes")
    passes = 2 * size.passes
    return [Run("tasks", of, task, "logistic", "", "adam", 2e-3, 0, init="", passes=passes)
            for of in SETS for task in tasks]  # fmt: skip


def by_depth(size):
    """Even or odd by depth, for each start, method and rate: short runs."""
    methods = [(init, method) for init in STARTS for method in METHODS if method[0] != "squared"]
    return [
        Run("depth", "mnist", "even or odd", *method, optimizer, rate, 32, depth, init, few=size.few)
        for init, method in [*methods, ("", ORDINARY)]
        for depth in size.depths
        for optimizer, rates in (("sgd", RATES["sgd"]), ("adam", RATES["adam"][1:4]))
        for rate in rates
    ]


def frozen(size):
    """Only some layers learning, in a deep stack and in the article's own network; and no stack at all."""
    start = Run("freeze", "mnist", "zero or one", decay=False)
    change = dataclasses.replace
    ours = change(start, rule="kaneko", rate=0.2, depth=size.stack)
    article = change(start, rule="signed", rate=0.8, depth=size.article, init="half_normal")
    stack = [ours, change(ours, task="even or odd"), article]
    runs = [change(one, learns=names) for one in stack for names in FROZEN]
    return runs + [change(one, depth=0) for one in stack]


def rates_of_routing(size):
    """Short runs of routed networks, and of one network a class with as many cells in all."""
    return [
        Run("rates, routing", optimizer=optimizer, rate=rate, width=width, few=size.few, network=network)
        for network, width in (("one a class", 32), *((variant, 320) for variant in VARIANTS))
        for optimizer, rates in (("sgd", RATES["sgd"][1:5]), ("adam", RATES["adam"][1:4]))
        for rate in rates
    ]


def routing(size, rates):
    """Routed networks and one network a class in full, each at its best optimizer and rate."""
    return [again(best(rates, network=name), "routing", size) for name in ("one a class", *VARIANTS)]


def widest(size, ten):
    """The ten-class task with wider networks and more passes, at the rates of the long runs."""
    wider = {"width": size.best_width, "passes": size.best_passes}
    runs = [
        Run(**best(ten, data="mnist", method=method).case) for method in ("ed", "cross_entropy", "ordinary")
    ]
    return [dataclasses.replace(one, table="best", **wider) for one in runs]


def best(rows, **case):
    """The row with these items whose mean accuracy on the images held out is highest."""
    found = [row for row in rows if all(row.case[key] == value for key, value in case.items())]
    return max(found, key=held_out)


def again(row, table, size):
    """The run of a row once more, over all images and more often."""
    return dataclasses.replace(Run(**row.case), table=table, few=None, passes=size.passes)


def measured(runs, device, size):
    """A :class:`ed_lib.records.Row` for each run, as they come; its seconds are those of training steps."""
    workers = size.workers if device == "cpu" else 1
    cases = [(one,) for one in runs]
    for (one,), seconds, results in by_seed(do, cases, size.seeds, device, size.held_out, workers=workers):
        results = {key: np.round(values, 5).tolist() for key, values in results.items()}
        if "seen" in results:
            results["seen"] = results["seen"][0]  # the same for all seeds
        yield records.Row(dataclasses.asdict(one), seconds, results=results)


def do(one, seed, device, held_out):
    """One run with one seed → what it came to, as plain numbers."""
    import torch

    torch.set_flush_denormal(True)
    (inputs, labels), test = images(one.data, one.task)
    held_out = min(held_out, len(labels) // 6)
    judge = inputs[-held_out:], labels[-held_out:]
    kept = min(one.few or len(labels), len(labels) - held_out)
    steps = one.passes * -(-kept // BATCH)
    learner = a_learner(one, seed, device, steps, classes=int(labels.max()) + 1)
    learn, every = (inputs[:kept], labels[:kept]), steps if one.few else max(1, steps // (2 * one.passes))
    options = {"epochs": one.passes, "batch": BATCH, "every": every, "seed": 1000 * seed}
    history = fit(learner, learn, judge if one.few else test, **options)
    found = {"loss": history.mean_losses()[-1], "seconds": sum(history.seconds)}
    if one.few:
        found |= {"held_out": history.accuracy[-1], "accuracy": accuracy(learner.net, *test)}
    else:
        found |= {"held_out": accuracy(learner.net, *judge), "accuracy": history.accuracy[-1]}
        found |= {"seen": history.seen, "curve": history.accuracy, "losses": history.mean_losses()}
    return found


def a_learner(one, seed, device, steps, classes):
    """The learner of a run; ``steps`` of them in all."""
    k = classes if classes > 2 else 1
    decay = steps if one.decay else None
    if one.method in ("logistic", "ordinary"):
        hidden = [2 * one.width * k] * (one.depth + 1) if one.method == "ordinary" else []
        return Ordinary((784, *hidden, k), one.optimizer, one.rate, steps=decay, seed=seed, device=device)
    sizes = 784, one.width, one.depth, k
    options = {"rule": one.rule, "init": one.init, "seed": seed, "device": device}
    if one.network == "one a class":
        net = EDNetwork(*sizes, backend="torch", **options)
    else:
        net = RoutedNetwork(*sizes, walls="walls" in one.network, centred="centred" in one.network, **options)
    learns = None if one.learns is None else mask(net, *one.learns)
    return Learner(net, one.method, one.optimizer, one.rate, steps=decay, layers=learns)


@functools.cache
def images(name, task):
    """((inputs, labels), (inputs, labels)): the training and the test images of a task."""
    found = data.load(name)
    pairs = [(found.train_images, found.train_labels), (found.test_images, found.test_labels)]
    if task == "zero or one":
        pairs = [data.pick(*pair, [0, 1]) for pair in pairs]
    pairs = [(data.as_inputs(pictures), labels) for pictures, labels in pairs]
    return [(inputs, labels % 2 if task == "even or odd" else labels) for inputs, labels in pairs]


def parity(size):
    """Kaneko's own tasks with his network: the epochs that each of many starts needs."""
    options = {"n_outputs": size.starts, "bias": "cells", "seed": 1, "dtype": "float64"}
    for bits, cells in PUBLISHED:
        start = time.perf_counter()
        nets = EDNetwork(bits, cells // 2, 0, **options)
        epochs = learner.epochs_to_solve(nets, *learner.parity(bits))
        seconds = harness.summary([time.perf_counter() - start])
        case = {"table": "parity", "inputs": bits, "hidden cells": cells}
        yield records.Row(case, seconds, results={"epochs": epochs.tolist()})


def step_times(device, size):
    """The time of a training step of the ten-class task, all methods and optimizers in turns."""
    runs = [Run("seconds", "mnist", "ten classes", *method, optimizer, 1e-6, size.width)
            for method in (*METHODS, ORDINARY) for optimizer in RATES]  # fmt: skip
    rng = np.random.default_rng(0)
    x, target = rng.random((BATCH, 784)), data.one_hot(rng.integers(0, 10, BATCH), 10)
    learners = [a_learner(one, 0, device, 1, classes=10) for one in runs]
    batch = [(learner.net.asarray(x), learner.net.asarray(target)) for learner in learners]
    calls = {n: functools.partial(learners[n].step, *batch[n]) for n in range(len(runs))}
    times = timing.compare(calls, min_seconds=size.seconds, rounds=5)
    return [records.Row(dataclasses.asdict(one), times[n]) for n, one in enumerate(runs)]


# The page
TITLE = "What ED learns"
MEANING = """The accuracy on the test images. All choices (rates, optimizers) were made on training images
that were held out, by the short runs listed under *every rate*, which give the mean accuracy on those
images. *W* counts pairs of cells in a hidden layer of one network; *one a class* has ten such networks, and
an ordinary network as many cells in a layer as all of them. Runs shared the machine, one thread each, so
their seconds are only a guide; steps timed in turns stand last."""
HOW = {
    "ed": "ED, {}",
    "squared": "backpropagation, squared error",
    "cross_entropy": "backpropagation, cross-entropy",
    "ordinary": "an ordinary network, cross-entropy",
    "logistic": "logistic regression",
}
OURS = [method for method, _ in METHODS]  # in the architecture of ED
LEARNER = (
    *(("images", "data"), "task"),
    ("network", lambda row: row.case["network"] if row.case["method"] in OURS else ""),
    ("learns by", lambda row: HOW[row.case["method"]].format(row.case["rule"])),
    ("start", lambda row: row.case["init"].replace("_", "-") if row.case["method"] in OURS else ""),
    *(("W", "width"), ("D", "depth")),
)
LAYERS = "layers that learn", lambda row: ", ".join(row.case["learns"] or ["all"])
SECONDS = "seconds", lambda row: f"{row.completion.median:.3g}"


held_out = mean_of("held_out")


def best_by_depth(rows):
    """At each depth the highest accuracy, whatever optimizer and rate."""
    best = {}
    for row in rows:
        best[row.case["depth"]] = max(held_out(row), best.get(row.case["depth"], 0))
    return ", ".join(f"{depth}: {found:.1%}" for depth, found in best.items())


def with_error(row):
    epochs = np.array(row.results["epochs"])
    return f"{epochs.mean():.2f} ± {epochs.std() / len(epochs) ** 0.5:.2f}"


def by_kaneko(row):
    key = row.case["inputs"], row.case["hidden cells"]
    program = "his program {:.2f} ± {:.2f}".format(*PROGRAM[key]) if key in PROGRAM else ""
    return f"{PUBLISHED[key]:.2f}", program


def short(title):
    return Shown(title, (*LEARNER, "optimizer"), best=("rate", held_out))


def long(title):
    return Shown(title, (*LEARNER, "optimizer", "rate", LAYERS, "seeds"), ("accuracy", SECONDS))


PAGE = {
    "rates": [short("Ten classes, every rate: short runs")],
    "ten": [long("Ten classes, at the best rate: five passes")],
    "rates, two classes": [short("Two classes, every rate: short runs")],
    "tasks": [long("Two classes, at the best optimizer and rate: five passes; logistic regression: ten")],
    "depth": [
        Shown("Even or odd, by depth and start: short runs, the best rate",
              [one for one in LEARNER if one != "task" and one[0] != "D"],
              together=("highest at each D", best_by_depth)),
        short("Even or odd, by depth, start and rate: short runs"),
    ],
    "freeze": [long("Only some layers learn: one pass, constant rate")],
    "rates, routing": [short("Routed errors, every rate: short runs")],
    "routing": [long("Routed errors, at the best rate: five passes")],
    "best": [long("Ten classes, wider, at the same rates: eight passes")],
    "parity": [
        Shown("Epochs until parity is solved, from many starts: mean and standard error (two inputs: XOR)",
              ("inputs", "hidden cells"), (("here", with_error), ("Kaneko 1999", by_kaneko))),
    ],
    "seconds": [
        Shown("A step of the ten-class task, in turns, one thread", (*LEARNER, "optimizer"), ("time",))
    ],
}  # fmt: skip
