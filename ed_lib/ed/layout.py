"""ED's forward pass and update, as in ``rules``, on weights laid out for speed, into arrays that
exist.

Two things are folded. A layer's four blocks W[p, q] become one matrix, so that a layer is one
product. And the receiver's sign s_p is multiplied in once, when a weight is stored, and not at
every use. For K networks of D hidden-to-hidden layers, a batch of B, I senders and O receivers of a
layer, and C = 2W cells in a hidden one, the excitatory ones first, in arrays of NumPy, CuPy or
PyTorch:

    weight (..., 2I, 2O): rows (q, i), columns (p, o), holds s_p W[p, q]
    bias (..., n, 2O): columns (p, o), holds s_p b_p; n = 1 for free biases, 2 for two bias cells
    states (D + 1, K, B, C): what hidden layers answer; layer d reads [d] and writes [d + 1]

Where σ is flat, some products of an update are subnormal, too small for a float's usual form, and
some processors take a hundred cycles for one. The calls here compute as the calling thread is set:
see ``ed_lib.flush_to_zero``, which the compiled functions use.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from ed_lib.arrays import Array
from ed_lib.ed import rules
from ed_lib.ed.space import library

LAYERS = ("input", "hidden", "output")
# Elements of a temporary of ``learn`` on a CPU: 128 KiB of float32, to stay in a core's cache
GROUP = 2**15
SIGNS = np.array([[1], [-1]], dtype=np.int8)  # s_p, to go with (p, o)


def fold(weight: np.ndarray) -> np.ndarray:
    """From ``state_dict``'s layout, (..., 2, 2, I, O) as [p, q, i, o], to (..., 2I, 2O): a NumPy
    array.
    """
    *lead, _, types, n_in, n_out = weight.shape
    by_sender = np.moveaxis(weight, -4, -2)  # (..., q, i, p, o)
    signed = by_sender * SIGNS
    return signed.reshape(*lead, types * n_in, 2 * n_out)


def unfold(weight: np.ndarray, types: int = 2) -> np.ndarray:
    """The inverse of ``fold``: (..., 2I, 2O) → (..., 2, 2, I, O). Free biases have one type of
    sender, q.
    """
    *lead, rows, columns = weight.shape
    split = weight.reshape(*lead, types, rows // types, 2, columns // 2)  # (..., q, i, p, o)
    by_sender = split * SIGNS  # twice the sign is none
    return np.ascontiguousarray(np.moveaxis(by_sender, -2, -4))


def fire(x: Array, weight: Array, bias: Array, u0: float, out: Array) -> None:
    """One layer, out = σ(x @ weight + bias): x (K, B, I), weight (K, I, O), bias (K, 1, O), out (K,
    B, O).
    """
    lib = library(out)
    if lib.__name__ == "torch":
        # PyTorch has the product, the bias and the scale 2/u0 in one call.
        lib.baddbmm(bias, x, weight, beta=2 / u0, alpha=2 / u0, out=out)
        out.sigmoid_()
        return
    # Each call writes into ``out``, so that a step allocates nothing large.
    lib.matmul(x, weight, out=out)
    out += bias
    out *= -2 / u0
    # May overflow to infinity, which the next lines turn into the 0 that is meant.
    lib.exp(out, out=out)
    out += 1
    lib.reciprocal(out, out=out)


def fire_input(x: Array, weight: Array, bias: Array, u0: float, out: Array) -> None:
    """The input layer, whose two types of sender both send x (B, I): weight (K, 2I, O), out (K, B,
    O).
    """
    n_inputs = x.shape[-1]
    # What is sent twice is weighed once, (K, I, O), which halves the product.
    weight = weight[:, :n_inputs] + weight[:, n_inputs:]
    given = library(out).broadcast_to(x, (len(out), *x.shape))  # (K, B, I), no copy
    fire(given, weight, bias, u0, out)


def forward(states: Array, weight: Array, bias: Array, u0: float) -> None:
    """The hidden-to-hidden layers, one after another: fills states[1:] from states[0].

    states (D + 1, K, B, C), weight (D, K, C, C), bias (D, K, 1, C), the ``bias_term``.
    """
    for x, w, b, y in zip(states[:-1], weight, bias, states[1:], strict=True):
        fire(x, w, b, u0, out=y)


def update(weight: Array, bias: Array, states: Array, gains: Array, bias_gains: Array) -> None:
    """The ED update of the hidden-to-hidden layers, all at once, in place; as ``learn``.

    weight (D, K, C, C), bias (D, K, n, C), states (D + 1, K, B, C), gains (K, 2, B), bias_gains (K,
    n, B).
    """
    learn(weight, bias, states[:-1], states[1:], gains, bias_gains)


def bias_term(bias: Array, kind: str) -> Array:
    """What the bias adds to the sums: (..., n, C) → (..., 1, C). kind: "free", or "cells" that send
    0.8.
    """
    return bias if kind == "free" else rules.BIAS_CELL * bias.sum(-2, keepdims=True)


def learn(weight: Array, bias: Array, x: Array, y: Array, gains: Array, bias_gains: Array) -> None:
    """The ED update of N layers at once, in place. No layer waits for another.

    weight (N, K, I, O), bias (N, K, n, O), x (N, K, B, I) what the senders sent, y (N, K, B, O)
    what the receivers answered; gains (K, 2, B), what the error is to the senders of each type, and
    bias_gains (K, n, B), what it is to the bias, hold α/B already. One batched product for all
    layers of a group.
    """
    networks, batch, senders = x.shape[1:]
    # Each type of sender is told one number a sample; here it is repeated for every cell.
    by_type = gains.swapaxes(1, 2)[..., None]  # (K, B, 2, 1)
    repeated = library(gains).broadcast_to(by_type, (networks, batch, 2, senders // 2))
    of_cells = repeated.reshape(networks, batch, senders)
    for layers in groups(y):
        sent = x[layers] * of_cells  # (N, K, B, I), of the N layers of this group
        received = slope(y[layers])  # (N, K, B, O)
        # The product of (I, B) and (B, O) sums over the batch.
        add_product(weight[layers], sent.swapaxes(-1, -2), received)
        bias[layers] += bias_gains @ received  # (K, n, B) @ (N, K, B, O)


def groups(y: Array) -> list[slice]:
    """Slices of the layers of y (N, K, B, O) to be updated together: half of them on a GPU, so that
    two temporaries are no larger than the activations; on a CPU as many as stay in the cache.
    """
    size = (len(y) + 1) // 2
    if library(y).__name__ != "cupy":
        of_a_layer = math.prod(y.shape[1:])
        size = min(size, GROUP // of_a_layer)
    size = max(1, size)
    return [slice(start, start + size) for start in range(0, len(y), size)]


def learn_input(
    weight: Array, bias: Array, x: Array, y: Array, gains: Array, bias_gains: Array
) -> None:
    """The same for the input layer, whose two types of sender send the same: weight (K, 2I, O), x
    (B, I).
    """
    received = slope(y)  # (K, B, O)
    by_type = weight.reshape(len(weight), 2, -1, weight.shape[-1])  # (K, 2, I, O), a view
    for q in range(2):
        # The gain goes to what was received, since x, which has no K, is shared by all networks.
        told = received * gains[:, q, :, None]  # (K, B, O)
        by_type[:, q] += x.T @ told  # (I, B) @ (K, B, O)
    bias += bias_gains @ received


def forward_all(
    p: dict[str, Array],
    biases: Sequence[Array],
    x: Array,
    states: Array,
    out: Array,
    u0: float,
    forward: Callable = forward,
) -> None:
    """A network's forward pass: fills states (D + 1, K, B, C) and out (K, B, 2) from x (B, I).
    biases: the ``bias_term`` of each of LAYERS; forward: the hidden layers' pass.
    """
    fire_input(x, p["input.weight"], biases[0], u0, out=states[0])
    forward(states, p["hidden.weight"], biases[1], u0)
    fire(states[-1], p["output.weight"], biases[2], u0, out=out)


def learn_all(
    p: dict[str, Array],
    x: Array,
    states: Array,
    out: Array,
    gains: Array,
    bias_gains: Array,
    update: Callable = update,
) -> None:
    """The update of those layers that ``p`` holds, in place; update: that of the hidden ones."""
    if "input.weight" in p:
        learn_input(p["input.weight"], p["input.bias"], x, states[0], gains, bias_gains)
    update(p["hidden.weight"], p["hidden.bias"], states, gains, bias_gains)
    if "output.weight" in p:
        # As a stack of one layer.
        weight = p["output.weight"][None]
        bias = p["output.bias"][None]
        learn(weight, bias, states[-1:], out[None], gains, bias_gains)


def add_direction(
    p: dict[str, Array],
    x: Array,
    states: Array,
    out: Array,
    error: Array,
    rule: str,
    bias: str,
    learn_all: Callable = learn_all,
) -> None:
    """Adds the ED direction of one forward pass to those layers that the parameters ``p`` hold, in
    place.

    x (B, I), states (D + 1, K, B, C), out (K, B, 2), error (B, K) times α/B; bias: "free" or
    "cells".
    """
    gains = rules.gains(error, rule)[..., 0]  # what it is to the senders of each type, (K, 2, B)
    if bias == "cells":
        # Bias cells are senders, with a constant output: (K, 2, B)
        bias_gains = gains * rules.BIAS_CELL
    else:
        # Free biases take the error as it is: (K, 1, B)
        bias_gains = error.T[:, None]
    learn_all(p, x, states, out, gains, bias_gains)


def slope(y: Array) -> Array:
    """s_p f′(y) = ±y(1 − y): (..., 2O) → the same shape."""
    received = 1 - y
    received *= y
    received[..., y.shape[-1] // 2 :] *= -1  # s_p of the inhibitory receivers
    return received


def add_product(total: Array, a: Array, b: Array) -> None:
    """total += a @ b for stacks of matrices, (n, K, I, O) += (n, K, I, B) @ (n, K, B, O)."""
    if library(total).__name__ == "torch":
        # PyTorch adds a product without a temporary of the weights' size.
        total.flatten(0, 1).baddbmm_(a.flatten(0, 1), b.flatten(0, 1))
    else:
        total += a @ b


def signs_hold(weight: Array) -> bool:
    """True when all of (..., 2I, 2O) have their signs: ≥ 0 between cells of one type, ≤ 0 between
    types.
    """
    n_in, n_out = weight.shape[-2] // 2, weight.shape[-1] // 2
    excitatory = weight[..., :n_in, :]  # senders
    inhibitory = weight[..., n_in:, :]
    # The receiver's sign is folded in: what excites a cell of the other type has the sign −.
    hold = [
        excitatory[..., :n_out] >= 0,
        excitatory[..., n_out:] <= 0,
        inhibitory[..., :n_out] <= 0,
        inhibitory[..., n_out:] >= 0,
    ]
    return all(bool(block.all()) for block in hold)
