"""Pruning: weights that are set to zero and held there, and filters that are taken out for good.

A mask has the shape of a weight, and is False where the weight is pruned.
"""

import copy
import warnings

import torch
from torch import nn
from torch.nn.utils import parametrize

from ed_lib import check
from ed_lib.precision.quantization import LAYERS, kind_of, plain, replaced


class Mask(nn.Module):
    """Holds the pruned weights of a layer at zero, whatever an optimizer does to the numbers behind them."""

    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight):
        return weight * self.mask


def smallest(weight, amount):
    """The mask of a weight, of any shape: False for the share ``amount`` of smallest absolute value.

    The count is rounded. ValueError for an amount outside 0 to 1, an empty weight, NaN or infinity.
    """
    _check_amount(amount)
    _check_weight(weight)
    mask = torch.ones(weight.numel(), dtype=torch.bool, device=weight.device)
    order = torch.topk(weight.detach().abs().flatten(), round(amount * weight.numel()), largest=False)
    mask[order.indices] = False
    return mask.view(weight.shape)


def smallest_of_all(weights, amount):
    """As :func:`smallest`, for the weights of several layers compared with one another: {name: weight} →
    {name: mask}. Some may lose everything, others nothing.
    """
    if not weights:
        raise ValueError("weights is empty; wanted at least one")
    together = torch.cat([weight.detach().flatten() for weight in weights.values()])
    masks = smallest(together, amount).split([weight.numel() for weight in weights.values()])
    return {name: mask.view(weights[name].shape) for name, mask in zip(weights, masks, strict=True)}


def strongest(weight, amount, norm=2):
    """The filters or neurons of a weight (n, …) that stay when the share ``amount`` with the smallest L1 or
    L2 norm goes: their indices, int64, rising.

    ValueError for a norm other than 1 or 2, for what :func:`smallest` refuses, or if none would stay.
    """
    _check_amount(amount)
    _check_weight(weight)
    check.choice("norm", norm, (1, 2))
    stay = len(weight) - round(amount * len(weight))
    if not stay:
        raise ValueError(f"amount is {amount}: of {len(weight)} filters none would stay; wanted less")
    norms = weight.detach().flatten(1).norm(norm, dim=1)  # (n, …) → (n,)
    return torch.topk(norms, stay).indices.sort().values


def prune(model, amount, *, scope="global"):
    """Prunes the Conv2d and Linear weights of a model, in place, by absolute value: the share ``amount`` of
    each ("layer"), or of all together ("global"). What was pruned before counts as zero, and so goes first.

    The masks stay in force in training. → {name: mask}. ValueError for an unknown scope, a model without such
    layers, and as :func:`smallest`.
    """
    check.choice("scope", scope, ("layer", "global"))
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LAYERS)}
    if not layers:
        raise ValueError("model has no Conv2d or Linear layer; wanted at least one")
    weights = {name: layer.weight for name, layer in layers.items()}
    if scope == "global":
        masks = smallest_of_all(weights, amount)
    else:
        masks = {name: smallest(weight, amount) for name, weight in weights.items()}
    for name, layer in layers.items():
        if parametrize.is_parametrized(layer, "weight"):
            layer.parametrizations.weight[0].mask.copy_(masks[name])
        else:
            parametrize.register_parametrization(layer, "weight", Mask(masks[name]))
    return masks


def gradually(model, amount, steps):
    """Prunes a model globally in ``steps`` steps along :func:`cubic`, and yields the number of each, from 1,
    for some training after it: ``for step in gradually(model, 0.9, 10): train(…)``. Errors as :func:`prune`.
    """
    for step in range(1, check.count("steps", steps) + 1):
        prune(model, cubic(step, steps, amount))
        yield step


def permanent(model):
    """A copy of a pruned model with zeros for its pruned weights, and no masks."""
    model = copy.deepcopy(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, LAYERS) and parametrize.is_parametrized(module):
            model = replaced(model, name, plain(module, module.weight, module.bias))
    return model


def cubic(step, steps, end, start=0.0):
    """The share that is pruned at ``step`` of ``steps``, from ``start`` to ``end``, fast at first:
    end + (start − end)(1 − step / steps)³ (Zhu and Gupta, 2017, equation 1). After the last step, end.
    """
    check.count("steps", steps)
    check.count("step", step, least=0)
    _check_amount(end, "end")
    _check_amount(start, "start")
    return end + (start - end) * (1 - min(step, steps) / steps) ** 3


def keep_filters(model, keep):
    """A smaller model with only some filters or neurons in some layers of an ``nn.Sequential``.

    keep: {name of a Conv2d or Linear layer: indices of those that stay}. The inputs of the layer behind go
    with them. Computes what the model computes when the other filters, and their biases, are zero.

    TypeError unless model is an nn.Sequential; ValueError for a layer that does not exist or is the last, and
    for indices that are none, repeated or out of range.
    """
    if not isinstance(model, nn.Sequential):
        raise TypeError(f"model is a {type(model).__name__}; wanted an nn.Sequential")
    names = [name for name, module in model.named_children() if isinstance(module, LAYERS)]
    keep = {name: _check_keep(name, indices, model, names) for name, indices in keep.items()}
    small, inputs = copy.deepcopy(model), None
    for name in names:
        layer = small.get_submodule(name)
        if getattr(layer, "groups", 1) != 1:
            raise ValueError(f"layer {name} has {layer.groups} groups; wanted 1")
        weight, bias, width = layer.weight.detach(), layer.bias, len(layer.weight)
        if inputs is not None:
            weight = weight[:, _columns(inputs, weight.shape[1])]
        stay = keep.get(name, torch.arange(width)).to(weight.device)
        bias = None if bias is None else bias[stay]
        small = replaced(small, name, plain(layer, weight[stay], bias))
        inputs = stay, width
    return small


def masked_filters(model, keep):
    """A copy of a model in which the filters that ``keep`` does not name, and their biases, are zero: what
    :func:`keep_filters` computes, in the old sizes.
    """
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, indices in keep.items():
            layer = model.get_submodule(name)
            gone = torch.ones(len(layer.weight), dtype=torch.bool, device=layer.weight.device)
            gone[indices] = False
            layer.weight[gone] = 0
            if layer.bias is not None:
                layer.bias[gone] = 0
    return model


class SparseLinear(nn.Module):
    """A Linear layer with its weight in compressed rows (CSR): (B, n_in) → (B, n_out). It skips zeros."""

    def __init__(self, layer):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that CSR tensors are "in beta state"
            self.weight, self.bias = layer.weight.detach().to_sparse_csr(), layer.bias

    def forward(self, x):
        y = (self.weight @ x.T).T  # (n_out, n_in) @ (n_in, B) → (n_out, B) → (B, n_out)
        return y if self.bias is None else y + self.bias


def sparse_linears(model):
    """A copy of a pruned model that skips the zeros of its Linear layers. Convolutions stay dense: PyTorch
    has no sparse ones.
    """
    model = permanent(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            model = replaced(model, name, SparseLinear(module))
    return model


def _columns(inputs, n):
    """The inputs of a layer that stay, of its n, when of the ``width`` outputs before it some ``stay``: each
    output of a convolution is n / width inputs of a Linear layer behind an nn.Flatten.
    """
    stay, width = inputs
    each = n // width
    return (stay[:, None] * each + torch.arange(each, device=stay.device)).flatten()  # → (stay · each,)


def _check_keep(name, indices, model, names):
    if name not in names:
        raise ValueError(f"keep names the layer {name!r}; wanted Conv2d or Linear layers: {', '.join(names)}")
    if name == names[-1]:
        raise ValueError(f"keep names the layer {name!r}, the last, whose outputs are the model's")
    width, indices = len(model.get_submodule(name).weight), torch.as_tensor(indices)
    ok = indices.dim() == 1 and len(indices) and len(indices.unique()) == len(indices)
    if not ok or indices.is_floating_point() or not 0 <= indices.min() <= indices.max() < width:
        raise ValueError(f"keep[{name!r}] is {indices.tolist()}; wanted some of 0 to {width - 1}, each once")
    return indices.long()


def _check_amount(amount, name="amount"):
    if isinstance(amount, bool) or not isinstance(amount, (int, float)):
        raise TypeError(f"{name} is {amount!r}; wanted a number")
    if not 0 <= amount <= 1:
        raise ValueError(f"{name} is {amount}; wanted 0 to 1")


def _check_weight(weight):
    if not isinstance(weight, torch.Tensor) or not weight.is_floating_point():
        raise TypeError(f"weight is {kind_of(weight)}; wanted a tensor of real numbers")
    if not weight.numel():
        raise ValueError(f"weight is empty, of the shape {tuple(weight.shape)}; wanted at least one number")
    if not torch.isfinite(weight).all():
        raise ValueError("weight holds NaN or infinity; wanted finite numbers")
