"""A smaller network: weights that are set to zero and held there, filters that are taken out for good, and a
student that learns from a large network's scores.

A mask has the shape of a weight, and is False where the weight is pruned.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ed_lib.precision.quantization import LAYERS


class Mask(nn.Module):
    """Holds the pruned weights of a layer at zero, whatever an optimizer does to the numbers behind them."""

    def __init__(self, mask: Tensor):
        super().__init__()
        self.mask = nn.Buffer(mask)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.mask


def smallest(weight: Tensor, amount: float) -> Tensor:
    """The mask of a weight, of any shape: False for the share ``amount`` of smallest absolute value."""
    _check(weight, amount)
    mask = torch.ones(weight.numel(), dtype=torch.bool, device=weight.device)
    order = torch.topk(weight.detach().abs().flatten(), round(amount * weight.numel()), largest=False)
    mask[order.indices] = False
    return mask.view(weight.shape)


def strongest(weight: Tensor, amount: float) -> Tensor:
    """The rising indices, int64, of the rows of a weight (n, …) that stay: all but so many of least norm."""
    _check(weight, amount)
    stay = len(weight) - round(amount * len(weight))
    if not stay:
        raise ValueError(f"amount is {amount}: of {len(weight)} filters none would stay; wanted less")
    norms = weight.detach().flatten(1).norm(dim=1)  # (n, …) → (n,)
    return torch.topk(norms, stay).indices.sort().values


def prune(model: nn.Module, amount: float) -> dict[str, Tensor]:
    """Prunes the Conv2d and Linear weights of a model, in place, by absolute value: the share ``amount`` of
    all together; what was pruned before goes first. The masks stay in force in training. → {name: mask}.
    """
    layers: dict[str, Any] = {name: m for name, m in model.named_modules() if isinstance(m, LAYERS)}
    together = torch.cat([layer.weight.detach().flatten() for layer in layers.values()])
    parts = smallest(together, amount).split([layer.weight.numel() for layer in layers.values()])
    masks = {name: part.view_as(layers[name].weight) for name, part in zip(layers, parts, strict=True)}
    for name, layer in layers.items():
        if parametrize.is_parametrized(layer, "weight"):
            layer.parametrizations.weight[0].mask.copy_(masks[name])
        else:
            parametrize.register_parametrization(layer, "weight", Mask(masks[name]))
    return masks


def permanent(model: nn.Module) -> Any:
    """A copy of a pruned model with zeros for its pruned weights, and no masks."""
    model = copy.deepcopy(model)
    masked: list[Any] = [module for module in model.modules() if parametrize.is_parametrized(module)]
    for layer in masked:
        weight = layer.weight.detach()
        layer.__class__ = parametrize.type_before_parametrizations(layer)
        del layer.parametrizations
        layer.weight = nn.Parameter(weight)
    return model


def keep_filters(model: nn.Sequential, keep: dict[str, Any]) -> nn.Sequential:
    """A smaller model with only some filters or neurons in some layers of an ``nn.Sequential``.

    keep: {name of a Conv2d or Linear layer: indices of those that stay}. The inputs of the layer behind go
    with them. Computes what the model computes when the other filters, and their biases, are zero.
    """
    if not isinstance(model, nn.Sequential):
        raise TypeError(f"model is a {type(model).__name__}; wanted an nn.Sequential")
    small = permanent(model)
    layers: dict[str, Any] = {n: m for n, m in small.named_children() if isinstance(m, LAYERS)}
    for name, indices in keep.items():
        if name not in [*layers][:-1]:  # the last layer's outputs are the model's
            raise ValueError(f"keep names the layer {name!r}; wanted one of {', '.join([*layers][:-1])}")
        width, some = len(layers[name].weight), torch.as_tensor(indices).tolist()
        if not some or sorted(set(some) & set(range(width))) != sorted(some):
            raise ValueError(f"keep[{name!r}] is {some}; wanted some of 0 to {width - 1}, each once")
    before, of = None, 0  # the outputs of the layer before that stay, and how many it had
    for name, layer in layers.items():
        if getattr(layer, "groups", 1) != 1:
            raise ValueError(f"layer {name} has {layer.groups} groups; wanted 1")
        weight, width = layer.weight.detach(), len(layer.weight)
        if before is not None:  # each output before is one input; several, of a Linear behind an nn.Flatten
            weight = weight.unflatten(1, (of, -1))[:, before].flatten(1, 2)
        before, of = torch.as_tensor(keep.get(name, range(width)), device=weight.device), width
        layer.weight = nn.Parameter(weight[before])
        layer.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach()[before])
        kind = "channels" if isinstance(layer, nn.Conv2d) else "features"
        for way, n in zip(("out", "in"), layer.weight.shape, strict=False):
            setattr(layer, f"{way}_{kind}", n)
    return small


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(p ‖ q) = Σ p (log p − log q), the mean; p, q are the softmax of teacher / T, student / T: scores
    (B, classes). T > 1 evens the probabilities out, so that those of wrong classes count (Hinton and others,
    2015). A class with p = 0, of the score −∞, adds 0.
    """
    log_p = torch.log_softmax(teacher.detach() / temperature, dim=1)  # (B, classes)
    log_q = torch.log_softmax(student / temperature, dim=1)
    p = log_p.exp()
    return (p * (log_p - log_q).masked_fill(p == 0, 0)).sum(dim=1).mean()  # (B, classes) → (B,) → ()


def _check(weight, amount):
    if not 0 <= amount <= 1:
        raise ValueError(f"amount is {amount}; wanted 0 to 1")
    if not weight.numel() or not torch.isfinite(weight).all():  # NaN has no place in an order
        raise ValueError(f"weight {tuple(weight.shape)} is empty, or holds NaN or infinity; wanted numbers")
