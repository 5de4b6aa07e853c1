"""Fewer bits: what is learned. Long training runs, run by name only.

The same networks, from the same weights, on the same batches, in each format; then the smaller models. Runs
go side by side, as many as the machine has threads, with one thread each: only their accuracies count.
"""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks import smaller as small
from benchmarks.harness import REHEARSAL, Training, images, one_thread, runs
from ed_lib import models, training
from ed_lib.data import tensors
from ed_lib.precision import autocasting, fp8, scaler


class Counting(scaler.GradScaler):
    """A scaler that counts the steps it skips."""

    skips = 0

    def step(self, optimizer):
        super().step(optimizer)
        self.skips += self.skipped


@dataclass(frozen=True)
class Format:
    """``change(model)`` makes it a model of the format; ``context``: what each forward pass runs in."""

    context: Callable = contextlib.nullcontext
    scaler: Callable = lambda: None
    change: Callable = lambda model: None


BFLOAT16 = partial(autocasting.autocast, torch.bfloat16)
FORMATS = {
    "float32": Format(),
    "float16": Format(autocasting.autocast, partial(Counting, "cpu")),
    "bfloat16": Format(BFLOAT16),
    "fp8": Format(change=fp8.use_float8),  # what is no linear layer is in float32
    # Without masters: all parameters and gradients in few bits, and no others; and without scaling.
    "float16 alone": Format(autocasting.autocast, change=lambda model: model.half()),
    "bfloat16 alone": Format(BFLOAT16, change=lambda model: model.bfloat16()),
}
MODELS = {"MLP": lambda seed: nn.Sequential(nn.Flatten(), models.mlp(seed=seed)), "LeNet": models.lenet}

WITHOUT = {"LeNet": ("fp8", "bfloat16 alone")}  # what it is not trained in


@dataclass(frozen=True)
class Size(Training):
    """How much is trained. ``tasks``: a network, its data, torch's optimizer, and its rate in each epoch.
    ``images``: None for all. ``points``: of a curve of the loss.
    """

    tasks: tuple = (
        ("MLP", "fashion-mnist", "SGD", (0.1,) * 5 + (0.01,)),
        ("MLP", "fashion-mnist", "SGD", (0.01,) * 6),
        ("MLP", "fashion-mnist", "Adam", (1e-3,) * 5 + (1e-4,)),
        ("MLP", "mnist", "SGD", (0.1,) * 3 + (0.01,)),
        ("LeNet", "fashion-mnist", "SGD", (0.1, 0.1, 0.01)),
    )
    images: int | None = None
    batch: int = 64
    points: int = 60
    smaller: small.Size = small.Size()


SIZE = Size()
TINY = Size(
    (("MLP", "mnist", "SGD", (0.5, 0.05)), ("LeNet", "mnist", "SGD", (0.1,))),
    images=256, batch=32, points=5, smaller=small.TINY, **REHEARSAL,
)  # fmt: skip


def accuracies(size, device):
    """A row for each task and format. Results, a value for each seed: "accuracy" on the test images at the
    end and, of those, "points" more than float32 from the same seed, in per cent; "loss", a curve of means
    over equally many steps each (None where the loss was not finite); for float16 "scale", the loss's at the
    end, and "skipped", a number of steps.
    """
    keys = "model", "data", "optimizer", "rates", "format"
    cases = [dict(zip(keys, (*task, name), strict=True)) for task in size.tasks for name in FORMATS
             if name not in WITHOUT.get(task[0], ())]  # fmt: skip
    of = {"batch": size.batch, "images": size.images or 60_000}
    for row in runs(trained, cases, size.seeds, workers=size.workers, size=size):
        if row["format"] == "float32":  # the first of each task
            right = row["accuracy"]
        yield of | row | {"points": (100 * np.subtract(row["accuracy"], right)).round(4).tolist()}


def trained(model, data, optimizer, rates, format, seed, size):
    """One run → accuracy on the test images, curve of the loss, seconds of training."""
    torch.set_flush_denormal(True)
    (x, y), test = images(data, size.offline, tensors)
    x, y = x[: size.images], y[: size.images]
    how, net = FORMATS[format], MODELS[model](seed=seed)
    how.change(net)
    optimizer, grow = getattr(torch.optim, optimizer)(net.parameters(), rates[0]), how.scaler()
    losses, seconds = [], 0.0
    for epoch, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        options = {"batch": size.batch, "seed": len(rates) * seed + epoch, "context": how.context}
        history = training.train(net, optimizer, x, y, test, scaler=grow, **options)
        losses += history.loss
        seconds += history.seconds[-1]
    found = {"accuracy": history.accuracy[-1], "loss": thinned(losses, size.points), "seconds": seconds}
    return found | ({"scale": grow.get_scale(), "skipped": grow.skips} if grow else {})


def thinned(losses, points):
    """The means of as many pieces of a curve as ``points``; None for a piece that is not finite."""
    means = [float(np.mean(piece)) for piece in np.array_split(losses, min(points, len(losses)))]
    return [round(mean, 5) if math.isfinite(mean) else None for mean in means]


context = one_thread
TABLES = {"accuracy of formats": accuracies, "smaller models": lambda size, device: small.rows(size.smaller)}
