"""Deep ED networks that do not collapse: other starts, skip connections, centred sums; all signs still known.

ED's network with its inhibitory cells turned round, z = −y in place of y: then all weights between cells, M,
are ≥ 0, the sizes of W, and a cell, z' = σ(z M + b) − s with s = 0 or 1, grows with every z. So does
z + f(z): with a skip connection ED's argument stands, that the output grows with every z of every layer.
Subtracting a number that does not depend on the sample changes no slope, so centred sums leave it standing.
"""

import numpy as np
import torch

from ed_lib import arrays, check
from ed_lib.ed.network import EDNetwork

RULES = ("ed", "backprop")
STARTS = ("fan_in", "gain_one", "permutation")
MEMORY = 0.9  # of the means of the sums: what is left of them at each step


class ResidualNetwork:
    """One output on ``depth`` layers of ``width`` pairs of cells after the first, with Adam; n = 2 ``width``.

    start: "fan_in", that of EDNetwork; "gain_one", so small that what is common to a layer's cells keeps its
    size; "permutation", likewise, nine tenths of it from one cell of the layer before.
    residual: a layer gives z + f(z) / √depth in place of f(z). centred: of a layer's sums, and the output's,
    their running means over the samples are subtracted. rule: "ed", the direction of the signed rule;
    "backprop", the gradient of ½ (target − output)². stack: whether the hidden-to-hidden layers learn. rate,
    steps: as :class:`ed_lib.ed.learner.Learner`'s.
    """

    def __init__(
        self, n_inputs: int, width: int, depth: int, rule: str = "ed", rate: float = 1e-3, *,
        start: str = "gain_one", residual: bool = True, centred: bool = True, stack: bool = True,
        steps: int | None = None, seed: int = 0, u0: float = 0.4, device: str = "cpu", dtype: str = "float32",
    ):  # fmt: skip
        check.choice("rule", rule, RULES)
        self.rule, self.residual, self.centred, self.stack = rule, residual, centred, stack
        check.choice("start", start, STARTS)
        options: dict = dict(init="fan_in", u0=u0, seed=seed, device=device, backend="torch", dtype=dtype)
        state = turned(EDNetwork(n_inputs, width, depth, **options).state_dict())
        if start != "fan_in":
            state |= of_gain_one(state, u0, 0.9 if start == "permutation" else 0.0, seed)
        self.net, self.n_inputs, self.n_outputs, self.depth, self.u0 = self, n_inputs, 1, depth, u0
        self.space = arrays.space("torch", device, dtype)
        self.parameters = {name: self.space.asarray(value) for name, value in state.items()}
        self.inhibitory = self.space.asarray(np.repeat([0.0, 1.0], width))  # s, (n,)
        biases = (*self.parameters["hidden.bias"], self.parameters["output.bias"])
        self.means = [torch.zeros_like(bias) for bias in biases]
        self.first = True  # whether no batch has set the means yet
        self.share = depth**-0.5 if residual and depth else 1.0
        for p in self.parameters.values():
            p.grad = torch.zeros_like(p)
        rate = check.positive("rate", rate)
        self.optimizer = torch.optim.Adam(self.parameters.values(), lr=rate, maximize=True, fused=True)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR
        self.schedule = cosine(self.optimizer, check.count("steps", steps)) if steps is not None else None

    def asarray(self, array: np.ndarray) -> torch.Tensor:
        """A NumPy array as a tensor of this device and dtype."""
        return self.space.asarray(array)

    def forward(self, x: torch.Tensor, learning: bool = False) -> torch.Tensor:
        """x (B, n_inputs) → the output, (B, 1). Keeps each layer's y and z, (B, n). learning: moves means."""
        p, sigma = self.parameters, lambda v: torch.sigmoid(v * (2 / self.u0))
        y = sigma(x @ p["input.weight"] + p["input.bias"])  # (B, n)
        self.x, self.y, self.z = x, [y], [y - self.inhibitory]
        for n, (weight, bias) in enumerate(zip(p["hidden.weight"], p["hidden.bias"], strict=True)):
            y = sigma(self.centre(n, self.z[-1] @ weight, learning) + bias)
            answer = (y - self.inhibitory) * self.share
            self.y.append(y)
            self.z.append(self.z[-1] + answer if self.residual else answer)
        output = sigma(
            self.centre(-1, self.z[-1] @ p["output.weight"], learning) + p["output.bias"]
        )  # (B, 1)
        self.first, self.output = self.first and not learning, output
        return output

    def centre(self, n: int, sums: torch.Tensor, learning: bool) -> torch.Tensor:
        """Sums (B, n) without their means, which ``learning`` moves."""
        if not self.centred:
            return sums
        if learning:
            now = sums.mean(0)
            self.means[n] = now if self.first else MEMORY * self.means[n] + (1 - MEMORY) * now
        return sums - self.means[n]

    def coefficients(self, rule: str | None = None) -> list[torch.Tensor | float]:
        """How fast the output's sum grows with each z of the last forward pass, (B, n) for each layer; ED
        takes it for one.
        """
        if (rule or self.rule) == "ed":
            return [1.0] * (self.depth + 1)
        found = [self.parameters["output.weight"].T.expand(len(self.output), -1)]  # (B, n)
        weights = self.parameters["hidden.weight"]
        for weight, y in zip(weights.flip(0), self.y[:0:-1], strict=True):
            through = (found[0] * y * (1 - y) * (self.share * 2 / self.u0)) @ weight.T
            found.insert(0, found[0] + through if self.residual else through)
        return found

    def directions(self, target: torch.Tensor, rule: str | None = None) -> list[tuple]:
        """(of the weights, of the biases) of each layer, to be climbed: target (B, 1). Without the constant
        factors that a layer's numbers share.
        """
        error, found = (target - self.output) / len(target), []  # (B, 1)
        for given, y, c in zip([self.x, *self.z[:-1]], self.y, self.coefficients(rule), strict=True):
            told = error * c * y * (1 - y)  # (B, n)
            found.append((given.T @ told, told.sum(0)))
        told = error * self.output * (1 - self.output)  # (B, 1)
        return [*found, (self.z[-1].T @ told, told.sum(0))]

    def step(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """One step: x (B, n_inputs), target (B, 1) in [0, 1] → the outputs before it."""
        output, p = self.forward(x, learning=True), self.parameters
        first, *hidden, last = self.directions(target)
        p["input.weight"].grad, p["input.bias"].grad = first
        for n, (weight, bias) in enumerate(hidden if self.stack else ()):
            p["hidden.weight"].grad[n], p["hidden.bias"].grad[n] = weight, bias
        p["output.weight"].grad, p["output.bias"].grad = last
        self.optimizer.step()
        p["hidden.weight"].clamp_(min=0)
        p["output.weight"].clamp_(min=0)
        if self.schedule:
            self.schedule.step()
        return output


def turned(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The state of an EDNetwork with one output as that of the network turned round: weights (n_inputs, n),
    (depth, n, n) and (n, 1), biases (n,), (depth, n) and (1,), the excitatory cells first.
    """
    signs, D = np.array([1, -1])[:, None, None], len(state["hidden.weight"])
    first = state["input.weight"][0].sum(1)  # both types of sender send x: (2, I, W)
    hidden = state["hidden.weight"][:, 0] * signs  # [d, p, q, i, o], none below zero
    n = 2 * hidden.shape[-1]
    return {
        "input.weight": np.concatenate(list(first), 1),  # (I, n)
        "hidden.weight": hidden.transpose(0, 2, 3, 1, 4).reshape(D, n, n),  # [d, q i, p o]
        "output.weight": (state["output.weight"][0, 0] * signs).reshape(n, 1),
        "input.bias": state["input.bias"][0].reshape(n),
        "hidden.bias": state["hidden.bias"][:, 0].reshape(D, n),
        "output.bias": state["output.bias"][0, 0].reshape(1),
    }


def of_gain_one(state: dict[str, np.ndarray], u0: float, one: float, seed: int) -> dict[str, np.ndarray]:
    """Weights of these shapes whose columns sum to 2 u0, the inverse of σ's slope in its middle; of it the
    share ``one`` is that of a single cell, another for each, and the rest random.
    """
    rng, found = np.random.default_rng(seed), {}
    for name in ("hidden.weight", "output.weight"):
        weight = np.abs(rng.standard_normal(state[name].shape))
        found[name] = weight * (2 * u0 / weight.sum(-2, keepdims=True))
    for weight in found["hidden.weight"] if one else ():
        weight *= 1 - one
        weight[np.arange(len(weight)), rng.permutation(len(weight))] += one * 2 * u0
    return found
