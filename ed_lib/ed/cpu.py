"""ED's hidden layers as two compiled functions, for a CPU: what ``gpu`` is for a GPU. float32 only.

NumPy needs six calls for a layer, each with a start of its own and a walk through all its numbers. Here
Numba compiles the walk through all layers into one call. The sums of a product stay in registers, see
``ed_lib.registers``, and what follows it is one loop, in the core's cache. Numbers in the compiled code are
wrapped so that they stay 32 bits wide.
"""

import numpy as np
from numba import get_num_threads, njit, prange

from ed_lib.arrays import Array
from ed_lib.registers import FAST, LANES, WIDE, product

F = np.float32
LEAST, MOST = 16, 64  # samples in a tile: fewer make thin products, more leave the fastest cache
SHIFT = F(1.5 * 2**23)
# 2^f for f in [−½, ½], to a relative error of 1e-7: the Taylor series of exp(f ln 2)
P0, P1, P2, P3, P4, P5, P6 = (F(np.log(2) ** n / np.prod(np.arange(1.0, n + 1))) for n in range(7))


def forward(states: Array, weight: Array, bias: Array, u0: float) -> None:
    """Fills states[1:] from states[0]: (D + 1, K, B, C), weight (D, K, C, C), bias (D, K, 1, C)."""
    states, weight, bias = map(np.asarray, (states, weight, bias))  # a tensor's memory stays its own
    batch = states.shape[2]
    tiles = max(1, min(get_num_threads(), batch // LEAST), -(-batch // MOST))
    forward_layers(states, weight, bias, F(-2 / u0 / np.log(2)), tiles)


def update(weight: Array, bias: Array, states: Array, gains: Array, bias_gains: Array) -> None:
    """The ED update of all hidden layers, in place: weight (D, K, C, C), bias (D, K, n, C), states (D + 1, K,
    B, C), gains (K, 2, B), bias_gains (K, n, B).
    """
    update_layers(*map(np.asarray, (weight, bias, states, gains, bias_gains)), get_num_threads())


@njit(parallel=True, **FAST)
def forward_layers(states, weight, bias, scale, tiles):
    """Fills states[1:]: each of ``tiles`` takes its rows of the batch through all layers."""
    depth, networks = weight.shape[:2]
    batch = states.shape[2]
    rows = (batch + tiles - 1) // tiles
    for job in prange(networks * tiles):  # side by side
        k, first = job // tiles, job % tiles * rows
        last = min(first + rows, batch)
        for d in range(depth):
            y, v = states[d + 1, k, first:last], bias[d, k, 0]  # (rows, C), (C,)
            add_product(states[d, k, first:last], weight[d, k], np.broadcast_to(v, y.shape), y)
            for b in range(len(y)):
                for c in range(len(v)):
                    y[b, c] = fire(scale * y[b, c])


@njit(**FAST)
def fire(t):
    """1 / (1 + 2^t), in steps that the compiler turns into vector instructions.

    2^t = 2^n 2^f with n = round(t): adding 1.5 · 2^23 rounds, and leaves n in the last bits. The first factor
    is the number whose exponent bits are n + 127; the second is a short series.
    """
    shifted = np.float32(min(max(t, F(-126)), F(126)) + SHIFT)
    f = t - (shifted - SHIFT)
    series = P0 + f * (P1 + f * (P2 + f * (P3 + f * (P4 + f * (P5 + f * P6)))))
    return F(1) / (F(1) + series * np.int32((shifted.view(np.int32) + 127) * 2**23).view(np.float32))


@njit(parallel=True, **FAST)
def update_layers(weight, bias, states, gains, bias_gains, tiles):
    """The update: each of ``tiles`` takes layers that follow one another, so that what a layer answers, which
    the next one is sent, is read once; temporaries stay in its cache.
    """
    depth, networks, cells = weight.shape[:3]
    batch, half, jobs = states.shape[2], cells // 2, depth * networks
    for tile in prange(tiles):
        sent, received = np.empty((2, batch, cells), np.float32)
        for job in range(tile * jobs // tiles, (tile + 1) * jobs // tiles):
            d, k = job // networks, job % networks
            x, y = states[d, k], states[d + 1, k]  # (B, C)
            for b in range(batch):
                own, other = gains[k, 0, b], gains[k, 1, b]
                for c in range(half):
                    sent[b, c] = own * x[b, c]
                    sent[b, half + c] = other * x[b, half + c]
            for b in range(batch):
                for c in range(half):
                    received[b, c] = y[b, c] * (F(1) - y[b, c])
                    received[b, half + c] = y[b, half + c] * (y[b, half + c] - F(1))
            add_product(sent.T, received, weight[d, k], weight[d, k])
            add_product(bias_gains[k], received, bias[d, k], bias[d, k])


@njit(**FAST)
def add_product(x, w, start, out):
    """out = start + x w, (R, C) + (R, K) (K, C): WIDE columns at once, then LANES; zeros fill up the last."""
    done, columns = 0, w.shape[1]
    while done + LANES <= columns:
        few = slice(done, done + (WIDE if done + WIDE <= columns else LANES))
        product(x, w[:, few], start[:, few], out[:, few])
        done = few.stop
    left = columns - done
    if left:
        weights, sums = np.zeros((len(w), LANES), np.float32), np.zeros((len(x), LANES), np.float32)
        weights[:, :left], sums[:, :left] = w[:, done:], start[:, done:]
        product(x, weights, sums, sums)
        out[:, done:] = sums[:, :left]
