"""Fewer bits: what is learned, in each format; and LeNet made smaller in every way of the book.

Long training runs, run by name only, side by side: only their accuracies count. Of the smaller
models also the bytes of what is stored, and of the first seed the time that it takes.
"""

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

from benchmarks.shared.formats import deviation
from benchmarks.shared.harness import Size, Version, images, measure, one_thread, runs
from ed_lib import data, models, timing, training
from ed_lib.precision import autocasting
from ed_lib.precision.compression import keep_filters
from ed_lib.precision.low_bit_training import RECIPES, Product, low_bits
from ed_lib.precision.quantization import Quantized, dequantize, quantize_model, stored_bytes
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
    "fp8": Format(change=eight_bits),  # what is no linear layer is in float32
    # Without masters: all parameters and gradients in few bits, and no others; and without scaling.
    "float16 alone": Format(autocasting.autocast, change=lambda model: model.half()),
    "bfloat16 alone": Format(BFLOAT16, change=lambda model: model.bfloat16()),
}
MODELS = {
    "MLP": lambda seed: nn.Sequential(nn.Flatten(), models.mlp(seed=seed)),
    "LeNet": models.lenet,
}
WITHOUT = {"LeNet": ("fp8", "bfloat16 alone")}  # what it is not trained in
LAYERS = ("0", "3", "7")  # LeNet's layers with outputs that can be cut
TASKS = (  # a network, its data, torch's optimizer, and its rate in each epoch
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


def data_of(size, name="fashion-mnist"):
    """((images, labels), (images, labels)): for training, and for the test."""
    (x, y), (tests, labels) = images(name, size.offline, data.tensors)
    return (x[: size.images], y[: size.images]), (tests[: size.tests], labels[: size.tests])


def accuracies(size, device):
    """A row for each task and format; by seed "accuracy", and "points" more than float32, in per
    cent.
    """
    keys = "model", "data", "optimizer", "rates", "format"
    cases = [dict(zip(keys, (*task, name), strict=True)) for task in size.tasks for name in FORMATS
             if name not in WITHOUT.get(task[0], ())]  # fmt: skip
    for row in runs(trained, cases, size):
        if row["format"] == "float32":  # the first of each task
            right = row["accuracy"]
        yield row | {"points": (100 * np.subtract(row["accuracy"], right)).round(4).tolist()}


def trained(model, data, optimizer, rates, format, seed, size):
    """One run → accuracy on the test images, seconds of training."""
    torch.set_flush_denormal(True)
    (x, y), test = data_of(size, data)
    how, net = FORMATS[format], MODELS[model](seed=seed)
    how.change(net)
    optimizer, grow = getattr(torch.optim, optimizer)(net.parameters(), rates[0]), how.scaler()
    seconds = 0.0
    for epoch, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        options = {"batch": size.batch, "seed": len(rates) * seed + epoch, "context": how.context}
        history = training.train(net, optimizer, x, y, test, scaler=grow, **options)
        seconds += history.seconds[-1]
    return {"accuracy": history.accuracy[-1], "seconds": seconds}


def smaller(size, device):
    """A row for each way and batch; "accuracy" and "bytes" are by seed."""
    (found,) = runs(made, [{}], size)
    _, (x, _) = data_of(size)
    for batch in size.batches:
        versions = []
        for name, net in found["nets"][0].items():
            results = {
                key: [of_seed[name] for of_seed in found[key]] for key in ("accuracy", "bytes")
            }
            form = unpacked(
                net
            )  # what is stored in few bits is widened once, and computes in float32
            error = deviation([answers(form, x[:256])], [answers(net, x[:256])])
            call = partial(answers, form, x[:batch])
            versions.append(
                Version({"way": name, "batch": batch}, call, error=error, results=results)
            )
        yield from measure(versions, "cpu", size.seconds)


def made(seed, size):
    """From one seed {way: model}, its accuracy on the test images, and bytes."""
    start, (_, test) = timing.now(), data_of(size)
    base = fitted(models.lenet(seed), size.epochs, size.rate, seed, size)
    nets = {"float32": base, "float32, trained on": tuned(base, seed, size)}
    for bits in (8, 4, 2):
        nets[f"int{bits} weights"] = quantize_model(base, bits, span="mse")
    for bits in (4, 2):
        nets[f"int{bits}, trained"] = tuned(nets[f"int{bits} weights"], seed, size)
    for amount in (0.9, 0.95, 0.98):
        nets[f"pruned {amount:.0%}, gradually"] = pruned_gradually(amount, seed, base, size)
    for amount in (0.5, 0.75):
        for name, net in fewer_filters(amount, seed, base, size).items():
            nets[f"{amount:.0%} of filters cut, {name}"] = net
    nets |= students(seed, base, size)
    accuracy = {name: training.accuracy(net, *test) for name, net in nets.items()}
    bytes = {name: stored_bytes(net) for name, net in nets.items()}
    return {"nets": nets, "accuracy": accuracy, "bytes": bytes, "seconds": timing.now() - start}


def pruned_gradually(amount, seed, base, size):
    """Prunes along the first three quarters of the tuning."""
    net, ((x, y), _) = copy.deepcopy(base), data_of(size)
    optimizer = torch.optim.Adam(net.parameters(), size.tuning_rate)
    length = int(0.75 * size.tuning * len(x)) // size.prunings
    for step in range(1, size.prunings + 1):
        prune_to(net, cubic(step, size.prunings, amount))
        at = torch.arange((step - 1) * length, step * length) % len(x)
        training.train(net, optimizer, x[at], y[at], batch=size.batch, seed=100 * seed + step)
    at = torch.arange(size.prunings * length, size.tuning * len(x)) % len(x)
    training.train(net, optimizer, x[at], y[at], batch=size.batch, seed=100 * seed)
    for layer, name in weights_of(net):
        prune.remove(layer, name)  # the masks become zeros
    return net


def unpacked(model):
    """A copy whose quantized layers are ordinary again, with the numbers of their codes for
    weights.
    """
    model = copy.deepcopy(model)
    for name, module in [(n, m) for n, m in model.named_modules() if isinstance(m, Quantized)]:
        module.layer.weight = nn.Parameter(dequantize(module.codes(), module.scale))
        model.set_submodule(name, module.layer)
    return model


def weights_of(net):
    return [
        (layer, "weight") for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)
    ]


def prune_to(net, share):
    """Prunes the weights of smallest absolute value, of all layers together, until so many are
    0.
    """
    weights, total = weights_of(net), sum(layer.weight.numel() for layer, _ in weights_of(net))
    gone = sum(
        int((mask == 0).sum()) for name, mask in net.named_buffers() if name.endswith("weight_mask")
    )
    prune.global_unstructured(weights, prune.L1Unstructured, amount=round(share * total) - gone)


def cubic(step, steps, end):
    """The share pruned at ``step`` of ``steps``, fast at first: end (1 − (1 − step / steps)³) (Zhu
    and Gupta, 2017, equation 1). After the last step, end.
    """
    return end * (1 - (1 - min(step, steps) / steps) ** 3)


def fewer_filters(amount, seed, base, size):
    """Cuts filters and neurons of least L2 norm, trains on; and trains the same shape from the
    start.
    """
    keep = {}
    for name in LAYERS:
        norms = base.get_submodule(name).weight.detach().flatten(1).norm(dim=1)  # (n, …) → (n,)
        keep[name] = norms.topk(len(norms) - round(amount * len(norms))).indices.sort().values
    small = tuned(keep_filters(base, keep), seed, size)
    fresh = keep_filters(models.lenet(100 + seed), keep)
    return {
        "trained on": small,
        "int4": tuned(quantize_model(small, 4, span="mse"), seed, size),
        "from the start": fitted(fresh, size.epochs + size.tuning, size.rate, seed, size),
    }


def students(seed, base, size):
    """A perceptron with 32 hidden cells: alone; with the network for a teacher; and with no labels
    at all.
    """
    (x, y), _ = data_of(size)
    from_teacher, found = targets(base, x, y), {}
    for name, alpha in (("alone", 0.0), ("taught", 0.9), ("taught without labels", 1.0)):
        net = nn.Sequential(nn.Flatten(), *models.mlp((784, 32, 10), seed))
        learn = {"epochs": size.epochs + size.tuning, "batch": size.batch, "seed": seed}
        learn["loss_function"] = partial(taught, alpha=alpha)
        training.train(net, torch.optim.Adam(net.parameters(), size.rate), x, from_teacher, **learn)
        found[f"student, {name}"] = net
    return found


def targets(teacher, x, y):
    """A teacher's scores of images x (N, …), and in the last column their labels y (N,): (N,
    classes + 1).
    """
    with torch.no_grad():
        scores = torch.cat(
            [teacher.eval()(some) for some in x.split(training.CHUNK)]
        )  # (N, classes)
    return torch.cat([scores, y[:, None].to(scores.dtype)], dim=1)


def taught(scores, targets, alpha, temperature=2.0):
    """α T² KL(softmax(teacher / T) ‖ softmax(student / T)) + (1 − α) · cross-entropy with the
    labels: scores (B, classes), targets (B, classes + 1) → (). T² is there since the first part's
    gradient shrinks as 1/T².
    """
    p = F.softmax(targets[:, :-1] / temperature, dim=1)  # (B, classes)
    from_teacher = F.kl_div(F.log_softmax(scores / temperature, dim=1), p, reduction="batchmean")
    from_labels = F.cross_entropy(scores, targets[:, -1].long())
    return alpha * temperature**2 * from_teacher + (1 - alpha) * from_labels


def tuned(net, seed, size):
    return fitted(copy.deepcopy(net), size.tuning, size.tuning_rate, 50 + seed, size)


def fitted(net, epochs, rate, seed, size):
    optimizer = torch.optim.Adam(net.parameters(), rate)
    training.train(net, optimizer, *data_of(size)[0], epochs=epochs, batch=size.batch, seed=seed)
    return net


def answers(net, x):
    with torch.inference_mode():
        return net(x)


context = one_thread
TABLES = {"accuracy of formats": accuracies, "smaller models": smaller}
