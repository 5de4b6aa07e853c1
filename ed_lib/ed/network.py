"""A stack of cell pairs that learns from one broadcast error: Kaneko's network, batched, in any
library. Its weights are kept folded, see :mod:`ed_lib.ed.layout`: a layer is one matrix.
"""

import math
from typing import Any

import numpy as np

from ed_lib import check, machine
from ed_lib.arrays import Array
from ed_lib.ed import ed_on_gpu, layout, rules
from ed_lib.ed.layout import LAYERS
from ed_lib.ed.space import Space, space, to_numpy

INITS = ("uniform", "half_normal", "fan_in")
# On a CPU "auto" takes the kernel for networks that are deep, since compiling it takes seconds, and
# narrow, since the BLAS shares larger products among threads better than the kernel shares tiles.
DEEP, NARROW = 16, 64


class EDNetwork:
    """K independent ED networks of one shape, held in the same arrays.

    A layer has ``width`` pairs of cells, one excitatory (type 0) and one inhibitory (type 1).
    ``depth`` counts the hidden-to-hidden layers, of depth + 2 in all. Each output is a network of
    its own.

    rule: "kaneko" (inputs are ≥ 0, as what cells send; no weight shrinks) or "signed". init, the
    law of the magnitudes: "uniform", U[0, 1); "half_normal", that of N(0, 1); "fan_in", the same
    divided by √senders. bias: "free", one number per cell; "cells", a pair of cells with the
    constant output 0.8 that sends to every layer. alpha: the step. u0: the width of the sigmoid.
    seed: the same start on every backend. backend, device, dtype: see
    :func:`ed_lib.ed.space.space`. path, how the hidden layers are computed: "layers", a few calls
    of the library for each; "kernel", one compiled function for all of them (Numba's on a CPU,
    CUDA's for CuPy); "auto", one of the two.

    What cannot be done is refused before any weight changes. Values on a GPU are not looked at (it
    waits).
    """

    def __init__(
        self,
        n_inputs: int,
        width: int,
        depth: int,
        n_outputs: int = 1,
        *,
        rule: str = "kaneko",
        init: str = "uniform",
        bias: str = "free",
        alpha: float = 0.8,
        u0: float = 0.4,
        seed: int = 0,
        device: str = "cpu",
        backend: str = "numpy",
        dtype: str = "float32",
        path: str = "auto",
    ):
        self.n_inputs = check.count("n_inputs", n_inputs)
        self.width = check.count("width", width)
        self.depth = check.count("depth", depth, least=0)
        self.n_outputs = check.count("n_outputs", n_outputs)
        check.choice("rule", rule, rules.RULES)
        check.choice("init", init, INITS)
        check.choice("bias", bias, ("free", "cells"))
        self.rule = rule
        self.bias = bias
        self.alpha = check.positive("alpha", alpha)
        self.u0 = check.positive("u0", u0)
        random = np.random.default_rng(check.count("seed", seed, least=0))
        self.device = device
        self.space = space(backend, device, dtype)
        self.asarray = self.space.asarray
        if not self.space.holds(alpha):
            raise ValueError(f"alpha is {alpha}; wanted a finite number of {dtype}")
        if not self.space.holds(2 / u0):
            raise ValueError(f"u0 is {u0}; wanted 2 / u0 to be a finite number of {dtype}")
        self.path = choose(path, self.space, width, depth)
        self._check_memory("the weights", sum(map(math.prod, self._shapes().values())))
        # Folded, and the same arrays for as long as the network lives: others hold them too.
        self.parameters = self._draw(init, random)
        # (depth + 1, K, B, 2W), allocated for the batch size in use, since a step uses it again
        self.states: Array = None
        # (x, out), set by forward, read by update
        self.activations: Any = None

    @property
    def compute(self) -> Any:
        """The module whose ``forward_all`` and ``learn_all`` compute the layers."""
        if self.path == "layers":
            return layout
        if self.device == "cuda":
            return ed_on_gpu
        # Only here, since it imports Numba, which takes a second.
        from ed_lib.ed import ed_on_cpu

        return ed_on_cpu

    @np.errstate(over="ignore")  # see layout.fire
    def forward(self, x: Array) -> Array:
        """The outputs of all K networks: x (B, n_inputs) → (B, K), in (0, 1). Keeps the activations
        for ``update``; ``x`` and the outputs are among them, not copied, so write into neither
        before it.
        """
        x = check_input(self, x)
        if self.states is None or self.states.shape[2] != len(x):
            self._make_room(len(x))
        # The output's cells of both types, (K, B, 2): fresh, since the caller keeps what it gets.
        out = self.space.library.empty((self.n_outputs, len(x), 2), dtype=self.states.dtype)
        p = self.parameters
        biases = [layout.bias_term(p[f"{name}.bias"], self.bias) for name in LAYERS]
        self.compute.forward_all(p, biases, x, self.states, out, self.u0)
        self.activations = x, out
        return out[..., 0].T  # of the excitatory cells, (K, B) → (B, K)

    def _make_room(self, batch: int) -> None:
        """Allocates the activations for a batch of this size."""
        self.states = self.activations = None  # frees the old ones first
        shape = self.depth + 1, self.n_outputs, batch, 2 * self.width
        self._check_memory(f"the activations for a batch of {batch}", math.prod(shape))
        self.states = self.space.empty(shape)

    def update(self, error: Array) -> None:
        """One ED step for every weight, from error = target − output (B, K) of the last
        ``forward``.
        """
        if self.activations is None:
            raise RuntimeError(
                "update() needs the activations of a forward(x) before it; there was none"
            )
        error = self.space.check("error", error, (len(self.activations[0]), self.n_outputs))
        self.add_direction(self.parameters, error, self.alpha)

    def step(self, x: Array, target: Array) -> Array:
        """Both: x (B, n_inputs), target (B, K) in [0, 1] → the outputs before the update, (B,
        K).
        """
        target = check_target(self, target, len(x))
        output = self.forward(x)
        self.add_direction(self.parameters, target - output, self.alpha)
        return output

    def add_direction(self, p: dict[str, Array], error: Array, alpha: float) -> None:
        """Adds α times the ED direction of the last ``forward`` to ``p``, arrays like the
        parameters, whose values make no difference; error (B, K) is target − output.
        """
        x, out = self.activations
        # α and the mean over the batch go into the error, which is the smallest array of all.
        scaled = error * (alpha / len(error))
        learn_all = self.compute.learn_all
        layout.add_direction(p, x, self.states, out, scaled, self.rule, self.bias, learn_all)

    def state_dict(self) -> dict[str, np.ndarray]:
        """All parameters as NumPy arrays, copied.

        ``input.weight`` (K, 2, 2, n_inputs, W), ``hidden.weight`` (depth, K, 2, 2, W, W),
        ``output.weight`` (K, 2, 2, W, 1): [k, p, q, i, o] is the weight from cell i of type q to
        cell o of type p. With free biases ``input.bias`` (K, 2, 1, W) and so on; with bias cells
        (K, 2, 2, 1, W).
        """
        return {
            name: self._unfolded(name, to_numpy(value)) for name, value in self.parameters.items()
        }

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Takes over parameters in the layout of ``state_dict``; all are checked before any is
        replaced. They are written into the arrays that are there, so that who holds these, such as
        an optimizer, goes on with them.
        """
        if set(state) != set(self.parameters):
            raise ValueError(
                f"state has the keys {sorted(state)}; wanted {sorted(self.parameters)}"
            )
        new = {}
        for name, shape in self._shapes().items():
            what = f"state[{name!r}]"
            check.shape(what, np.shape(state[name]), shape)
            value = np.asarray(state[name])
            if not np.isrealobj(value):
                raise TypeError(f"{what} has the dtype {value.dtype}; wanted real numbers")
            value = self._folded(name, value)
            # Of this dtype, since 1e39 is finite in float64 and infinite in float32.
            if not self.space.holds(value):
                numbers = f"finite numbers of {self.space.precision}"
                raise ValueError(f"{what} holds NaN or infinity; wanted {numbers}")
            if self.rule == "kaneko" and not self._is_free(name) and not layout.signs_hold(value):
                raise ValueError(
                    f"{what} has weights of the wrong sign; wanted W[p, 0] ≥ 0 ≥ W[p, 1]"
                )
            new[name] = self.space.asarray(value)
        for name, value in new.items():
            self.parameters[name][...] = value
        # What the old parameters answered is of no use for an update of the new ones.
        self.states = self.activations = None

    def _shapes(self):
        """The shapes in ``state_dict``."""
        k, w = self.n_outputs, self.width
        types = (2,) if self.bias == "free" else (2, 2)  # of receivers; with cells of senders too
        sizes = {
            "input": ((k,), self.n_inputs, w),
            "hidden": ((self.depth, k), w, w),
            "output": ((k,), w, 1),
        }
        shapes = {}
        for layer, (lead, n_in, n_out) in sizes.items():
            shapes[f"{layer}.weight"] = (*lead, 2, 2, n_in, n_out)
            shapes[f"{layer}.bias"] = (*lead, *types, 1, n_out)
        return shapes

    def _draw(self, init, rng):
        """Magnitudes by the law ``init`` times the sender's sign; biases likewise, free ones from ≥
        0.
        """
        params = {}
        for name, shape in self._shapes().items():
            # Drawn in float64 by NumPy on every backend, so that a seed gives one start.
            magnitudes = rng.random(shape) if init == "uniform" else abs(rng.standard_normal(shape))
            senders = 2 * (self.n_inputs if name.startswith("input") else self.width)
            scale = 1 / np.sqrt(senders) if init == "fan_in" else 1.0
            if self._is_free(name):
                value = scale * magnitudes
            else:
                # The axis [q] of the senders' types stands before those of senders and receivers.
                value = np.array([scale, -scale]).reshape(2, 1, 1) * magnitudes
            params[name] = self.space.asarray(self._folded(name, value))
        return params

    def _folded(self, name, value):
        """From the layout of ``state_dict`` to that of ``parameters``."""
        if self._is_free(name):
            value = value[..., None, :, :]  # free biases have no axis of the senders' types
        return layout.fold(value)

    def _unfolded(self, name, value):
        """The inverse of ``_folded``."""
        if self._is_free(name):
            return layout.unfold(value, types=1)[..., 0, :, :]
        return layout.unfold(value)

    def _is_free(self, name):
        """Whether these are biases without a sender, which have no sign to keep."""
        return name.endswith("bias") and self.bias == "free"

    def _check_memory(self, what, elements):
        shape = self.n_inputs, self.width, self.depth, self.n_outputs
        size = elements * np.dtype(self.space.precision).itemsize
        machine.check_memory(f"{what} of EDNetwork{shape}", size, self.device)


def choose(path: str, space: Space, width: int, depth: int) -> str:
    """The path to take: ``path`` itself, ValueError if it is not possible, or for "auto" the faster
    one.
    """
    check.choice("path", path, ("auto", "layers", "kernel"))
    reason = obstacle(space, width)
    if path == "kernel" and reason:
        raise ValueError(f"path is 'kernel', which {reason}")
    if path != "auto":
        return path
    worth = space.device == "cuda" or (depth >= DEEP and width <= NARROW)
    return "kernel" if worth and not reason else "layers"


def obstacle(space: Space, width: int) -> str | None:
    """Why the path "kernel" is not possible for these arrays and layers of ``width`` pairs; None if
    it is.
    """
    if space.device == "cuda":
        most = ed_on_gpu.BLOCK // 2  # a thread for each cell of a layer
        return f"takes up to {most} pairs of cells, not {width}" if width > most else None
    if space.precision != "float32":
        return f"on a CPU needs float32, not {space.precision}"
    return None


def check_input(net: Any, x: Array) -> Array:
    """``x`` (B, n_inputs) in the dtype of ``net``; TypeError or ValueError unless its rule can take
    it.
    """
    x = net.space.check("x", x, ("B", net.n_inputs))
    if net.rule == "kaneko" and net.device == "cpu" and bool((x < 0).any()):
        raise ValueError(
            "x has values below 0; the rule 'kaneko' wants what cells send, at least 0"
        )
    return x


def check_target(net: Any, target: Array, batch: int) -> Array:
    """``target`` (batch, K) in the dtype of ``net``; TypeError or ValueError unless it lies in [0,
    1].
    """
    target = net.space.check("target", target, (batch, net.n_outputs))
    if net.device == "cpu" and bool(((target < 0) | (target > 1)).any()):
        raise ValueError(
            "target has values outside [0, 1]; wanted what an output in (0, 1) can approach"
        )
    return target
