"""Smaller models: LeNet on Fashion-MNIST made smaller in every way of the book. Long training runs.

For each way and seed the accuracy on the test images and the bytes of what is stored; and of the first seed
the time that it takes, at each batch size, on one thread.
"""

import copy
import functools
import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import harness
from ed_lib import data, models, timing, training
from ed_lib.precision import int8, pruning
from ed_lib.precision.distillation import divergence
from ed_lib.precision.quantization import Quantized, quantize_model, replaced, unpacked
from ed_lib.precision.storage import stored_bytes

PRUNED = (0.9, 0.95, 0.98)
CUT = (0.5, 0.75)
LAYERS = ("0", "3", "7")  # LeNet's layers with outputs that can be cut


@dataclass(frozen=True)
class Size(harness.Training):
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
    batches: tuple = (1, 256)
    seconds: float = 0.5


TINY = Size(60, 40, 1, 1, 20, prunings=3, calibration=10, batches=(1, 5), seconds=0.001,
            **harness.REHEARSAL)  # fmt: skip


def rows(size):
    """One for each way, form in which it runs, and batch: "accuracy" and "bytes" for each seed; the time of
    the first seed's network; and how far what runs is from what is meant, in shares of the largest score.
    """
    jobs = [{"seed": seed, "size": size} for seed in range(size.seeds)]
    by_seed = list(harness.side_by_side(made, jobs, size.workers))
    x, nets = images(size)[1][0], {name: net for name, (net, _, _) in by_seed[0].items()}
    forms = {(name, how): net for name in nets for how, net in running(name, nets[name]).items()}
    meant = {name: answers(net, x[:256]) for name, net in nets.items()}
    for batch in size.batches:
        calls = {key: functools.partial(answers, net, x[:batch]) for key, net in forms.items()}
        for (name, how), took in timing.compare(calls, min_seconds=size.seconds).items():
            off = (answers(forms[name, how], x[:256]) - meant[name]).abs().max() / meant[name].abs().max()
            case = {"way": name, "runs as": how, "batch": len(x[:batch])}
            case |= {"images": len(images(size)[0][0]), "epochs": size.epochs, "tuning": size.tuning}
            accuracy, bytes = ([of[name][n] for of in by_seed] for n in (1, 2))
            times = {"seconds": took.median, "q1": took.q1, "q3": took.q3, "n": took.n}
            yield case | times | {"error": float(off), "accuracy": accuracy, "bytes": bytes}


def made(seed, size):
    """{way: (model, accuracy on the test images, bytes)} from one seed; masks are made permanent."""
    base = fitted(models.lenet(seed), size.epochs, size.rate, seed, size)
    eight = functools.partial(quantize_model, bits=8, inputs=8, images=images(size)[0][0][: size.calibration])
    nets = {"float32": base, "float32, trained on": tuned(base, seed, size), "int8": eight(base)}
    for bits in (4, 2):
        nets[f"int{bits} weights"] = few = quantize_model(base, bits, span="mse")
        nets[f"int{bits}, trained"] = tuned(few, seed, size)
    for amount in PRUNED:
        nets[f"pruned {amount:.0%}, gradually"] = pruned_gradually(amount, seed, base, size)
    for amount in CUT:
        for name, net in fewer_filters(amount, seed, base, size, eight).items():
            nets[f"{amount:.0%} of filters cut, {name}"] = net
    nets |= students(seed, base, size)
    accuracies = {name: training.accuracy(net, *images(size)[1]) for name, net in nets.items()}
    return {name: (net, accuracies[name], stored_bytes(net)) for name, net in nets.items()}


def running(name, net):
    """What can be run of a network that is stored: {in which form: module}."""
    quantized = [module for module in net.modules() if isinstance(module, Quantized)]
    if quantized and quantized[0].inputs is None:
        return {"float32": unpacked(net)}
    if quantized:  # where the processor has no products of eight bits, only their emulation is timed
        return {"float32, fake": net} | ({"int8": int8.to_int8(net)} if int8.available() else {})
    return {"float32": net} | ({"float32, CSR": sparse_linears(net)} if name.endswith("gradually") else {})


def pruned_gradually(amount, seed, base, size):
    """Prunes along the first three quarters of the tuning."""
    net, ((x, y), _) = copy.deepcopy(base), images(size)
    optimizer = torch.optim.Adam(net.parameters(), size.tuning_rate)
    length = int(0.75 * size.tuning * len(x)) // size.prunings
    for step in range(1, size.prunings + 1):
        pruning.prune(net, cubic(step, size.prunings, amount))
        at = torch.arange((step - 1) * length, step * length) % len(x)
        training.train(net, optimizer, x[at], y[at], batch=size.batch, seed=100 * seed + step)
    at = torch.arange(size.prunings * length, size.tuning * len(x)) % len(x)
    training.train(net, optimizer, x[at], y[at], batch=size.batch, seed=100 * seed)
    return pruning.permanent(net)


def cubic(step, steps, end):
    """The share pruned at ``step`` of ``steps``, fast at first: end (1 − (1 − step / steps)³) (Zhu and Gupta,
    2017, equation 1). After the last step, end.
    """
    return end * (1 - (1 - min(step, steps) / steps) ** 3)


def fewer_filters(amount, seed, base, size, eight):
    """Cuts filters and neurons of least L2 norm, trains on; and trains the same shape from the start."""
    keep = {name: pruning.strongest(base.get_submodule(name).weight, amount) for name in LAYERS}
    small = tuned(pruning.keep_filters(base, keep), seed, size)
    fresh = pruning.keep_filters(models.lenet(100 + seed), keep)
    return {
        "trained on": small,
        "int8": eight(small),
        "int4": tuned(quantize_model(small, 4, span="mse"), seed, size),
        "from the start": fitted(fresh, size.epochs + size.tuning, size.rate, seed, size),
    }


def students(seed, base, size):
    """A perceptron with 32 hidden cells: alone; with the network for a teacher; and with no labels at all."""
    (x, y), _ = images(size)
    from_teacher, found = targets(base, x, y), {}
    for name, alpha in (("alone", 0.0), ("taught", 0.9), ("taught without labels", 1.0)):
        net = nn.Sequential(nn.Flatten(), *models.mlp((784, 32, 10), seed))
        learn = {"epochs": size.epochs + size.tuning, "batch": size.batch, "seed": seed}
        loss = functools.partial(taught, alpha=alpha)
        optimizer = torch.optim.Adam(net.parameters(), size.rate)
        training.train(net, optimizer, x, from_teacher, loss_function=loss, **learn)
        found[f"student, {name}"] = net
    return found


def targets(teacher, x, y):
    """A teacher's scores of images x (N, …), and in the last column their labels y (N,): (N, classes + 1)."""
    with torch.no_grad():
        scores = torch.cat([teacher.eval()(some) for some in x.split(training.CHUNK)])  # (N, classes)
    return torch.cat([scores, y[:, None].to(scores.dtype)], dim=1)


def taught(scores, targets, alpha, temperature=2.0):
    """α T² KL(softmax(teacher / T) ‖ softmax(student / T)) + (1 − α) · cross-entropy with the labels: scores
    (B, classes), targets (B, classes + 1) → (). T² is there since the first part's gradient shrinks as 1/T².
    """
    from_teacher = divergence(scores, targets[:, :-1], temperature)
    from_labels = F.cross_entropy(scores, targets[:, -1].long())
    return alpha * temperature**2 * from_teacher + (1 - alpha) * from_labels


def tuned(net, seed, size):
    return fitted(copy.deepcopy(net), size.tuning, size.tuning_rate, 50 + seed, size)


def fitted(net, epochs, rate, seed, size):
    optimizer = torch.optim.Adam(net.parameters(), rate)
    training.train(net, optimizer, *images(size)[0], epochs=epochs, batch=size.batch, seed=seed)
    return net


def answers(net, x):
    with torch.inference_mode():
        return net(x)


class SparseLinear(nn.Module):
    """A Linear layer with its weight in compressed rows (CSR): (B, n_in) → (B, n_out). It skips zeros."""

    def __init__(self, layer):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that CSR tensors are "in beta state"
            self.weight, self.bias = layer.weight.detach().to_sparse_csr(), layer.bias

    def forward(self, x):
        return (self.weight @ x.T).T + self.bias  # (n_out, n_in) @ (n_in, B) → (n_out, B) → (B, n_out)


def sparse_linears(model):
    """A copy of a pruned model that skips the zeros of its Linear layers; convolutions stay dense."""
    model = pruning.permanent(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            model = replaced(model, name, SparseLinear(module))
    return model


def images(size):
    """((images, labels), (images, labels)): for training, and for the test."""
    (x, y), (tests, labels) = harness.images("fashion-mnist", size.offline, data.tensors)
    return (x[: size.images], y[: size.images]), (tests[: size.tests], labels[: size.tests])
