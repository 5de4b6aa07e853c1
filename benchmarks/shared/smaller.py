"""LeNet made smaller: pruned, with filters cut, taught to a small network; and trained on.

Letters: N images, B of a batch. ``size`` is that of the benchmark precision_accuracy.
"""

import copy
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

from benchmarks.shared.harness import images
from ed_lib import data, models, training
from ed_lib.precision.compression import keep_filters
from ed_lib.precision.quantization import Quantized, dequantize, quantize_model

# LeNet's layers with outputs that can be cut.
LAYERS = ("0", "3", "7")
# Hidden units of perceptrons, and of the one that is also rounded.
WIDTHS = (32, 64, 128, 256, 512)
ROUNDED = 256


def data_of(size, name="fashion-mnist"):
    """((images, labels), (images, labels)): for training, and for the test."""
    (x, y), (tests, labels) = images(name, size.whole, data.tensors)
    return (x[: size.images], y[: size.images]), (tests[: size.tests], labels[: size.tests])


def pruned_gradually(amount, seed, base, size):
    """Prunes along the first three quarters of the tuning."""
    net = copy.deepcopy(base)
    (x, y), _ = data_of(size)
    optimizer = torch.optim.Adam(net.parameters(), size.tuning_rate)
    # Images between two prunings.
    length = int(0.75 * size.tuning * len(x)) // size.prunings
    for step in range(1, size.prunings + 1):
        prune_to(net, cubic(step, size.prunings, amount))
        at = torch.arange((step - 1) * length, step * length) % len(x)
        training.train(net, optimizer, x[at], y[at], batch=size.batch, seed=100 * seed + step)
    # The last quarter: nothing more is pruned.
    at = torch.arange(size.prunings * length, size.tuning * len(x)) % len(x)
    training.train(net, optimizer, x[at], y[at], batch=size.batch, seed=100 * seed)
    return without_masks(net)


def pruned(net, amount):
    """A copy with this share of its weights zero."""
    net = copy.deepcopy(net)
    prune_to(net, amount)
    return without_masks(net)


def without_masks(net):
    """``net``, whose masks have become zeros of the weights."""
    for layer, name in weights_of(net):
        prune.remove(layer, name)
    return net


def unpacked(model):
    """A copy whose quantized layers are ordinary again, with the numbers of their codes for
    weights.
    """
    model = copy.deepcopy(model)
    # A list, since the model changes on the way.
    for name, module in [*model.named_modules()]:
        if isinstance(module, Quantized):
            module.layer.weight = nn.Parameter(dequantize(module.codes(), module.scale))
            model.set_submodule(name, module.layer)
    return model


def weights_of(net):
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    return [(layer, "weight") for layer in layers]


def prune_to(net, share):
    """Prunes the weights of smallest absolute value, of all layers together, until so many are
    0.
    """
    weights = weights_of(net)
    total = sum(layer.weight.numel() for layer, _ in weights)
    masks = [mask for name, mask in net.named_buffers() if name.endswith("weight_mask")]
    gone = sum(int((mask == 0).sum()) for mask in masks)
    # What is pruned already stays so; torch counts what is to go besides.
    more = round(share * total) - gone
    prune.global_unstructured(weights, prune.L1Unstructured, amount=more)


def cubic(step, steps, end):
    """The share pruned at ``step`` of ``steps``, fast at first: end (1 − (1 − step / steps)³) (Zhu
    and Gupta, 2017, equation 1). After the last step, end.
    """
    return end * (1 - (1 - min(step, steps) / steps) ** 3)


def cut(net, amount):
    """LeNet without this share of its filters and neurons, those of least L2 norm."""
    return keep_filters(net, kept(net, amount))


def kept(net, amount):
    """{name of a layer: the numbers of the filters that stay}."""
    keep = {}
    for name in LAYERS:
        # The norm of each filter, or of each neuron's weights: (n, …) → (n,).
        norms = net.get_submodule(name).weight.detach().flatten(1).norm(dim=1)
        left = len(norms) - round(amount * len(norms))
        keep[name] = norms.topk(left).indices.sort().values
    return keep


def fewer_filters(amount, seed, base, size):
    """Cuts filters and neurons and trains on; and trains the same shape from the start."""
    small = tuned(cut(base, amount), seed, size)
    fresh = keep_filters(models.lenet(100 + seed), kept(base, amount))
    return {
        "trained on": small,
        "int4": tuned(quantize_model(small, 4, span="mse"), seed, size),
        "from the start": fitted(fresh, size.epochs + size.tuning, size.rate, seed, size),
    }


def perceptrons(seed, size):
    """Of one hidden layer, by its width, trained as long as LeNet and what became of LeNet, and at
    the same rates; one of them also in int4, rounded where LeNet is.
    """
    found = {}
    for width in WIDTHS:
        begun = fitted(perceptron(width, seed), size.epochs, size.rate, seed, size)
        found[f"{width} units"] = tuned(begun, seed, size)
        if width == ROUNDED:
            quantized = quantize_model(begun, 4, span="mse")
            found[f"{width} units, int4"] = tuned(quantized, seed, size)
    return found


def perceptron(width, seed):
    return nn.Sequential(nn.Flatten(), *models.mlp((784, width, 10), seed))


def students(seed, base, size):
    """A perceptron with 32 hidden cells: alone; with the network for a teacher; and with no labels
    at all.
    """
    (x, y), _ = data_of(size)
    from_teacher = targets(base, x, y)
    found = {}
    for name, alpha in (("alone", 0.0), ("taught", 0.9), ("taught without labels", 1.0)):
        net = perceptron(32, seed)
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
        # (N, classes), by as many images at a time as fit into the memory.
        scores = torch.cat([teacher.eval()(some) for some in x.split(training.CHUNK)])
    return torch.cat([scores, y[:, None].to(scores.dtype)], dim=1)


def taught(scores, targets, alpha, temperature=2.0):
    """α T² KL(softmax(teacher / T) ‖ softmax(student / T)) + (1 − α) · cross-entropy with the
    labels: scores (B, classes), targets (B, classes + 1) → (). T² is there since the first part's
    gradient shrinks as 1/T².
    """
    # The teacher's answer, softened: (B, classes).
    p = F.softmax(targets[:, :-1] / temperature, dim=1)
    from_teacher = F.kl_div(F.log_softmax(scores / temperature, dim=1), p, reduction="batchmean")
    from_labels = F.cross_entropy(scores, targets[:, -1].long())
    return alpha * temperature**2 * from_teacher + (1 - alpha) * from_labels


def tuned(net, seed, size):
    """A copy, trained on."""
    return fitted(copy.deepcopy(net), size.tuning, size.tuning_rate, 50 + seed, size)


def fitted(net, epochs, rate, seed, size):
    """``net``, after so many epochs with Adam."""
    optimizer = torch.optim.Adam(net.parameters(), rate)
    training.train(net, optimizer, *data_of(size)[0], epochs=epochs, batch=size.batch, seed=seed)
    return net
