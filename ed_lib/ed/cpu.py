"""The hidden layers as two compiled functions, for a CPU: what ``gpu`` is for a GPU.

NumPy needs six calls for a layer, each with a start of its own and a walk through all its numbers. Here
Numba compiles the walk through all layers into one call. Tiles of the batch go side by side on the threads,
each with its state in a core's cache. float32 only.
"""

import numpy as np

from ed_lib.arrays import Array

try:
    from numba import get_num_threads, njit, prange
except ImportError:  # then the network takes another path; the source can still be read
    njit, prange = (lambda **options: lambda function: function), range  # type: ignore

F, I = np.float32, np.int32  # numbers in the compiled code keep these types  # noqa: E741
LEAST, MOST = 16, 64  # samples in a tile: fewer make a product too thin, more leave the fastest cache
# 2^f for f in [−½, ½], to a relative error of 1e-7: the Taylor series of exp(f ln 2)
POWERS = [F(np.log(2) ** n / np.prod(np.arange(1.0, n + 1))) for n in range(8)]
P0, P1, P2, P3, P4, P5, P6, P7 = POWERS


def obstacle(width: int, dtype: str = "float32") -> str | None:
    """Why layers of this width and dtype cannot be computed here, in words; None when they can."""
    return None if dtype == "float32" else f"the path 'kernel' needs float32 on a CPU, and this is {dtype}"


def forward(states: Array, weight: Array, bias: Array, u0: float) -> None:
    """Fills states[1:] from states[0], as :func:`ed_lib.ed.layout.forward` does.

    states (D + 1, K, B, C), weight (D, K, C, C), bias (D, K, 1, C): NumPy arrays, or tensors on the CPU.
    """
    states, weight, bias = map(np.asarray, (states, weight, bias))  # a tensor's memory stays its own
    batch = states.shape[2]
    tiles = max(1, min(get_num_threads(), batch // LEAST), -(-batch // MOST))
    forward_layers(states, weight, bias, F(-2 / u0 / np.log(2)), tiles)


def update(weight: Array, bias: Array, states: Array, gains: Array, bias_gains: Array) -> None:
    """The ED update of all hidden layers, in place, as :func:`ed_lib.ed.layout.update` does.

    weight (D, K, C, C), bias (D, K, n, C), states (D + 1, K, B, C), gains (K, 2, B), bias_gains (K, n, B).
    """
    weight, bias, states = map(np.asarray, (weight, bias, states))
    gains, bias_gains = map(np.ascontiguousarray, (gains, bias_gains))
    update_layers(weight, bias, states, gains, bias_gains, get_num_threads())


@njit(parallel=True, fastmath=True, error_model="numpy", cache=True)
def forward_layers(states, weight, bias, scale, tiles):
    """Fills states[1:]: each of ``tiles`` takes its rows of the batch through all layers, in cache."""
    depth, networks, cells = weight.shape[:3]
    batch = states.shape[2]
    rows = (batch + tiles - 1) // tiles
    for job in prange(networks * tiles):  # side by side
        k, first = job // tiles, job % tiles * rows
        last = min(first + rows, batch)
        if first < last:
            exponent = np.empty((last - first, cells), np.int32)
            for d in range(depth):
                y = states[d + 1, k, first:last]  # (rows, C)
                np.dot(states[d, k, first:last], weight[d, k], y)
                for b in range(last - first):
                    for c in range(cells):
                        y[b, c] = scale * (y[b, c] + bias[d, k, 0, c])
                fire(y.reshape(y.size), exponent.reshape(y.size), exponent.view(np.float32).reshape(y.size))


@njit(fastmath=True, error_model="numpy", cache=True)
def fire(t, exponent, power):
    """t becomes 1 / (1 + 2^t), in loops that the compiler turns into vector instructions.

    2^t = 2^n 2^f with n = round(t). The first factor is the number whose exponent bits are n + 127; the
    second is a short series. ``power`` is ``exponent``, its bits read as float32.
    """
    for c in range(t.size):
        t[c] = F(-126) if t[c] < F(-126) else t[c]
        t[c] = F(126) if t[c] > F(126) else t[c]
    for c in range(t.size):
        exponent[c] = I(t[c] + F(126.5))  # n + 126; what is positive is rounded towards zero
    for c in range(t.size):
        t[c] -= F(exponent[c] - I(126))  # f
    for c in range(t.size):
        exponent[c] = (exponent[c] + I(1)) * I(2**23)
    for c in range(t.size):
        f = t[c]
        series = P0 + f * (P1 + f * (P2 + f * (P3 + f * (P4 + f * (P5 + f * (P6 + f * P7))))))
        t[c] = F(1) / (F(1) + series * power[c])


@njit(parallel=True, fastmath=True, error_model="numpy", cache=True)
def update_layers(weight, bias, states, gains, bias_gains, tiles):
    """The update: each of ``tiles`` takes every so many-th layer, with temporaries that stay in its cache."""
    depth, networks, cells = weight.shape[:3]
    batch, half = states.shape[2], cells // 2
    for tile in prange(tiles):
        sent, received = np.empty((batch, cells), np.float32), np.empty((batch, cells), np.float32)
        product = np.empty((cells, cells), np.float32)
        for job in range(tile, depth * networks, tiles):
            d, k = job // networks, job % networks
            x, y, w = states[d, k], states[d + 1, k], weight[d, k]
            for b in range(batch):
                for c in range(half):
                    sent[b, c] = gains[k, 0, b] * x[b, c]
                    sent[b, half + c] = gains[k, 1, b] * x[b, half + c]
                    received[b, c] = y[b, c] * (F(1) - y[b, c])
                    received[b, half + c] = y[b, half + c] * (y[b, half + c] - F(1))
            np.dot(sent.T, received, product)
            for i in range(cells):
                for o in range(cells):
                    w[i, o] += product[i, o]
            for n in range(bias.shape[2]):
                for b in range(batch):
                    for o in range(cells):
                        bias[d, k, n, o] += bias_gains[k, n, b] * received[b, o]
