"""Fewer bits: what is learned. Long training runs, run by name only.

The same networks, from the same weights, on the same batches, in each format; then the smaller models. Runs
go side by side, as many as the machine has threads, with one thread each: only their accuracies count.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks import smaller as small
from benchmarks.old_harness import Plan, Shown, Table, by_seed, each, images, one_thread
from benchmarks.old_records import Row
from ed_lib import data, models, timing, training
from ed_lib.precision import autocasting, fp8, scaler


@dataclass(frozen=True)
class Format:
    """``change(model)`` makes it a model of the format; ``context``: what each forward pass runs in."""

    context: Callable = contextlib.nullcontext
    scaler: Callable = lambda: None
    change: Callable = lambda model: None


FORMATS = {
    "float32": Format(),
    "float16": Format(autocasting.autocast, partial(scaler.GradScaler, "cpu")),
    "bfloat16": Format(partial(autocasting.autocast, torch.bfloat16)),
    "fp8": Format(change=fp8.use_float8),  # what is no linear layer is in float32
    # Without masters: all parameters and gradients in few bits, and no others; and without scaling.
    "float16 alone": Format(autocasting.autocast, change=lambda model: model.half()),
    "bfloat16 alone": Format(
        partial(autocasting.autocast, torch.bfloat16), change=lambda model: model.bfloat16()
    ),
}
MODELS = {"MLP": lambda seed: nn.Sequential(nn.Flatten(), models.mlp(seed=seed)), "LeNet": models.lenet}


@dataclass(frozen=True)
class Size:
    """How much is trained. ``tasks``: a network, its data, torch's optimizer, and its rate in each epoch.
    ``without``: formats that a network is not trained in. ``images``: None for all. ``points``: of a curve of
    the loss.
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
    smaller: small.Size = small.Size()


TINY = Size(  # of a rehearsal
    (("MLP", "mnist", "SGD", (0.5, 0.05)), ("MLP", "mnist", "Adam", (0.01,)),
     ("LeNet", "mnist", "SGD", (0.1,))),
    images=256, batch=32, seeds=2, points=5, workers=1, offline=True, smaller=small.TINY,
)  # fmt: skip


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`, of a part for each table; ``device`` is "cpu"."""
    size, table = size or Size(), Table()
    works = {
        "accuracy of formats": lambda: accuracies(size),
        "smaller models": lambda: small.smaller(size.smaller),
        "distillation": lambda: small.distillation(size.smaller),
    }
    parameters = dataclasses.asdict(size) | {"threads": "1 in each process"}
    return Plan(table, table.filled_by(works), parameters, context=one_thread, tables=True)


def accuracies(size):
    """{table: "accuracy of formats", model, data, format, …} → rows.

    Results, a value for each seed: "accuracy" on the test images at the end and, of those, "points" more than
    float32 from the same seed, in per cent; "loss", a curve of means over equally many steps each (None where
    the loss was not finite); for float16 "scale", the loss's at the end, and "skipped", a number of steps.
    """
    cases = [(*task, name) for task in size.tasks for name in FORMATS]
    cases = [case for case in cases if case[-1] not in size.without.get(case[0], ())]
    base = {}
    runs = by_seed(trained, cases, size.seeds, size, workers=size.workers)
    for (model, name, optimizer, rates, form), seconds, results in runs:
        case = {"table": "accuracy of formats", "model": model, "data": name, "format": form}
        case |= {"optimizer": optimizer, "rates": list(rates)}
        case |= {"batch": size.batch, "images": size.images or 60_000}
        right = base.setdefault((model, name, optimizer, rates), results["accuracy"])  # float32 comes first
        results["points"] = (100 * np.subtract(results["accuracy"], right)).round(4).tolist()
        yield Row(case, seconds, results=results)


def trained(model, name, optimizer, rates, form, seed, size):
    """One run → accuracy on the test images, curve of the loss, seconds of training."""
    torch.set_flush_denormal(True)
    (x, y), test = images(name, size.offline, data.tensors)
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


# The page
TITLE = "What is learned in few bits"
MEANING = """The formats are emulated throughout; *alone* means that the weights too are in that format,
without masters and without loss scaling, and `fp8` leaves the rest in float32. Points against float32 are
given seed by seed."""


def points(row):
    return ", ".join(f"{value:+.2f}" for value in row.results["points"])


def last_loss(row):
    """The mean over the seeds of the last piece of the curve."""
    found = [curve[-1] for curve in row.results["loss"]]
    return "loss at the end " + ("not finite" if None in found else f"{np.mean(found):.4f}")


def epochs_rates(row):
    """The rate in each epoch: "5 × 0.1, 0.01"."""
    runs = [(rate, len(list(same))) for rate, same in itertools.groupby(row.case["rates"])]
    return ", ".join(f"{n} × {rate:g}" if n > 1 else f"{rate:g}" for rate, n in runs)


PAGE = {
    "accuracy of formats": [Shown(
        "What is learned, by format",
        (("network", "model"), ("images", "data"), "optimizer", ("rate in each epoch", epochs_rates),
         "format", "seeds"),
        ("accuracy", ("points against float32", points)),
        (last_loss, each("scale ", "scale", "{:g}"), each("skipped steps ", "skipped")),
    )],
    "smaller models": [Shown(
        "Smaller models: LeNet on Fashion-MNIST",
        ("way", "runs as", "seeds"),
        ("accuracy", ("bytes", lambda row: f"{np.mean(row.results['bytes']):,.0f}"),
         ("time", lambda row: (timing.text(row.completion.median), f"batch {row.case['batch']}"))),
        ("deviation",),
    )],
    "distillation": [Shown(
        "A student of few images, by temperature; 0 is without a teacher",
        ("images", "temperature", "steps", "seeds"), ("accuracy",),
    )],
}  # fmt: skip
