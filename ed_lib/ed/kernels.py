"""The hidden layers as two GPU kernels in Triton: one launch for a whole forward, one for a whole update.

Letters: D hidden-to-hidden layers, K independent networks, B batch, C = 2W cells of a layer, its W excitatory
ones first. All arrays are PyTorch tensors, or CuPy arrays, which are taken as tensors in the same memory:
contiguous, on one device, all float32 or all float64.

states (D + 1, K, B, C): what the cells answer; states[0] is the input layer's answer.
weight (D, K, C, C): [d, k, i, o] from cell i to cell o, times the receiver's sign s_o.
bias (D, K, n, C): times the receiver's sign too; n = 1 for free biases, 2 for weights from bias cells.
"""

from __future__ import annotations

import torch

from ed_lib import arrays

try:
    import triton
    import triton.language as tl
    from triton import jit
except ImportError:  # as on macOS: the kernels can be read there, and not run
    triton, jit = None, lambda function: function

TILE_BYTES = 64 * 1024  # the most that one layer's weights may take of a multiprocessor's shared memory


def obstacle(width, dtype="float32"):
    """Why a layer of ``width`` pairs does not fit the forward kernel on a GPU, in words; None when it does.

    Its weights, C × C with C rounded up to a power of two, go through a multiprocessor's shared memory, and
    64 KiB of them (64 pairs in float32, 32 in float64) leave room for the rest in a consumer GPU's 99 KiB.
    """
    name = arrays.dtype_name(dtype)
    size = _padded(2 * width) ** 2 * (4 if name == "float32" else 8)  # bytes
    needs = f"the path 'kernel' needs {size // 1024} KiB of shared memory for the width {width} in {name}"
    return None if size <= TILE_BYTES else f"{needs}; at most {TILE_BYTES // 1024} KiB fit"


def forward(states, weight, bias_term, u0, *, block_batch=None, precision=None):
    """Fills states[1:] from states[0] in one launch: states[d + 1] = σ(states[d] @ weight[d] + bias_term[d]).

    states (D + 1, K, B, C), weight (D, K, C, C), bias_term (D, K, 1, C). block_batch: how many samples one
    program takes, a power of two; by tl.dot from 16 on, else by multiplying and summing. precision: tl.dot's
    input_precision. By default 16 and "tf32x3" (three products of TF32 parts, about float32's accuracy) for
    float32 on tensor cores, that is from compute capability 8.0 on; else 2 and "ieee".

    Errors: ImportError without Triton; TypeError or ValueError for a bad argument; ValueError for arrays on
    the CPU, unless TRITON_INTERPRET=1 was set before this module was imported.
    """
    states, weight, bias_term = map(arrays.as_torch, (states, weight, bias_term))
    depth, networks, batch, cells = _check_states(states)
    _check("weight", weight, states, (depth, networks, cells, cells))
    _check("bias_term", bias_term, states, (depth, networks, 1, cells))
    precision = precision or _precision(states)
    rows = block_batch if block_batch is not None else 16 if INTERPRETED or precision == "tf32x3" else 2
    if arrays.check_count("block_batch", rows) & (rows - 1):
        raise ValueError(f"block_batch is {rows}; wanted a power of two")
    padded = _padded(cells)
    room = TILE_BYTES // (padded**2 * states.itemsize)  # for the weights of so many layers
    with torch.cuda.device_of(states):
        if depth:
            forward_kernel[triton.cdiv(batch, rows), networks](
                states, weight, bias_term, depth, networks, batch, cells,
                U0=arrays.check_positive("u0", u0), ROWS=rows, CELLS=padded,
                STAGES=1 + min(max(room, 1), 3), PRECISION=precision,
                num_warps=min(padded // 8, 8), enable_fp_fusion=True,
            )  # fmt: skip


def update(weight, bias, states, gains, bias_gains, *, precision=None):
    """One ED step of all layers, in place and in one launch. With y = states[d + 1] and slope = y(1 − y):

    weight[d, k, (q, i), (p, o)] += Σ_b states[d, k, b, (q, i)] · gains[k, q, b] · slope[k, b, (p, o)] · s_p,
    bias[d, k, n, (p, o)] += Σ_b bias_gains[k, n, b] · slope[k, b, (p, o)] · s_p.

    gains (K, 2, B) and bias_gains (K, n, B) hold α/B; the other arrays, precision, errors: as in ``forward``.
    """
    weight, bias, states = map(arrays.as_torch, (weight, bias, states))
    gains, bias_gains = (arrays.as_torch(array).contiguous() for array in (gains, bias_gains))
    depth, networks, batch, cells = _check_states(states)
    n_bias = bias.shape[2] if bias.ndim == 4 else 1
    arrays.check_choice("bias.shape[2]", n_bias, (1, 2))
    _check("weight", weight, states, (depth, networks, cells, cells))
    _check("bias", bias, states, (depth, networks, n_bias, cells))
    _check("gains", gains, states, (networks, 2, batch))
    _check("bias_gains", bias_gains, states, (networks, n_bias, batch))
    tile = min(_padded(cells), 64 if states.dtype == torch.float32 else 32)  # more would spill registers
    with torch.cuda.device_of(states):
        if depth:
            update_kernel[(depth * networks * triton.cdiv(cells, tile) ** 2,)](
                weight, bias, states, gains, bias_gains, networks, batch, cells,
                N_BIAS=n_bias, TILE=tile, ROWS=min(_padded(batch), 32),
                PRECISION=precision or _precision(states), num_warps=4, num_stages=1, enable_fp_fusion=True,
            )  # fmt: skip


@jit
def forward_kernel(
    states, weight, bias, depth, networks, batch, cells,
    U0: tl.constexpr, ROWS: tl.constexpr, CELLS: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Takes ROWS samples of network k through all layers. Their states stay on the chip, and the weights of
    the next layers are on their way while one is computed. Weights beyond ``cells`` count as 0, so what the
    states hold there, σ(0), adds nothing; nor is it stored.
    """
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # (ROWS,)
    c, k = tl.arange(0, CELLS), tl.program_id(1)  # (CELLS,), scalar
    tile = b[:, None] * cells + c[None, :]  # (ROWS, CELLS)
    in_tile = (b < batch)[:, None] & (c < cells)[None, :]
    square = c[:, None] * cells + c[None, :]  # (CELLS, CELLS)
    in_square = (c < cells)[:, None] & (c < cells)[None, :]
    if ROWS < 16:  # a third axis, so that tl.sum finds the weights in the layout in which they are loaded
        square, in_square = square[None, :, :], in_square[None, :, :]  # (1, CELLS, CELLS)
    states += k * batch * cells
    weight += k * cells * cells
    bias += k * cells
    x = tl.load(states + tile, in_tile, 0)
    for _ in tl.range(depth, num_stages=STAGES):  # the weights of STAGES − 1 layers on chip
        w = tl.load(weight + square, in_square, 0)
        u = tl.load(bias + c, c < cells, 0)[None, :]  # (1, CELLS)
        if ROWS < 16:  # tl.dot wants 16
            u += tl.sum(x[:, :, None] * w, axis=1)  # (ROWS, CELLS, CELLS) → (ROWS, CELLS)
        else:
            u += tl.dot(x, w, input_precision=PRECISION, out_dtype=x.dtype)
        x = 1 / (1 + tl.exp(u * (-2 / U0)))  # where exp overflows, to infinity, x is 0
        states += networks * batch * cells  # on to the next layer
        weight += networks * cells * cells
        bias += networks * cells
        tl.store(states + tile, x, in_tile)


@jit
def update_kernel(
    weight, bias, states, gains, bias_gains, networks, batch, cells,
    N_BIAS: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds the update of a TILE × TILE tile of one layer's weights, summed over ROWS samples at a time; in
    the programs whose tile has the first senders, that of their receivers' biases too.
    """
    tiles, half = tl.cdiv(cells, TILE), cells // 2
    layer = (tl.program_id(0) // (tiles * tiles)).to(tl.int64)  # d · K + k
    row = tl.program_id(0) // tiles % tiles
    k = layer % networks
    i = row * TILE + tl.arange(0, TILE)  # senders (TILE,)
    o = tl.program_id(0) % tiles * TILE + tl.arange(0, TILE)  # receivers (TILE,)
    n = tl.arange(0, N_BIAS)[:, None]  # (N_BIAS, 1)
    sent = states + layer * batch * cells
    received = sent + networks * batch * cells
    weight += layer * cells * cells + i[:, None] * cells + o[None, :]  # (TILE, TILE)
    bias += (layer * N_BIAS + n) * cells + o[None, :]  # (N_BIAS, TILE)
    in_weight = (i < cells)[:, None] & (o < cells)[None, :]
    in_bias = (n < tl.where(row == 0, N_BIAS, 0)) & (o < cells)[None, :]
    w, v = tl.load(weight, in_weight, 0), tl.load(bias, in_bias, 0)  # asked for now, needed last
    dw, dv = tl.zeros((TILE, TILE), w.dtype), tl.zeros((N_BIAS, TILE), w.dtype)
    for start in range(0, batch, ROWS):
        b = start + tl.arange(0, ROWS)  # (ROWS,)
        at, in_y = b[:, None] * cells + o[None, :], (b < batch)[:, None] & (o < cells)[None, :]
        y = tl.load(received + at, in_y, 0)  # (ROWS, TILE)
        slope = tl.where(o < half, 1, -1)[None, :] * y * (1 - y)  # times the receiver's sign
        at, in_x = b[None, :] * cells + i[:, None], (b < batch)[None, :] & (i < cells)[:, None]
        x = tl.load(sent + at, in_x, 0)  # (TILE, ROWS)
        plus = tl.load(gains + 2 * k * batch + b, b < batch, 0)[None, :]  # (1, ROWS)
        minus = tl.load(gains + (2 * k + 1) * batch + b, b < batch, 0)[None, :]
        x *= tl.where((i < half)[:, None], plus, minus)
        dw += tl.dot(x, slope, input_precision=PRECISION, out_dtype=w.dtype)
        for m in tl.static_range(N_BIAS):
            g = tl.load(bias_gains + (k * N_BIAS + m) * batch + b, b < batch, 0)[:, None]  # (ROWS, 1)
            dv += tl.where(n == m, tl.sum(g * slope, axis=0)[None, :], 0)
    tl.store(weight, w + dw, in_weight)
    tl.store(bias, v + dv, in_bias)


INTERPRETED = triton is not None and not isinstance(forward_kernel, triton.JITFunction)


def _padded(n):
    return max(16, 1 << (n - 1).bit_length())  # arrays on chip want a power of two, tl.dot at least 16


def _precision(like):
    single = like.dtype == torch.float32 and not INTERPRETED
    return "tf32x3" if single and torch.cuda.get_device_capability(like.device) >= (8, 0) else "ieee"


def _check_states(states):
    """D, K, B, C of ``states``, once it is known that the kernels can run on it."""
    if triton is None:
        raise ImportError("the path 'kernel' needs triton: pip install triton")
    arrays.check_choice("states.dtype", states.dtype, (torch.float32, torch.float64))
    if not states.is_cuda and not INTERPRETED:
        wanted = "a CUDA device, or TRITON_INTERPRET=1 set before ed_lib.ed.kernels is imported"
        raise ValueError(f"states is on the device {states.device}; wanted {wanted}")
    _check("states", states, states, ("D + 1", "K", "B", "2W"))
    return states.shape[0] - 1, *states.shape[1:]


def _check(name, tensor, states, shape):
    arrays.check_shape(name, tuple(tensor.shape), shape)
    arrays.check_choice(f"{name}.dtype", tensor.dtype, (states.dtype,))
    arrays.check_choice(f"{name}.device", tensor.device, (states.device,))
    if not tensor.is_contiguous():
        raise ValueError(f"{name} has the strides {tensor.stride()}; wanted contiguous memory")
