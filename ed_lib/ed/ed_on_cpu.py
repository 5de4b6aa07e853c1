"""ED's forward pass and update as compiled functions, for a CPU: what ``ed_on_gpu`` is for a GPU.
float32 only.

NumPy needs six calls for a layer, each with a start of its own and a walk through all its numbers.
Here Numba compiles the walk through all layers into one call. The sums of a product stay in
registers, see ``ed_lib.registers``, and what follows is one loop, in the core's cache. Numbers in
compiled code are wrapped so that they stay 32 bits wide. While it computes, subnormal numbers count
as zeros, see ``ed_lib.flush_to_zero``.

Letters: D hidden-to-hidden layers, K networks, B batch, I inputs, C cells of a layer, n biases of a
cell. Arrays are those of ``ed.layout``: x (B, I), states (D + 1, K, B, C), out (K, B, 2), gains
(K, 2, B), bias_gains (K, n, B).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import get_num_threads, prange

from ed_lib.arrays import Array
from ed_lib.compiled import cached, check_threads
from ed_lib.ed.layout import LAYERS
from ed_lib.flush_to_zero import without_subnormals
from ed_lib.registers import FAST, LANES, WIDE, product

F = np.float32
# samples in a tile: fewer make thin products, more leave the fastest cache
LEAST = 16
MOST = 64
SHIFT = F(1.5 * 2**23)
# 2^f for f in [−½, ½], to a relative error of 2e-7
EXP2 = np.polynomial.Chebyshev.interpolate(np.exp2, 5, [-0.5, 0.5]).convert(
    kind=np.polynomial.Polynomial
)
P0, P1, P2, P3, P4, P5 = map(F, EXP2.coef)


class Layers(NamedTuple):
    """The weights and biases of all layers."""

    first: Array  # (K, 2I, C)
    weight: Array  # (D, K, C, C)
    last: Array  # (K, C, 2)
    first_bias: Array  # (K, n, C)
    bias: Array  # (D, K, n, C)
    last_bias: Array  # (K, n, 2)


def forward_all(
    p: dict, biases: Sequence[Array], x: Array, states: Array, out: Array, u0: float
) -> None:
    """As ``layout.forward_all``. RuntimeError in a forked process, see ``check_threads``."""
    check_threads()
    # a thread takes at least LEAST samples, but no tile more than MOST
    fewest = -(-len(x) // MOST)
    tiles = max(1, min(get_num_threads(), len(x) // LEAST), fewest)
    scale = F(-2 / u0 / np.log(2))
    weights = [p[f"{layer}.weight"] for layer in LAYERS]
    # a tensor's memory, seen as NumPy's array, stays its own
    arrays = map(np.asarray, (states, out, *weights, *biases))
    forward_layers(np.ascontiguousarray(x), *arrays, scale, tiles)


def learn_all(
    p: dict, x: Array, states: Array, out: Array, gains: Array, bias_gains: Array
) -> None:
    """As ``layout.learn_all``, of all layers. RuntimeError as for ``forward_all``."""
    check_threads()
    weights = [p[f"{layer}.weight"] for layer in LAYERS]
    biases = [p[f"{layer}.bias"] for layer in LAYERS]
    # Numba compiles a function anew, for ten seconds, for each layout of its arguments in memory
    given = map(np.ascontiguousarray, (x, gains, bias_gains))
    x, gains, bias_gains = given
    arrays = map(np.asarray, (x, states, out, gains, bias_gains, *weights, *biases))
    learn_layers(*arrays, get_num_threads())


@cached(parallel=True, **FAST)
def forward_layers(x, states, out, first, weight, last, first_bias, bias, last_bias, scale, tiles):  # noqa: PLR0917
    """Each of ``tiles`` takes its rows of the batch through all layers."""
    networks = weight.shape[1]
    batch = len(x)
    # jobs go side by side on the threads, and none waits for another between layers
    for job in prange(networks * tiles):
        k = job // tiles
        part = job % tiles
        rows = slice(part * batch // tiles, (part + 1) * batch // tiles)
        layers = Layers(first, weight, last, first_bias, bias, last_bias)
        without_subnormals(forward_tile, (k, rows, x, states, out, layers, scale))


@cached(**FAST)
def forward_tile(k, rows, x, states, out, layers, scale):
    """Some rows of the batch through all layers of network k."""
    depth = len(layers.weight)
    inputs = x.shape[1]
    # (I, C): each input is sent twice, once by each type, so add its two weights
    w = layers.first[k, :inputs] + layers.first[k, inputs:]
    bias = layers.first_bias[k, 0]
    answer(x=x[rows], w=w, bias=bias, scale=scale, y=states[0, k, rows], later=w)
    for d in range(depth):
        later = layers.weight[min(d + 1, depth - 1), k]
        answer(
            x=states[d, k, rows],
            w=layers.weight[d, k],
            bias=layers.bias[d, k, 0],
            scale=scale,
            y=states[d + 1, k, rows],
            later=later,
        )
    w = layers.last[k]
    bias = layers.last_bias[k, 0]
    answer(x=states[depth, k, rows], w=w, bias=bias, scale=scale, y=out[k, rows], later=w)


@cached(**FAST)
def answer(x, w, bias, scale, y, later):
    """y = σ(x w + bias), (R, C); ``later``, the next weights, come into the cache meanwhile.

    scale: what makes of a sum the t of ``fire``.
    """
    add_product(x=x, w=w, start=np.broadcast_to(bias, y.shape), out=y, ahead=later)
    for b in range(len(y)):
        for c in range(y.shape[1]):
            y[b, c] = fire(scale * y[b, c])


@cached(**FAST)
def fire(t):
    """1 / (1 + 2^t), in steps that the compiler turns into vector instructions.

    2^t = 2^n 2^f with n = round(t): adding 1.5 · 2^23 rounds, and leaves n in the last bits. 2^f is
    a short series; n is added to the bits of its exponent.
    """
    # beyond, 2^t or its inverse would be no float32
    t = min(max(t, F(-126)), F(126))
    shifted = np.float32(t + SHIFT)
    f = t - (shifted - SHIFT)
    series = np.float32(P0 + f * (P1 + f * (P2 + f * (P3 + f * (P4 + f * P5)))))
    n_in_exponent = shifted.view(np.int32) * 2**23
    power = np.int32(series.view(np.int32) + n_in_exponent).view(np.float32)
    return F(1) / (F(1) + power)


@cached(parallel=True, **FAST)
def learn_layers(  # noqa: PLR0917
    x, states, out, gains, bias_gains, first, weight, last, first_bias, bias, last_bias, tiles
):
    """Each of ``tiles`` updates its part of the weights; none waits for another."""
    for tile in prange(tiles):
        layers = Layers(first, weight, last, first_bias, bias, last_bias)
        without_subnormals(learn_tile, (tile, tiles, x, states, out, gains, bias_gains, layers))


@cached(**FAST)
def learn_tile(tile, tiles, x, states, out, gains, bias_gains, layers):
    """The update of a tile: hidden layers that follow one another, so that what a layer answers,
    which the next one is sent, is read once; temporaries stay in its cache. And the weights from
    some inputs. The first tile has what is left, which is little.
    """
    weight = layers.weight
    layer_bias = layers.bias
    depth, networks, cells = weight.shape[:3]
    batch, inputs = x.shape
    # of one layer at a time
    sent = np.empty((batch, cells), np.float32)
    received = np.empty((batch, cells), np.float32)
    jobs = depth * networks
    for job in range(tile * jobs // tiles, (tile + 1) * jobs // tiles):
        # through the layers of a network, then of the next one
        k = job // depth
        d = job % depth
        learn_layer(
            x=states[d, k],
            y=states[d + 1, k],
            gains=gains[k],
            bias_gains=bias_gains[k],
            weight=weight[d, k],
            bias=layer_bias[d, k],
            sent=sent,
            received=received,
            later=states[min(d + 2, depth), k],
        )
    # the weights from an input are of no other tile, so none waits to add to them
    some = slice(tile * inputs // tiles, (tile + 1) * inputs // tiles)
    for k in range(networks):
        # the first layer's slopes, which its weights and its biases need
        slope(states[0, k], received)
        learn_inputs(x, received, gains[k], layers.first[k], some, sent)
        if tile == 0:
            bias = layers.first_bias[k]
            add_product(x=bias_gains[k], w=received, start=bias, out=bias, ahead=received)
            learn_output(k, states, out, gains, bias_gains, layers, sent)


@cached(**FAST)
def learn_inputs(x, received, gains, weight, some, sent):
    """The update of the weights from some inputs, a slice of I: x (B, I), received (B, C), gains
    (2, B), weight (2I, C). sent (B, C) is overwritten.
    """
    batch, inputs = x.shape
    # both types of sender send x, so what they are told goes with the receivers, who are fewer
    for q in range(2):
        for b in range(batch):
            for c in range(received.shape[1]):
                sent[b, c] = gains[q, b] * received[b, c]
        w = weight[q * inputs : (q + 1) * inputs][some]
        add_product(x=x[:, some].T, w=sent, start=w, out=w, ahead=sent)


@cached(**FAST)
def learn_output(k, states, out, gains, bias_gains, layers, sent):
    """The update of network k's output layer. sent (B, C) is overwritten."""
    received = np.empty(out.shape[1:], np.float32)
    learn_layer(
        x=states[-1, k],
        y=out[k],
        gains=gains[k],
        bias_gains=bias_gains[k],
        weight=layers.last[k],
        bias=layers.last_bias[k],
        sent=sent,
        received=received,
        later=received,
    )


@cached(**FAST)
def learn_layer(x, y, gains, bias_gains, weight, bias, sent, received, later):  # noqa: PLR0917
    """One layer's update: x (B, I) what its senders sent, y (B, O) what its receivers answered,
    gains (2, B), bias_gains (n, B), weight (I, O), bias (n, O). sent (B, I) and received (B, O) are
    overwritten. later (B, O): what the next call reads, which comes into the cache meanwhile.
    """
    half = x.shape[1] // 2
    for b in range(len(x)):
        # what the error is to senders of either type
        own = gains[0, b]
        other = gains[1, b]
        for i in range(half):
            sent[b, i] = own * x[b, i]
            sent[b, half + i] = other * x[b, half + i]
    slope(y, received)
    add_product(sent.T, received, weight, weight, later)
    add_product(bias_gains, received, bias, bias, received)


@cached(**FAST)
def slope(y, received):
    """received = ±y (1 − y), (B, O)."""
    half = y.shape[1] // 2
    for b in range(len(y)):
        for c in range(half):
            received[b, c] = y[b, c] * (F(1) - y[b, c])
            received[b, half + c] = y[b, half + c] * (y[b, half + c] - F(1))


@cached(**FAST)
def add_product(x, w, start, out, ahead):
    """out = start + x w, (R, C) + (R, K) (K, C): WIDE columns at once, then LANES; zeros fill up
    the last. ahead (K, C): see ``product``.
    """
    columns = w.shape[1]
    if columns == WIDE:
        # no views, since to make them takes as long as a small product
        return product(x, w, start, out, None, ahead)
    done = 0
    while done + LANES <= columns:
        taken = WIDE if done + WIDE <= columns else LANES
        here = slice(done, done + taken)
        product(x, w[:, here], start[:, here], out[:, here], None, ahead[:, here])
        done = here.stop
    # fewer than a vector: copies of its length
    left = columns - done
    if left:
        weights = np.zeros((len(w), LANES), np.float32)
        weights[:, :left] = w[:, done:]
        sums = np.zeros((len(x), LANES), np.float32)
        sums[:, :left] = start[:, done:]
        product(x, weights, sums, sums)
        out[:, done:] = sums[:, :left]
