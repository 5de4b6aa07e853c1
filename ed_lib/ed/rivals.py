"""What the chapters compare the ED network with: backpropagation in its own architecture, by hand and by
autograd, from the weights of an :class:`~ed_lib.ed.EDNetwork`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ed_lib import check
from ed_lib.arrays import Array
from ed_lib.ed import layout
from ed_lib.ed.network import EDNetwork

LOSSES = ("squared", "cross_entropy")
OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


class Backprop:
    """Backpropagation by hand for the weights of ``net``, with its folded layout: the fair opponent of ED.

    ``net.forward`` first; then ``chain(error)``, the deltas of all layers, one layer after another; then
    ``learn()``, the update of all weights from them, as much at once as ED's. Gradient descent with the step
    ``rate`` on the ``loss``, a sum over k of means over b: "squared", ½ (t − o)², or "cross_entropy",
    −t log o − (1 − t) log(1 − o).
    """

    def __init__(self, net: EDNetwork, rate: float = 0.1, loss: str = "squared"):
        if net.bias != "free":
            raise ValueError(f"net has bias={net.bias!r}; wanted 'free'")
        check.choice("loss", loss, LOSSES)
        self.net, self.rate, self.loss = net, rate, loss
        self.deltas: Array = None  # (depth + 1, K, B, C), allocated by ``chain``

    def chain(self, error: Array) -> None:
        """−∂loss/∂u of every layer, (depth + 1, K, B, C) and (K, B, 2); error is target − output, (B, K)."""
        net, states, (x, out) = self.net, self.net.states, self.net.activations
        if self.deltas is None or self.deltas.shape != states.shape:
            self.deltas = net.space.empty(states.shape)
        deltas, slopes, weight = self.deltas, sigmoid_slope(states, net.u0), net.parameters["hidden.weight"]
        matmul, self.last = net.space.library.matmul, sigmoid_slope(out, net.u0)  # (K, B, 2)
        if self.loss == "cross_entropy":  # whose derivative by o has o(1 − o) below the line
            self.last[...] = 2 / net.u0
        self.last[..., 0] *= error.T / len(x)
        self.last[..., 1] = 0  # the loss does not see the output's inhibitory cell
        matmul(self.last, net.parameters["output.weight"].swapaxes(-1, -2), out=deltas[-1])
        deltas[-1] *= slopes[-1]
        for d in reversed(range(net.depth)):
            matmul(deltas[d + 1], weight[d].swapaxes(-1, -2), out=deltas[d])
            deltas[d] *= slopes[d]

    def learn(self, p: dict[str, Array] | None = None, rate: float | None = None) -> None:
        """Adds ``rate`` times the direction of descent, −∂loss/∂p, to ``p``, the parameters or arrays like
        them: in groups of layers, as ``layout.learn``.
        """
        p, rate = p or self.net.parameters, rate or self.rate
        (x, _), states, deltas = self.net.activations, self.net.states, self.deltas
        change = rate * (x.T @ deltas[0])  # (I, B) @ (K, B, C)
        for rows in (slice(None, x.shape[-1]), slice(x.shape[-1], None)):  # both types of sender send x
            p["input.weight"][:, rows] += change
        p["input.bias"] += rate * deltas[0].sum(-2, keepdims=True)
        for group in layout.groups(states[1:]):
            received = rate * deltas[1:][group]  # (n, K, B, C)
            layout.add_product(p["hidden.weight"][group], states[:-1][group].swapaxes(-1, -2), received)
            p["hidden.bias"][group] += received.sum(-2, keepdims=True)
        p["output.weight"] += rate * (states[-1].swapaxes(-1, -2) @ self.last)
        p["output.bias"] += rate * self.last.sum(-2, keepdims=True)

    def step(self, x: Array, target: Array) -> Array:
        """x (B, n_inputs), target (B, K) → the outputs before the step, (B, K)."""
        output = self.net.forward(x)
        self.chain(target - output)
        self.learn()
        return output


def sigmoid_slope(y: Array, u0: float) -> Array:
    """σ′ = (2/u0) y(1 − y)."""
    slope = 1 - y
    slope *= y
    slope *= 2 / u0
    return slope


class Autograd:
    """The same network trained by PyTorch's autograd and plain gradient descent, from the weights of ``net``,
    an EDNetwork of the backend "torch" with free biases.
    """

    def __init__(self, net: EDNetwork, rate: float = 0.1):
        if net.space.backend != "torch" or net.bias != "free":
            raise ValueError("net is of another backend or has bias cells; wanted 'torch' and free biases")
        self.u0, self.rate = net.u0, rate
        self.layers = by_layer(net.parameters, lambda tensor: tensor.clone().requires_grad_())
        self.parameters = [parameter for layer in self.layers for parameter in layer]

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss ½ Σ_k mean_b (t − o)²: x (B, n_inputs), target (B, K) → a scalar with its graph."""
        y, scale = x.expand(target.shape[1], *x.shape), 2 / self.u0  # (K, B, I)
        for n, (weight, bias) in enumerate(self.layers):
            if n == 0:  # both types of sender send x
                weight = weight.unflatten(1, (2, -1)).sum(1)  # (K, 2I, C) → (K, I, C)
            y = torch.baddbmm(bias, y, weight, beta=scale, alpha=scale).sigmoid()
        return ((target.T - y[..., 0]) ** 2).sum() / (2 * len(x))

    def backward(self, loss: torch.Tensor) -> None:
        """The gradients of all weights. Can be called again."""
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward(retain_graph=True)

    def descend(self) -> None:
        """One step of gradient descent, which a graph does not notice: it can be gone back through again."""
        gradients: list[Any] = [parameter.grad for parameter in self.parameters]
        torch._foreach_add_([parameter.data for parameter in self.parameters], gradients, alpha=-self.rate)

    def step(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """``forward``, ``backward``, ``descend`` → the loss."""
        loss = self.forward(x, target)
        self.backward(loss)
        self.descend()
        return loss


def by_layer(p: dict[str, Array], convert: Callable = lambda array: array) -> list[tuple[Any, Any]]:
    """The (weight, bias) of each of the depth + 2 layers of parameters, or of a ``state_dict``, converted."""
    first, hidden, last = ((p[f"{name}.weight"], p[f"{name}.bias"]) for name in ("input", "hidden", "output"))
    return [(convert(weight), convert(bias)) for weight, bias in (first, *zip(*hidden, strict=True), last)]


class Optimizer:
    """One of PyTorch's, "sgd" or "adam". steps: after so many the rate has fallen from ``rate`` to zero along
    half a cosine; None: it is constant. options: PyTorch's.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], kind: str, rate: float, steps: int | None = None,
                 **options: bool):  # fmt: skip
        check.choice("optimizer", kind, OPTIMIZERS)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR
        self.inner = OPTIMIZERS[kind](parameters, lr=check.positive("rate", rate), **options)
        self.schedule = cosine(self.inner, check.count("steps", steps)) if steps is not None else None

    def step(self) -> None:
        """Changes the parameters by what stands in their ``grad``."""
        self.inner.step()
        if self.schedule:
            self.schedule.step()
