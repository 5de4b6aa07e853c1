"""The hidden layers as two compiled functions, for a CPU: what ``gpu`` is for a GPU. float32 only.

NumPy needs six calls for a layer, each with a start of its own and a walk through all its numbers. Here Numba
compiles the walk through all layers into one call; a product is one call of the BLAS, and what follows it one
loop, in the core's cache. Numbers in the compiled code are wrapped so that they stay 32 bits wide.
"""

import numpy as np
from llvmlite.binding import add_symbol
from numba import get_num_threads, njit, prange, types
from numba.extending import get_cython_function_address

from ed_lib.arrays import Array

# the BLAS's own function, which takes addresses: np.dot cannot add a product to what is there
add_symbol("ed_sgemm", get_cython_function_address("scipy.linalg.cython_blas", "sgemm"))
sgemm = types.ExternalFunction("ed_sgemm", types.void(*13 * [types.voidptr]))

F, I = np.float32, np.int32  # noqa: E741
LEAST, MOST = 16, 64  # samples in a tile: fewer make a product too thin, more leave the fastest cache
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
    weight, bias, states, gains, bias_gains = map(np.asarray, (weight, bias, states, gains, bias_gains))
    if (gains[:, 0] == gains[:, 1]).all():
        gains = gains[:, :1]  # one product for the senders of both types
    update_layers(weight, bias, states, gains, bias_gains, get_num_threads())


@njit(parallel=True, fastmath=True, error_model="numpy", cache=True)
def forward_layers(states, weight, bias, scale, tiles):
    """Fills states[1:]: each of ``tiles`` takes its rows of the batch through all layers."""
    depth, networks, cells = weight.shape[:3]
    batch = states.shape[2]
    rows = (batch + tiles - 1) // tiles
    for job in prange(networks * tiles):  # side by side
        k, first = job // tiles, job % tiles * rows
        last = min(first + rows, batch)
        if first < last:
            for d in range(depth):
                y = states[d + 1, k, first:last]  # (rows, C)
                np.dot(states[d, k, first:last], weight[d, k], y)
                for b in range(last - first):
                    for c in range(cells):
                        y[b, c] = fire(scale * (y[b, c] + bias[d, k, 0, c]))


@njit(fastmath=True, error_model="numpy", cache=True)
def fire(t):
    """1 / (1 + 2^t), in steps that the compiler turns into vector instructions.

    2^t = 2^n 2^f with n = round(t). The first factor is the number whose exponent bits are n + 127; the
    second is a short series.
    """
    t = min(max(t, F(-126)), F(126))
    n = I(I(t + F(126.5)) - I(126))  # what is positive is rounded towards zero
    f = t - F(n)
    series = P0 + f * (P1 + f * (P2 + f * (P3 + f * (P4 + f * (P5 + f * P6)))))
    return F(1) / (F(1) + series * I(I(n + I(127)) << I(23)).view(np.float32))


@njit(parallel=True, fastmath=True, error_model="numpy", cache=True)
def update_layers(weight, bias, states, gains, bias_gains, tiles):
    """The update: each of ``tiles`` takes every so many-th layer, with temporaries that stay in its cache."""
    depth, networks, cells = weight.shape[:3]
    batch, half, kinds = states.shape[2], cells // 2, gains.shape[1]
    for tile in prange(tiles):
        received = np.empty((batch, cells), np.float32)
        for job in range(tile, depth * networks, tiles):
            d, k = job // networks, job % networks
            y, v = states[d + 1, k], bias[d, k]  # (B, C), (n, C)
            for q in range(kinds):
                for b in range(batch):
                    for c in range(half):
                        received[b, c] = gains[k, q, b] * y[b, c] * (F(1) - y[b, c])
                        received[b, half + c] = gains[k, q, b] * y[b, half + c] * (y[b, half + c] - F(1))
                add_product(weight[d, k], states[d, k], received, q * half, cells // kinds)
            for n in range(len(v)):
                for b in range(batch):
                    for c in range(half):
                        v[n, c] += bias_gains[k, n, b] * y[b, c] * (F(1) - y[b, c])
                        v[n, half + c] += bias_gains[k, n, b] * y[b, half + c] * (y[b, half + c] - F(1))


@njit(error_model="numpy", cache=True)
def add_product(weight, x, y, first, senders):
    """Adds xᵀ y to the rows of so many senders from ``first`` on: weight (C, C), x (B, C), y (B, C)."""
    sizes = np.array([y.shape[1], senders, len(y)], np.int32)  # the BLAS counts columns first
    letters, one = np.array([78, 84], np.uint8), np.ones(1, np.float32)  # "N", "T": as it is, transposed
    cells, w, x = sizes.ctypes, weight.ravel()[first * len(weight) :], x.ravel()[first:]
    sgemm(letters.ctypes, letters[1:].ctypes, cells, sizes[1:].ctypes, sizes[2:].ctypes, one.ctypes,
          y.ctypes, cells, x.ctypes, cells, one.ctypes, w.ctypes, cells)  # fmt: skip
