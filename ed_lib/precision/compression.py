"""A smaller network: whole filters and neurons are taken out for good, with what looked at them."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ed_lib import check
from ed_lib.precision.quantization import TYPES

# Modules that leave each filter's numbers to themselves and make zeros of zeros, so that a filter
# of zeros may as well be absent.
KEEP_ZEROS = (
    nn.Identity, nn.Dropout, nn.Dropout2d,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Hardswish, nn.Tanh, nn.Tanhshrink, nn.Softsign,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d,
)  # fmt: skip


def keep_filters(model: nn.Module, keep: Mapping[str, Sequence[int] | Tensor]) -> nn.Sequential:
    """A smaller model with only some filters or neurons in some layers of an ``nn.Sequential``.

    keep: {name of a Conv2d or Linear layer: indices of those that stay}. The inputs of the layer
    behind go with them. Computes what the model computes when the other filters, and their biases,
    are zero. ValueError where a smaller model cannot do that: behind a layer of ``keep`` only
    nn.Flatten and KEEP_ZEROS may stand before the next layer, and no two layers share a weight.
    """
    _check(model, keep)
    small: Any = copy.deepcopy(model)
    layers = _products(small.named_children())
    # Which outputs of the layer before stay, and how many it had.
    stay, had = None, 0
    for name, layer in layers.items():
        weight = layer.weight.detach()
        if stay is not None:
            # An output before is one input here, or several, one behind the other: those of a
            # Linear layer behind nn.Flatten.
            inputs_of_each = weight.unflatten(1, (had, -1))
            weight = inputs_of_each[:, stay].flatten(1, 2)
        had = len(weight)
        stay = torch.as_tensor(keep.get(name, range(had)), device=weight.device)
        layer.weight = nn.Parameter(weight[stay], layer.weight.requires_grad)
        if layer.bias is not None:
            trained = layer.bias.requires_grad
            layer.bias = nn.Parameter(layer.bias.detach()[stay], trained)
        # What the layer says of itself.
        outputs, inputs = layer.weight.shape[:2]
        if isinstance(layer, nn.Conv2d):
            layer.out_channels = outputs
            layer.in_channels = inputs
        else:
            layer.out_features = outputs
            layer.in_features = inputs
    return small


def _products(named):
    """The layers with a weight among the modules, by name."""
    return {name: module for name, module in named if isinstance(module, TYPES)}


def _check(model, keep):
    """Errors before anything is copied."""
    if not isinstance(model, nn.Sequential):
        raise TypeError(f"model is a {type(model).__name__}; wanted an nn.Sequential")
    # With those that stand there twice, which named_children() leaves out.
    every = model.named_modules(remove_duplicate=False)
    modules = {name: module for name, module in every if name and "." not in name}
    layers = _products(modules.items())
    # The last layer's outputs are the model's.
    others = [*layers][:-1]
    for name, indices in keep.items():
        if name not in others:
            raise ValueError(f"keep names the layer {name!r}; wanted one of {', '.join(others)}")
        _check_indices(name, indices, len(layers[name].weight))
    for name, layer in layers.items():
        if getattr(layer, "groups", 1) != 1:
            raise ValueError(f"layer {name} has {layer.groups} groups; wanted 1")
    if len({id(layer.weight) for layer in layers.values()}) < len(layers):
        raise ValueError("model has a weight in two of its layers; wanted each once")
    for name in keep:
        _check_behind(name, modules)


def _check_indices(name, indices, width):
    numbers = indices.tolist() if isinstance(indices, Tensor) else indices
    # No masks: True is no number of a filter.
    some = [check.count(f"keep[{name!r}]", n, 0) for n in numbers]
    if not some or sorted({*some} & {*range(width)}) != sorted(some):
        raise ValueError(f"keep[{name!r}] is {some}; wanted some of 0 to {width - 1}, each once")


def _check_behind(name, modules):
    """ValueError if the layer behind needs more of this one than its filters that stay."""
    names = [*modules]
    layer = modules[name]
    flat = False
    for behind in names[names.index(name) + 1 :]:
        module = modules[behind]
        if isinstance(module, TYPES):
            break
        whole = isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1)
        if type(module) not in KEEP_ZEROS and not whole:
            raise ValueError(
                f"module {behind}, a {type(module).__name__}, stands behind the layer {name}; "
                "wanted one that makes zeros of zeros, such as nn.ReLU"
            )
        flat = flat or whole
    inputs, outputs = module.weight.shape[1], len(layer.weight)
    # Of a convolution's (B, C, H, W) a Linear layer takes all, once it is flat; else the layers
    # are of one kind, and what the one makes is what the other takes.
    if isinstance(layer, nn.Conv2d) and isinstance(module, nn.Linear):
        fits = flat and inputs % outputs == 0
    else:
        fits = isinstance(module, type(layer)) and inputs == outputs
    if not fits:
        raise ValueError(
            f"layer {behind} takes {inputs} inputs that are not the {outputs} outputs of layer "
            f"{name}; wanted layers that follow each other, with nn.Flatten() between two kinds"
        )
