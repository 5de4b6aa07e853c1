"""A stack of cell pairs that learns from one broadcast error: Kaneko's network, batched, on any array
library.
"""

import numpy as np

from ed_lib import arrays
from ed_lib.ed import rules

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
    :func:`ed_lib.arrays.space`.

    Errors: TypeError or ValueError for a bad argument, here and in every method, before any weight changes.
    """

    def __init__(self, n_inputs, width, depth, n_outputs=1, *, rule="kaneko", init="uniform", bias="free",
                 alpha=0.8, u0=0.4, seed=0, device="cpu", backend="numpy", dtype="float32"):  # fmt: skip
        self.n_inputs = arrays.check_count("n_inputs", n_inputs)
        self.width = arrays.check_count("width", width)
        self.depth = arrays.check_count("depth", depth, least=0)
        self.n_outputs = arrays.check_count("n_outputs", n_outputs)
        arrays.check_choice("rule", rule, rules.RULES)
        arrays.check_choice("init", init, INITS)
        arrays.check_choice("bias", bias, BIASES)
        self.rule, self.bias = rule, bias
        self.alpha = arrays.check_positive("alpha", alpha)
        self.u0 = arrays.check_positive("u0", u0)
        self.space = arrays.space(backend, device, dtype)
        self._params = self._draw(init, np.random.default_rng(arrays.check_count("seed", seed, least=0)))
        self._activations = None  # set by forward, read by update

    def asarray(self, array):
        """A NumPy array in this network's library, device and dtype."""
        return self.space.asarray(array)

    def forward(self, x):
        """The outputs of all K networks: x (B, n_inputs) → (B, K), in (0, 1). Keeps the activations for
        ``update``.
        """
        return self._forward(self.space.check("x", x, ("B", self.n_inputs)))

    def update(self, error):
        """One ED step for every weight, from error = target − output (B, K) of the last ``forward``."""
        if self._activations is None:
            raise RuntimeError("update() needs the activations of a forward(x) before it; there was none")
        senders, states, out = self._activations
        error = self.space.check("error", error, (senders.shape[-2], self.n_outputs))
        self._learn("input", senders, states[0, ...], error)
        if self.rule == "kaneko":
            self._stop_at_zero(senders)
        if self.depth:
            self._learn("hidden", states[:-1, ...], states[1:, ...], error)  # all hidden layers at once
        self._learn("output", states[-1, ...], out, error)

    def step(self, x, target):
        """``forward``, ``update``: x (B, n_inputs), target (B, K) in [0, 1] → the outputs before the update,
        (B, K).
        """
        x = self.space.check("x", x, ("B", self.n_inputs))
        target = self.space.check("target", target, (x.shape[0], self.n_outputs))
        if bool(self.space.xp.any((target < 0) | (target > 1))):
            raise ValueError("target has values outside [0, 1]; wanted what an output in (0, 1) can approach")
        output = self._forward(x)
        self.update(target - output)
        return output

    def state_dict(self):
        """All parameters as NumPy arrays, copied.

        ``input.weight`` (K, 2, 2, n_inputs, W), ``hidden.weight`` (depth, K, 2, 2, W, W), ``output.weight``
        (K, 2, 2, W, 1): [k, p, q, i, o] is the weight from cell i of type q to cell o of type p. With free
        biases ``input.bias`` (K, 2, 1, W) and so on; with bias cells (K, 2, 2, 1, W), the weights from the
        two cells.
        """
        return {name: arrays.to_numpy(array).copy() for name, array in self._params.items()}

    def load_state_dict(self, state):
        """Takes over parameters in the layout of ``state_dict``; all of them are checked before any is
        replaced.
        """
        if set(state) != set(self._params):
            raise ValueError(f"state has the keys {sorted(state)}; wanted {sorted(self._params)}")
        new = {}
        for name, old in self._params.items():
            value = np.asarray(state[name])
            arrays.check_shape(f"state[{name!r}]", value.shape, tuple(old.shape))
            new[name] = self.space.check(f"state[{name!r}]", self.space.asarray(value.copy()), old.shape)
            if self.rule == "kaneko" and self._is_signed(name) and not self._holds(new[name]):
                wanted = "W[p, 0] ≥ 0 and W[p, 1] ≤ 0"
                raise ValueError(f"state[{name!r}] has weights of the wrong sign; wanted {wanted}")
        self._params, self._activations = new, None

    def signs_hold(self):
        """True while every weight still has its sender's sign: W[p, 0] ≥ 0 and W[p, 1] ≤ 0."""
        return all(self._holds(array) for name, array in self._params.items() if self._is_signed(name))

    def _forward(self, x):
        xp, p = self.space.xp, self._params
        senders = xp.broadcast_to(x, (self.n_outputs, 2, *x.shape))  # both types: (K, 2, B, n_inputs)
        y = rules.layer(senders, p["input.weight"], self._bias_term("input"), self.u0)  # (K, 2, B, W)
        states, hidden_bias = [y], self._bias_term("hidden")
        for d in range(self.depth):
            y = rules.layer(y, p["hidden.weight"][d, ...], hidden_bias[d, ...], self.u0)
            states.append(y)
        out = rules.layer(y, p["output.weight"], self._bias_term("output"), self.u0)  # (K, 2, B, 1)
        self._activations = senders, xp.stack(states), out  # the middle one: (depth + 1, K, 2, B, W)
        return xp.permute_dims(out[:, 0, :, 0], (1, 0))  # the excitatory cell: (K, B) → (B, K)

    def _learn(self, layer, x, y, error):
        """Adds both updates of one layer, or of a stack of them: x (..., 2, B, I), y (..., 2, B, O)."""
        xp, p = self.space.xp, self._params
        p[f"{layer}.weight"] += rules.weight_update(x, y, error, self.alpha, self.rule)
        if self.bias == "free":
            p[f"{layer}.bias"] += rules.bias_update(y, error, self.alpha)
        else:  # one more sender of each type, constant over the batch
            x = xp.full_like(x[..., :1], rules.BIAS_CELL)  # (..., 2, B, 1)
            p[f"{layer}.bias"] += rules.weight_update(x, y, error, self.alpha, self.rule)

    def _stop_at_zero(self, senders):
        """Keeps the input weights' signs on negative data. On data ≥ 0 nothing crosses zero by itself."""
        xp, weight = self.space.xp, self._params["input.weight"]
        if bool(xp.any(senders < 0)):
            weight[:, :, 0, ...] = xp.clip(weight[:, :, 0, ...], min=0)
            weight[:, :, 1, ...] = xp.clip(weight[:, :, 1, ...], max=0)

    def _bias_term(self, layer):
        """What the bias adds before the sign: (..., K, 2, 1, O)."""
        bias = self._params[f"{layer}.bias"]
        return bias if self.bias == "free" else rules.BIAS_CELL * self.space.xp.sum(bias, axis=-3)

    def _draw(self, init, rng):
        """Magnitudes by the law ``init`` times the sender's sign; biases likewise, free ones from ≥ 0."""
        k, w = self.n_outputs, self.width
        sizes = {"input": ((k,), self.n_inputs, w), "hidden": ((self.depth, k), w, w), "output": ((k,), w, 1)}
        params = {}
        for layer, (lead, n_in, n_out) in sizes.items():
            scale = 1 / np.sqrt(2 * n_in) if init == "fan_in" else 1.0  # n_in senders of each type
            pair = np.array([1.0, -1.0]).reshape(2, 1, 1)  # the sender's sign, on axis q
            bias_shape, bias_sign = ((2, 1, n_out), 1.0) if self.bias == "free" else ((2, 2, 1, n_out), pair)
            for name, shape, sign in (("weight", (2, 2, n_in, n_out), pair), ("bias", bias_shape, bias_sign)):
                shape = (*lead, *shape)
                size = rng.random(shape) if init == "uniform" else np.abs(rng.standard_normal(shape))
                params[f"{layer}.{name}"] = self.space.asarray(sign * scale * size)
        return params

    def _is_signed(self, name):
        return name.endswith("weight") or self.bias == "cells"

    def _holds(self, weight):  # weight (..., 2, 2, I, O), q on the third axis from the end
        xp = self.space.xp
        return bool(xp.all(weight[..., 0, :, :] >= 0)) and bool(xp.all(weight[..., 1, :, :] <= 0))
