"""Who else learns without a backward pass: one perceptron, and several ways to tell its layers of
the error.

Layer n computes u = y W + b and y' = ReLU(u), W (I, O); of the last one u are scores, and the error
is e = target − softmax(u), (B, K). Whatever the rule, a layer moves along yᵀδ, with δ = told ⊙
f′(u), (B, O). The rules differ in what a hidden layer is ``told`` alone:

- "backprop": the next layer's δ times its Wᵀ. The gradient.
- "feedback": times a fixed random matrix in place of Wᵀ (T. Lillicrap et al. 2016).
- "sign": times the signs of Wᵀ, of one size (Q. Liao et al. 2016).
- "direct": e times a fixed random matrix of the layer's own (A. Nøkland 2016).
- "broadcast": each cell one number of e, that of its class, times the cell's fixed sign. ED's rule.
- "local": the error of a classifier of the layer's own (J. Gong et al. 2025, and others).
- "frozen": nothing. What a rule for hidden layers has to beat.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ed_lib import check
from ed_lib.ed.rivals import optimizer

RULES = ("backprop", "feedback", "sign", "direct", "broadcast", "local", "frozen")


def signs(cells: int, classes: int) -> Tensor:
    """The kinds of some cells, (cells,): one for each class that raises scores, then one that
    lowers them.
    """
    return 1 - 2 * (torch.arange(cells) // classes % 2)


def broadcast(error: Tensor, cells: int) -> Tensor:
    """What ED tells each cell: of one class's error, times the cell's sign: (…, K) → (…, cells)."""
    K = error.shape[-1]
    return error[..., torch.arange(cells) % K] * signs(cells, K)


class Perceptron:
    """Layers of ``widths``, from inputs to classes, that learn by a ``rule``; for ``learner.fit``.

    one_signed: as in ED's network, a weight between hidden cells has the sign s·s' of their kinds,
    one from a hidden cell to a score s, and keeps it, so that a cell only ever raises all scores,
    or lowers them; the first layer's are free. rate, steps: of :func:`ed_lib.ed.rivals.optimizer`.
    seed: of all that is random.
    """

    rules: tuple[str, ...] = RULES

    def __init__(self, widths: Sequence[int], rule: str = "backprop", rate: float = 1e-3, *,
                 one_signed: bool = False, steps: int | None = None, seed: int = 0,
                 dtype: torch.dtype = torch.float32):  # fmt: skip
        check.choice("rule", rule, self.rules)
        if len(widths) < 2:
            raise ValueError(f"widths is {list(widths)}; wanted at least two")
        self.widths, self.rule, self.net = (
            [check.count("widths", width) for width in widths],
            rule,
            self,
        )
        self.n_inputs, self.n_outputs, self.asarray = widths[0], widths[-1], torch.as_tensor
        self.one_signed, self.dtype, self.random = (
            one_signed,
            dtype,
            torch.Generator().manual_seed(seed),
        )
        self.parameters = self.draw()
        self.optimizer = optimizer(self.parameters, "adam", rate, steps, fused=True)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Numbers from N(0, 1), divided by ``scale``."""
        return (torch.randn(*shape, generator=self.random, dtype=torch.float64) / scale).to(
            self.dtype
        )

    def draw(self) -> list[Tensor]:
        """Weights, biases, and what stands in for weights on the way back → the parameters."""
        scaled = lambda rows, columns: self.normal(rows, columns, scale=rows**0.5)  # noqa: E731
        sizes, (_, *hidden, K) = list(zip(self.widths, self.widths[1:], strict=False)), self.widths
        self.weights = [2**0.5 * scaled(*size) for size in sizes]  # (I, O) of each layer
        self.biases = [torch.zeros(columns, dtype=self.dtype) for _, columns in sizes]  # (O,)
        self.transposes = [
            scaled(columns, rows) for rows, columns in sizes
        ]  # in place of Wᵀ, (O, I)
        self.direct = [scaled(K, cells) for cells in hidden]  # (K, O)
        self.heads = [scaled(cells, K) for cells in hidden]  # classifiers of hidden layers, (O, K)
        s = [*(signs(cells, K) for cells in hidden), torch.ones(K)]
        pairs = zip(s, s[1:], strict=False) if self.one_signed else ()
        self.kept = [
            (a[:, None] * b).to(self.dtype) for a, b in pairs
        ]  # of each weight but the first's, ±1
        for weight, sign in zip(self.weights[1:], self.kept, strict=False):
            weight.copy_(weight.abs() * sign)
        return [*self.weights, *self.biases, *(self.heads if self.rule == "local" else [])]

    def step(self, x: Tensor, target: Tensor) -> Tensor:
        """One step: x (B, n_inputs), target (B, K) → the probabilities before it."""
        probabilities = self.forward(x)
        for parameter, direction in zip(self.parameters, self.directions(target), strict=True):
            parameter.grad = -direction
        self.optimizer.step()
        self.keep_signs()
        return probabilities

    def forward(self, x: Tensor) -> Tensor:
        """x (B, n_inputs) → the probabilities, (B, K). Keeps what each layer was given, and its
        sums.
        """
        self.given, self.sums = [], []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            self.given.append(x)  # (B, I)
            self.sums.append(torch.addmm(bias, x, weight))  # (B, O)
            x = self.sums[-1].relu()
        self.probabilities = self.sums[-1].softmax(1)
        return self.probabilities

    def directions(self, target: Tensor) -> list[Tensor]:
        """Along which each parameter is to move, after a forward pass: target (B, K). "backprop":
        along minus the gradient of the mean cross-entropy.
        """
        error = (target - self.probabilities) / len(target)  # (B, K)
        deltas = [error]
        for n in reversed(range(len(self.weights) - 1)):
            told = self.told(n, deltas[0], error, target)
            deltas.insert(0, told * (self.sums[n] > 0))  # f′ of ReLU
        weights = [
            y.T @ delta for y, delta in zip(self.given, deltas, strict=True)
        ]  # (I, B) @ (B, O)
        own = self.given[1:] if self.rule == "local" else []
        heads = [y.T @ self.own_error(n, target) for n, y in enumerate(own)]  # (O, K)
        return [*weights, *(delta.sum(0) for delta in deltas), *heads]

    def told(self, n: int, delta: Tensor, error: Tensor, target: Tensor) -> Tensor:
        """What hidden layer n is told, (B, O): delta is of the layer after it, error (B, K) the
        output's.
        """
        after = self.weights[n + 1]  # (O, O′)
        if self.rule == "backprop":
            return delta @ after.T
        if self.rule == "sign":
            return delta @ after.T.sign() / after.shape[1] ** 0.5
        if self.rule == "feedback":
            return delta @ self.transposes[n + 1]
        if self.rule == "direct":
            return error @ self.direct[n]
        if self.rule == "broadcast":  # ED: one number for each cell, and the cell's sign
            return broadcast(error, len(after))
        if self.rule == "local":
            return self.own_error(n, target) @ self.heads[n].T
        return torch.zeros_like(self.sums[n])

    def own_error(self, n: int, target: Tensor) -> Tensor:
        """Of hidden layer n's own classifier, (B, K), divided by B."""
        return (target - (self.given[n + 1] @ self.heads[n]).softmax(1)) / len(target)

    def keep_signs(self) -> None:
        """Puts weights that left their sign back to zero."""
        for weight, sign in zip(self.weights[1:], self.kept, strict=False):
            weight.mul_(sign).clamp_(min=0).mul_(sign)
