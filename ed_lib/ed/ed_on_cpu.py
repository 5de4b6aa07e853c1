"""ED's forward pass and update as compiled functions, for a CPU: what ``gpu`` is for a GPU. float32
only.

NumPy needs six calls for a layer, each with a walk through all its numbers. Here Numba compiles the
walk through all layers into one call. The sums of a product stay in registers, see
``ed_lib.registers``, and what follows is one loop, in the core's cache. Numbers in compiled code
are wrapped so that they stay 32 bits wide.
"""

from collections.abc import Sequence

import numpy as np
from numba import get_num_threads, njit, prange

from ed_lib.arrays import Array
from ed_lib.ed.layout import LAYERS
from ed_lib.registers import FAST, LANES, WIDE, product

F = np.float32
LEAST, MOST = 16, 64  # samples in a tile: fewer make thin products, more leave the fastest cache
SHIFT = F(1.5 * 2**23)
# 2^f for f in [−½, ½], to a relative error of 2e-7
EXP2 = np.polynomial.Chebyshev.interpolate(np.exp2, 5, [-0.5, 0.5]).convert(
    kind=np.polynomial.Polynomial
)
P0, P1, P2, P3, P4, P5 = map(F, EXP2.coef)


def forward_all(
    p: dict, biases: Sequence[Array], x: Array, states: Array, out: Array, u0: float
) -> None:
    """As ``layout.forward_all``."""
    tiles = max(1, min(get_num_threads(), len(x) // LEAST), -(-len(x) // MOST))
    weights = (p[f"{layer}.weight"] for layer in LAYERS)
    forward_layers(
        *map(np.asarray, (x, states, out, *weights, *biases)), F(-2 / u0 / np.log(2)), tiles
    )


def learn_all(
    p: dict, x: Array, states: Array, out: Array, gains: Array, bias_gains: Array
) -> None:
    """As ``layout.learn_all``, of all layers."""
    parameters = (p[f"{layer}.{part}"] for part in ("weight", "bias") for layer in LAYERS)
    learn_layers(
        *map(np.asarray, (x, states, out, gains, bias_gains, *parameters)), get_num_threads()
    )


@njit(parallel=True, **FAST)
def forward_layers(x, states, out, first, weight, last, first_bias, bias, last_bias, scale, tiles):  # noqa: PLR0917
    """Each of ``tiles`` takes its rows of the batch through all layers."""
    depth, networks = weight.shape[:2]
    batch, inputs = x.shape
    for job in prange(networks * tiles):  # side by side
        k, part = job // tiles, job % tiles
        rows = slice(part * batch // tiles, (part + 1) * batch // tiles)
        w = first[k, :inputs] + first[k, inputs:]  # (I, C): what is sent twice is weighed once
        answer(x[rows], w, first_bias[k, 0], scale, states[0, k, rows], w)
        for d in range(depth):
            later = weight[min(d + 1, depth - 1), k]
            answer(
                states[d, k, rows],
                weight[d, k],
                bias[d, k, 0],
                scale,
                states[d + 1, k, rows],
                later,
            )
        answer(states[depth, k, rows], last[k], last_bias[k, 0], scale, out[k, rows], last[k])


@njit(**FAST)
def answer(x, w, bias, scale, y, later):
    """y = σ(x w + bias), (R, C); ``later``, the next weights, come into the cache meanwhile."""
    add_product(x, w, np.broadcast_to(bias, y.shape), y, later)
    for b in range(len(y)):
        for c in range(y.shape[1]):
            y[b, c] = fire(scale * y[b, c])


@njit(**FAST)
def fire(t):
    """1 / (1 + 2^t), in steps that the compiler turns into vector instructions.

    2^t = 2^n 2^f with n = round(t): adding 1.5 · 2^23 rounds, and leaves n in the last bits. 2^f is
    a short series; n is added to the bits of its exponent.
    """
    t = min(max(t, F(-126)), F(126))
    shifted = np.float32(t + SHIFT)
    f = t - (shifted - SHIFT)
    series = np.float32(P0 + f * (P1 + f * (P2 + f * (P3 + f * (P4 + f * P5)))))
    return F(1) / (
        F(1) + np.int32(series.view(np.int32) + shifted.view(np.int32) * 2**23).view(np.float32)
    )


@njit(parallel=True, **FAST)
def learn_layers(  # noqa: PLR0917
    x, states, out, gains, bias_gains, first, weight, last, first_bias, bias, last_bias, tiles
):
    """Each of ``tiles`` takes some inputs, and hidden layers that follow one another: less for its
    cache.
    """
    depth, networks, cells = weight.shape[:3]
    (batch, inputs), jobs = x.shape, depth * networks
    for tile in prange(tiles):
        sent, received = np.empty((batch, cells), np.float32), np.empty((batch, cells), np.float32)
        for job in range(tile * jobs // tiles, (tile + 1) * jobs // tiles):
            d, k = job // networks, job % networks
            x_y, own = (states[d, k], states[d + 1, k]), (weight[d, k], bias[d, k])
            learn_layer(
                *x_y, gains[k], bias_gains[k], *own, sent, received, states[min(d + 2, depth), k]
            )
        some = slice(tile * inputs // tiles, (tile + 1) * inputs // tiles)
        for k in range(networks):
            slope(states[0, k], received)
            for q in range(2):  # both types of sender send x
                for b in range(batch):
                    for c in range(cells):
                        sent[b, c] = gains[k, q, b] * received[b, c]
                w = first[k, q * inputs : (q + 1) * inputs][some]
                add_product(x[:, some].T, sent, w, w, sent)
            if tile == 0:
                add_product(bias_gains[k], received, first_bias[k], first_bias[k], received)
                few, own = np.empty(out.shape[1:], np.float32), (last[k], last_bias[k])
                learn_layer(states[depth, k], out[k], gains[k], bias_gains[k], *own, sent, few, few)


@njit(**FAST)
def learn_layer(x, y, gains, bias_gains, weight, bias, sent, received, later):  # noqa: PLR0917
    """One layer's update: x (B, I), y (B, O); sent and received, like them, are overwritten."""
    half = x.shape[1] // 2
    for b in range(len(x)):
        own, other = gains[0, b], gains[1, b]
        for i in range(half):
            sent[b, i] = own * x[b, i]
            sent[b, half + i] = other * x[b, half + i]
    slope(y, received)
    add_product(sent.T, received, weight, weight, later)
    add_product(bias_gains, received, bias, bias, received)


@njit(**FAST)
def slope(y, received):
    """received = ±y (1 − y), (B, O)."""
    half = y.shape[1] // 2
    for b in range(len(y)):
        for c in range(half):
            received[b, c] = y[b, c] * (F(1) - y[b, c])
            received[b, half + c] = y[b, half + c] * (y[b, half + c] - F(1))


@njit(**FAST)
def add_product(x, w, start, out, ahead):
    """out = start + x w, (R, C) + (R, K) (K, C): WIDE columns at once, then LANES; zeros fill up
    the last. ahead (K, C): see ``product``.
    """
    done, columns = 0, w.shape[1]
    if columns == WIDE:  # no views, since to make them takes as long as a small product
        return product(x, w, start, out, None, ahead)
    while done + LANES <= columns:
        few = slice(done, done + (WIDE if done + WIDE <= columns else LANES))
        product(x, w[:, few], start[:, few], out[:, few], None, ahead[:, few])
        done = few.stop
    left = columns - done
    if left:
        weights, sums = np.zeros((len(w), LANES), np.float32), np.zeros((len(x), LANES), np.float32)
        weights[:, :left], sums[:, :left] = w[:, done:], start[:, done:]
        product(x, weights, sums, sums)
        out[:, done:] = sums[:, :left]
