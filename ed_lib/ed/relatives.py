"""Who else learns without a backward pass: one perceptron, and several ways to tell its layers of the error.

Layer l computes u = y W + b and y' = ReLU(u), W (I, O); of the last one u are scores, and the error is
e = target − softmax(u), (B, K). Whatever the rule, a layer moves along yᵀδ, with δ = told ⊙ f′(u), (B, O).
The rules differ in what a layer is ``told`` alone:

- "backprop": the next layer's δ times its Wᵀ. The gradient.
- "feedback": times a fixed random matrix in place of Wᵀ. T. Lillicrap et al., "Random synaptic feedback
  weights support error backpropagation for deep learning" (2016).
- "sign": times the signs of Wᵀ, of one size. Q. Liao et al., "How important is weight symmetry in
  backpropagation?" (2016).
- "direct": e times a fixed random matrix of the layer's own. A. Nøkland, "Direct feedback alignment provides
  learning in deep neural networks" (2016).
- "broadcast": each cell one number of e, that of its class, times the cell's fixed sign. ED's rule.
- "local": the error of a classifier of the layer's own. J. Gong et al., "Mono-Forward" (2025), and others.
"""

from collections.abc import Sequence

import numpy as np
import torch

from ed_lib import arrays, check

RULES = ("backprop", "feedback", "sign", "direct", "broadcast", "local")


class Perceptron:
    """Layers of ``widths``, from inputs to classes, that learn by a ``rule``, with Adam.

    one_signed: as in ED's network, a weight between hidden cells has the sign s·s' of their kinds, one from a
    hidden cell to a score s, and keeps it, so that a cell only ever raises all scores, or lowers them; the
    first layer's are free. seed: of weights, feedback and classifiers. steps: after so many the rate has
    fallen to zero, along half a cosine; None: it is constant. For :func:`ed_lib.ed.learner.fit`.
    """

    def __init__(
        self, widths: Sequence[int], rule: str = "backprop", rate: float = 1e-3, *, one_signed: bool = False,
        steps: int | None = None, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu",
    ):  # fmt: skip
        check.choice("rule", rule, RULES)
        if len(widths) < 2:
            raise ValueError(f"widths is {list(widths)}; wanted at least inputs and classes")
        sizes = [
            (check.count("widths", a), check.count("widths", b))
            for a, b in zip(widths, widths[1:], strict=False)
        ]
        self.rule, self.one_signed, self.net = rule, one_signed, self
        self.n_inputs, self.n_outputs, self.space = widths[0], widths[-1], arrays.space("torch", device)
        random, K = torch.Generator().manual_seed(seed), widths[-1]

        def normal(rows, columns):
            numbers = torch.randn(rows, columns, generator=random, dtype=torch.float64)
            return (numbers / rows**0.5).to(self.space.device, dtype)

        self.weights = [2**0.5 * normal(*size) for size in sizes]  # (I, O) of each layer
        self.biases = [torch.zeros_like(weight[0]) for weight in self.weights]  # (O,)
        cells = [torch.arange(columns) for _, columns in sizes[:-1]]  # of each hidden layer
        self.classes = [each % K for each in cells]  # the class whose error a cell is told, (O,)
        self.signs = [(1 - 2 * (each // K % 2)).to(self.weights[0]) for each in cells]  # ±1, (O,)
        self.transposes = [normal(columns, rows) for rows, columns in sizes]  # in place of Wᵀ, (O, I)
        self.direct = [normal(K, len(each)) for each in cells]  # (K, O)
        self.heads = [normal(len(each), K) for each in cells]  # classifiers of hidden layers, (O, K)
        after = [*self.signs, torch.ones(K).to(self.weights[0])][1:]
        pairs = zip(self.signs, after, strict=True)
        self.products = [s[:, None] * t for s, t in pairs]  # ±1, of each weight but the first layer's, (I, O)
        for weight, sign in zip(self.weights[1:], self.products, strict=True):
            if one_signed:
                weight.copy_(weight.abs() * sign)
        self.parameters = [*self.weights, *self.biases, *(self.heads if rule == "local" else [])]
        self.optimizer = torch.optim.Adam(self.parameters, lr=check.positive("rate", rate), fused=True)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR
        self.schedule = cosine(self.optimizer, check.count("steps", steps)) if steps is not None else None

    def asarray(self, array: np.ndarray) -> torch.Tensor:
        """A NumPy array as a tensor of this device."""
        return self.space.asarray(array)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (B, n_inputs) → the probabilities, (B, K). Keeps what each layer was given, and its sums."""
        self.given, self.sums = [], []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            self.given.append(x)  # (B, I)
            self.sums.append(torch.addmm(bias, x, weight))  # (B, O)
            x = self.sums[-1].relu()
        self.probabilities = self.sums[-1].softmax(1)
        return self.probabilities

    def step(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """One step: x (B, n_inputs), target (B, K) → the probabilities before it."""
        probabilities = self.forward(x)
        for weight, bias, (change, told) in zip(
            self.weights, self.biases, self.directions(target), strict=True
        ):
            weight.grad, bias.grad = -change, -told
        if self.rule == "local":
            for head, y, error in zip(self.heads, self.given[1:], self.own_errors(target), strict=True):
                head.grad = -y.T @ error
        self.optimizer.step()
        if self.one_signed:
            for weight, sign in zip(self.weights[1:], self.products, strict=True):
                weight.mul_(sign).clamp_(min=0).mul_(sign)
        if self.schedule:
            self.schedule.step()
        return probabilities

    def directions(self, target: torch.Tensor, rule: str | None = None) -> list[tuple]:
        """(of the weights, of the biases) of each layer, to be climbed: target (B, K)."""
        pairs = zip(self.given, self.deltas(target, rule), strict=True)
        return [(given.T @ delta, delta.sum(0)) for given, delta in pairs]  # (I, B) @ (B, O)

    def deltas(self, target: torch.Tensor, rule: str | None = None) -> list[torch.Tensor]:
        """δ of each layer for the last forward pass, by the network's rule or another: target (B, K) → (B, O)
        each. Under "backprop" they are −∂loss/∂u, of the mean cross-entropy.
        """
        rule, last = rule or self.rule, len(self.weights) - 1
        error = (target - self.probabilities) / len(target)  # (B, K)
        own = self.own_errors(target) if rule == "local" else []
        found = {last: error}
        for n in reversed(range(last)):
            if rule == "direct":
                told = error @ self.direct[n]
            elif rule == "broadcast":
                told = error[:, self.classes[n]] * self.signs[n]
            elif rule == "local":
                told = own[n] @ self.heads[n].T
            else:
                told = found[n + 1] @ self.back(n + 1, rule)
            found[n] = told * (self.sums[n] > 0)
        return [found[n] for n in range(last + 1)]

    def back(self, layer: int, rule: str) -> torch.Tensor:
        """What takes a layer's δ to the layer before, (O, I)."""
        weight = self.weights[layer]
        if rule == "feedback":
            return self.transposes[layer]
        return weight.T if rule == "backprop" else weight.T.sign() / weight.shape[1] ** 0.5

    def own_errors(self, target: torch.Tensor) -> list[torch.Tensor]:
        """Of each hidden layer's own classifier, (B, K), divided by B."""
        scores = [y @ head for y, head in zip(self.given[1:], self.heads, strict=True)]
        return [(target - each.softmax(1)) / len(target) for each in scores]
