"""Linear layers whose products are of 8-bit numbers, with a scale for each tensor.

The recipe is that of Micikevicius et al. ("FP8 formats for deep learning", arXiv 2209.05433, 2022): E4M3 for
inputs and weights, E5M2 for gradients, and a scale that takes each tensor's largest number to the largest of
the format. A GPU from compute capability 8.9 on multiplies such numbers itself. Elsewhere they are rounded to
the same values, and multiplied in float32.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ed_lib import check

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16  # of which the sizes of an FP8 product have to be multiples
MOST = 2.0**126  # the largest scale, whose inverse is still a normal number of float32
Pair = tuple[Tensor, Tensor]  # a tensor in 8 bits, and 1 / scale


def to_float8(x: Tensor, dtype: torch.dtype = E4M3) -> Pair:
    """x (…) → (its numbers times a scale, as ``dtype`` (…); 1 / scale, float32 ()). Never waits for a GPU.

    The scale is the format's largest number, 448 or 57,344, over the largest absolute value of x; 1 for a
    tensor of zeros. An infinity or NaN in x makes all of it NaN (torch's own conversion may make it 448).
    """
    check.choice("dtype", dtype, (E4M3, E5M2))
    largest = torch.linalg.vector_norm(x, float("inf")).float()  # (…) → (); NaN if x has one
    scale = torch.where(largest == 0, 1.0, (torch.finfo(dtype).max / largest).clamp(max=MOST))
    scale = torch.where(largest.isfinite(), scale, torch.nan)
    scaled = x * scale.view(1)  # in float32: a scale (), unlike one (1,), would be rounded to the dtype of x
    return scaled.to(dtype).view(x.shape), 1 / scale


def product(a: Pair, b: Pair, dtype: torch.dtype = torch.float32, *, fast: bool = False) -> Tensor:
    """a (M, K) times b (N, K)ᵀ → (M, N) of ``dtype``; a and b are pairs as :func:`to_float8` returns them.

    On a GPU K and N are multiples of 16, and both operands lie in memory along K, the axis that is summed:
    its tensor cores read 8-bit numbers in no other layout, so a transposed operand is copied first. fast: sum
    in fewer bits than float32, where the GPU can.
    """
    (a8, scale_a), (b8, scale_b) = a, b
    if in_hardware(a8.device):
        how: Any = dict(scale_a=scale_a, scale_b=scale_b, out_dtype=dtype, use_fast_accum=fast)
        return torch._scaled_mm(a8.contiguous(), b8.contiguous().t(), **how)
    with torch.autocast(a8.device.type, enabled=False):
        return (a8.float() @ b8.float().t() * (scale_a * scale_b)).to(dtype)


def in_hardware(device: torch.device | str) -> bool:
    """Whether a device multiplies FP8 numbers itself: a GPU of compute capability 8.9 (Ada) or more."""
    device = torch.device(device)
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


class Product8(torch.autograd.Function):
    """x (M, K), weight (N, K) → x weightᵀ (M, N) of ``dtype``: three products of 8-bit numbers in all. What
    the backward pass needs is kept in 8 bits too. Scores may be summed fast; gradients never.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        (x8, scale_x), (w8, scale_w) = to_float8(x), to_float8(weight)
        ctx.save_for_backward(x8, scale_x, w8, scale_w)
        ctx.dtypes = x.dtype, weight.dtype
        return product((x8, scale_x), (w8, scale_w), dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:  # type: ignore[override]
        x8, scale_x, w8, scale_w = ctx.saved_tensors
        g8, scale_g = to_float8(g, E5M2)  # (M, N)
        (x_dtype, w_dtype), (of_x, of_weight) = ctx.dtypes, ctx.needs_input_grad[:2]
        grad_x = product((g8, scale_g), (w8.t(), scale_w), x_dtype) if of_x else None  # → (M, K)
        grad_w = product((g8.t(), scale_g), (x8.t(), scale_x), w_dtype) if of_weight else None  # → (N, K)
        return grad_x, grad_w, None


class Float8Linear(nn.Linear):
    """nn.Linear with products of 8-bit numbers forward and backward: (…, K) → (…, N), multiples of 16; of
    autocast's dtype where that is on, else of x's. The weights stay in float32: they are their own masters.
    """

    def forward(self, x: Tensor) -> Tensor:
        (N, K), device = self.weight.shape, x.device.type
        if K % MULTIPLE or N % MULTIPLE:
            raise ValueError(f"weight has the shape {(N, K)}; wanted multiples of {MULTIPLE}")
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        rows = x.reshape(-1, K)  # (…, K) → (M, K)
        below = -len(rows) % MULTIPLE if len(rows) else MULTIPLE  # zeros, for the weight's gradient
        scores = Product8.apply(F.pad(rows, (0, 0, 0, below)), self.weight, dtype)[: len(rows)]
        scores = scores.view(*x.shape[:-1], N)  # (M, N) → (…, N)
        return scores if self.bias is None else scores + self.bias.to(dtype)


def use_float8(model: nn.Module) -> int:
    """Makes the nn.Linear in a model whose sizes are multiples of 16 a :class:`Float8Linear` → how many. In
    place: the parameters stay the same objects, and an optimizer that has them keeps them.
    """
    found = [module for module in model.modules() if type(module) is nn.Linear]
    found = [m for m in found if not (m.in_features % MULTIPLE or m.out_features % MULTIPLE)]
    for module in found:
        module.__class__ = Float8Linear
    return len(found)
