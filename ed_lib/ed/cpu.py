"""ED's forward pass and update as compiled functions, for a CPU: what ``gpu`` is for a GPU. float32 only.

NumPy needs six calls for a layer, each with a start of its own and a walk through all its numbers. Here
Numba compiles the walk through all layers into one call. The sums of a product stay in registers, see
``ed_lib.registers``, and what follows it is one loop, in the core's cache. Numbers in the compiled code are
wrapped so that they stay 32 bits wide. A tensor's memory, seen as NumPy's array, stays its own.
"""

import numpy as np
from numba import get_num_threads, njit, prange

from ed_lib.arrays import Array
from ed_lib.registers import FAST, LANES, WIDE, product

F = np.float32
LEAST, MOST = 16, 64  # samples in a tile: fewer make thin products, more leave the fastest cache
SHIFT = F(1.5 * 2**23)
# 2^f for f in [−½, ½], to a relative error of 2e-7
EXP2 = np.polynomial.Chebyshev.interpolate(np.exp2, 5, [-0.5, 0.5]).convert(kind=np.polynomial.Polynomial)
P0, P1, P2, P3, P4, P5 = map(F, EXP2.coef)


def fire_input(x: Array, weight: Array, bias: Array, u0: float, out: Array) -> None:
    """As ``layout.fire_input``."""
    fire_inputs(*map(np.asarray, (x, weight, bias, out)), F(-2 / u0 / np.log(2)))


def forward(states: Array, weight: Array, bias: Array, u0: float) -> None:
    """As ``layout.forward``."""
    batch = states.shape[2]
    tiles = max(1, min(get_num_threads(), batch // LEAST), -(-batch // MOST))
    forward_layers(*map(np.asarray, (states, weight, bias)), F(-2 / u0 / np.log(2)), tiles)


def learn_input(weight: Array, bias: Array, x: Array, y: Array, gains: Array, bias_gains: Array) -> None:
    """As ``layout.learn_input``."""
    learn_inputs(*map(np.asarray, (weight, bias, x, y, gains, bias_gains)))


def update(weight: Array, bias: Array, states: Array, gains: Array, bias_gains: Array) -> None:
    """As ``layout.update``."""
    update_layers(*map(np.asarray, (weight, bias, states, gains, bias_gains)), get_num_threads())


@njit(**FAST)
def fire_inputs(x, weight, bias, out, scale):
    """Both types of sender send x; what is sent twice is weighed once."""
    for k in range(len(out)):
        w = weight[k, : x.shape[1]] + weight[k, x.shape[1] :]  # (I, C)
        answer(x, w, bias[k, 0], scale, out[k], w)


@njit(parallel=True, **FAST)
def forward_layers(states, weight, bias, scale, tiles):
    """Fills states[1:]: each of ``tiles`` takes its rows of the batch through all layers."""
    depth, networks = weight.shape[:2]
    batch = states.shape[2]
    for job in prange(networks * tiles):  # side by side
        k, part = job // tiles, job % tiles
        rows = slice(part * batch // tiles, (part + 1) * batch // tiles)
        for d in range(depth):
            later = weight[min(d + 1, depth - 1), k]
            answer(states[d, k, rows], weight[d, k], bias[d, k, 0], scale, states[d + 1, k, rows], later)


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

    2^t = 2^n 2^f with n = round(t): adding 1.5 · 2^23 rounds, and leaves n in the last bits. 2^f is a short
    series; n is added to the bits of its exponent.
    """
    t = min(max(t, F(-126)), F(126))
    shifted = np.float32(t + SHIFT)
    f = t - (shifted - SHIFT)
    series = np.float32(P0 + f * (P1 + f * (P2 + f * (P3 + f * (P4 + f * P5)))))
    return F(1) / (F(1) + np.int32(series.view(np.int32) + shifted.view(np.int32) * 2**23).view(np.float32))


@njit(**FAST)
def learn_inputs(weight, bias, x, y, gains, bias_gains):
    """The update of the input layer, type of sender after type."""
    inputs, received = x.shape[1], np.empty(y.shape[1:], np.float32)
    for k in range(len(y)):
        slope(y[k], received)
        for q in range(2):
            told = received * np.expand_dims(gains[k, q % gains.shape[1]], 1)  # (B, C)
            w = weight[k, q * inputs : (q + 1) * inputs]
            add_product(x.T, told, w, w, told)
        add_product(bias_gains[k], received, bias[k], bias[k], received)


@njit(parallel=True, **FAST)
def update_layers(weight, bias, states, gains, bias_gains, tiles):
    """The update: each of ``tiles`` takes layers that follow one another, so that what a layer answers, which
    the next one is sent, is read once; temporaries stay in its cache.
    """
    depth, networks, cells = weight.shape[:3]
    batch, half, jobs = states.shape[2], cells // 2, depth * networks
    for tile in prange(tiles):
        sent, received = np.empty((batch, cells), np.float32), np.empty((batch, cells), np.float32)
        for job in range(tile * jobs // tiles, (tile + 1) * jobs // tiles):
            d, k = job // networks, job % networks
            x, later = states[d, k], states[min(d + 2, depth), k]  # (B, C)
            for b in range(batch):
                own, other = gains[k, 0, b], gains[k, 1, b]
                for c in range(half):
                    sent[b, c] = own * x[b, c]
                    sent[b, half + c] = other * x[b, half + c]
            slope(states[d + 1, k], received)
            add_product(sent.T, received, weight[d, k], weight[d, k], later)
            add_product(bias_gains[k], received, bias[d, k], bias[d, k], received)


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
    """out = start + x w, (R, C) + (R, K) (K, C): WIDE columns at once, then LANES; zeros fill up the last.
    ahead (K, C): see ``product``.
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
