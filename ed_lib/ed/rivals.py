"""What ED is compared with: the article's network, call for call, and a log of its calls;
backpropagation by hand and by autograd; and the optimizers of both.

K networks, B samples in a batch, I senders and O receivers of a layer, C = 2W cells of a hidden
one.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from ed_lib import check
from ed_lib.arrays import Array
from ed_lib.ed import layout
from ed_lib.ed.network import EDNetwork
from ed_lib.ed.space import library

LOSSES = ("squared", "cross_entropy")
OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


class ArticleNetwork:
    """The source article's network: the calls of its listing, one for one and in its order, in our
    words.

    Takes over weights and dtype (the article's is float64) of ``net``, an EDNetwork with one
    output, free biases and the rule "signed", in NumPy or CuPy. Unlike there, the step α is the
    same in all layers.
    """

    def __init__(self, net: EDNetwork):
        if (net.n_outputs, net.bias, net.rule) != (1, "free", "signed"):
            raise ValueError(
                "net is unlike the article's; wanted one output, free biases, the rule 'signed'"
            )
        self.net = net
        self.u0 = net.u0
        self.alpha = net.alpha
        # (2, 2, I, O) and (2, 1, O); of the hidden layers (D, 2, 2, W, W) and (D, 2, 1, W)
        self.state = {}
        for name, value in net.state_dict().items():
            array = net.asarray(value)
            self.state[name] = array[:, 0] if "hidden" in name else array[0]
        self.signs = net.asarray([[[1.0]], [[-1.0]]])  # of the receivers, (2, 1, 1)

    def forward(self, x: Array) -> Array:
        """x (B, n_inputs) → (B, 1). Keeps the activations for ``update``."""
        state = self.state
        # Both types of sender send the inputs: (B, I) → (2, B, I)
        given = x[None].repeat(2, 0)
        states = [self.layer(given, state["input.weight"], state["input.bias"])]
        for weight, bias in zip(state["hidden.weight"], state["hidden.bias"], strict=True):
            states.append(self.layer(states[-1], weight, bias))
        # Of both types of cell, (2, B, 1); the excitatory one is the output.
        output = self.layer(states[-1], state["output.weight"], state["output.bias"])
        # (D + 1, 2, B, W): copied into one array, so that the update can take all layers at once
        all_states = library(x).asarray(states)
        self.senders = {"input": given, "hidden": all_states[:-1], "output": states[-1]}
        self.answers = {"input": states[0], "hidden": all_states[1:], "output": output}
        return output[0]

    def layer(self, x: Array, weight: Array, bias: Array) -> Array:
        """One layer, twelve calls: x (2, B, I), weight (2, 2, I, O), bias (2, 1, O) → (2, B, O)."""
        products = x @ weight  # (2, 2, B, O), of each type of receiver with each type of sender
        u = (products.sum(1) + bias) * self.signs  # (2, B, O)
        return self.sigmoid(u)

    def sigmoid(self, u: Array) -> Array:
        """σ(u) with no exponential of a positive number, so that none overflows. Writes into u."""
        lib = library(u)
        u *= 2 / self.u0
        # e^u / (1 + e^u) below zero, and 1 / (1 + e^−u) above
        numerator = lib.exp(lib.minimum(u, 0))
        denominator = 1 + lib.exp(-lib.abs(u))
        return numerator / denominator

    def update(self, error: Array) -> None:
        """One step from error (B, 1). Forms every product, (…, 2, 2, B, I, O), before it takes the
        mean.
        """
        einsum = library(error).einsum
        for name, x in self.senders.items():
            y = self.answers[name]
            slope = y * (1 - y)  # (…, 2, B, O)
            received = einsum("b,...pbo->...pbo", error[:, 0], slope)
            # The large array, (…, 2, 2, B, I, O): the batch axis is summed only afterwards.
            products = einsum("...pbo,...qbi->...pqbio", received, x)
            weight = self.state[f"{name}.weight"]
            weight += self.alpha * products.mean(-3)
            bias = self.state[f"{name}.bias"]
            bias += self.alpha * received.mean(-2, keepdims=True)


class Logged(np.ndarray):
    """A NumPy array that writes down each call that works on it, in ``Logged.calls``: its name, and
    the shape of what it made. Each is a launch on a GPU, and has a price on a CPU. What is made is
    such an array again; ``array.view(Logged)`` makes the first one.
    """

    __module__ = "numpy"  # ed_lib asks which library an array comes from
    calls: list[tuple[str, tuple[int, ...]]] = []

    def log(self, name: str, function: Callable, *inputs: Any, **options: Any) -> "Logged":
        """Calls ``function`` on plain arrays, and writes it down."""
        if "out" in options:
            # += writes into what is there.
            options["out"] = tuple(map(plain, options["out"]))
        result = np.asarray(function(*map(plain, inputs), **options))
        Logged.calls.append((name, result.shape))
        return result.view(Logged)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        name = "sum" if method == "reduce" else ufunc.__name__
        return self.log(name, getattr(ufunc, method), *inputs, **options)

    def __array_function__(self, function, types, inputs, options):
        return self.log(function.__name__, function, *inputs, **options)

    # One call, though NumPy's own method makes several.
    def mean(self, *axes: int, **options: bool) -> "Logged":  # type: ignore[override]
        return self.log("mean", np.mean, self, *axes, **options)


def plain(value: Any) -> Any:
    """A logged array as one of NumPy's own; anything else as it is."""
    return value.view(np.ndarray) if isinstance(value, Logged) else value


class Backprop:
    """Backpropagation by hand for the weights of ``net``, with its folded layout: the fair opponent
    of ED.

    ``net.forward`` first; then ``chain(error)``, the deltas of all layers, one layer after another;
    then ``learn()``, the update of all weights from them, as much at once as ED's. Gradient descent
    with the step ``rate`` on the ``loss``, a sum over k of means over b: "squared", ½ (t − o)², or
    "cross_entropy", −t log o − (1 − t) log(1 − o).
    """

    def __init__(self, net: EDNetwork, rate: float = 0.1, loss: str = "squared"):
        if net.bias != "free":
            raise ValueError(f"net has bias={net.bias!r}; wanted 'free'")
        check.choice("loss", loss, LOSSES)
        self.net = net
        self.rate = check.positive("rate", rate)
        self.loss = loss
        self.deltas: Array = None  # (depth + 1, K, B, C), allocated by ``chain``
        self.last: Array = None  # (K, B, 2), the output layer's

    def chain(self, error: Array) -> None:
        """Finds −∂loss/∂u of every layer: ``deltas`` (depth + 1, K, B, C) of the hidden ones, and
        ``last`` (K, B, 2); error is target − output, (B, K).
        """
        self.last = self.of_output(error)
        net = self.net
        matmul = net.space.library.matmul
        if self.deltas is None or self.deltas.shape != net.states.shape:
            self.deltas = net.space.empty(net.states.shape)
        deltas = self.deltas
        # σ′ of all layers at once, (depth + 1, K, B, C), since it needs no other layer.
        slopes = sigmoid_slope(net.states, net.u0)
        # The transpose of each layer's weights, a view; of the output's, (K, 2, C).
        output = net.parameters["output.weight"].swapaxes(-1, -2)
        hidden = net.parameters["hidden.weight"].swapaxes(-1, -2)
        # Down from the output, each δ from the one above it: (K, B, 2) @ (K, 2, C) → (K, B, C)
        matmul(self.last, output, out=deltas[-1])
        deltas[-1] *= slopes[-1]
        for d in reversed(range(net.depth)):
            matmul(deltas[d + 1], hidden[d], out=deltas[d])
            deltas[d] *= slopes[d]

    def of_output(self, error: Array) -> Array:
        """−∂loss/∂u of the output's two cells, (K, B, 2), from error (B, K)."""
        if self.net.activations is None:
            raise RuntimeError("chain() needs the activations of net.forward(x); there was none")
        x, out = self.net.activations
        check.shape("error", tuple(error.shape), (len(x), self.net.n_outputs))
        delta = sigmoid_slope(out, self.net.u0)
        if self.loss == "cross_entropy":
            # Its derivative by o has o(1 − o) below the line, which cancels the slope's.
            delta[...] = 2 / self.net.u0
        delta[..., 0] *= error.T / len(error)
        # The loss does not see the output's inhibitory cell.
        delta[..., 1] = 0
        return delta

    def learn(self, p: dict[str, Array] | None = None, rate: float | None = None) -> None:
        """Adds ``rate`` times the direction of descent, −∂loss/∂p, to ``p``, the parameters or
        arrays like them: in groups of layers, as ``layout.learn``.
        """
        p = self.net.parameters if p is None else p
        rate = self.rate if rate is None else rate
        x, _ = self.net.activations
        states = self.net.states
        deltas = self.deltas
        change = rate * (x.T @ deltas[0])  # (I, B) @ (K, B, C)
        n_inputs = x.shape[-1]
        # Both types of sender send x, so that their weights change alike.
        p["input.weight"][:, :n_inputs] += change
        p["input.weight"][:, n_inputs:] += change
        p["input.bias"] += rate * deltas[0].sum(-2, keepdims=True)
        for group in layout.groups(states[1:]):
            sent = states[:-1][group].swapaxes(-1, -2)  # (n, K, C, B)
            received = rate * deltas[1:][group]  # (n, K, B, C)
            layout.add_product(p["hidden.weight"][group], sent, received)
            p["hidden.bias"][group] += received.sum(-2, keepdims=True)
        sent = states[-1].swapaxes(-1, -2)  # (K, C, B)
        p["output.weight"] += rate * (sent @ self.last)
        p["output.bias"] += rate * self.last.sum(-2, keepdims=True)


def sigmoid_slope(y: Array, u0: float) -> Array:
    """σ′ = (2/u0) y(1 − y)."""
    slope = 1 - y
    slope *= y
    slope *= 2 / u0
    return slope


def loss(
    layers: list[tuple[Any, Any]], u0: float, x: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    """½ Σ_k mean_b (t − o)² as PyTorch's autograd wants it: x (B, n_inputs), target (B, K) → a
    scalar with its graph. layers: ``by_layer`` of an EDNetwork's parameters, of the backend "torch"
    with free biases.
    """
    scale = 2 / u0
    y = x.expand(target.shape[1], *x.shape)  # (K, B, I)
    for n, (weight, bias) in enumerate(layers):
        if n == 0:
            # Both types of sender send x: (K, 2I, C) → (K, I, C)
            weight = weight.unflatten(1, (2, -1)).sum(1)
        y = torch.baddbmm(bias, y, weight, beta=scale, alpha=scale).sigmoid()
    error = target.T - y[..., 0]  # (K, B), of the excitatory cells
    return (error**2).sum() / (2 * len(x))


def by_layer(p: dict[str, Array], convert: Callable = lambda array: array) -> list[tuple[Any, Any]]:
    """The (weight, bias) of each of the depth + 2 layers of parameters, or of a ``state_dict``,
    converted.
    """
    layers = [(p["input.weight"], p["input.bias"])]
    # The hidden layers' arrays are stacks with an entry for each.
    layers.extend(zip(p["hidden.weight"], p["hidden.bias"], strict=True))
    layers.append((p["output.weight"], p["output.bias"]))
    return [(convert(weight), convert(bias)) for weight, bias in layers]


def optimizer(
    parameters: Iterable[torch.Tensor],
    kind: str,
    rate: float,
    steps: int | None = None,
    **options: bool,
) -> torch.optim.Optimizer:
    """One of PyTorch's, "sgd" or "adam". steps: after so many the rate has fallen from ``rate`` to
    zero along half a cosine; None: it is constant. options: PyTorch's.
    """
    check.choice("optimizer", kind, OPTIMIZERS)
    rate = check.positive("rate", rate)
    made = OPTIMIZERS[kind](parameters, lr=rate, **options)
    if steps is not None:
        check.count("steps", steps)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(made, steps)

        def fall(*_: Any) -> None:
            # Past its last step half a cosine would rise again.
            if schedule.last_epoch < steps:
                schedule.step()

        # With the optimizer's own step, so that whoever takes it need not know of the schedule.
        made.register_step_post_hook(fall)
    return made
