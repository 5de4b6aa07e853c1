"""Networks that only records need: an ordinary one, ED's that skips carry deep, one whose cells
hold vectors.

With skips, inhibitory cells are turned round, z = −y in place of y. Then all weights between cells,
M, are ≥ 0, and a cell, f(z) = σ(z M + b) − s with s = 0 or 1, grows with every z. So does z + f(z),
and so does the output.
"""

import numpy as np
import torch
from torch.nn import functional

from ed_lib import models
from ed_lib.ed import EDNetwork, rivals
from ed_lib.ed.relatives import Perceptron
from ed_lib.ed.space import space

RULES = ("ed", "squared", "cross_entropy")


class Ordinary:
    """An ordinary network, by backpropagation on the cross-entropy: what ED is to be measured
    against.

    Layers of cells with a ReLU between them, ``widths`` from the inputs to the outputs; with no
    hidden layer it is logistic regression. For :func:`ed_lib.ed.learner.fit`. One output tells two
    classes apart, K outputs K of them (softmax). optimizer, rate, steps: see ``rivals.optimizer``.
    """

    def __init__(self, widths, optimizer="adam", rate=1e-3, *, steps=None, seed=0):
        # learner.fit reads these of a network and of its learner; this is both.
        self.net = self
        self.n_inputs = widths[0]
        self.n_outputs = widths[-1]
        self.asarray = space("torch").asarray
        self.layers = models.mlp(widths, seed)
        self.optimizer = rivals.optimizer(self.layers.parameters(), optimizer, rate, steps)

    def forward(self, x):
        """x (B, n_inputs) → the probabilities, (B, K). Keeps the scores."""
        self.scores = self.layers(x)
        several = self.n_outputs > 1
        return (self.scores.softmax(1) if several else self.scores.sigmoid()).detach()

    def step(self, x, target):
        """One step: x (B, n_inputs), target (B, K) → the probabilities before it."""
        probabilities = self.forward(x)
        if self.n_outputs > 1:
            loss = functional.cross_entropy(self.scores, target)
        else:
            loss = functional.binary_cross_entropy_with_logits(self.scores, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return probabilities


class Residual:
    """One output on ``depth`` layers z + f(z) / √depth after a first, of ``width`` pairs of cells,
    with Adam.

    It starts as an EDNetwork does, but for weights between cells so small that what is common to a
    layer's cells keeps its size. rule: "ed", the signed rule; or the gradient of that loss. stack:
    whether the hidden-to-hidden layers learn. steps: see ``rivals.optimizer``. n = 2 ``width``.
    """

    def __init__(
        self,
        n_inputs,
        width,
        depth,
        rule="ed",
        rate=1e-3,
        *,
        stack=True,
        steps=None,
        seed=0,
        u0=0.4,
        dtype="float32",
    ):
        self.rule = rule
        self.u0 = u0
        self.share = max(depth, 1) ** -0.5
        ed = EDNetwork(
            n_inputs, width, depth, init="fan_in", seed=seed, backend="torch", dtype=dtype
        )
        # learner.fit reads these of a network and of its learner; this is both.
        self.net = self
        self.asarray = ed.asarray
        self.n_inputs = n_inputs
        self.n_outputs = 1
        # s of each cell, (n,): 1 where it is inhibitory.
        self.inhibitory = ed.asarray(np.repeat([0.0, 1.0], width))
        signs = 1 - 2 * self.inhibitory
        p = ed.parameters
        rng = np.random.default_rng(seed)
        hidden = np.abs(rng.standard_normal((depth, 2 * width, 2 * width)))
        last = np.abs(rng.standard_normal((2 * width, 1)))
        for weight in (hidden, last):
            # What a cell is sent sums to 2 u0, one over σ's slope in its middle.
            weight *= 2 * u0 / weight.sum(-2, keepdims=True)
        # Cells of both types send x, so that their weights add.
        from_inputs = p["input.weight"][0].unflatten(0, (2, -1)).sum(0)
        self.parameters = {
            "input.weight": from_inputs * signs,
            "hidden.weight": ed.asarray(hidden),
            "output.weight": ed.asarray(last),
            "input.bias": p["input.bias"][0, 0] * signs,
            "hidden.bias": p["hidden.bias"][:, 0, 0] * signs,
            "output.bias": p["output.bias"][0, 0, :1].clone(),
        }
        learning = []
        for name, parameter in self.parameters.items():
            if stack or "hidden" not in name:
                learning.append(parameter.requires_grad_())
        self.optimizer = rivals.optimizer(learning, "adam", rate, steps, fused=True)

    def forward(self, x):
        """x (B, n_inputs) → the output, (B, 1). Keeps each layer's y and, times 2/u0, the last
        sum.
        """
        p = self.parameters
        scale = 2 / self.u0
        of_rule = self.rule == "ed"
        # (B, n), as every z below.
        self.y = [((x @ p["input.weight"] + p["input.bias"]) * scale).sigmoid()]
        z = self.y[0] - self.inhibitory
        for weight, bias in zip(p["hidden.weight"], p["hidden.bias"], strict=True):
            # Under ED's rule nothing goes back from layer to layer.
            z = z.detach() if of_rule else z
            self.y.append(((z @ weight + bias) * scale).sigmoid())
            z = z + self.share * (self.y[-1] - self.inhibitory)
        z = z.detach() if of_rule else z
        # (B, 1)
        self.last = (z @ p["output.weight"] + p["output.bias"]) * scale
        return self.last.sigmoid().detach()

    def loss(self, output, target):
        """What falls, after a forward pass that gave this output: of target (B, 1) in [0, 1]."""
        if self.rule == "cross_entropy":
            return functional.binary_cross_entropy_with_logits(self.last, target)
        if self.rule == "squared":
            return functional.mse_loss(self.last.sigmoid(), target) / 2
        # ED: each cell rises by its own slope times the error, told (B, 1). σ's 2/u0 is left to
        # the rate.
        told = (target - output) * self.u0 / 2 / len(target)
        return -sum((told * y).sum() for y in [*self.y, self.last.sigmoid()])

    def step(self, x, target):
        """One step: x (B, n_inputs), target (B, 1) in [0, 1] → the outputs before it."""
        output = self.forward(x)
        self.optimizer.zero_grad()
        self.loss(output, target).backward()
        self.optimizer.step()
        for name in ("hidden.weight", "output.weight"):
            self.parameters[name].data.clamp_(min=0)
        return output


class VectorPerceptron(Perceptron):
    """Layers of ``widths`` cells, from inputs to classes: a hidden cell holds a number for each of
    K classes.

    A cell's sums a = Σ w y + b, (K,), pass its gate, all K or none, if they lie on the side of a
    fixed random vector of ±1, t · a > 0. Weights between cells are numbers ≥ 0, so each path from a
    cell to the scores multiplies its K numbers by one number ≥ 0: the gradient by them is the error
    vector e, (K,), times one number ≥ 0. The rule "vector" takes it for one where the gate is open;
    the other is "backprop". D. Clark et al., "Credit assignment through broadcasting a global error
    vector" (2021).
    """

    rules = "vector", "backprop"

    def draw(self):
        inputs, *hidden, K = self.widths
        # The first weights, (I, O, K), are of any sign.
        self.weights = [self.normal(inputs, hidden[0], K) * (2 / inputs) ** 0.5]
        # The others, (I, O), are of a size that sums keep. One last cell holds the scores.
        for inputs, outputs in zip(hidden, [*hidden[1:], 1], strict=True):
            self.weights.append(self.normal(inputs, outputs).abs() * 2 / inputs)
        # (O, K) of each layer.
        self.biases = [torch.zeros(width, K, dtype=self.dtype) for width in (*hidden, 1)]
        # The fixed vector t of each hidden cell: (O, K) of a layer.
        self.sides = [self.normal(width, K).sign() for width in hidden]
        for sides in self.sides:
            # Cells go in pairs, whose gates open for opposite sums.
            pairs = len(sides) // 2
            sides[1::2] = -sides[: 2 * pairs : 2]
        return [p.requires_grad_() for p in (*self.weights, *self.biases)]

    def forward(self, x):
        """x (B, n_inputs) → the probabilities, (B, K). Keeps each layer's sums, and the gates."""
        first, *others = self.weights
        # (B, O, K)
        a = (x @ first.flatten(1)).view(len(x), *first.shape[1:]) + self.biases[0]
        self.sums = [a]
        self.gates = []
        for weight, bias, sides in zip(others, self.biases[1:], self.sides, strict=True):
            # (B, O)
            self.gates.append(((a * sides).sum(2) > 0).to(a))
            # (B, O, K), which is the next layer's (B, I, K).
            y = a * self.gates[-1][:, :, None]
            if self.rule == "vector":
                # Nothing goes back from layer to layer.
                y = y.detach()
            # (O, I) @ (B, I, K) → (B, O, K)
            a = weight.T @ y + bias
            self.sums.append(a)
        return a[:, 0].softmax(1).detach()

    def directions(self, target):
        # The error e, (B, K), and what each layer is told, (B, O, K).
        error = (target - self.sums[-1][:, 0].softmax(1).detach()) / len(target)
        told = [gate[:, :, None] * error[:, None] for gate in self.gates]
        told.append(error[:, None])
        if self.rule == "backprop":
            # The last layer alone is told; autograd does the rest.
            return list(torch.autograd.grad(self.sums[-1:], self.parameters, told[-1:]))
        return list(torch.autograd.grad(self.sums, self.parameters, told))

    @torch.no_grad()
    def keep_signs(self):
        """Puts weights that went below zero back to it."""
        for weight in self.weights[1:]:
            weight.clamp_(min=0)
