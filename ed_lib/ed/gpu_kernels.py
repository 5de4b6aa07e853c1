"""The ED layers in Triton, as they run on a GPU: what ``kernels`` launches. It describes the arrays."""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
    from triton import jit
except ImportError:  # as on macOS: the kernels can be read there, and not run
    triton, jit = None, lambda function: function


@jit
def load(place, inside, MASKED: tl.constexpr):
    """What is there; 0 outside, where there can be an outside."""
    if MASKED:
        found = tl.load(place, inside, 0)
    else:
        found = tl.load(place)
    return found


@jit
def store(place, value, inside, MASKED: tl.constexpr):
    """Likewise."""
    if MASKED:
        tl.store(place, value, inside)
    else:
        tl.store(place, value)


@jit
def layer(x, w, bias, ROWS: tl.constexpr, PRECISION: tl.constexpr, SCALE: tl.constexpr):
    """What a layer answers: x (ROWS, C), w (C, C) or for few rows (1, C, C), bias (1, C) → (ROWS, C)."""
    if ROWS < 16:  # tl.dot wants 16
        u = bias + tl.sum(x[:, :, None] * w, axis=1)  # (ROWS, C, C) → (ROWS, C)
    else:
        u = bias + tl.dot(x, w, input_precision=PRECISION, out_dtype=x.dtype)
    return 1 / (1 + tl.exp2(u * SCALE))  # σ(u); where the power overflows, to infinity, this is 0


@jit
def forward_kernel(
    states, weight, bias, number, bound, depth, networks, batch, cells, SCALE: tl.constexpr,
    ROWS: tl.constexpr, CELLS: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr, UNLESS: tl.constexpr,
):  # fmt: skip
    """Takes ROWS samples of network k through all layers. Their states stay on the chip, and the weights of
    the next layers are on their way while one is computed. Weights beyond ``cells`` count as 0, so what the
    states hold there, σ(0), adds nothing; nor is it stored.
    """
    if not MASKED:
        cells = CELLS  # so that distances are known when this is compiled, and cost no instructions
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
    if UNLESS:
        depth = tl.where(tl.load(number) <= bound, 0, depth)
    x = load(states + tile, in_tile, MASKED)
    for _ in tl.range(depth, num_stages=STAGES):  # the weights of STAGES − 1 layers on chip
        w = load(weight + square, in_square, MASKED)
        v = load(bias + c, c < cells, MASKED)[None, :]  # (1, CELLS)
        x = layer(x, w, v, ROWS, PRECISION, SCALE)
        states += networks * batch * cells  # on to the next layer
        weight += networks * cells * cells
        bias += networks * cells
        store(states + tile, x, in_tile, MASKED)


@jit
def sweep_kernel(
    old, new, weight, bias, changes, pair, tolerance, first, networks, batch, cells, SCALE: tl.constexpr,
    ROWS: tl.constexpr, CELLS: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    """What one layer answers to the old states below it, for ROWS samples; one of a pair of sweeps over all
    layers from ``first`` on. Does nothing once a pair before it has changed no state by more than
    ``tolerance``. The LAST of a pair puts its largest change into changes[pair].
    """
    if tl.load(changes + pair - 1) > tolerance:
        if not MASKED:
            cells = CELLS
        at = (first * networks + tl.program_id(0)).to(tl.int64)  # d · K + k
        b = tl.program_id(1) * ROWS + tl.arange(0, ROWS)  # (ROWS,)
        c = tl.arange(0, CELLS)  # (CELLS,)
        tile = b[:, None] * cells + c[None, :]  # (ROWS, CELLS)
        in_tile = (b < batch)[:, None] & (c < cells)[None, :]
        square = c[:, None] * cells + c[None, :]  # (CELLS, CELLS)
        in_square = (c < cells)[:, None] & (c < cells)[None, :]
        above = (at + networks) * batch * cells + tile  # where the layer's answer is
        x = load(old + at * batch * cells + tile, in_tile, MASKED)
        w = load(weight + at * cells * cells + square, in_square, MASKED)
        v = load(bias + at * cells + c, c < cells, MASKED)[None, :]  # (1, CELLS)
        y = layer(x, w, v, ROWS, PRECISION, SCALE)
        if LAST:
            change = tl.where(in_tile, tl.abs(y - load(old + above, in_tile, MASKED)), 0)
            tl.atomic_max(changes + pair, tl.max(tl.max(change, axis=1), axis=0).to(tl.float32))
        store(new + above, y, in_tile, MASKED)


@jit
def update_kernel(
    weight, bias, sent, received, error, rate, networks, batch, senders: tl.constexpr,
    receivers: tl.constexpr, SIGNED: tl.constexpr, SHARED: tl.constexpr, N_BIAS: tl.constexpr,
    TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr, BIAS_CELL: tl.constexpr,
):  # fmt: skip
    """Adds the update of a tile of one layer's weights, summed over ROWS samples at a time; in the programs
    whose tile has the first senders, that of their receivers' biases too.
    """
    tiles_in, tiles_out = tl.cdiv(senders, TILE_IN), tl.cdiv(receivers, TILE_OUT)
    layer = (tl.program_id(0) // (tiles_in * tiles_out)).to(tl.int64)  # n · K + k
    row = tl.program_id(0) // tiles_out % tiles_in
    k = layer % networks
    i = row * TILE_IN + tl.arange(0, TILE_IN)  # senders (TILE_IN,)
    o = tl.program_id(0) % tiles_out * TILE_OUT + tl.arange(0, TILE_OUT)  # receivers (TILE_OUT,)
    n = tl.arange(0, N_BIAS)[:, None]  # (N_BIAS, 1)
    plus, positive = i < senders // 2, o < receivers // 2  # excitatory
    if SHARED:  # x (B, senders / 2), sent by both types in all networks
        width = senders // 2
        from_i = i % width
    else:
        width, from_i = senders, i
        sent += layer * batch * senders
    received += layer * batch * receivers
    weight += layer * senders * receivers + i[:, None] * receivers + o[None, :]  # (TILE_IN, TILE_OUT)
    bias += (layer * N_BIAS + n) * receivers + o[None, :]  # (N_BIAS, TILE_OUT)
    in_weight = (i < senders)[:, None] & (o < receivers)[None, :]
    in_bias = (n < tl.where(row == 0, N_BIAS, 0)) & (o < receivers)[None, :]
    step = tl.load(rate)
    dw, dv = tl.zeros((TILE_IN, TILE_OUT), step.dtype), tl.zeros((N_BIAS, TILE_OUT), step.dtype)
    for start in tl.range(0, batch, ROWS, num_stages=STAGES):
        b = start + tl.arange(0, ROWS)  # (ROWS,)
        at, in_y = b[:, None] * receivers + o[None, :], (b < batch)[:, None] & (o < receivers)[None, :]
        y = tl.load(received + at, in_y, 0)  # (ROWS, TILE_OUT)
        slope = tl.where(positive, 1, -1)[None, :] * y * (1 - y)  # times the receiver's sign
        at, in_x = b[None, :] * width + from_i[:, None], (b < batch)[None, :] & (i < senders)[:, None]
        x = tl.load(sent + at, in_x, 0)  # (TILE_IN, ROWS)
        d = tl.load(error + b * networks + k, b < batch, 0) * step  # (ROWS,)
        if SIGNED:
            x *= d[None, :]
        else:
            x *= tl.where(plus[:, None], tl.maximum(d, 0)[None, :], tl.minimum(d, 0)[None, :])
        dw += tl.dot(x, slope, input_precision=PRECISION, out_dtype=step.dtype)
        if N_BIAS == 1:
            dv += tl.sum(d[:, None] * slope, axis=0)[None, :]
        else:
            for m in tl.static_range(2):
                g = d if SIGNED else tl.maximum(d, 0) if m == 0 else tl.minimum(d, 0)
                dv += tl.where(n == m, tl.sum((BIAS_CELL * g)[:, None] * slope, axis=0)[None, :], 0)
    # asked for last: in registers all the while they would leave room for fewer programs
    w, v = tl.load(weight, in_weight, 0), tl.load(bias, in_bias, 0)
    tl.store(weight, w + dw, in_weight)
    tl.store(bias, v + dv, in_bias)


INTERPRETED = triton is not None and not isinstance(forward_kernel, triton.JITFunction)
