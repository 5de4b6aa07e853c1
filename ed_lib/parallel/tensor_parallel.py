"""Cutting through a layer: every rank has a slice of each weight matrix, and all work on the same batch.

A linear layer is y = x·A + b. PyTorch stores ``weight`` = Aᵀ, (out, in), so the *columns* of A are rows of
``weight``. Two layers with an activation between them need one sum over the ranks forward, and one back.
Sources: M. Shoeybi et al., "Megatron-LM" (2019), whose f and g are :class:`Enter` and :class:`Leave`; A.
Krizhevsky et al. (2012) for branches. In earnest, use ``parallelize_module``.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ed_lib.parallel.collectives import Traffic, all_reduce


class Enter(torch.autograd.Function):
    """f: into a block whose ranks do different things with the same x. Back: the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sent: dict) -> torch.Tensor:
        """x, as it is."""
        ctx.sent = sent
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The sum of the ranks' gradients."""
        return _sum(gradient, ctx.sent["backward"]), None


class Leave(torch.autograd.Function):
    """g: out of the block, the sum of what the ranks have. Back: every rank gets the same gradient."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, sent: dict) -> torch.Tensor:
        """The sum of the ranks' parts."""
        return _sum(part, sent["forward"])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The gradient, as it is."""
        return gradient, None


class ColumnParallel(nn.Module):
    """A rank's columns of the serial layer's A, and its part of the bias: x (…, in) → (…, out_r)."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight = _part(linear.weight, 0)  # (out_r, in)
        self.bias = None if linear.bias is None else _part(linear.bias, 0)  # (out_r,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


class RowParallel(nn.Module):
    """A rank's rows of A: its inputs (…, in_r) → a part of the sum, (…, out). Add up, then add ``bias``."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight = _part(linear.weight, 1)  # (out, in_r)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())  # (out,)

    def forward(self, part: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(part, self.weight)


class ParallelMLP(nn.Module):
    """Linear → activation → linear, cut through the hidden layer: x (…, in) → y (…, out), on every rank.

    first, second: the serial layers; activation: a function of each element by itself. ``sent`` lists what
    this rank sent: {"forward": [Traffic], "backward": [Traffic]}, an entry for each all-reduce. There is none
    back if x needs no gradient. Construct it, and call it, on all ranks together.
    """

    def __init__(
        self, first: nn.Linear, second: nn.Linear,
        activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu,
    ):  # fmt: skip
        super().__init__()
        if not dist.get_world_size() <= first.out_features == second.in_features:
            came = f"first gives {first.out_features} features and second takes {second.in_features}"
            raise ValueError(f"{came}; wanted the same number, and at least one for each rank")
        self.first, self.second, self.activation = ColumnParallel(first), RowParallel(second), activation
        self.sent: dict[str, list[Traffic]] = {"forward": [], "backward": []}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.activation(self.first(Enter.apply(x, self.sent)))  # (…, hidden_r)
        y = Leave.apply(self.second(hidden), self.sent)  # (…, out)
        return y if self.second.bias is None else y + self.second.bias


def one_block(first: nn.Linear, second: nn.Linear, x: torch.Tensor, slope: torch.Tensor) -> tuple:
    """For ``launch``: a block forward, and back from ``slope`` = ∂loss/∂y.

    → (y, ∂loss/∂x, the parameters' gradients, the block's ``state_dict()``, ``sent``) of this rank.
    """
    block, x = ParallelMLP(first, second), x.clone().requires_grad_()
    y = block(x)
    y.backward(slope)
    grads = {name: weight.grad for name, weight in block.named_parameters()}
    return y.detach(), x.grad, grads, block.state_dict(), block.sent


def merge(states: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The ``state_dict()`` of a ParallelMLP from every rank, in order → that of the serial layers."""
    axes = {"first.weight": 0, "first.bias": 0, "second.weight": 1}  # along which they were cut
    there = [key for key in axes if key in states[0]]
    merged = {key: torch.cat([state[key] for state in states], axes[key]) for key in there}
    return merged | {key: state.clone() for key, state in states[0].items() if key not in axes}


def branch(conv: nn.Conv2d, index: int) -> nn.Conv2d:
    """Group ``index`` of an nn.Conv2d with ``groups``, as a layer of its own."""
    alone = copy.deepcopy(conv)
    alone.groups, alone.in_channels = 1, conv.in_channels // conv.groups
    alone.out_channels = conv.out_channels // conv.groups
    for name, tensor in conv.named_parameters():
        part = tensor.detach().chunk(conv.groups)[index].clone()  # (out / groups, …)
        setattr(alone, name, nn.Parameter(part))
    return alone


def _part(tensor, axis):
    part = tensor.detach().tensor_split(dist.get_world_size(), axis)[dist.get_rank()]
    return nn.Parameter(part.clone(memory_format=torch.contiguous_format))


def _sum(tensor, sent):
    """A new tensor: the sum over the ranks. Adds what this rank sent to a list."""
    total = tensor.clone(memory_format=torch.contiguous_format)
    sent.append(all_reduce(total) if dist.get_world_size() > 1 else Traffic())
    return total
