"""LeNet made smaller: pruned, with filters cut, taught to a perceptron; all trained equally long.

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
# Hidden units of perceptrons; and of those that have a teacher.
WIDTHS = (32, 64, 128, 256, 512)
TAUGHT = (32, 256)


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


def fewer_filters(amount, seed, base, size):
    """Cuts filters and neurons of least L2 norm and trains on, in float32 and in int4; and trains
    the same shape from the start, as long and at the same rates.
    """
    small = cut(base, amount)
    return {
        "trained on": tuned(small, seed, size),
        "int4": tuned(quantize_model(small, 4, span="mse"), seed, size),
        "from the start": as_long(cut(models.lenet(100 + seed), amount), seed, size),
    }


def cut(net, amount):
    """LeNet without this share of its filters and neurons, those of least L2 norm."""
    keep = {}
    for name in LAYERS:
        # The norm of each filter, or of each neuron's weights: (n, …) → (n,).
        norms = net.get_submodule(name).weight.detach().flatten(1).norm(dim=1)
        kept = len(norms) - round(amount * len(norms))
        keep[name] = norms.topk(kept).indices.sort().values
    return keep_filters(net, keep)


def perceptrons(seed, size):
    """Those of one hidden layer, by its width, and one of them in int4."""
    found = {}
    for width in WIDTHS:
        begun = fitted(perceptron(width, seed), size.epochs, size.rate, seed, size)
        found[f"{width} units"] = tuned(begun, seed, size)
        if width == TAUGHT[-1]:
            quantized = quantize_model(begun, 4, span="mse")
            found[f"{width} units, int4"] = tuned(quantized, seed, size)
    return found


def students(seed, teacher, size):
    """Perceptrons that learn from a teacher, with the labels and without."""
    x, y = data_of(size)[0]
    labels = targets(teacher, x, y)
    found = {}
    for width in TAUGHT:
        for name, alpha in (("taught", 0.9), ("taught without labels", 1.0)):
            options = {"labels": labels, "loss_function": partial(taught, alpha=alpha)}
            net = as_long(perceptron(width, seed), seed, size, **options)
            found[f"{width} units, {name}"] = net
    return found


def perceptron(width, seed):
    return nn.Sequential(nn.Flatten(), *models.mlp((784, width, 10), seed))


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


def as_long(net, seed, size, **options):
    """``net``, trained as long as LeNet and what became of LeNet together, at the same rates."""
    fitted(net, size.epochs, size.rate, seed, size, **options)
    return tuned(net, seed, size, **options)


def tuned(net, seed, size, **options):
    """A copy, trained on."""
    net = copy.deepcopy(net)
    return fitted(net, size.tuning, size.tuning_rate, 50 + seed, size, **options)


def fitted(net, epochs, rate, seed, size, labels=None, **options):
    """``net``, after so many epochs with Adam; labels: in place of those of the images."""
    x, y = data_of(size)[0]
    learn = {"epochs": epochs, "batch": size.batch, "seed": seed} | options
    # Convolutions train fastest so on a CPU.
    net.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(net.parameters(), rate)
    training.train(net, optimizer, x, y if labels is None else labels, **learn)
    return net.to(memory_format=torch.contiguous_format)
