"""All pointwise work of an LSTM's step as one launch, forward and backward: in Triton, with a plain twin.

Letters: B batch, H hidden. Gates lie side by side, (B, 4H), in the order i, f, g, o: input, forget, candidate
(which NVIDIA and Keras call c) and output. All arrays are PyTorch tensors of one dtype on one device,
contiguous but for ``output``.

    i, f, o = σ(a_i), σ(a_f), σ(a_o);  g = tanh(a_g);  c' = f c + i g;  h = o tanh(c')

with a = W_ih x + b_ih + W_hh h + b_hh (Hochreiter and Schmidhuber, 1997, with the forget gate of 2000).

``cell`` and ``cell_backward`` are operators of PyTorch's, ``ed_lib::lstm_cell`` and its backward, so that
whoever watches the dispatcher, as ``counters`` does, sees one launch. On a GPU they run the Triton kernel,
elsewhere the plain twin.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

try:
    import triton
    import triton.language as tl
    from triton import jit
except ImportError:  # as on macOS: the kernels can be read there, and not run
    triton, tl, jit = None, None, lambda function: function

BLOCK = 256  # numbers of h that one program computes


def cell(
    gates: Tensor, recurrent: Tensor, b_ih: Tensor, b_hh: Tensor, c_before: Tensor, c_after: Tensor,
    h: Tensor, output: Tensor | None = None,
) -> None:  # fmt: skip
    """One step from the products on, in place.

    gates (B, 4H): W_ih x before, the activated gates after, kept for the way back. recurrent (B, 4H): W_hh h.
    b_ih, b_hh (4H,), or (n, 4H) for n layers at once, whose rows lie below each other in the other arrays.
    c_before (B, H) is read; c_after, h and output (B, H) are written, the last two with the same numbers: for
    the next step and, with any distance between its rows, for the layer above. output may be None.
    """
    step = torch.ops.ed_lib.lstm_cell if watched(gates) else triton_cell
    # keywords alone: written, and not read
    step(gates, recurrent, b_ih, b_hh, c_before, c_after=c_after, h=h, output=output)


def cell_backward(
    gates: Tensor, c_before: Tensor, c_after: Tensor, dh: Tensor, dc: Tensor, dgates: Tensor
) -> None:
    """The step backwards. gates (B, 4H) activated; c_before, c_after, dh (B, H) are read.

    dc (B, H): the gradient of c_after that came from later steps before, that of c_before after.
    dgates (B, 4H) is written: the gradient of a.
    """
    step = torch.ops.ed_lib.lstm_cell_backward if watched(gates) else triton_cell_backward
    step(gates, c_before, c_after, dh, dc, dgates=dgates)


def watched(tensor: Tensor) -> bool:
    """Whether work on this tensor goes through PyTorch's dispatcher: on a CPU, where that finds the twin, and
    while a dispatch mode or a profiler looks on. Otherwise its time would be lost at each step.
    """
    return not tensor.is_cuda or bool(_get_current_dispatch_mode()) or torch.autograd._profiler_enabled()


def plain_cell(
    gates: Tensor, recurrent: Tensor, b_ih: Tensor, b_hh: Tensor, c_before: Tensor, c_after: Tensor,
    h: Tensor, output: Tensor | None = None,
) -> None:  # fmt: skip
    """The twin of ``cell_kernel``, in eleven of PyTorch's own operations."""
    size = h.shape[1]
    bias = (b_ih + b_hh).view(-1, 1, 4 * size)  # (n, 1, 4H)
    gates.add_(recurrent).view(len(bias), -1, 4 * size).add_(bias)
    i, f, g, o = gates.chunk(4, 1)  # (B, H) each
    gates[:, : 2 * size].sigmoid_()  # i and f lie side by side
    g.tanh_()
    o.sigmoid_()
    torch.mul(f, c_before, out=c_after).addcmul_(i, g)
    torch.tanh(c_after, out=h).mul_(o)
    if output is not None:
        output.copy_(h)


def plain_cell_backward(
    gates: Tensor, c_before: Tensor, c_after: Tensor, dh: Tensor, dc: Tensor, dgates: Tensor
) -> None:
    """The twin of ``cell_backward_kernel``; σ' = σ(1 − σ) and tanh' = 1 − tanh²."""
    i, f, g, o = gates.chunk(4, 1)  # (B, H) each
    di, df, dg, do = dgates.chunk(4, 1)
    tanh_c = c_after.tanh()
    dc.addcmul_(dh * o, 1 - tanh_c * tanh_c)
    torch.mul(dh * tanh_c, o * (1 - o), out=do)
    torch.mul(dc * g, i * (1 - i), out=di)
    torch.mul(dc * i, 1 - g * g, out=dg)
    torch.mul(dc * c_before, f * (1 - f), out=df)
    dc.mul_(f)


def triton_cell(
    gates: Tensor, recurrent: Tensor, b_ih: Tensor, b_hh: Tensor, c_before: Tensor, c_after: Tensor,
    h: Tensor, output: Tensor | None = None,
) -> None:  # fmt: skip
    """``cell`` by ``cell_kernel``, on a GPU or in Triton's interpreter."""
    size, layers = h.shape[1], b_ih.numel() // gates.shape[1]
    distance = 0 if output is None else output.stride(0)
    arrays = gates, recurrent, b_ih, b_hh, c_before, c_after, h, output
    launch(cell_kernel, h, *arrays, h.numel(), size, layers, distance)


def triton_cell_backward(
    gates: Tensor, c_before: Tensor, c_after: Tensor, dh: Tensor, dc: Tensor, dgates: Tensor
) -> None:
    """``cell_backward`` by ``cell_backward_kernel``, likewise."""
    launch(cell_backward_kernel, dh, gates, c_before, c_after, dh, dc, dgates, dh.numel(), dh.shape[1])


def launch(kernel: Any, like: Tensor, *arguments: Any) -> None:
    """A thread of ``kernel`` for each number of ``like``; they compute in float32, or float64 as ``like``."""
    if triton is None:
        raise ImportError("the fused step on a GPU needs triton: pip install triton")
    wide = tl.float64 if like.dtype == torch.float64 else tl.float32
    with torch.cuda.device_of(like):
        kernel[-(-like.numel() // BLOCK),](*arguments, IN=wide, BLOCK=BLOCK, enable_fp_fusion=True)


@jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@jit
def tanh(x):
    return 2 / (1 + tl.exp(-2 * x)) - 1


@jit
def preactivation(gates, recurrent, b_ih, b_hh, at, unit, inside, IN: tl.constexpr):
    """a = W_ih x + W_hh h + b_ih + b_hh, at these places and for these units."""
    products = tl.load(gates + at, inside, 0).to(IN) + tl.load(recurrent + at, inside, 0).to(IN)
    biases = tl.load(b_ih + unit, inside, 0).to(IN) + tl.load(b_hh + unit, inside, 0).to(IN)
    return products + biases


@jit
def cell_kernel(
    gates, recurrent, b_ih, b_hh, c_before, c_after, h, output,
    numbers, size, layers, distance, IN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One thread for each number of h; its four gates lie H apart. IN: the type
    to compute in.
    """
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (BLOCK,), as all that follow
    inside, b, j = n < numbers, n // size, n % size
    at = b * 4 * size + j  # where the input gate is
    k = n // (numbers // layers) * 4 * size + j  # and its bias
    at_f, at_g, at_o = at + size, at + 2 * size, at + 3 * size
    k_f, k_g, k_o = k + size, k + 2 * size, k + 3 * size
    i = sigmoid(preactivation(gates, recurrent, b_ih, b_hh, at, k, inside, IN))
    f = sigmoid(preactivation(gates, recurrent, b_ih, b_hh, at_f, k_f, inside, IN))
    g = tanh(preactivation(gates, recurrent, b_ih, b_hh, at_g, k_g, inside, IN))
    o = sigmoid(preactivation(gates, recurrent, b_ih, b_hh, at_o, k_o, inside, IN))
    c = f * tl.load(c_before + n, inside, 0).to(IN) + i * g
    y = o * tanh(c)
    tl.store(gates + at, i, inside)
    tl.store(gates + at_f, f, inside)
    tl.store(gates + at_g, g, inside)
    tl.store(gates + at_o, o, inside)
    tl.store(c_after + n, c, inside)
    tl.store(h + n, y, inside)
    if output is not None:
        tl.store(output + b * distance + j, y, inside)


@jit
def cell_backward_kernel(
    gates, c_before, c_after, dh, dc, dgates, numbers, size, IN: tl.constexpr, BLOCK: tl.constexpr
):
    """The same threads on the way back."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (BLOCK,), as all that follow
    inside, at = n < numbers, n // size * 4 * size + n % size
    i = tl.load(gates + at, inside, 0).to(IN)
    f = tl.load(gates + at + size, inside, 0).to(IN)
    g = tl.load(gates + at + 2 * size, inside, 0).to(IN)
    o = tl.load(gates + at + 3 * size, inside, 0).to(IN)
    tanh_c = tanh(tl.load(c_after + n, inside, 0).to(IN))
    error = tl.load(dh + n, inside, 0).to(IN)
    carried = tl.load(dc + n, inside, 0).to(IN) + error * o * (1 - tanh_c * tanh_c)
    tl.store(dgates + at, carried * g * i * (1 - i), inside)
    tl.store(dgates + at + size, carried * tl.load(c_before + n, inside, 0).to(IN) * f * (1 - f), inside)
    tl.store(dgates + at + 2 * size, carried * i * (1 - g * g), inside)
    tl.store(dgates + at + 3 * size, error * tanh_c * o * (1 - o), inside)
    tl.store(dc + n, carried * f, inside)


OPERATORS = torch.library.Library("ed_lib", "FRAGMENT")
OPERATORS.define(
    "lstm_cell(Tensor(a!) gates, Tensor recurrent, Tensor b_ih, Tensor b_hh, Tensor c_before, *, "
    "Tensor(b!) c_after, Tensor(c!) h, Tensor(d!)? output=None) -> ()"
)
OPERATORS.define(
    "lstm_cell_backward(Tensor gates, Tensor c_before, Tensor c_after, Tensor dh, Tensor(a!) dc, *, "
    "Tensor(b!) dgates) -> ()"
)
OPERATORS.impl("lstm_cell", plain_cell, "CPU")
OPERATORS.impl("lstm_cell", triton_cell, "CUDA")
OPERATORS.impl("lstm_cell_backward", plain_cell_backward, "CPU")
OPERATORS.impl("lstm_cell_backward", triton_cell_backward, "CUDA")
