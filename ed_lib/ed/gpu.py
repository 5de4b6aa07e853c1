"""The hidden layers as two GPU kernels in Triton: one launch for a whole forward pass, one for an update.

Letters: D hidden-to-hidden layers, K independent networks, B batch, C = 2W cells of a layer. The arrays are
those of :mod:`ed_lib.ed.layout`: contiguous tensors on one GPU (or, with TRITON_INTERPRET=1 set before Triton
is imported, on the CPU), all float32 or all float64. A kernel is given addresses: nobody else checks this.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ed_lib import arrays

try:
    import triton
    import triton.language as tl
    from triton import jit
except ImportError:  # as on macOS: the kernels can be read there, and not run
    triton, jit = None, lambda function: function

LARGEST = 64 * 1024  # bytes that one layer's weights may take of a multiprocessor's shared memory
ROWS = 16  # samples of a program; tl.dot wants no fewer


@jit
def forward_kernel(
    states, weight, bias, depth, networks, batch, cells,
    SCALE: tl.constexpr, ROWS: tl.constexpr, CELLS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Takes ROWS samples of network k through all layers. Their states stay on the chip, and the weights of
    the next layer are on their way while one is computed. Weights beyond ``cells`` count as 0, so what the
    states hold there, σ(0), adds nothing; nor is it stored.
    """
    b, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)  # (ROWS,), scalar
    c = tl.arange(0, CELLS)  # (CELLS,)
    tile, in_tile = b[:, None] * cells + c[None, :], (b < batch)[:, None] & (c < cells)[None, :]
    square, in_square = c[:, None] * cells + c[None, :], (c < cells)[:, None] & (c < cells)[None, :]
    states += k * batch * cells
    weight += k * cells * cells
    bias += k * cells
    x = tl.load(states + tile, in_tile, 0)  # (ROWS, CELLS)
    for _ in tl.range(depth, num_stages=2):
        w = tl.load(weight + square, in_square, 0)  # (CELLS, CELLS)
        u = tl.dot(x, w, input_precision=PRECISION, out_dtype=x.dtype)
        u += tl.load(bias + c, c < cells, 0)[None, :]
        x = 1 / (
            1 + tl.exp2(u * SCALE)
        )  # where the power overflows, to infinity, this is the 0 that is meant
        states += networks * batch * cells  # on to the next layer
        weight += networks * cells * cells
        bias += networks * cells
        tl.store(states + tile, x, in_tile)


@jit
def update_kernel(
    weight, bias, states, gains, bias_gains, networks, batch, cells,
    N: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds the update of a TILE × TILE of one layer's weights, summed over ROWS samples at a time; in the
    programs that have the first senders, that of their receivers' biases too.
    """
    layer = tl.program_id(0).to(tl.int64)  # d · K + k
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)  # senders (TILE,)
    o = tl.program_id(2) * TILE + tl.arange(0, TILE)  # receivers (TILE,)
    n = tl.arange(0, N)  # the bias, or its two types of cell (N,)
    sent = states + layer * batch * cells
    answered = sent + networks * batch * cells
    gains += (layer % networks * 2 + (i >= cells // 2)) * batch  # of the senders' types (TILE,)
    bias_gains += (layer % networks * N + n) * batch  # (N,)
    sign = tl.where(o < cells // 2, 1, -1)  # of the receivers
    dw, dv = tl.zeros((TILE, TILE), weight.dtype.element_ty), tl.zeros((N, TILE), weight.dtype.element_ty)
    for start in tl.range(0, batch, ROWS, num_stages=2):
        b = start + tl.arange(0, ROWS)  # (ROWS,)
        y = tl.load(
            answered + b[:, None] * cells + o[None, :], (b < batch)[:, None] & (o < cells)[None, :], 0
        )
        received = sign[None, :] * y * (1 - y)  # (ROWS, TILE)
        in_x = (i < cells)[:, None] & (b < batch)[None, :]
        x = tl.load(sent + b[None, :] * cells + i[:, None], in_x, 0)  # (TILE, ROWS)
        x *= tl.load(gains[:, None] + b[None, :], in_x, 0)
        dw += tl.dot(x, received, input_precision=PRECISION, out_dtype=dw.dtype)
        g = tl.load(bias_gains[:, None] + b[None, :], (n < N)[:, None] & (b < batch)[None, :], 0)  # (N, ROWS)
        dv += tl.sum(g[:, :, None] * received[None, :, :], axis=1)  # (N, TILE)
    place, inside = i[:, None] * cells + o[None, :], (i < cells)[:, None] & (o < cells)[None, :]
    weight += layer * cells * cells + place
    tl.store(weight, tl.load(weight, inside, 0) + dw, inside)
    bias += (layer * N + n[:, None]) * cells + o[None, :]
    first = (n < tl.where(tl.program_id(1) == 0, N, 0))[:, None] & (o < cells)[None, :]
    tl.store(bias, tl.load(bias, first, 0) + dv, first)


def forward(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, u0: float) -> None:
    """Fills states[1:] from states[0] in one launch, as :func:`ed_lib.ed.layout.forward` does.

    states (D + 1, K, B, C), weight (D, K, C, C), bias (D, K, 1, C).
    """
    depth, networks, batch, cells = len(weight), *states.shape[1:]
    if not depth:
        return
    size, scale = padded(cells), -2 / u0 * math.log2(math.e)  # 2^(scale · u) = exp(−2u/u₀)
    with torch.cuda.device_of(states):
        forward_kernel[triton.cdiv(batch, ROWS), networks](
            states, weight, bias, depth, networks, batch, cells,
            SCALE=scale, ROWS=ROWS, CELLS=size, PRECISION=precision(states), num_warps=min(size // 8, 8),
            enable_fp_fusion=True,
        )  # fmt: skip


def update(
    weight: torch.Tensor,
    bias: torch.Tensor,
    states: torch.Tensor,
    gains: torch.Tensor,
    bias_gains: torch.Tensor,
) -> None:
    """The ED update of all hidden layers, in place and in one launch: :func:`ed_lib.ed.layout.update`.

    weight (D, K, C, C), bias (D, K, n, C), states (D + 1, K, B, C), gains (K, 2, B), bias_gains (K, n, B).
    """
    depth, networks, batch, cells = len(weight), *states.shape[1:]
    if not depth:
        return
    tile = min(padded(cells), 64 if states.dtype == torch.float32 else 32)
    with torch.cuda.device_of(states):
        update_kernel[depth * networks, triton.cdiv(cells, tile), triton.cdiv(cells, tile)](
            weight, bias, states, gains.contiguous(), bias_gains.contiguous(), networks, batch, cells,
            N=bias.shape[2], TILE=tile, ROWS=ROWS, PRECISION=precision(states), num_warps=4,
            enable_fp_fusion=True,
        )  # fmt: skip


def obstacle(width: int, dtype: Any = "float32") -> str | None:
    """Why a layer of ``width`` pairs does not fit the forward kernel on a GPU, in words; None when it does.

    Its weights, C × C with C rounded up to a power of two, go through a multiprocessor's shared memory, and
    64 KiB of them (64 pairs in float32, 32 in float64) leave room for the rest in a consumer GPU's 99 KiB.
    """
    name = arrays.dtype_name(dtype)
    size = padded(2 * width) ** 2 * (4 if name == "float32" else 8)  # bytes
    needs = f"the path 'kernel' needs {size // 1024} KiB of shared memory for the width {width} in {name}"
    return None if size <= LARGEST else f"{needs}; at most {LARGEST // 1024} KiB fit"


def padded(n: int) -> int:
    """The next power of two, 16 at the least: arrays on chip want the one, tl.dot the other."""
    return max(16, 1 << (n - 1).bit_length())


def precision(like: torch.Tensor) -> str:
    """How ``tl.dot`` multiplies: float32 in three products of TF32 parts where there are tensor cores."""
    tensor_cores = like.is_cuda and torch.cuda.get_device_capability(like.device) >= (8, 0)
    return "tf32x3" if tensor_cores and like.dtype == torch.float32 else "ieee"
