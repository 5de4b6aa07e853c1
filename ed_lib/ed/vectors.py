"""A network whose error is a vector, told to every cell as it is, and whose cells answer with vectors.

D. Clark and others, "Credit assignment through broadcasting a global error vector" (2021). A cell holds K
numbers, one for each class. Its sums a = Σ w y + b, (K,), pass its gate, all K or none, if they lie on the
side of a fixed random vector of ±1, t · a > 0. Weights between cells are numbers ≥ 0, and so each path from a
cell to the scores multiplies its K numbers by one number ≥ 0: the gradient by them is the error vector e =
target − softmax, (K,), times the sum of these, the cell's coefficient. The rule "vector" takes it for one.
"""

from collections.abc import Sequence

import numpy as np
import torch

from ed_lib import arrays, check

RULES = ("vector", "backprop")


class VectorPerceptron:
    """Layers of ``widths`` cells, from inputs to classes: the hidden cells hold a number for each class.

    As :class:`ed_lib.ed.relatives.Perceptron`, whose arguments these are. Weights: of the first layer (I, O,
    K), of any sign; of the others (I, O), none below zero; the last is (I, 1): one cell holds the scores.
    """

    def __init__(
        self, widths: Sequence[int], rule: str = "vector", rate: float = 1e-3, *,
        steps: int | None = None, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu",
    ):  # fmt: skip
        check.choice("rule", rule, RULES)
        if len(widths) < 3:
            raise ValueError(f"widths is {list(widths)}; wanted at least inputs, a hidden layer and classes")
        inputs, *hidden, K = [check.count("widths", width) for width in widths]
        self.rule, self.net, self.space = rule, self, arrays.space("torch", device)
        self.n_inputs, self.n_outputs = inputs, K
        random = torch.Generator().manual_seed(seed)

        def normal(*shape):
            numbers = torch.randn(*shape, generator=random, dtype=torch.float64)
            return numbers.to(self.space.device, dtype)

        self.weights = [normal(inputs, hidden[0], K) * (2 / inputs) ** 0.5]  # (I, O, K)
        for cells, after in zip(hidden, [*hidden[1:], 1], strict=True):
            self.weights.append(normal(cells, after).abs() * 2 / cells)  # (I, O), of a size that sums keep
        self.biases = [torch.zeros(width, K).to(self.weights[0]) for width in (*hidden, 1)]  # (O, K)
        self.sides = [normal(width, K).sign() for width in hidden]  # t of each hidden cell, (O, K)
        for sides in self.sides:
            sides[1::2] = -sides[: len(sides) // 2 * 2 : 2]  # in pairs, whose gates open for opposite sums
        self.parameters = [*self.weights, *self.biases]
        self.optimizer = torch.optim.Adam(self.parameters, lr=check.positive("rate", rate), fused=True)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR
        self.schedule = cosine(self.optimizer, check.count("steps", steps)) if steps is not None else None

    def asarray(self, array: np.ndarray) -> torch.Tensor:
        """A NumPy array as a tensor of this device."""
        return self.space.asarray(array)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
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

    def coefficients(self, rule: str | None = None) -> list[torch.Tensor]:
        """Of each layer's cells in the last forward pass, (B, O): by the rule "vector" one where the gate is
        open; by "backprop" the sum over all paths to the scores of the products of weights.
        """
        found = [torch.ones_like(self.probabilities[:, :1])]  # of the output cell, (B, 1)
        for weight, gate in zip(self.weights[:0:-1], self.gates[::-1], strict=True):
            passed = found[0] @ weight.T if (rule or self.rule) == "backprop" else 1  # (B, I)
            found.insert(0, passed * gate)
        return found

    def directions(self, target: torch.Tensor, rule: str | None = None) -> list[tuple]:
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

    def step(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """One step: x (B, n_inputs), target (B, K) → the probabilities before it."""
        probabilities = self.forward(x)
        for weight, bias, (change, told) in zip(
            self.weights, self.biases, self.directions(target), strict=True
        ):
            weight.grad, bias.grad = -change, -told
        self.optimizer.step()
        for weight in self.weights[1:]:
            weight.clamp_(min=0)
        if self.schedule:
            self.schedule.step()
        return probabilities
