"""The hidden layers all at once: Jacobi sweeps over the depth, until no layer's answer changes any more.

A sweep computes every layer from what the layer below answered in the sweep before: one batched product, in
which no layer waits. After k sweeps the first k layers are exact, whatever the network. Where layers forget
what reached them, as a deep ED network's do, a few sweeps make all of them exact. (Song and others,
"Accelerating feedforward computation via parallel nonlinear equation solving", ICML 2021.)

It begins with a guess. The first layers are walked one by one. From there each sample takes the states of
that sample of the batch before which is nearest to it; in a network that follows one of a few orbits,
whatever it is shown, these are nearly right.

It ends when a sweep has changed no state by more than ``TOLERANCE``: then each layer's answer was computed
from inputs that differ from those now stored by no more. Where that does not come within ``PAIRS`` pairs of
sweeps, the layers are walked one by one after all. (That the states of another sample satisfy the equations
of all layers but the first proves nothing; the walk through the first layers is this sample's own.)
"""

from typing import NamedTuple

import numpy as np

from ed_lib import arrays
from ed_lib.arrays import Array
from ed_lib.ed import folded

WALKED = 16  # layers walked one by one
PAIRS = 5  # of sweeps: with the first, eleven cost less than a walk through thousands of layers
TOLERANCE = 1e-6  # a rounding error or two of a state


class Swept(NamedTuple):
    """How the last states were found: by so many ``sweeps``, of which the last changed a state by ``change``
    at the most; or, after them, by a ``walk`` through all layers.
    """

    sweeps: int
    change: float
    walk: bool


class Sweeps:
    """Fills states[1:] from states[0], as :func:`ed_lib.ed.folded.hidden_layers`; bound to these arrays.

    states (D + 1, K, B, C), weight (D, K, C, C), bias (D, K, 1, C), u0: as there. On a GPU nothing waits, so
    that a CUDA graph can record a call: all sweeps are launched, and those that are not needed return at
    once, as does the walk.
    """

    def __init__(self, states: Array, weight: Array, bias: Array, u0: float):
        self.states, self.weight, self.bias, self.u0 = states, weight, bias, u0
        self.changes: Array
        self.on_gpu = arrays.on_gpu(states)
        self.first = min(WALKED, len(weight))
        if not self.on_gpu:  # a tensor's memory stays its own
            self.states, self.weight, self.bias = map(np.asarray, (states, weight, bias))
            self.changes = np.zeros(PAIRS + 1, np.float32)
        else:
            self.changes = states.new_zeros(PAIRS + 1, dtype=states.dtype).float()
            self.start = self.changes.clone()
            self.start[0] = float("inf")  # before the first pair nothing is known
        self.states[...] = 0.5  # any guess will do: it is verified
        self.other = self.states + 0  # sweeps go to and fro between the two

    def __call__(self) -> None:
        states, first = self.states, self.first
        before = states[first] + 0  # (K, B, C): where the samples of the batch before were
        self.walk(slice(first))
        if first == len(self.weight):
            return
        self.guess(before)
        self.reset()
        self.sweep(self.other, states, 1, last=False)
        for pair in range(1, PAIRS + 1):
            self.sweep(states, self.other, pair, last=False)
            self.sweep(self.other, states, pair, last=True)
            if not self.on_gpu and self.changes[pair] <= TOLERANCE:
                return
        self.walk(slice(len(self.weight)), unless=True)

    @property
    def swept(self) -> Swept:
        """A :class:`Swept` of the last call. Waits for the device."""
        if self.first == len(self.weight):
            return Swept(0, 0.0, True)
        changes = arrays.to_numpy(self.changes)
        made = 1 + int((changes[:-1] > TOLERANCE).sum())  # pairs begun, and one: changes[0] is infinite
        return Swept(2 * made - 1, float(changes[made - 1]), bool(changes[-1] > TOLERANCE))

    def guess(self, before: Array) -> None:
        """Puts into ``other`` the own states up to layer ``first``, and above it those of the nearest sample
        of the batch before: before (K, B, C).
        """
        lib, here = arrays.library(before), self.states[self.first]  # (K, B, C)
        # |here − before|² less what is the same for all: (K, B, C) (K, C, B) → (K, B, B)
        distance = (before**2).sum(-1)[:, None, :] - 2 * (here @ before.swapaxes(1, 2))
        nearest = distance.argmin(-1)  # (K, B)
        self.other[: self.first + 1] = self.states[: self.first + 1]
        theirs, mine = self.states[self.first + 1 :], self.other[self.first + 1 :]  # (D − 16, K, B, C)
        nearest = lib.broadcast_to(nearest[None, :, :, None], theirs.shape)
        if self.on_gpu:
            lib.gather(theirs, 2, nearest, out=mine)
        else:
            mine[...] = np.take_along_axis(theirs, nearest, 2)

    def reset(self) -> None:
        """Before the first pair of sweeps nothing is known of how much they change."""
        if self.on_gpu:
            self.changes.copy_(self.start)
        else:
            self.changes[0], self.changes[1:] = np.inf, 0

    def sweep(self, old: Array, new: Array, pair: int, last: bool) -> None:
        """One sweep; the ``last`` of a pair notes how much it has changed."""
        if self.on_gpu:
            from ed_lib.ed import kernels

            stack = self.weight, self.bias, self.u0
            kernels.sweep(old, new, *stack, self.changes, pair, TOLERANCE, self.first, last)
            return
        answers = new[self.first + 1 :]  # (D − 16, K, B, C)
        above = slice(self.first, None)
        folded.fire(old[self.first : -1], self.weight[above], self.bias[above], self.u0, out=answers)
        if last:
            self.changes[pair] = np.abs(answers - old[self.first + 1 :]).max()

    def walk(self, layers: slice, unless: bool = False) -> None:
        """These layers one by one; ``unless`` the last pair of sweeps, done or left out, changed nothing."""
        weight, bias = self.weight[layers], self.bias[layers]
        states = self.states[: len(weight) + 1]
        if self.on_gpu:
            from ed_lib.ed import kernels

            condition = (self.changes[-1], TOLERANCE) if unless else None
            kernels.forward(states, weight, bias, self.u0, unless=condition)
        else:
            folded.hidden_layers(states, weight, bias, self.u0)
