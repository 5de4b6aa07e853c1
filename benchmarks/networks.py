"""Two variants of the ED network that only records need: deep ones that do not collapse, and routed errors.

Deep: ED's inhibitory cells are turned round, z = −y in place of y. Then all weights between cells, M, are
≥ 0, and a cell, z' = σ(z M + b) − s with s = 0 or 1, grows with every z. So does z + f(z): with skips, and
with centred sums, the output still grows with every z of every layer.
"""

from contextlib import nullcontext

import numpy as np
import torch

from ed_lib.ed import EDNetwork, layout
from ed_lib.ed.rivals import Optimizer

MEMORY = 0.9  # of the means of the sums: what is left of them at each step


class ResidualNetwork:
    """One output on ``depth`` layers of ``width`` pairs of cells after the first, with Adam; n = 2 ``width``.

    start: "fan_in", EDNetwork's; "gain_one", so small that what is common to a layer's cells keeps its size;
    "permutation", likewise, nine tenths of it from one cell of the layer before. residual: a layer gives
    z + f(z) / √depth in place of f(z). centred: running means are subtracted from the sums. rule: "ed", the
    signed rule; "backprop", the gradient of ½ (target − output)². stack: whether the stack learns.
    """

    def __init__(self, n_inputs, width, depth, rule="ed", rate=1e-3, *, start="gain_one", residual=True,
                 centred=True, stack=True, steps=None, seed=0, u0=0.4, dtype="float32"):  # fmt: skip
        self.rule, self.residual, self.centred, self.stack, self.u0 = rule, residual, centred, stack, u0
        ed = EDNetwork(n_inputs, width, depth, init="fan_in", seed=seed, backend="torch", dtype=dtype)
        self.n_inputs, self.n_outputs, self.depth = n_inputs, 1, depth
        self.net, self.asarray = self, ed.asarray
        self.inhibitory = ed.asarray(np.repeat([0.0, 1.0], width))  # s, (n,)
        self.parameters = turned(ed.parameters, 1 - 2 * self.inhibitory)
        if start != "fan_in":
            of_gain_one(self.parameters, u0, 0.9 if start == "permutation" else 0.0, seed)
        self.means, self.first = [0.0] * (depth + 1), True  # first: no batch has set them yet
        self.share = depth**-0.5 if residual and depth else 1.0
        self.optimizer = Optimizer(self.parameters.values(), "adam", rate, steps, maximize=True, fused=True)

    def forward(self, x, learning=False):
        """x (B, n_inputs) → the output, (B, 1). Keeps each layer's y and z, (B, n). learning: moves means."""
        p, sigma = self.parameters, lambda v: torch.sigmoid(v * (2 / self.u0))
        y = sigma(x @ p["input.weight"] + p["input.bias"])  # (B, n)
        self.x, self.y, self.z = x, [y], [y - self.inhibitory]
        for n, (weight, bias) in enumerate(zip(p["hidden.weight"], p["hidden.bias"], strict=True)):
            y = sigma(self.centre(n, self.z[-1] @ weight, learning) + bias)
            answer = (y - self.inhibitory) * self.share
            self.y.append(y)
            self.z.append(self.z[-1] + answer if self.residual else answer)
        sums = self.centre(-1, self.z[-1] @ p["output.weight"], learning)
        self.first, self.output = self.first and not learning, sigma(sums + p["output.bias"])  # (B, 1)
        return self.output

    def centre(self, n, sums, learning):
        """Sums (B, n) without their means, which ``learning`` moves."""
        if not self.centred:
            return sums
        if learning:
            now = sums.mean(0)
            self.means[n] = now if self.first else MEMORY * self.means[n] + (1 - MEMORY) * now
        return sums - self.means[n]

    def coefficients(self, rule=None):
        """How fast the output's sum grows with each z, (B, n) for each layer; ED takes it for one."""
        if (rule or self.rule) == "ed":
            return [1.0] * (self.depth + 1)
        found = [self.parameters["output.weight"].T.expand(len(self.output), -1)]  # (B, n)
        for weight, y in zip(self.parameters["hidden.weight"].flip(0), self.y[:0:-1], strict=True):
            through = (found[0] * y * (1 - y) * (self.share * 2 / self.u0)) @ weight.T
            found.insert(0, found[0] + through if self.residual else through)
        return found

    def directions(self, target, rule=None):
        """(of the weights, of the biases) of each layer, to be climbed, but for constants: target (B, 1)."""
        error, found = (target - self.output) / len(target), []  # (B, 1)
        for given, y, c in zip([self.x, *self.z[:-1]], self.y, self.coefficients(rule), strict=True):
            told = error * c * y * (1 - y)  # (B, n)
            found.append((given.T @ told, told.sum(0)))
        told = error * self.output * (1 - self.output)  # (B, 1)
        return [*found, (self.z[-1].T @ told, told.sum(0))]

    def step(self, x, target):
        """One step: x (B, n_inputs), target (B, 1) in [0, 1] → the outputs before it."""
        output, p = self.forward(x, learning=True), self.parameters
        first, *hidden, last = self.directions(target)
        found = {"input": first, "output": last}
        if hidden and self.stack:
            found["hidden"] = map(torch.stack, zip(*hidden, strict=True))
        for name, direction in found.items():
            p[f"{name}.weight"].grad, p[f"{name}.bias"].grad = direction
        self.optimizer.step()
        for name in ("hidden.weight", "output.weight"):
            p[name].clamp_(min=0)
        return output


def turned(p, signs):
    """The folded parameters of an EDNetwork with one output as those of the network turned round: weights
    (n_inputs, n), (depth, n, n), (n, 1), biases (n,), (depth, n), (1,). signs (n,): the cells'.
    """
    return {
        "input.weight": p["input.weight"][0].unflatten(0, (2, -1)).sum(0) * signs,  # both types send x
        "hidden.weight": p["hidden.weight"][:, 0].abs(),
        "output.weight": p["output.weight"][0, :, :1].abs(),
        "input.bias": p["input.bias"][0, 0] * signs,
        "hidden.bias": p["hidden.bias"][:, 0, 0] * signs,
        "output.bias": p["output.bias"][0, 0, :1].clone(),
    }


def of_gain_one(p, u0, one, seed):
    """Makes the columns of weights sum to 2 u0, one over σ's slope in its middle; the share ``one`` of it is
    a single cell's, another for each, and the rest random.
    """
    rng = np.random.default_rng(seed)
    for name in ("hidden.weight", "output.weight"):
        weight = np.abs(rng.standard_normal(p[name].shape))
        p[name] = weight * (2 * u0 / weight.sum(-2, keepdims=True))
    for weight in p["hidden.weight"] if one else ():
        weight *= 1 - one
        weight[np.arange(len(weight)), rng.permutation(len(weight))] += one * 2 * u0
    for name in ("hidden.weight", "output.weight"):
        p[name] = torch.from_numpy(p[name]).to(p["input.weight"])


class RoutedNetwork:
    """One ED network for C = ``n_outputs`` classes, by the signed rule: a weight to hidden cell o learns from
    the error of class o mod C ("modulo routing"). Yamada and others, "Diffusing Blame" (arXiv 2606.31700).

    It starts as an EDNetwork does, each output with weights of its own. ``walls``: weights from a cell to the
    outputs of other classes start at zero. ``centred``: hidden layers take a class's error relative to its
    mean over the batch. To be trained by ``Learner``, by the method "ed". Its parameters are folded.
    """

    exclusive = nullcontext  # in which its products run

    def __init__(self, n_inputs, width, depth, n_outputs, *, u0=0.4, seed=0, walls=False, centred=False,
                 dtype="float32"):  # fmt: skip
        options = {"init": "fan_in", "seed": seed, "dtype": dtype, "backend": "torch"}
        shared = EDNetwork(n_inputs, width, depth, **options)
        last = EDNetwork(1, width, 0, n_outputs, **options)
        self.n_inputs, self.depth, self.n_outputs, self.space = n_inputs, depth, n_outputs, shared.space
        self.u0, self.centred, self.asarray = u0, centred, shared.asarray
        state = {name: p[:, 0] if "hidden" in name else p[0] for name, p in shared.parameters.items()}
        for name in ("output.weight", "output.bias"):  # (C, n, 2) → (n, 2C)
            state[name] = last.parameters[name].permute(1, 2, 0).flatten(1).contiguous()
        if walls:
            cells, classes = torch.arange(width).repeat(2) % n_outputs, torch.arange(n_outputs).repeat(2)
            state["output.weight"] *= cells[:, None] == classes
        self.parameters = state

    def keep_signs(self):
        """The signed rule protects none."""

    def forward(self, x):
        """The outputs: x (B, n_inputs) → (B, C). Keeps the activations for ``add_direction``."""
        self.sent = [x.repeat(1, 2)]  # (B, 2I), then (B, 2W) for each hidden layer
        for weight, bias in self.layers(self.parameters):
            self.sent.append(torch.sigmoid((self.sent[-1] @ weight + bias) * (2 / self.u0)))
        return self.sent[-1][:, : self.n_outputs]

    def add_direction(self, params, error, alpha):
        """Adds α times the ED direction of the last ``forward`` to ``params``: error (B, C)."""
        layers = list(zip(self.layers(params), self.sent[:-1], self.sent[1:], strict=True))
        for n, ((weight, bias), x, y) in enumerate(layers):
            centre = error.mean(0) if self.centred and n < len(layers) - 1 else 0
            d = (error - centre) * (alpha / len(error))  # (B, C)
            classes = torch.arange(y.shape[1] // 2).repeat(2) % self.n_outputs  # of each receiver, (2O,)
            received = d[:, classes] * layout.slope(y)  # (B, 2O)
            weight += x.T @ received
            bias += received.sum(0)

    def layers(self, params):
        """The (weight, bias) of each layer: (2I, 2O) and (1, 2O)."""
        hidden = zip(params["hidden.weight"], params["hidden.bias"], strict=True)
        first, last = ((params[f"{name}.weight"], params[f"{name}.bias"]) for name in ("input", "output"))
        return [first, *hidden, last]
