"""Smaller models: LeNet on Fashion-MNIST made smaller in every way of the book. Long training runs.

For each way and seed the accuracy on the test images and the bytes of what is stored; and of the first seed
the time that it takes, at each batch size, on one thread.
"""

import copy
import functools
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks import harness
from benchmarks import smaller_parts as parts
from ed_lib import data, models, timing, training
from ed_lib.precision import int8, pruning
from ed_lib.precision.quantization import Quantized, quantize_model, unpacked
from ed_lib.precision.storage import stored_bytes

PRUNED = (0.5, 0.8, 0.9, 0.95, 0.98)
CUT = (0.5, 0.75)
LAYERS = ("0", "3", "7")  # LeNet's layers with outputs that can be cut


@dataclass(frozen=True)
class Size:
    """How much is run. ``epochs`` of the first training; ``tuning`` epochs after it, where there are any.
    ``images``, ``tests``: None for all 60,000 and 10,000. ``seconds`` of timing for each row.
    """

    images: int | None = None
    tests: int | None = None
    epochs: int = 6
    tuning: int = 2
    batch: int = 64
    rate: float = 1e-3
    tuning_rate: float = 5e-4
    prunings: int = 10  # of a gradual one
    calibration: int = 500
    seeds: int = 3
    batches: tuple = (1, 256)
    seconds: float = 0.5
    workers: int | None = None  # None: as many as the machine has threads
    offline: bool = False


TINY = Size(60, 40, 1, 1, 20, prunings=3, calibration=10, seeds=2, batches=(1, 5), seconds=0.001,
            workers=1, offline=True)  # fmt: skip


@functools.cache
def bases(size):
    """The network of each seed that all ways begin with, and that teaches."""
    return list(
        harness.side_by_side(base, [{"seed": n, "size": size} for n in range(size.seeds)], size.workers)
    )


def measured(way, seed, base, size):
    """{name: (model, accuracy on the test images, bytes)} of what a way makes."""
    x, y = images(size)[1]
    return {
        name: (net, training.accuracy(net, as_dtype(x, net), y), stored_bytes(net))
        for name, net in way(seed, base, size).items()
    }


# The ways. Each: (seed, base, size) → {name: model}, masks made permanent, so that it can be sent.


def base(seed, size):
    return fitted(models.lenet(seed), size.epochs, size.rate, seed, size)


def given(seed, base, size):
    """The network as it is, and what takes no more training."""
    calibration = images(size)[0][0][: size.calibration]
    found = {
        "float32": base,
        "bfloat16": copied(base, torch.bfloat16),
        "float16": copied(base, torch.float16),
        "int8 weights": quantize_model(base, 8),
        "int8": quantize_model(base, 8, inputs=8, images=calibration),
    }
    found |= {f"int{bits} weights": quantize_model(base, bits, span="mse") for bits in (4, 3, 2)}
    found |= {f"pruned {amount:.0%}, once": pruned(base, amount) for amount in PRUNED}
    return found


def trained_on(seed, base, size):
    return {"float32, trained on": tuned(base, seed, size)}


def aware(bits, seed, base, size):
    return {f"int{bits}, trained": tuned(quantize_model(base, bits, span="mse"), seed, size)}


def pruned_then_tuned(amount, seed, base, size):
    net = pruned(base, amount, masks=True)
    return {f"pruned {amount:.0%}, once, trained on": pruning.permanent(tuned(net, seed, size))}


def pruned_gradually(amount, seed, base, size):
    """Prunes along the first three quarters of the tuning. At 90 % goes on to int4 weights."""
    net = copied(base)
    optimizer = torch.optim.Adam(net.parameters(), size.tuning_rate)
    (x, y), _ = images(size)
    length = int(0.75 * size.tuning * len(x)) // size.prunings
    for step in parts.gradually(net, amount, size.prunings):
        at = torch.arange((step - 1) * length, step * length) % len(x)
        training.train(net, optimizer, x[at], y[at], batch=size.batch, seed=100 * seed + step)
    at = torch.arange(size.prunings * length, size.tuning * len(x)) % len(x)
    training.train(net, optimizer, x[at], y[at], batch=size.batch, seed=100 * seed)
    found = {f"pruned {amount:.0%}, gradually": pruning.permanent(net)}
    if amount == 0.9:
        small = tuned(quantize_model(net, 4, span="mse"), seed, size)
        for layer in (module for module in small.modules() if isinstance(module, Quantized)):
            layer.layer = pruning.plain(layer.layer, layer.layer.weight, layer.layer.bias)
        found["pruned 90%, gradually, int4"] = small
    return found


def fewer_filters(amount, seed, base, size):
    """Cuts filters and neurons of least L2 norm, trains on; and trains the same shape from the start."""
    keep = {name: pruning.strongest(base.get_submodule(name).weight, amount) for name in LAYERS}
    name = f"{amount:.0%} of filters cut"
    small = tuned(pruning.keep_filters(base, keep), seed, size)
    calibration = images(size)[0][0][: size.calibration]
    fresh = pruning.keep_filters(models.lenet(100 + seed), keep)
    fresh = fitted(fresh, size.epochs + size.tuning, size.rate, seed, size)
    int4 = tuned(quantize_model(small, 4, span="mse"), seed, size)
    return {
        f"{name}, trained on": small,
        f"{name}, int8": quantize_model(small, 8, inputs=8, images=calibration),
        f"{name}, int4": int4,
        f"{name}, from the start": fresh,
    }


def students(seed, base, size):
    """A perceptron with 32 hidden cells: alone; with the network for a teacher; and with no labels at all."""
    (x, y), test = images(size)
    targets, found = parts.targets(base, x, y), {}
    for name, alpha in (("alone", None), ("taught", 0.9), ("taught without labels", 1.0)):
        net, labels = student(seed), y
        learn = {"epochs": size.epochs + size.tuning, "batch": size.batch, "seed": seed}
        if alpha:
            labels, learn["loss_function"] = targets, parts.Loss(2.0, alpha)
        training.train(net, torch.optim.Adam(net.parameters(), size.rate), x, labels, **learn)
        found[f"student, {name}"] = net
    return found


def student(seed):
    return nn.Sequential(nn.Flatten(), *models.mlp((784, 32, 10), seed))


WAYS = (
    trained_on,
    *(functools.partial(aware, bits) for bits in (4, 2)),
    *(functools.partial(pruned_then_tuned, amount) for amount in PRUNED[2:]),
    *(functools.partial(pruned_gradually, amount) for amount in PRUNED[2:]),
    *(functools.partial(fewer_filters, amount) for amount in CUT),
    students,
    given,
)


def rows(size):
    """One for each way, form in which it runs, and batch: "accuracy" and "bytes" for each seed; the time of
    the first seed's network; and how far what runs is from what is meant, in shares of the largest score.
    """
    jobs = [{"way": way, "seed": seed, "base": bases(size)[seed], "size": size}
            for way in WAYS for seed in range(size.seeds)]  # fmt: skip
    by_seed = [{} for _ in range(size.seeds)]  # {name of a way: (model, accuracy, bytes)}
    for job, made in zip(jobs, harness.side_by_side(measured, jobs, size.workers), strict=True):
        by_seed[job["seed"]] |= made
    x = images(size)[1][0]
    names = sorted(by_seed[0], key=lambda name: (ORDER.index(name.split(",")[0]), name))
    nets = {name: by_seed[0][name][0] for name in names}
    forms = {(name, how): net for name in names for how, net in running(name, nets[name]).items()}
    meant = {name: answers(net, x[:256]) for name, net in nets.items()}
    for batch in size.batches:
        calls = {key: functools.partial(call, net, as_dtype(x[:batch], net)) for key, net in forms.items()}
        for (name, how), took in timing.compare(calls, min_seconds=size.seconds).items():
            off = (answers(forms[name, how], x[:256]) - meant[name]).abs().max() / meant[name].abs().max()
            case = {"way": name, "runs as": how, "batch": len(x[:batch])}
            case |= {"images": len(images(size)[0][0]), "epochs": size.epochs, "tuning": size.tuning}
            accuracy, bytes = ([made[name][n] for made in by_seed] for n in (1, 2))
            times = {"seconds": took.median, "q1": took.q1, "q3": took.q3, "n": took.n}
            yield case | times | {"error": float(off), "accuracy": accuracy, "bytes": bytes}


ORDER = (
    *("float32", "bfloat16", "float16", "int8 weights", "int8", "int4 weights", "int3 weights"),
    *("int2 weights", "int4", "int2", *(f"pruned {amount:.0%}" for amount in PRUNED)),
    *(*(f"{amount:.0%} of filters cut" for amount in CUT), "student"),
)


def running(name, net):
    """What can be run of a network that is stored: {in which form: module}."""
    quantized = [module for module in net.modules() if isinstance(module, Quantized)]
    if quantized and quantized[0].inputs is not None:
        found = {"float32, fake": net}
        if int8.available():
            found["int8"] = int8.to_int8(net)
        else:
            print(f"{name}: no products of 8 bits here; not timed as such")
        return found
    if quantized:
        return {"float32": unpacked(net)} | ({"float32, fake": net} if name == "int8 weights" else {})
    if name.endswith("gradually"):
        return {"float32": net, "float32, CSR": parts.sparse_linears(net)}
    return {str(next(net.parameters()).dtype).removeprefix("torch."): net}


def tuned(net, seed, size):
    return fitted(copied(net), size.tuning, size.tuning_rate, 50 + seed, size)


def fitted(net, epochs, rate, seed, size):
    (x, y), test = images(size)
    optimizer = torch.optim.Adam(net.parameters(), rate)
    training.train(net, optimizer, x, y, epochs=epochs, batch=size.batch, seed=seed)
    return net


def pruned(base, amount, masks=False):
    net = copied(base)
    pruning.prune(net, amount)
    return net if masks else pruning.permanent(net)


def copied(net, dtype=torch.float32):
    return copy.deepcopy(net).to(dtype)


def answers(net, x):
    with torch.inference_mode():
        return net(as_dtype(x, net)).float()


def call(net, x):
    with torch.inference_mode():
        return net(x)


def as_dtype(x, net):
    """Images in the dtype of a network's parameters; float32 if it has none."""
    first = next(net.parameters(), x)
    return x.to(first.dtype)


def images(size):
    """((images, labels), (images, labels)): for training, and for the test."""
    (x, y), (tests, labels) = harness.images("fashion-mnist", size.offline, data.tensors)
    return (x[: size.images], y[: size.images]), (tests[: size.tests], labels[: size.tests])
