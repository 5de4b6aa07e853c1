"""Pruning: weights that are set to zero and held there, and filters that are taken out for good.

A mask has the shape of a weight, and is False where the weight is pruned.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ed_lib.precision.quantization import LAYERS, plain, replaced


class Mask(nn.Module):
    """Holds the pruned weights of a layer at zero, whatever an optimizer does to the numbers behind them."""

    def __init__(self, mask: Tensor):
        super().__init__()
        self.mask = nn.Buffer(mask)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.mask


def smallest(weight: Tensor, amount: float) -> Tensor:
    """The mask of a weight, of any shape: False for the share ``amount`` of smallest absolute value; the
    count is rounded.
    """
    _check(weight, amount)
    mask = torch.ones(weight.numel(), dtype=torch.bool, device=weight.device)
    order = torch.topk(weight.detach().abs().flatten(), round(amount * weight.numel()), largest=False)
    mask[order.indices] = False
    return mask.view(weight.shape)


def strongest(weight: Tensor, amount: float) -> Tensor:
    """The filters or neurons of a weight (n, …) that stay when the share ``amount`` with the smallest L2 norm
    goes: their indices, int64, rising.
    """
    _check(weight, amount)
    stay = len(weight) - round(amount * len(weight))
    if not stay:
        raise ValueError(f"amount is {amount}: of {len(weight)} filters none would stay; wanted less")
    norms = weight.detach().flatten(1).norm(dim=1)  # (n, …) → (n,)
    return torch.topk(norms, stay).indices.sort().values


def prune(model: nn.Module, amount: float) -> dict[str, Tensor]:
    """Prunes the Conv2d and Linear weights of a model, in place, by absolute value: the share ``amount`` of
    all together, so that some may lose everything, others nothing. What was pruned before counts as zero, and
    so goes first. The masks stay in force in training. → {name: mask}.
    """
    layers: dict[str, Any] = {name: m for name, m in model.named_modules() if isinstance(m, LAYERS)}
    if not layers:
        raise ValueError("model has no Conv2d or Linear layer; wanted at least one")
    together = torch.cat([layer.weight.detach().flatten() for layer in layers.values()])
    parts = smallest(together, amount).split([layer.weight.numel() for layer in layers.values()])
    masks = {name: part.view_as(layers[name].weight) for name, part in zip(layers, parts, strict=True)}
    for name, layer in layers.items():
        if parametrize.is_parametrized(layer, "weight"):
            layer.parametrizations.weight[0].mask.copy_(masks[name])
        else:
            parametrize.register_parametrization(layer, "weight", Mask(masks[name]))
    return masks


def permanent(model: nn.Module) -> nn.Module:
    """A copy of a pruned model with zeros for its pruned weights, and no masks."""
    model = copy.deepcopy(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, LAYERS) and parametrize.is_parametrized(module):
            model = replaced(model, name, plain(module, module.weight, module.bias))
    return model


def keep_filters(model: nn.Sequential, keep: dict[str, Any]) -> nn.Sequential:
    """A smaller model with only some filters or neurons in some layers of an ``nn.Sequential``.

    keep: {name of a Conv2d or Linear layer: indices of those that stay}. The inputs of the layer behind go
    with them. Computes what the model computes when the other filters, and their biases, are zero.
    """
    if not isinstance(model, nn.Sequential):
        raise TypeError(f"model is a {type(model).__name__}; wanted an nn.Sequential")
    names = [name for name, module in model.named_children() if isinstance(module, LAYERS)]
    for name, indices in keep.items():
        if name not in names[:-1]:  # the last layer's outputs are the model's
            raise ValueError(f"keep names the layer {name!r}; wanted one of {', '.join(names[:-1])}")
        pruned: Any = model.get_submodule(name)
        width, some = len(pruned.weight), torch.as_tensor(indices).tolist()
        if not some or sorted(set(some) & set(range(width))) != sorted(some):
            raise ValueError(f"keep[{name!r}] is {some}; wanted some of 0 to {width - 1}, each once")
    small, inputs = copy.deepcopy(model), None
    for name in names:
        layer: Any = small.get_submodule(name)
        if getattr(layer, "groups", 1) != 1:
            raise ValueError(f"layer {name} has {layer.groups} groups; wanted 1")
        weight, bias, width = layer.weight.detach(), layer.bias, len(layer.weight)
        if inputs is not None:  # each output before is one input; several, of a Linear behind an nn.Flatten
            before, of = inputs
            weight = weight.unflatten(1, (of, -1))[:, before].flatten(1, 2)
        stay = torch.as_tensor(keep.get(name, range(width)), dtype=torch.int64, device=weight.device)
        bias = None if bias is None else bias[stay]
        small = replaced(small, name, plain(layer, weight[stay], bias))
        inputs = stay, width
    return small


def _check(weight, amount):
    if not 0 <= amount <= 1:
        raise ValueError(f"amount is {amount}; wanted 0 to 1")
    if not weight.numel() or not torch.isfinite(weight).all():  # NaN has no place in an order
        raise ValueError(f"weight {tuple(weight.shape)} is empty, or holds NaN or infinity; wanted numbers")
