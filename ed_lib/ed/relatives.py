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

And a network whose error is a vector, told to every cell as it is, and whose cells answer with vectors: D.
Clark et al., "Credit assignment through broadcasting a global error vector" (2021).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ed_lib import arrays, check
from ed_lib.ed.rivals import Optimizer

RULES = ("backprop", "feedback", "sign", "direct", "broadcast", "local")


class Network:
    """What the networks here share: ``weights`` and ``biases`` of layers, and Adam along ``directions``.

    rate, steps: see :class:`ed_lib.ed.rivals.Optimizer`. For :func:`ed_lib.ed.learner.fit`.
    """

    weights: list[Tensor]
    biases: list[Tensor]

    def __init__(
        self, widths: Sequence[int], least: int, rule: str, seed: int, dtype: torch.dtype, device: str
    ):
        if len(widths) < least:
            wanted = "inputs and classes" if least == 2 else "inputs, a hidden layer and classes"
            raise ValueError(f"widths is {list(widths)}; wanted at least {wanted}")
        widths = [check.count("widths", width) for width in widths]
        self.rule, self.net, self.space = rule, self, arrays.space("torch", device)
        self.n_inputs, self.n_outputs, self.asarray = widths[0], widths[-1], self.space.asarray
        self.random, self.dtype = torch.Generator().manual_seed(seed), dtype

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Numbers from N(0, 1), divided by ``scale``."""
        drawn = torch.randn(*shape, generator=self.random, dtype=torch.float64) / scale
        return drawn.to(self.space.device, self.dtype)

    def step(self: Any, x: Tensor, target: Tensor) -> Tensor:
        """One step: x (B, n_inputs), target (B, K) → the probabilities before it."""
        probabilities = self.forward(x)
        self.aim(target)
        self.optimizer.step()
        self.keep_signs()
        return probabilities

    def aim(self: Any, target: Tensor) -> None:
        """Puts what each parameter is to descend into its ``grad``."""
        for weight, bias, found in zip(self.weights, self.biases, self.directions(target), strict=True):
            weight.grad, bias.grad = (-direction for direction in found)


class Perceptron(Network):
    """Layers of ``widths``, from inputs to classes, that learn by a ``rule``.

    one_signed: as in ED's network, a weight between hidden cells has the sign s·s' of their kinds, one from a
    hidden cell to a score s, and keeps it, so that a cell only ever raises all scores, or lowers them; the
    first layer's are free. seed: of weights, feedback and classifiers.
    """

    def __init__(
        self, widths: Sequence[int], rule: str = "backprop", rate: float = 1e-3, *, one_signed: bool = False,
        steps: int | None = None, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu",
    ):  # fmt: skip
        check.choice("rule", rule, RULES)
        super().__init__(widths, 2, rule, seed, dtype, device)
        self.one_signed, sizes, K = one_signed, list(zip(widths, widths[1:], strict=False)), widths[-1]
        scaled = lambda rows, columns: self.normal(rows, columns, scale=rows**0.5)  # noqa: E731
        self.weights = [2**0.5 * scaled(*size) for size in sizes]  # (I, O) of each layer
        self.biases = [torch.zeros_like(weight[0]) for weight in self.weights]  # (O,)
        cells = [torch.arange(columns) for _, columns in sizes[:-1]]  # of each hidden layer
        self.classes = [each % K for each in cells]  # the class whose error a cell is told, (O,)
        self.signs = [(1 - 2 * (each // K % 2)).to(self.weights[0]) for each in cells]  # ±1, (O,)
        self.transposes = [scaled(columns, rows) for rows, columns in sizes]  # in place of Wᵀ, (O, I)
        self.direct = [scaled(K, len(each)) for each in cells]  # (K, O)
        self.heads = [scaled(len(each), K) for each in cells]  # classifiers of hidden layers, (O, K)
        after = [*self.signs, torch.ones(K).to(self.weights[0])][1:]
        pairs = zip(self.signs, after, strict=True)
        self.products = [s[:, None] * t for s, t in pairs]  # ±1, of each weight but the first layer's, (I, O)
        for weight, sign in zip(self.weights[1:], self.products, strict=True):
            if one_signed:
                weight.copy_(weight.abs() * sign)
        parameters = [*self.weights, *self.biases, *(self.heads if rule == "local" else [])]
        self.optimizer = Optimizer(parameters, "adam", rate, steps, fused=True)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, n_inputs) → the probabilities, (B, K). Keeps what each layer was given, and its sums."""
        self.given, self.sums = [], []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            self.given.append(x)  # (B, I)
            self.sums.append(torch.addmm(bias, x, weight))  # (B, O)
            x = self.sums[-1].relu()
        self.probabilities = self.sums[-1].softmax(1)
        return self.probabilities

    def aim(self, target: Tensor) -> None:
        super().aim(target)
        if self.rule == "local":
            for head, y, error in zip(self.heads, self.given[1:], self.own_errors(target), strict=True):
                head.grad = -y.T @ error

    def keep_signs(self) -> None:
        """Puts weights that left their sign back to zero."""
        if self.one_signed:
            for weight, sign in zip(self.weights[1:], self.products, strict=True):
                weight.mul_(sign).clamp_(min=0).mul_(sign)

    def directions(self, target: Tensor, rule: str | None = None) -> list[tuple[Tensor, Tensor]]:
        """(of the weights, of the biases) of each layer, to be climbed: target (B, K)."""
        pairs = zip(self.given, self.deltas(target, rule), strict=True)
        return [(given.T @ delta, delta.sum(0)) for given, delta in pairs]  # (I, B) @ (B, O)

    def deltas(self, target: Tensor, rule: str | None = None) -> list[Tensor]:
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

    def back(self, layer: int, rule: str) -> Tensor:
        """What takes a layer's δ to the layer before, (O, I)."""
        weight = self.weights[layer]
        if rule == "feedback":
            return self.transposes[layer]
        return weight.T if rule == "backprop" else weight.T.sign() / weight.shape[1] ** 0.5

    def own_errors(self, target: Tensor) -> list[Tensor]:
        """Of each hidden layer's own classifier, (B, K), divided by B."""
        scores = [y @ head for y, head in zip(self.given[1:], self.heads, strict=True)]
        return [(target - each.softmax(1)) / len(target) for each in scores]


class VectorPerceptron(Network):
    """Layers of ``widths`` cells, from inputs to classes: a hidden cell holds a number for each of K classes.

    A cell's sums a = Σ w y + b, (K,), pass its gate, all K or none, if they lie on the side of a fixed random
    vector of ±1, t · a > 0. Weights between cells are numbers ≥ 0, and so each path from a cell to the scores
    multiplies its K numbers by one number ≥ 0: the gradient by them is the error vector e, (K,), times the
    sum of these, the cell's coefficient. The rule "vector" takes it for one; the other is "backprop".

    Weights: of the first layer (I, O, K), of any sign; of the others (I, O), none below zero; the last is
    (I, 1): one cell holds the scores.
    """

    def __init__(
        self, widths: Sequence[int], rule: str = "vector", rate: float = 1e-3, *,
        steps: int | None = None, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu",
    ):  # fmt: skip
        check.choice("rule", rule, ("vector", "backprop"))
        super().__init__(widths, 3, rule, seed, dtype, device)
        inputs, *hidden, K = widths
        self.weights = [self.normal(inputs, hidden[0], K) * (2 / inputs) ** 0.5]  # (I, O, K)
        for cells, after in zip(hidden, [*hidden[1:], 1], strict=True):
            self.weights.append(
                self.normal(cells, after).abs() * 2 / cells
            )  # (I, O), of a size that sums keep
        self.biases = [torch.zeros(width, K).to(self.weights[0]) for width in (*hidden, 1)]  # (O, K)
        self.sides = [self.normal(width, K).sign() for width in hidden]  # t of each hidden cell, (O, K)
        for sides in self.sides:
            sides[1::2] = -sides[: len(sides) // 2 * 2 : 2]  # in pairs, whose gates open for opposite sums
        self.optimizer = Optimizer([*self.weights, *self.biases], "adam", rate, steps, fused=True)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, n_inputs) → the probabilities, (B, K). Keeps what each layer was given, and its gates."""
        first, *others = self.weights
        a = (x @ first.flatten(1)).view(len(x), *first.shape[1:]) + self.biases[0]  # (B, O, K)
        self.given, self.gates = [x], []
        for n, weight in enumerate(others):
            self.gates.append(((a * self.sides[n]).sum(2) > 0).to(a))  # (B, O)
            self.given.append(a * self.gates[-1][:, :, None])  # (B, O, K), the next layer's (B, I, K)
            a = weight.T @ self.given[-1] + self.biases[n + 1]  # (O, I) @ (B, I, K) → (B, O, K)
        self.probabilities = a[:, 0].softmax(1)
        return self.probabilities

    def coefficients(self, rule: str | None = None) -> list[Tensor]:
        """Of each layer's cells in the last forward pass, (B, O): by the rule "vector" one where the gate is
        open; by "backprop" the sum over all paths to the scores of the products of weights.
        """
        found = [torch.ones_like(self.probabilities[:, :1])]  # of the output cell, (B, 1)
        for weight, gate in zip(self.weights[:0:-1], self.gates[::-1], strict=True):
            passed = found[0] @ weight.T if (rule or self.rule) == "backprop" else 1  # (B, I)
            found.insert(0, passed * gate)
        return found

    def directions(self, target: Tensor, rule: str | None = None) -> list[tuple[Tensor, Tensor]]:
        """(of the weights, of the biases) of each layer, to be climbed: target (B, K)."""
        error, found = (target - self.probabilities) / len(target), []  # (B, K)
        for n, (given, c) in enumerate(zip(self.given, self.coefficients(rule), strict=True)):
            told = c[:, :, None] * error[:, None]  # (B, O, K)
            if n == 0:
                change = (given.T @ told.flatten(1)).view_as(self.weights[0])
            else:
                change = (given @ error[:, :, None])[:, :, 0].T @ c  # y · e of each sender: (I, B) @ (B, O)
            found.append((change, told.sum(0)))
        return found

    def keep_signs(self) -> None:
        """Puts weights that went below zero back to it."""
        for weight in self.weights[1:]:
            weight.clamp_(min=0)
