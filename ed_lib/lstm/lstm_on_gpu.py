"""All pointwise work of an LSTM's step as one launch, in Triton, with a plain twin; and CUDA
graphs.

Letters: B batch, H hidden. Gates lie side by side, (B, 4H), in the order i, f, g, o: input, forget,
candidate (which NVIDIA and Keras call c) and output. All arrays are contiguous PyTorch tensors of
one dtype and device.

    i, f, o = σ(a_i), σ(a_f), σ(a_o);  g = tanh(a_g);  c' = f c + i g;  h = o tanh(c')

with a = W_ih x + b_ih + W_hh h + b_hh (Hochreiter and Schmidhuber, 1997, with the forget gate of
2000).

``cell`` is an operator of PyTorch's, so that whoever watches its dispatcher, as ``counters`` does,
sees one launch. On a GPU it runs the Triton kernel, elsewhere the plain twin. What is only written
goes by keyword.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Where there is no Triton, as on macOS, the kernels can be read, and not run.
try:
    import triton
    import triton.language as tl
    from triton import jit
except ImportError:
    triton = tl = None

    def jit(function):
        return function


BLOCK = 256  # numbers of h that one program computes


def plain_cell(
    gates: Tensor, recurrent: Tensor, b_ih: Tensor, b_hh: Tensor, c_before: Tensor, c_after: Tensor,
    h: Tensor, output: Tensor,
) -> None:  # fmt: skip
    """``cell``, one step from the products on, in place: the twin of its kernel, in eleven
    operations.

    gates (B, 4H): W_ih x before, the activated gates after, kept for the way back. recurrent (B,
    4H): W_hh h. b_ih, b_hh (4H,). c_before (B, H) is read; c_after, h and output (B, H) are
    written, the last two with the same numbers: for the next step and for the layer above.
    """
    size = h.shape[1]
    gates.add_(recurrent).add_(b_ih + b_hh)
    i, f, g, o = gates.chunk(4, 1)  # (B, H) each
    # i and f, which lie side by side
    gates[:, : 2 * size].sigmoid_()
    g.tanh_()
    o.sigmoid_()
    torch.mul(f, c_before, out=c_after).addcmul_(i, g)
    torch.tanh(c_after, out=h).mul_(o)
    output.copy_(h)


def triton_cell(*read: Tensor, **written: Tensor) -> None:
    """``cell`` by ``cell_kernel``, a thread for each number of h, on a GPU or in Triton's
    interpreter. It computes in float32, or in float64.
    """
    if triton is None:
        raise ImportError("the fused step on a GPU needs triton: pip install triton")
    c = read[-1]  # (B, H)
    numbers = c.numel()
    programs = -(-numbers // BLOCK)  # rounded up
    # Types of sixteen bits are read and written, and not computed in.
    wide = tl.float64 if c.dtype == torch.float64 else tl.float32
    sizes = dict(numbers=numbers, size=c.shape[1], IN=wide, BLOCK=BLOCK)
    # Triton launches on the current GPU, which may be another.
    with torch.cuda.device_of(c):
        cell_kernel[programs,](*read, **written, **sizes, enable_fp_fusion=True)


@jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@jit
def tanh(x):
    """2σ(2x) − 1, and where its digits cancel the first six terms of the series."""
    z = x * x
    tail = -17 / 315 + z * (62 / 2835 - z * (1382 / 155925))
    series = x + x * z * (-1 / 3 + z * (2 / 15 + z * tail))
    return tl.where(z < 0.02, series, 2 / (1 + tl.exp(-2 * x)) - 1)


@jit
def preactivation(gates, recurrent, b_ih, b_hh, at, unit, inside, IN: tl.constexpr):
    """a = W_ih x + W_hh h + b_ih + b_hh, at these places and for these units."""
    products = tl.load(gates + at, inside, 0).to(IN) + tl.load(recurrent + at, inside, 0).to(IN)
    biases = tl.load(b_ih + unit, inside, 0).to(IN) + tl.load(b_hh + unit, inside, 0).to(IN)
    return products + biases


@jit
def cell_kernel(  # noqa: PLR0917
    gates, recurrent, b_ih, b_hh, c_before, c_after, h, output,
    numbers, size, IN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One thread for each number of h; its four gates lie H apart. IN: the type to compute in."""
    # BLOCK places of h. Those behind the last number of h are masked: neither read nor written.
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = n < numbers
    j = n % size
    # Where the four gates are; the input gate's bias is at j.
    at = n // size * 4 * size + j
    at_f = at + size
    at_g = at + 2 * size
    at_o = at + 3 * size
    i = sigmoid(preactivation(gates, recurrent, b_ih, b_hh, at, j, inside, IN))
    f = sigmoid(preactivation(gates, recurrent, b_ih, b_hh, at_f, j + size, inside, IN))
    g = tanh(preactivation(gates, recurrent, b_ih, b_hh, at_g, j + 2 * size, inside, IN))
    o = sigmoid(preactivation(gates, recurrent, b_ih, b_hh, at_o, j + 3 * size, inside, IN))
    c = f * tl.load(c_before + n, inside, 0).to(IN) + i * g
    y = o * tanh(c)
    # The gates replace the products, because the backward pass needs them.
    tl.store(gates + at, i, inside)
    tl.store(gates + at_f, f, inside)
    tl.store(gates + at_g, g, inside)
    tl.store(gates + at_o, o, inside)
    tl.store(c_after + n, c, inside)
    tl.store(h + n, y, inside)
    tl.store(output + n, y, inside)


def capture(call: Callable[[], object]) -> Callable[[], None]:
    """``call`` as a CUDA graph: what is returned launches all its work as one, on the tensors that
    the call used, at their addresses; so it keeps the call, and all that this refers to.
    """
    # So that cuBLAS takes its workspace, and Triton compiles, outside the graph.
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def replay(keeps: Callable = call) -> None:
        graph.replay()

    return replay


OPERATORS = torch.library.Library("ed_lib", "FRAGMENT")
OPERATORS.define(
    "lstm_cell(Tensor(a!) gates, Tensor recurrent, Tensor b_ih, Tensor b_hh, Tensor c_before, *, "
    "Tensor(b!) c_after, Tensor(c!) h, Tensor(d!) output) -> ()"
)
OPERATORS.impl("lstm_cell", plain_cell, "CPU")
OPERATORS.impl("lstm_cell", triton_cell, "CUDA")
cell = torch.ops.ed_lib.lstm_cell
