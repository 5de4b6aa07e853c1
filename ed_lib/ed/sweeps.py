"""The hidden layers all at once: Jacobi sweeps over the depth, until no layer's answer changes any more.

A sweep computes every layer from what the layer below answered in the sweep before: one batched product, in
which no layer waits. After k sweeps the first k layers are exact, whatever the network. Where layers forget
what reached them, as a deep ED network's do, one or two sweeps make all of them exact. (Song and others,
"Accelerating feedforward computation via parallel nonlinear equation solving", ICML 2021.)

It begins with a guess. The first layers are computed one by one. From there each sample takes the states of
that sample of the batch before which is nearest to it; in a network that follows one of a few orbits,
whatever it is shown, these are nearly right.

It ends when every layer's answer to what is stored below it is what is stored above it, to ``TOLERANCE``.
Where that takes too many sweeps, the layers are computed one by one after all. (That the states of another
sample satisfy the equations of all layers but the first proves nothing; the first layers are this sample's
own.) On a CPU only.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ed_lib.arrays import Array
from ed_lib.ed import layout

WALKED = 16  # layers computed one by one
EFFORT = 10  # times as many layers may be computed in sweeps as there are, before the rest goes one by one
TOLERANCE = 1e-6  # a rounding error or two of a state


class Swept(NamedTuple):
    """How the last states were found: by so many ``sweeps``, in which so many ``layers`` were computed in
    all; or, after them, by a ``walk`` through the layers that were not settled.
    """

    sweeps: int
    layers: int
    walk: bool


def forward(states: Array, weight: Array, bias: Array, u0: float) -> Swept:
    """Fills states[1:] from states[0], as :func:`ed_lib.ed.layout.forward` → how it was done.

    states (D + 1, K, B, C) hold those of the batch before, or anything; weight (D, K, C, C), bias (D, K, 1,
    C): NumPy arrays, or tensors on the CPU.
    """
    states, weight, bias = map(np.asarray, (states, weight, bias))  # a tensor's memory stays its own
    depth, first = len(weight), min(WALKED, len(weight))
    before = states[first].copy()  # (K, B, C)
    layout.forward(states[: first + 1], weight[:first], bias[:first], u0)
    if first == depth:
        return Swept(0, 0, True)
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

    An answer replaces the one stored only if it differs by more than ``TOLERANCE``; then the layer above it
    is to be computed again, and no other. So in the end each layer's answer to what is stored below it is
    within ``TOLERANCE`` of what is stored for it.
    """
    depth = len(weight)
    sweeps, computed, todo = 0, 0, np.arange(first, depth)
    most = layout.groups(states)[0].stop  # layers at a time, to stay in the cache
    while len(todo) and computed + len(todo) <= EFFORT * depth:
        moved = []
        for layers in reversed(list(neighbours(todo, most))):  # from the top: see below
            old = states[1:][layers]  # (n, K, B, C), a view
            new = np.empty_like(old)
            layout.fire(states[:-1][layers], weight[layers], bias[layers], u0, out=new)
            differ = np.abs(new - old).max((1, 2, 3)) > TOLERANCE  # (n,)
            old[differ] = new[differ]  # what the group below reads has not changed
            moved.append(layers.start + np.flatnonzero(differ))
        sweeps, computed = sweeps + 1, computed + len(todo)
        todo = np.sort(np.concatenate(moved)) + 1
        todo = todo[todo < depth]
    return Swept(sweeps, computed, bool(len(todo))), int(todo[0]) if len(todo) else depth


def neighbours(layers: np.ndarray, most: int) -> Iterator[slice]:
    """Ascending numbers of layers as slices, of at most so many each."""
    for run in np.split(layers, np.flatnonzero(np.diff(layers) > 1) + 1):
        for start in range(run[0], run[-1] + 1, most):
            yield slice(start, min(start + most, run[-1] + 1))
