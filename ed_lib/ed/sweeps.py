"""The hidden layers all at once: Jacobi sweeps over the depth, until no layer's answer changes any more.

A sweep computes every layer from what the layer below answered in the sweep before: one batched product, in
which no layer waits. After k sweeps the first k layers are exact, whatever the network. Where layers forget
what reached them, as a deep ED network's do, one or two sweeps settle all. (Song and others, "Accelerating
feedforward computation via parallel nonlinear equation solving", ICML 2021.) On a CPU only.

It begins with a guess: the first layers are computed one by one; then each sample takes the states of that
sample of the batch before which is nearest. What takes too many sweeps is computed one by one after all.

**What it promises** is a residual: each layer's answer to what is stored below it is within ``TOLERANCE`` of
what is stored. It promises no error: of layers that forget, each takes most of that away again; a network
that amplifies can make of a difference of 1e-6, dropped in one layer, any difference at the top.
"""

from typing import NamedTuple

import numpy as np

from ed_lib.arrays import Array
from ed_lib.ed import layout

update = layout.update
WALKED = 16  # layers computed one by one
EFFORT = 10  # times as many layers may be computed in sweeps as there are
TOLERANCE = 1e-6  # a rounding error or two of a state


class Swept(NamedTuple):
    """How the last states were found: by so many ``sweeps``, in which so many ``layers`` were computed in
    all; after them by a ``walk`` through what was not settled. ``residual``: the largest difference left.
    """

    sweeps: int
    layers: int
    walk: bool
    residual: float = 0.0


def forward(states: Array, weight: Array, bias: Array, u0: float) -> Swept:
    """Fills states[1:] from states[0], as :func:`ed_lib.ed.layout.forward` → how it was done.

    states (D + 1, K, B, C) hold those of the batch before; weight (D, K, C, C), bias (D, K, 1, C).
    """
    states, weight, bias = map(np.asarray, (states, weight, bias))  # a tensor's memory stays its own
    first = min(WALKED, len(weight))
    before = states[first].copy()  # (K, B, C)
    layout.forward(states[: first + 1], weight[:first], bias[:first], u0)
    # |here − before|² less what is the same for all: (K, B, C) (K, C, B) → (K, B, B)
    distance = (before**2).sum(-1)[:, None, :] - 2 * (states[first] @ before.swapaxes(1, 2))
    for k, nearest in enumerate(distance.argmin(-1)):  # (B,)
        states[first + 1 :, k] = states[first + 1 :, k][:, nearest]
    swept, unsettled = settle(states, weight, bias, u0, first)
    layout.forward(states[unsettled:], weight[unsettled:], bias[unsettled:], u0)
    return swept


def settle(states: Array, weight: Array, bias: Array, u0: float, first: int = 0) -> tuple[Swept, int]:
    """Sweeps over the layers from ``first`` on, in place → how, and the lowest layer that is not settled (the
    number of layers, if all are). Arrays as in ``forward``; the states hold a guess.
    """
    depth, sweeps, computed = len(weight), 0, 0
    todo, left = np.arange(first, depth), np.zeros(depth)
    while len(todo) and computed + len(todo) <= EFFORT * depth:
        layers = slice(todo[0], todo[-1] + 1) if len(todo) == todo[-1] + 1 - todo[0] else todo  # no copy
        old, new = states[1:][layers], np.empty((len(todo), *states.shape[1:]), states.dtype)  # (n, K, B, C)
        layout.fire(states[:-1][layers], weight[layers], bias[layers], u0, out=new)
        left[todo] = np.abs(new - old).max((1, 2, 3))
        moved = left[todo] > TOLERANCE  # (n,)
        states[1:][todo[moved]], left[todo[moved]] = new[moved], 0
        sweeps, computed = sweeps + 1, computed + len(todo)
        todo = todo[moved] + 1  # the layers above those that changed, and no others
        todo = todo[todo < depth]
    unsettled = int(todo[0]) if len(todo) else depth
    residual, walk = float(left[:unsettled].max(initial=0)), unsettled < depth or not sweeps
    return Swept(sweeps, computed, walk, residual), unsettled
