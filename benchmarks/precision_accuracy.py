"""Fewer bits: what is learned, in each format; and LeNet made smaller in every way of the book.

Long training runs, run by name only, side by side: only their accuracies count. Of the smaller
models also the bytes of what is stored, and of each shape the time that a forward pass takes.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks.shared.formats import deviation
from benchmarks.shared.harness import Size, Version, measure, one_thread, runs
from benchmarks.shared.smaller import (
    WIDTHS,
    cut,
    data_of,
    fewer_filters,
    fitted,
    perceptron,
    perceptrons,
    pruned,
    pruned_gradually,
    students,
    tuned,
    unpacked,
)
from ed_lib import machine, models, timing, training
from ed_lib.precision import autocasting
from ed_lib.precision.low_bit_training import RECIPES, Product, low_bits
from ed_lib.precision.quantization import quantize_model, stored_bytes
from ed_lib.precision.scaler import GradScaler


@dataclass(frozen=True)
class Format:
    """``change(model)`` makes it a model of the format; ``context``: what each forward pass runs
    in.
    """

    context: Callable = contextlib.nullcontext
    scaler: Callable = lambda: None
    change: Callable = lambda model: None


def eight_bits(model):
    """Makes the products of linear layers, but for the last, those of a recipe of eight bits, in
    place.
    """
    mode = low_bits(RECIPES["hybrid, per tensor"], {})
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and layer.out_features % 16 == 0:

            def product(x, w=layer, name=name):
                return Product.apply(x, w.weight.t(), mode, name) + w.bias

            layer.forward = product


BFLOAT16 = partial(autocasting.autocast, torch.bfloat16)
FORMATS = {
    "float32": Format(),
    "float16": Format(autocasting.autocast, partial(GradScaler, "cpu")),
    "bfloat16": Format(BFLOAT16),
    # Only linear layers are in eight bits; the rest is in float32.
    "fp8": Format(change=eight_bits),
    # Without masters: all parameters and gradients in few bits, and no others; and without scaling.
    "float16 alone": Format(autocasting.autocast, change=lambda model: model.half()),
    "bfloat16 alone": Format(BFLOAT16, change=lambda model: model.bfloat16()),
}
MODELS = {
    "MLP": lambda seed: nn.Sequential(nn.Flatten(), models.mlp(seed=seed)),
    "LeNet": models.lenet,
}
# The shares of LeNet's filters and neurons that are taken out.
FEWER = (0.5, 0.75)
# What a network is not trained in.
WITHOUT = {"LeNet": ("fp8", "bfloat16 alone")}
# A network, its data, torch's optimizer, and its rate in each epoch.
TASKS = (
    ("MLP", "fashion-mnist", "SGD", (0.1,) * 5 + (0.01,)),
    ("MLP", "fashion-mnist", "SGD", (0.01,) * 6),
    ("MLP", "fashion-mnist", "Adam", (1e-3,) * 5 + (1e-4,)),
    ("MLP", "mnist", "SGD", (0.1,) * 3 + (0.01,)),
    ("LeNet", "fashion-mnist", "SGD", (0.1, 0.1, 0.01)),
)
# images, tests: None: all. Of the smaller models: epochs of the first training, tuning: epochs
# after it; prunings: of a gradual one.
SIZE = Size(
    tasks=TASKS,
    images=None,
    tests=None,
    batch=64,
    epochs=6,
    tuning=2,
    rate=1e-3,
    tuning_rate=5e-4,
    prunings=10,
    batches=(1, 256),
    seconds=0.5,
)
TINY = SIZE.rehearsal(
    tasks=(("MLP", "mnist", "SGD", (0.5, 0.05)), ("LeNet", "mnist", "SGD", (0.1,))),
    images=60,
    tests=40,
    batch=20,
    epochs=1,
    tuning=1,
    prunings=3,
    batches=(1, 5),
    seconds=0.001,
)


def accuracies(size, device):
    """A row for each task and format; by seed "accuracy", and "points" more than float32, in per
    cent.
    """
    keys = "model", "data", "optimizer", "rates", "format"
    cases = []
    for task in size.tasks:
        names = [name for name in FORMATS if name not in WITHOUT.get(task[0], ())]
        cases += [dict(zip(keys, (*task, name), strict=True)) for name in names]
    for row in runs(trained, cases, size):
        # float32 is the first of each task.
        if row["format"] == "float32":
            right = row["accuracy"]
        points = 100 * np.subtract(row["accuracy"], right)
        yield row | {"points": points.round(4).tolist()}


def trained(model, data, optimizer, rates, format, seed, size):
    """One run → accuracy on the test images, seconds of training."""
    torch.set_flush_denormal(True)
    (x, y), test = data_of(size, data)
    how = FORMATS[format]
    net = MODELS[model](seed=seed)
    how.change(net)
    optimizer = getattr(torch.optim, optimizer)(net.parameters(), rates[0])
    scaler = how.scaler()
    seconds = 0.0
    for epoch, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        options = {"batch": size.batch, "seed": len(rates) * seed + epoch, "context": how.context}
        history = training.train(net, optimizer, x, y, test, scaler=scaler, **options)
        seconds += history.seconds[-1]
    return {"accuracy": history.accuracy[-1], "seconds": seconds}


def smaller(size, device):
    """A row for each way and batch; "accuracy" and "bytes" are by seed."""
    (found,) = runs(made, [{}], size)
    for batch in size.batches:
        versions = []
        for name, net in found["nets"][0].items():
            version = forward(name, net, batch, size)
            versions.append(replace(version, results=by_seed(found, name)))
        yield from measure(versions, "cpu", size.seconds)


def wider(size, device):
    """A row for each perceptron; "accuracy" and "bytes" are by seed, the seconds those of training
    them all.
    """
    (found,) = runs(shaped, [{}], size)
    seconds = {key: found[key] for key in ("seconds", "q1", "q3", "n")}
    for name in found["nets"][0]:
        yield {"way": name} | seconds | by_seed(found, name)


def timed(size, device):
    """A row for each shape and batch. What a network has learned does not change its time, so
    these have learned nothing; zeros and codes stand where a trained network has them.
    """
    # So that no time is that of memory which the system hands out anew.
    machine.keep_memory()
    lenet = models.lenet()
    nets = {"LeNet": lenet, "90% zeros": pruned(lenet, 0.9)}
    nets["int4"] = quantize_model(lenet, 4, span="mse")
    nets |= {f"{amount:.0%} of filters cut": cut(lenet, amount) for amount in FEWER}
    nets |= {f"{width} units": perceptron(width, 0) for width in WIDTHS}
    for batch in size.batches:
        versions = [forward(name, net, batch, size) for name, net in nets.items()]
        yield from measure(versions, "cpu", size.seconds)


def forward(name, net, batch, size):
    """A :class:`Version` of a network's forward pass. What is stored in few bits is widened once,
    and computes in float32.
    """
    _, (x, _) = data_of(size)
    form = unpacked(net)
    error = deviation([answers(form, x[:256])], [answers(net, x[:256])])
    call = partial(answers, form, x[:batch])
    return Version({"way": name, "batch": batch}, call, error=error)


def by_seed(found, name):
    return {key: [of_seed[name] for of_seed in found[key]] for key in ("accuracy", "bytes")}


def made(seed, size):
    """From one seed {way: model}, its accuracy on the test images, and bytes."""
    start = timing.now()
    base = fitted(models.lenet(seed), size.epochs, size.rate, seed, size)
    nets = {"float32": base, "float32, trained on": tuned(base, seed, size)}
    for bits in (8, 4, 2):
        nets[f"int{bits} weights"] = quantize_model(base, bits, span="mse")
    for bits in (4, 2):
        nets[f"int{bits}, trained"] = tuned(nets[f"int{bits} weights"], seed, size)
    for amount in (0.9, 0.95, 0.98):
        nets[f"pruned {amount:.0%}, gradually"] = pruned_gradually(amount, seed, base, size)
    for amount in FEWER:
        for name, net in fewer_filters(amount, seed, base, size).items():
            nets[f"{amount:.0%} of filters cut, {name}"] = net
    nets |= students(seed, base, size)
    return known_of(nets, start, size)


def shaped(seed, size):
    """The same of perceptrons."""
    start = timing.now()
    return known_of(perceptrons(seed, size), start, size)


def known_of(nets, start, size):
    """The models, with what is known of each."""
    _, test = data_of(size)
    accuracy = {name: training.accuracy(net, *test) for name, net in nets.items()}
    bytes = {name: stored_bytes(net) for name, net in nets.items()}
    return {"nets": nets, "accuracy": accuracy, "bytes": bytes, "seconds": timing.now() - start}


def answers(net, x):
    with torch.inference_mode():
        return net(x)


context = one_thread
TABLES = {
    "accuracy of formats": accuracies,
    "smaller models": smaller,
    "perceptrons": wider,
    "smaller models, timed": timed,
}
