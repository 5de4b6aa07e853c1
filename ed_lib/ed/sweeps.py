"""The hidden layers all at once: Jacobi sweeps over the depth, until no layer's answer changes any more.

A sweep computes every layer from what the layer below answered in the sweep before: one batched product, in
which no layer waits. After k sweeps the first k layers are exact, whatever the network. Where layers forget
what reached them, as a deep ED network's do, one or two sweeps make all of them exact. (Song and others,
"Accelerating feedforward computation via parallel nonlinear equation solving", ICML 2021.)

It begins with a guess. The first layers are walked one by one. From there each sample takes the states of
that sample of the batch before which is nearest to it; in a network that follows one of a few orbits,
whatever it is shown, these are nearly right.

It ends when every layer's answer to what is stored below it is what is stored above it, to ``TOLERANCE``.
Where that takes too many sweeps, the layers are walked one by one after all. (That the states of another
sample satisfy the equations of all layers but the first proves nothing; the walk through the first layers is
this sample's own.)
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ed_lib import arrays
from ed_lib.arrays import Array
from ed_lib.ed import folded

WALKED = 16  # layers walked one by one
EFFORT = 10  # times as many layers may be computed in sweeps as there are, before the walk is taken
PAIRS = 5  # of sweeps on a GPU: with the first, eleven cost less than a walk through thousands of layers
TOLERANCE = 1e-6  # a rounding error or two of a state


class Swept(NamedTuple):
    """How the last states were found: by so many ``sweeps``, in which so many ``layers`` were computed in
    all; or, after them, by a ``walk`` through the layers that were not settled.
    """

    sweeps: int
    layers: int
    walk: bool


def settle(states: Array, weight: Array, bias: Array, u0: float, first: int = 0) -> tuple[Swept, int]:
    """Sweeps over the layers from ``first`` on, in place → how, and the lowest layer that is not settled (the
    number of layers, if all are). NumPy arrays: states (D + 1, K, B, C), which hold a guess; weight (D, K, C,
    C), bias (D, K, 1, C).

    An answer replaces the one stored only if it differs by more than ``TOLERANCE``; then the layer above it
    is to be computed again, and no other. So in the end each layer's answer to what is stored below it is
    within ``TOLERANCE`` of what is stored for it.
    """
    depth = len(weight)
    sweeps, computed, todo = 0, 0, np.arange(first, depth)
    most = folded.groups(states)[0].stop  # layers at a time, to stay in the cache
    while len(todo) and computed + len(todo) <= EFFORT * depth:
        moved = []
        for layers in reversed(list(neighbours(todo, most))):  # from the top: see below
            old = states[1:][layers]  # (n, K, B, C), a view
            new = np.empty_like(old)
            folded.fire(states[:-1][layers], weight[layers], bias[layers], u0, out=new)
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


class Sweeps:
    """Fills states[1:] from states[0], as :func:`ed_lib.ed.folded.hidden_layers`; bound to these arrays.

    states (D + 1, K, B, C), weight (D, K, C, C), bias (D, K, 1, C), u0: as there. On a GPU nothing waits, so
    that a CUDA graph can record a call: all sweeps are launched, over all layers, and those that are not
    needed return at once, as does the walk.
    """

    def __init__(self, states: Array, weight: Array, bias: Array, u0: float):
        self.states, self.weight, self.bias, self.u0 = states, weight, bias, u0
        self.on_gpu = arrays.on_gpu(states)
        self.first = min(WALKED, len(weight))
        if not self.on_gpu:  # a tensor's memory stays its own
            self.states, self.weight, self.bias = map(np.asarray, (states, weight, bias))
            self.last = Swept(0, 0, True)
        else:
            self.changes: Array = states.new_zeros(PAIRS + 1, dtype=states.dtype).float()
            self.start = self.changes.clone()
            self.start[0] = float("inf")  # before the first pair nothing is known
        self.states[...] = 0.5  # any guess will do: it is verified
        self.other = self.states + 0 if self.on_gpu else None  # sweeps there go to and fro between the two

    def __call__(self) -> None:
        before = self.states[self.first] + 0  # (K, B, C): where the samples of the batch before were
        self.walk(0, self.first)
        if self.first == len(self.weight):
            return
        if self.on_gpu:
            self.guess(before, self.other)
            self.launch()
            return
        self.guess(before, self.states)
        self.last, unsettled = settle(self.states, self.weight, self.bias, self.u0, self.first)
        self.walk(unsettled, len(self.weight))

    @property
    def swept(self) -> Swept:
        """A :class:`Swept` of the last call. Waits for the device."""
        if not self.on_gpu or self.first == len(self.weight):
            return Swept(0, 0, True) if self.first == len(self.weight) else self.last
        changes = arrays.to_numpy(self.changes)
        sweeps = 2 * int((changes[:-1] > TOLERANCE).sum()) + 1  # pairs begun, and one: changes[0] is infinite
        return Swept(sweeps, sweeps * (len(self.weight) - self.first), bool(changes[-1] > TOLERANCE))

    def guess(self, before: Array, into: Array) -> None:
        """Puts the own states up to layer ``first``, and above it those of the nearest sample of the batch
        before, into ``into``, which may be the states: before (K, B, C).
        """
        lib, here = arrays.library(before), self.states[self.first]  # (K, B, C)
        # |here − before|² less what is the same for all: (K, B, C) (K, C, B) → (K, B, B)
        distance = (before**2).sum(-1)[:, None, :] - 2 * (here @ before.swapaxes(1, 2))
        nearest = distance.argmin(-1)  # (K, B)
        theirs, mine = self.states[self.first + 1 :], into[self.first + 1 :]  # (D − 16, K, B, C)
        if self.on_gpu:
            into[: self.first + 1] = self.states[: self.first + 1]
            nearest = lib.broadcast_to(nearest[None, :, :, None], theirs.shape)
            lib.gather(theirs, 2, nearest, out=mine)
        else:
            for k, rows in enumerate(nearest):
                mine[:, k] = theirs[:, k, rows]

    def launch(self) -> None:
        """All sweeps on a GPU, in pairs, over all layers, and the walk: each does nothing where a pair before
        it has changed no state by more than ``TOLERANCE``.
        """
        from ed_lib.ed import kernels

        def sweep(old, new, pair, last):  # the last of a pair notes how much it has changed
            stack = self.weight, self.bias, self.u0
            kernels.sweep(old, new, *stack, self.changes, pair, TOLERANCE, self.first, last)

        self.changes.copy_(self.start)
        sweep(self.other, self.states, 1, last=False)
        for pair in range(1, PAIRS + 1):
            sweep(self.states, self.other, pair, last=False)
            sweep(self.other, self.states, pair, last=True)
        unless = self.changes[-1], TOLERANCE
        kernels.forward(self.states, self.weight, self.bias, self.u0, unless=unless)

    def walk(self, start: int, stop: int) -> None:
        """These layers one by one."""
        states, layers = self.states[start : stop + 1], slice(start, stop)
        if self.on_gpu:
            from ed_lib.ed import kernels

            kernels.forward(states, self.weight[layers], self.bias[layers], self.u0)
        else:
            folded.hidden_layers(states, self.weight[layers], self.bias[layers], self.u0)
