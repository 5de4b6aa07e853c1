"""Fewer bits: what is learned. Long training runs, run by name only.

The same networks, from the same weights, on the same batches, in each format; then the smaller models. Runs
go side by side, as many as the machine has threads, with one thread each: only their accuracies count.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from joblib import Parallel, delayed, parallel_config
from torch import nn

from ed_lib import data, machine, records
from ed_lib.precision import autocast, fp8, models, scaler, training
from ed_lib.records import Row
from ed_lib.timing import Timing


@dataclass(frozen=True)
class Format:
    """``change(model)`` makes it a model of the format; ``context``: what each forward pass runs in."""

    context: Callable = contextlib.nullcontext
    scaler: Callable = lambda: None
    change: Callable = lambda model: None


FORMATS = {
    "float32": Format(),
    "float16": Format(autocast.autocast, partial(scaler.GradScaler, "cpu")),
    "bfloat16": Format(partial(autocast.autocast, torch.bfloat16)),
    "fp8": Format(change=fp8.use_float8),  # what is no linear layer is in float32
    # Without masters: all parameters and gradients in few bits, and no others; and without scaling.
    "float16 alone": Format(autocast.autocast, change=lambda model: model.half()),
    "bfloat16 alone": Format(
        partial(autocast.autocast, torch.bfloat16), change=lambda model: model.bfloat16()
    ),
}
MODELS = {"MLP": lambda seed: nn.Sequential(nn.Flatten(), models.mlp(seed=seed)), "LeNet": models.lenet}


@dataclass(frozen=True)
class Size:
    """How much is trained. ``tasks``: a network, its data, torch's optimizer, and its rate in each epoch.
    ``without``: formats that a network is not trained in. ``images``: None for all. ``points``: of a curve of
    the loss. ``smaller``: the argument of benchmarks.smaller.rows; None: its own sizes, False: left out.
    """

    tasks: tuple = (
        ("MLP", "fashion-mnist", "SGD", (0.1,) * 5 + (0.01,)),
        ("MLP", "fashion-mnist", "SGD", (0.01,) * 6),
        ("MLP", "fashion-mnist", "Adam", (1e-3,) * 5 + (1e-4,)),
        ("MLP", "mnist", "SGD", (0.1,) * 3 + (0.01,)),
        ("LeNet", "fashion-mnist", "SGD", (0.1, 0.1, 0.01)),
    )
    without: dict = dataclasses.field(default_factory=lambda: {"LeNet": ("fp8", "bfloat16 alone")})
    images: int | None = None
    batch: int = 64
    seeds: int = 3
    points: int = 60
    workers: int | None = None  # None: as many as the machine has threads
    offline: bool = False
    smaller: object = None


def run(device="cpu", size=None):
    """Trains everything → an :class:`ed_lib.records.Record` of this machine's CPU; ``device`` is "cpu"."""
    size = size or Size()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = accuracies(size)
    if size.smaller is not False:
        from benchmarks import smaller

        rows += smaller.rows(*([] if size.smaller is None else [size.smaller]))
    parameters = dataclasses.asdict(size) | {"threads": "1 in each process"}
    name, made = machine.name(device), records.provenance("precision_accuracy", device)
    torch.set_num_threads(threads)
    return records.Record("precision_accuracy", records.slug(name), name, made, parameters, [], rows)


def accuracies(size):
    """{table: "accuracy of formats", model, data, format, …} → rows.

    Results, a value for each seed: "accuracy" on the test images at the end and, of those, "points" more than
    float32 from the same seed, in per cent; "loss", a curve of means over equally many steps each (None where
    the loss was not finite); for float16 "scale", the loss's at the end, and "skipped", a number of steps.
    """
    cases = [(*task, name) for task in size.tasks for name in FORMATS]
    cases = [case for case in cases if case[-1] not in size.without.get(case[0], ())]
    jobs = [delayed(trained)(*case, seed, size) for case in cases for seed in range(size.seeds)]
    with parallel_config("loky", inner_max_num_threads=1):
        found = Parallel(n_jobs=size.workers or machine.threads(), return_as="generator")(jobs)
    rows, base = [], {}
    for model, name, optimizer, rates, form in cases:
        runs = [next(found) for _ in range(size.seeds)]
        case = {"table": "accuracy of formats", "model": model, "data": name, "format": form}
        case |= {
            "optimizer": optimizer,
            "rates": list(rates),
            "batch": size.batch,
            "images": size.images or 60_000,
        }
        results = {key: [run[key] for run in runs] for key in runs[0] if key != "seconds"}
        right = base.setdefault((model, name, optimizer, rates), results["accuracy"])  # float32 comes first
        results["points"] = (100 * np.subtract(results["accuracy"], right)).round(4).tolist()
        q1, median, q3 = (float(q) for q in np.percentile([run["seconds"] for run in runs], [25, 50, 75]))
        rows.append(Row(case, Timing(median, q1, q3, len(runs)), results=results))
        what = f"{model}, {name}, {optimizer} {rates[0]:g}, {form}"
        print(f"{what}: {results['accuracy']}, points {results['points']}", flush=True)
    return rows


def trained(model, name, optimizer, rates, form, seed, size):
    """One run → accuracy on the test images, curve of the loss, seconds of training."""
    torch.set_flush_denormal(True)
    (x, y), test = images(name, size.offline)
    x, y = x[: size.images], y[: size.images]
    how, net = FORMATS[form], MODELS[model](seed=seed)
    how.change(net)
    optimizer, grow = getattr(torch.optim, optimizer)(net.parameters(), rates[0]), how.scaler()
    counted = grow and Counting(grow)
    losses, seconds = [], 0.0
    for epoch, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        history = training.train(
            net, optimizer, x, y, test, batch=size.batch, seed=len(rates) * seed + epoch,
            context=how.context, scaler=counted,
        )  # fmt: skip
        losses += history.loss
        seconds += history.seconds[-1]
    result = {"accuracy": history.accuracy[-1], "loss": thinned(losses, size.points), "seconds": seconds}
    return result | ({"scale": grow.get_scale(), "skipped": counted.skips} if grow else {})


class Counting:
    """A scaler that counts the steps it skips."""

    def __init__(self, inner):
        self.inner, self.skips = inner, 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def step(self, optimizer):
        self.inner.step(optimizer)
        self.skips += self.inner.skipped


def thinned(losses, points):
    """The means of as many pieces of a curve as ``points``; None for a piece that is not finite."""
    means = [float(np.mean(piece)) for piece in np.array_split(losses, min(points, len(losses)))]
    return [round(mean, 5) if math.isfinite(mean) else None for mean in means]


@functools.cache
def images(name, offline):
    """The training and the test images, and their classes, as tensors: ((x, y), (x, y))."""
    found = data.load(name, offline=offline)
    pairs = (found.train_images, found.train_labels), (found.test_images, found.test_labels)
    return [models.tensors(*pair) for pair in pairs]
