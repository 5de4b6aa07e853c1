"""Linear layers whose products are of 8-bit numbers, with a scale for each tensor.

FP8 is two formats: E4M3 for inputs and weights, whose precision counts, and E5M2 for gradients, whose range
counts (Micikevicius et al., "FP8 formats for deep learning", arXiv 2209.05433, 2022). Neither reaches far
enough for a tensor as it comes, so each tensor is multiplied by a scale of its own that takes its largest
number to the largest of the format. That is loss scaling again: tensor by tensor, and anew at each step.

A GPU from compute capability 8.9 on multiplies such numbers itself. Elsewhere the numbers are rounded to the
same values, and multiplied in float32.
"""

import torch
import torch.nn.functional as F
from torch import nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16  # of which the sizes of an FP8 product have to be multiples
MOST = 2.0**126  # the largest scale, whose inverse is still a normal number of float32


def to_float8(x, dtype=E4M3):
    """x (…) → (its numbers times a scale, as ``dtype`` (…); 1 / scale, float32 ()). Never waits for a GPU.

    The scale is the format's largest number, 448 or 57,344, over the largest absolute value of x; 1 for a
    tensor of zeros. An infinity or NaN in x makes all of it NaN, so that it shows in whatever is computed
    from it: torch's own conversion would make it 448 on some devices. TypeError for a dtype that is neither
    of the two, and for an x that is not of floating-point numbers.
    """
    if dtype not in (E4M3, E5M2):
        raise TypeError(f"dtype is {dtype}; wanted {E4M3} or {E5M2}")
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        came = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
        raise TypeError(f"x is of {came}; wanted a tensor of floating-point numbers")
    if x.numel() == 0:
        raise ValueError(f"x has the shape {tuple(x.shape)}; wanted at least one number")
    largest = torch.linalg.vector_norm(x, float("inf")).float()  # (…) → (); NaN if x has one
    scale = (torch.finfo(dtype).max / largest).clamp(max=MOST)
    scale = torch.where(largest == 0, 1.0, scale)
    scale = torch.where(largest.isfinite(), scale, torch.nan)
    scaled = x * scale.view(1)  # in float32: a scale (), unlike one (1,), would be rounded to the dtype of x
    return scaled.to(dtype).view(x.shape), 1 / scale


def product(a, b, dtype=torch.float32, *, fast=False):
    """a (M, K) times b (N, K)ᵀ → (M, N) of ``dtype``; a and b are pairs as :func:`to_float8` returns them.

    On a GPU K and N are multiples of 16. fast: sum in fewer bits than float32, where the GPU can.
    """
    (a, scale_a), (b, scale_b) = a, b
    if in_hardware(a.device):
        scales = {"scale_a": scale_a, "scale_b": scale_b, "out_dtype": dtype, "use_fast_accum": fast}
        return torch._scaled_mm(a.contiguous(), b.contiguous().t(), **scales)
    with torch.autocast(a.device.type, enabled=False):
        return (a.float() @ b.float().t() * (scale_a * scale_b)).to(dtype)


def in_hardware(device):
    """Whether a device multiplies FP8 numbers itself: a GPU of compute capability 8.9 (Ada) or more."""
    device = torch.device(device)
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


class _Linear(torch.autograd.Function):
    """x (M, K), weight (N, K) → x weightᵀ (M, N) of ``dtype``: three products of 8-bit numbers in all."""

    @staticmethod
    def forward(ctx, x, weight, dtype):
        (x8, scale_x), (w8, scale_w) = to_float8(x), to_float8(weight)
        ctx.save_for_backward(x8, scale_x, w8, scale_w)
        ctx.dtypes = x.dtype, weight.dtype
        return product((x8, scale_x), (w8, scale_w), dtype, fast=True)

    @staticmethod
    def backward(ctx, g):
        x8, scale_x, w8, scale_w = ctx.saved_tensors
        g8, scale_g = to_float8(g, E5M2)  # (M, N)
        of_x, of_weight = ctx.needs_input_grad[:2]
        x_dtype, w_dtype = ctx.dtypes
        grad_x = product((g8, scale_g), (w8.t(), scale_w), x_dtype) if of_x else None  # → (M, K)
        grad_w = product((g8.t(), scale_g), (x8.t(), scale_x), w_dtype) if of_weight else None  # → (N, K)
        return grad_x, grad_w, None


def fp8_linear(x, weight, bias=None):
    """As F.linear, with products of 8-bit numbers forward and backward: x (…, K), weight (N, K) → (…, N).

    K and N are multiples of 16. The result is of autocast's dtype where that is on, else of x's; gradients
    are of the dtypes of x and of the weight. ValueError for other sizes.
    """
    N, K = weight.shape
    if x.shape[-1] != K:
        raise ValueError(
            f"x has the shape {tuple(x.shape)}; wanted (…, {K}) for a weight {tuple(weight.shape)}"
        )
    if K % MULTIPLE or N % MULTIPLE:
        raise ValueError(f"weight has the shape {(N, K)}; wanted multiples of {MULTIPLE}")
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    rows = x.reshape(-1, K)  # (…, K) → (M, K)
    M = len(rows)
    rows = F.pad(rows, (0, 0, 0, -M % MULTIPLE))  # zeros below, for the product of the weight's gradient
    scores = _Linear.apply(rows, weight, dtype)[:M]  # → (M, N)
    scores = scores.view(*x.shape[:-1], N)
    return scores if bias is None else scores + bias.to(dtype)


class Float8Linear(nn.Linear):
    """nn.Linear by :func:`fp8_linear`. The weights stay in float32: they are their own masters."""

    def forward(self, x):
        return fp8_linear(x, self.weight, self.bias)


def use_float8(model):
    """Makes the nn.Linear in a model whose sizes are multiples of 16 a :class:`Float8Linear` → how many.

    In place, and the parameters stay the same objects: an optimizer that has them keeps them. A layer of ten
    classes stays as it is, as the last layer does in most recipes for FP8.
    """
    found = [module for module in model.modules() if type(module) is nn.Linear]
    found = [m for m in found if not (m.in_features % MULTIPLE or m.out_features % MULTIPLE)]
    for module in found:
        module.__class__ = Float8Linear
    return len(found)
