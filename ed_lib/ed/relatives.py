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

import itertools
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
    # Groups of cells that stand side by side, one cell for each class.
    group = torch.arange(cells) // classes
    return 1 - 2 * (group % 2)


def broadcast(error: Tensor, cells: int) -> Tensor:
    """What ED tells each cell: of one class's error, times the cell's sign: (…, K) → (…, cells)."""
    classes = error.shape[-1]
    its_class = torch.arange(cells) % classes
    of_its_class = error[..., its_class]  # (…, cells)
    return of_its_class * signs(cells, classes)


class Perceptron:
    """Layers of ``widths``, from inputs to classes, that learn by a ``rule``; for ``learner.fit``.

    one_signed: as in ED's network, a weight between hidden cells has the sign s·s' of their kinds,
    one from a hidden cell to a score s, and keeps it, so that a cell only ever raises all scores,
    or lowers them; the first layer's are free. rate, steps: of :func:`ed_lib.ed.rivals.optimizer`.
    seed: of all that is random.
    """

    rules: tuple[str, ...] = RULES

    def __init__(
        self,
        widths: Sequence[int],
        rule: str = "backprop",
        rate: float = 1e-3,
        *,
        one_signed: bool = False,
        steps: int | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ):
        check.choice("rule", rule, self.rules)
        if len(widths) < 2:
            raise ValueError(f"widths is {list(widths)}; wanted at least two")
        self.widths = [check.count("widths", width) for width in widths]
        self.n_inputs = widths[0]
        self.n_outputs = widths[-1]
        self.rule = rule
        self.one_signed = one_signed
        self.dtype = dtype
        self.random = torch.Generator().manual_seed(seed)
        # ``learner.fit`` trains what has a network and makes its arrays: here both are this one.
        self.net = self
        self.asarray = torch.as_tensor
        self.parameters = self.draw()
        self.optimizer = optimizer(self.parameters, "adam", rate, steps, fused=True)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Numbers from N(0, 1), divided by ``scale``."""
        # Drawn in float64, so that a network in float32 starts with the same numbers, rounded.
        numbers = torch.randn(*shape, generator=self.random, dtype=torch.float64)
        return (numbers / scale).to(self.dtype)

    def scaled(self, rows: int, columns: int) -> Tensor:
        """A matrix (rows, columns) whose products have the spread of what comes in."""
        return self.normal(rows, columns, scale=rows**0.5)

    def draw(self) -> list[Tensor]:
        """Weights, biases, and what stands in for weights on the way back → the parameters."""
        self.weights = []
        self.biases = []
        for rows, columns in itertools.pairwise(self.widths):
            # The ReLU cuts off half of a layer's sums; √2 keeps their spread (K. He et al. 2015).
            self.weights.append(2**0.5 * self.scaled(rows, columns))
            self.biases.append(torch.zeros(columns, dtype=self.dtype))
        # Every rule draws all of it, after the weights, so that all start with the same weights.
        self.draw_feedback()
        self.draw_classifiers()
        self.kept = self.signs_between_cells() if self.one_signed else []
        for weight, sign in self.signed_weights():
            weight.copy_(weight.abs() * sign)
        learned_heads = self.heads if self.rule == "local" else []
        return [*self.weights, *self.biases, *learned_heads]

    def draw_feedback(self) -> None:
        """What "feedback" has in place of each Wᵀ, (O, I), and "direct" for each hidden layer, (K,
        O).
        """
        self.transposes = []
        for rows, columns in itertools.pairwise(self.widths):
            self.transposes.append(self.scaled(columns, rows))
        self.direct = []
        for cells in self.widths[1:-1]:
            self.direct.append(self.scaled(self.n_outputs, cells))

    def draw_classifiers(self) -> None:
        """The classifier of each hidden layer, (O, K), for "local"."""
        self.heads = [self.scaled(cells, self.n_outputs) for cells in self.widths[1:-1]]

    def signs_between_cells(self) -> list[Tensor]:
        """s·s' for each weight but the first layer's, ±1, of its shape; a score has s' = 1."""
        kinds = [signs(cells, self.n_outputs) for cells in self.widths[1:-1]]
        kinds.append(torch.ones(self.n_outputs))
        found = []
        for sender, receiver in itertools.pairwise(kinds):
            products = sender[:, None] * receiver  # (I, O)
            found.append(products.to(self.dtype))
        return found

    def signed_weights(self) -> list[tuple[Tensor, Tensor]]:
        """(weight, the signs that it keeps) of each layer but the first; none if weights are
        free.
        """
        if not self.one_signed:
            return []
        return list(zip(self.weights[1:], self.kept, strict=True))

    def step(self, x: Tensor, target: Tensor) -> Tensor:
        """One step: x (B, n_inputs), target (B, K) → the probabilities before it."""
        check.shape("target", tuple(target.shape), (len(x), self.n_outputs))
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
        self.given = []
        self.sums = []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            u = torch.addmm(bias, x, weight)  # (B, I) @ (I, O) → (B, O)
            self.given.append(x)
            self.sums.append(u)
            x = u.relu()
        # The last layer's sums are scores, and have no ReLU.
        self.probabilities = u.softmax(1)
        return self.probabilities

    def directions(self, target: Tensor) -> list[Tensor]:
        """Along which each parameter is to move, after a forward pass: target (B, K). "backprop":
        along minus the gradient of the mean cross-entropy.
        """
        error = (target - self.probabilities) / len(target)  # (B, K)
        # δ of each layer, (B, O), the last one's first: some rules need the one above.
        deltas = [error]
        for n in reversed(range(len(self.weights) - 1)):
            told = self.told(n, deltas[-1], error, target)
            slope = self.sums[n] > 0  # f′ of ReLU
            deltas.append(told * slope)
        deltas.reverse()
        # (I, B) @ (B, O): what came in, times what the layer makes of what it is told
        weights = [y.T @ delta for y, delta in zip(self.given, deltas, strict=True)]
        biases = [delta.sum(0) for delta in deltas]
        heads = self.directions_of_heads(target) if self.rule == "local" else []
        return [*weights, *biases, *heads]

    def directions_of_heads(self, target: Tensor) -> list[Tensor]:
        """The direction of each hidden layer's own classifier, (O, K)."""
        # What a hidden layer answers, (B, O), is given to the next one.
        answers = self.given[1:]
        return [y.T @ self.own_error(n, target) for n, y in enumerate(answers)]

    def told(self, n: int, delta: Tensor, error: Tensor, target: Tensor) -> Tensor:
        """What hidden layer n is told, (B, O): delta is of the layer after it, error (B, K) the
        output's.
        """
        after = self.weights[n + 1]  # (O, O′)
        if self.rule == "backprop":
            return delta @ after.T
        if self.rule == "sign":
            # Dividing by √O′ keeps a sum of O′ numbers about as large as one number.
            return delta @ after.T.sign() / after.shape[1] ** 0.5
        if self.rule == "feedback":
            return delta @ self.transposes[n + 1]
        if self.rule == "direct":
            return error @ self.direct[n]
        if self.rule == "broadcast":
            # ED: one number for each cell, and the cell's sign
            return broadcast(error, len(after))
        if self.rule == "local":
            return self.own_error(n, target) @ self.heads[n].T
        # "frozen": nothing
        return torch.zeros_like(self.sums[n])

    def own_error(self, n: int, target: Tensor) -> Tensor:
        """Of hidden layer n's own classifier, (B, K), divided by B."""
        scores = self.given[n + 1] @ self.heads[n]  # (B, O) @ (O, K)
        return (target - scores.softmax(1)) / len(target)

    def keep_signs(self) -> None:
        """Puts weights that left their sign back to zero."""
        for weight, sign in self.signed_weights():
            # Times its sign a weight is ≥ 0, or has left it.
            weight.mul_(sign).clamp_(min=0).mul_(sign)
