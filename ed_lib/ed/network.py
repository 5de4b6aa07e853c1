"""A stack of cell pairs that learns from one broadcast error: Kaneko's network, batched, on any array
library.
"""

import math
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from ed_lib import arrays, check, machine
from ed_lib.arrays import Array
from ed_lib.ed import folded, on_gpu, paths, rules, sweeps

INITS = ("uniform", "half_normal", "fan_in")
BIASES = ("free", "cells")


class EDNetwork:
    """K independent ED networks of one shape, held in the same arrays.

    A layer has ``width`` pairs of cells, one excitatory (type 0) and one inhibitory (type 1). ``depth``
    counts the hidden-to-hidden layers, so there are depth + 2 layers of weights. Each output is a network of
    its own.

    rule: "kaneko" (every weight keeps its sign, and on inputs ≥ 0 none shrinks) or "signed" (both directions,
    signs unprotected). init, the law of the magnitudes: "uniform", U[0, 1); "half_normal", the magnitude of
    N(0, 1); "fan_in", the same divided by √senders. bias: "free", one number per cell; "cells", a pair of
    cells with the constant output 0.8 that sends to every layer. alpha: the step, the same in every layer.
    u0: the width of the sigmoid. seed: the same start on every backend. backend, device, dtype: see
    :func:`ed_lib.arrays.space`. path: how the hidden layers are computed, see
    :func:`ed_lib.ed.paths.choose`; "auto" takes the fastest that the machine has.

    Whatever cannot be done is refused before any weight changes, and a network or a batch that does not fit
    before it is allocated. On a GPU a bad *value* changes no weight either, but nothing waits to find it: the
    error comes with a later call, or with ``state_dict``.
    """

    def __init__(self, n_inputs: int, width: int, depth: int, n_outputs: int = 1, *, rule: str = "kaneko",
                 init: str = "uniform", bias: str = "free", alpha: float = 0.8, u0: float = 0.4,
                 seed: int = 0, device: str = "cpu", backend: str = "numpy", dtype: str = "float32",
                 path: str = "auto"):  # fmt: skip
        self.n_inputs = check.count("n_inputs", n_inputs)
        self.width = check.count("width", width)
        self.depth = check.count("depth", depth, least=0)
        self.n_outputs = check.count("n_outputs", n_outputs)
        check.choice("rule", rule, rules.RULES)
        check.choice("init", init, INITS)
        check.choice("bias", bias, BIASES)
        self.rule, self.bias = rule, bias
        self.alpha = check.positive("alpha", alpha)
        self.u0 = check.positive("u0", u0)
        seed = check.count("seed", seed, least=0)
        self.space = arrays.space(backend, device, dtype)  # of the arrays that come and go
        self.device = device
        self.path = paths.choose(path, self.space, self.width, self.depth)
        for where in {"cpu", device}:  # they are drawn in the host's memory
            self._check_memory("the weights", sum(map(math.prod, self._shapes().values())), where)
        self.inner = self.space  # of the arrays that are kept
        if on_gpu.possible(self.space):
            self.inner = arrays.space("torch", device, dtype)
        self.gpu: on_gpu.OnGPU | None = None  # runs the calls on a GPU
        self.parameters = self._draw(init, np.random.default_rng(seed))  # folded, see ed_lib.ed.folded
        # allocated for the batch size in use, see ``_prepare``
        self.states: Array = None  # (depth + 1, K, B, 2W)
        self._hidden_bias: Array = None  # (depth, K, 1, 2W), what the bias adds to the hidden layers' sums
        self._walk: Any = None  # computes states[1:] from states[0]
        self.activations: Any = None  # (x, out), set by forward, read by update

    def asarray(self, array: np.ndarray) -> Array:
        """A NumPy array in this network's library, device and dtype."""
        return self.space.asarray(array)

    def forward(self, x: Array) -> Array:
        """The outputs of all K networks: x (B, n_inputs) → (B, K), in (0, 1). Keeps the activations for
        ``update``; ``x`` and the outputs are among them, not copied, so write into neither before it.
        """
        x = self.space.check("x", x, ("B", self.n_inputs))
        if gpu := self._on_gpu(len(x)):
            return self.space.adopt(gpu.forward(arrays.as_torch(x)))
        with self.exclusive():
            return self.respond(x)

    def update(self, error: Array) -> None:
        """One ED step for every weight, from error = target − output (B, K) of the last ``forward``."""
        if self.activations is None:
            raise RuntimeError("update() needs the activations of a forward(x) before it; there was none")
        batch = len(self.activations[0])
        error = self.space.check("error", error, (batch, self.n_outputs))
        if gpu := self._on_gpu(batch):
            gpu.update(arrays.as_torch(error))
            return
        with self.exclusive():
            self.learn(error, self.alpha)

    def step(self, x: Array, target: Array) -> Array:
        """``forward``, ``update``: x (B, n_inputs), target (B, K) in [0, 1] → the outputs before the update,
        (B, K).
        """
        x = self.space.check("x", x, ("B", self.n_inputs))
        target = check_target(self, target, len(x))
        if gpu := self._on_gpu(len(x)):
            return self.space.adopt(gpu.step(arrays.as_torch(x), arrays.as_torch(target)))
        with self.exclusive():
            output = self.respond(x)
            self.learn(target - output, self.alpha)
        return output

    @property
    def swept(self) -> sweeps.Swept:
        """How the path "sweeps" found the last states: see :class:`ed_lib.ed.sweeps.Swept`."""
        return self._walk.swept

    def exclusive(self) -> AbstractContextManager:
        """The context in which ``respond`` and ``add_direction`` are to run."""
        return paths.alone(self.path, self.space)

    def state_dict(self) -> dict[str, np.ndarray]:
        """All parameters as NumPy arrays, copied.

        ``input.weight`` (K, 2, 2, n_inputs, W), ``hidden.weight`` (depth, K, 2, 2, W, W), ``output.weight``
        (K, 2, 2, W, 1): [k, p, q, i, o] is the weight from cell i of type q to cell o of type p. With free
        biases ``input.bias`` (K, 2, 1, W) and so on; with bias cells (K, 2, 2, 1, W), the weights from the
        two cells.
        """
        if self.gpu:
            self.gpu.settle()
        return {name: self._unfolded(name, arrays.to_numpy(array)) for name, array in self.parameters.items()}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Takes over parameters in the layout of ``state_dict``; all of them are checked before any is
        replaced.
        """
        if set(state) != set(self.parameters):
            raise ValueError(f"state has the keys {sorted(state)}; wanted {sorted(self.parameters)}")
        shapes, new = self._shapes(), {}
        for name in self.parameters:
            value = np.asarray(state[name])
            check.shape(f"state[{name!r}]", value.shape, shapes[name])
            value = self.inner.asarray(self._folded(name, value))
            new[name] = self.inner.check(f"state[{name!r}]", value, tuple(self.parameters[name].shape))
            if not bool(self.inner.library.isfinite(value).all()):
                raise ValueError(f"state[{name!r}] holds NaN or infinity; wanted finite numbers")
            if self.rule == "kaneko" and self._is_signed(name) and not folded.signs_hold(new[name]):
                wanted = "W[p, 0] ≥ 0 and W[p, 1] ≤ 0"
                raise ValueError(f"state[{name!r}] has weights of the wrong sign; wanted {wanted}")
        self.parameters, self.states, self.activations, self.gpu = new, None, None, None

    def __reduce__(self):
        """Copies and pickles carry options and weights, and no activations."""
        sizes = self.n_inputs, self.width, self.depth, self.n_outputs
        options = {name: getattr(self, name) for name in ("rule", "bias", "alpha", "u0", "device", "path")}
        options |= {"backend": self.space.backend, "dtype": arrays.dtype_name(self.space.dtype)}
        return restored, (sizes, options, self.state_dict())

    def signs_hold(self) -> bool:
        """True while every weight still has its sender's sign: W[p, 0] ≥ 0 and W[p, 1] ≤ 0."""
        return all(
            folded.signs_hold(array) for name, array in self.parameters.items() if self._is_signed(name)
        )

    @np.errstate(over="ignore")  # see folded.fire
    def respond(self, x: Array) -> Array:
        """``forward`` without its checks: x (B, I) → (B, K)."""
        p, u0 = self.parameters, self.u0
        self._prepare(len(x))
        folded.fire_input(x, p["input.weight"], self._bias_term("input"), u0, out=self.states[0])
        if self.bias == "cells":
            self._hidden_bias[...] = self._bias_term("hidden")
        self._walk()
        # the excitatory and the inhibitory cell; on a GPU always in the same place
        out = self._out if self.gpu else self.inner.empty(self._out.shape)
        folded.fire(self.states[-1], p["output.weight"], self._bias_term("output"), u0, out=out)
        self.activations = x, out
        return out[..., 0].T  # (K, B) → (B, K)

    def learn(self, error: Array, alpha: Array | float) -> None:
        """``update`` without its checks: error (B, K), on a GPU with α as an array of one."""
        self.add_direction(self.parameters, error, alpha)
        if self.inner.is_gpu or bool((self.activations[0] < 0).any()):  # else no weight shrinks
            self.keep_signs()

    def keep_signs(self) -> None:
        """Under "kaneko": puts weights that left their sign, on negative inputs, back to zero."""
        if self.rule == "kaneko":
            folded.stop_at_zero(self.parameters["input.weight"])

    def add_direction(self, p: dict[str, Array], error: Array, alpha: Array | float) -> None:
        """Adds α times the ED direction of the last ``forward`` to ``p``, arrays like the parameters.

        error (B, K); alpha: a number, or on a GPU an array of one.
        """
        states, (x, out) = self.states, self.activations
        step = alpha / len(x)
        if self.inner.is_gpu and self.path in ("kernel", "sweeps"):
            paths.kernels(self.inner).update_stack(p, x, states, out, error, step, self.rule)
        else:
            learn_hidden = partial(paths.learn_hidden, self.path, self.space)
            folded.add_direction(p, x, states, out, error * step, self.rule, self.bias, learn_hidden)

    def _on_gpu(self, batch):
        """What runs the calls with such a batch on a GPU; None elsewhere."""
        if not on_gpu.possible(self.space):
            return None
        if self.gpu is None or self.gpu.batch != batch:
            if self.gpu:
                self.gpu.settle()
            self.gpu = None  # frees its memory
            self._prepare(batch)
            self.gpu = on_gpu.OnGPU(self, batch)
        return self.gpu

    def _prepare(self, batch):
        """Arrays for a batch of this size, and the walk through the hidden layers, bound to them."""
        if self.states is not None and self.states.shape[2] == batch:
            return
        self.states = self.activations = None  # frees the old ones first
        shape = (self.depth + 1, self.n_outputs, batch, 2 * self.width)
        self._check_memory(f"the activations for a batch of {batch}", math.prod(shape), self.device)
        self.states = self.inner.empty(shape)
        self._out = self.inner.empty((self.n_outputs, batch, 2))  # the excitatory and the inhibitory cell
        self._hidden_bias = self._bias_term("hidden")
        weight = self.parameters["hidden.weight"]
        self._walk = paths.walk(self.path, self.inner, self.states, weight, self._hidden_bias, self.u0)

    def _bias_term(self, layer):
        """What the bias adds to the sums: (..., K, 1, C)."""
        return folded.bias_term(self.parameters[f"{layer}.bias"], self.bias)

    def _shapes(self):
        """The shapes in ``state_dict``."""
        k, w = self.n_outputs, self.width
        sizes = {"input": ((k,), self.n_inputs, w), "hidden": ((self.depth, k), w, w), "output": ((k,), w, 1)}
        senders = (2,) if self.bias == "free" else (2, 2)
        shapes = {}
        for layer, (lead, n_in, n_out) in sizes.items():
            shapes[f"{layer}.weight"] = (*lead, 2, 2, n_in, n_out)
            shapes[f"{layer}.bias"] = (*lead, *senders, 1, n_out)
        return shapes

    def _draw(self, init, rng):
        """Magnitudes by the law ``init`` times the sender's sign; biases likewise, free ones from ≥ 0."""
        draw = rng.random if init == "uniform" else lambda shape: np.abs(rng.standard_normal(shape))
        params = {}
        for name, shape in self._shapes().items():
            senders = 2 * (self.n_inputs if name.startswith("input") else self.width)
            scale = 1 / np.sqrt(senders) if init == "fan_in" else 1.0
            pair = np.array([scale, -scale]).reshape(2, 1, 1) if self._is_signed(name) else scale
            value = np.empty(self._folded_shape(name, shape), arrays.dtype_name(self.space.dtype))
            for n in range(len(value)):  # a layer or a network at a time, since what is drawn is float64
                value[n] = self._folded(name, pair * draw(shape[1:]))
            params[name] = self.inner.asarray(value)
        return params

    def _folded(self, name, value):
        return folded.fold(value[..., None, :, :] if self._is_free(name) else value)

    def _unfolded(self, name, value):
        return folded.unfold(value, types=1)[..., 0, :, :] if self._is_free(name) else folded.unfold(value)

    def _folded_shape(self, name, shape):
        *lead, n_in, n_out = shape  # (..., 2, 2, I, O), or (..., 2, 1, O) for free biases
        return (*lead[:-1], 1, 2 * n_out) if self._is_free(name) else (*lead[:-2], 2 * n_in, 2 * n_out)

    def _is_free(self, name):
        return name.endswith("bias") and self.bias == "free"

    def _is_signed(self, name):
        return not self._is_free(name)

    def _check_memory(self, what, elements, device):
        size = elements * np.dtype(arrays.dtype_name(self.space.dtype)).itemsize
        shape = f"EDNetwork({self.n_inputs}, {self.width}, {self.depth}, {self.n_outputs})"
        machine.check_memory(f"{what} of {shape}", size, device)


def restored(sizes: tuple[int, ...], options: dict[str, Any], state: dict[str, np.ndarray]) -> EDNetwork:
    """An EDNetwork of these sizes and options with the parameters ``state``."""
    net = EDNetwork(*sizes, **options)
    net.load_state_dict(state)
    return net


def check_target(net: Any, target: Array, batch: int) -> Array:
    """``target`` (batch, K) in the dtype of ``net``; TypeError or ValueError unless it lies in [0, 1]."""
    target = net.space.check("target", target, (batch, net.n_outputs))
    if not net.space.is_gpu and bool(((target < 0) | (target > 1)).any()):
        raise ValueError("target has values outside [0, 1]; wanted what an output in (0, 1) can approach")
    return target
