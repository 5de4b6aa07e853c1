"""A smaller network: whole filters and neurons are taken out for good, with what looked at them."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ed_lib.precision.quantization import TYPES


def keep_filters(model: nn.Module, keep: Mapping[str, Sequence[int] | Tensor]) -> nn.Sequential:
    """A smaller model with only some filters or neurons in some layers of an ``nn.Sequential``.

    keep: {name of a Conv2d or Linear layer: indices of those that stay}. The inputs of the layer
    behind go with them. Computes what the model computes when the other filters, and their biases,
    are zero.
    """
    if not isinstance(model, nn.Sequential):
        raise TypeError(f"model is a {type(model).__name__}; wanted an nn.Sequential")
    small = copy.deepcopy(model)
    layers: dict[str, Any] = {n: m for n, m in small.named_children() if isinstance(m, TYPES)}
    for name, indices in keep.items():
        if name not in [*layers][:-1]:  # the last layer's outputs are the model's
            raise ValueError(
                f"keep names the layer {name!r}; wanted one of {', '.join([*layers][:-1])}"
            )
        width, some = len(layers[name].weight), [int(n) for n in indices]
        if not some or sorted(set(some) & set(range(width))) != sorted(some):
            raise ValueError(
                f"keep[{name!r}] is {some}; wanted some of 0 to {width - 1}, each once"
            )
    before, of = None, 0  # the outputs of the layer before that stay, and how many it had
    for name, layer in layers.items():
        if getattr(layer, "groups", 1) != 1:
            raise ValueError(f"layer {name} has {layer.groups} groups; wanted 1")
        weight, width = layer.weight.detach(), len(layer.weight)
        if (
            before is not None
        ):  # each output before is one input; several, of a Linear behind an nn.Flatten
            weight = weight.unflatten(1, (of, -1))[:, before].flatten(1, 2)
        before, of = torch.as_tensor(keep.get(name, range(width)), device=weight.device), width
        layer.weight = nn.Parameter(weight[before])
        layer.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach()[before])
        kind = "channels" if isinstance(layer, nn.Conv2d) else "features"
        for way, n in zip(("out", "in"), layer.weight.shape, strict=False):
            setattr(layer, f"{way}_{kind}", n)
    return small
