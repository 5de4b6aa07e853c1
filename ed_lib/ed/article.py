"""The source article's network, call for call, and an array that writes down which calls work on it."""

import numpy as np

from ed_lib.arrays import Array
from ed_lib.ed.network import EDNetwork
from ed_lib.ed.space import library


class ArticleNetwork:
    """The source article's network: the calls of its listing, one for one and in its order, in our words.

    A test holds the list of them. Takes over the weights of ``net``, an EDNetwork with one output and free
    biases, in NumPy or CuPy, and its dtype (the article's is float64). Its rule is "signed". Unlike the
    article's, its step α is the same in all layers, as in ``net``.
    """

    def __init__(self, net: EDNetwork):
        if (net.n_outputs, net.bias, net.rule) != (1, "free", "signed"):
            raise ValueError("net is unlike the article's; wanted one output, free biases, the rule 'signed'")
        self.net, self.u0, self.alpha = net, net.u0, net.alpha
        state = {name: net.asarray(value) for name, value in net.state_dict().items()}
        # (2, 2, I, O) and (2, 1, O); of the hidden layers (D, 2, 2, W, W) and (D, 2, 1, W)
        self.state = {name: value[:, 0] if "hidden" in name else value[0] for name, value in state.items()}
        self.signs = net.asarray(np.array([[[1.0]], [[-1.0]]]))  # of the receivers, (2, 1, 1)

    def forward(self, x: Array) -> Array:
        """x (B, n_inputs) → (B, 1). Keeps the activations for ``update``."""
        state = self.state
        given = x[None].repeat(2, 0)  # (B, I) → (2, B, I)
        states = [self.layer(given, state["input.weight"], state["input.bias"])]
        for weight, bias in zip(state["hidden.weight"], state["hidden.bias"], strict=True):
            states.append(self.layer(states[-1], weight, bias))
        output = self.layer(states[-1], state["output.weight"], state["output.bias"])  # (2, B, 1)
        all_states = library(x).asarray(states)  # (D + 1, 2, B, W)
        self.senders = {"input": given, "hidden": all_states[:-1], "output": states[-1]}
        self.answers = {"input": states[0], "hidden": all_states[1:], "output": output}
        return output[0]

    def layer(self, x: Array, weight: Array, bias: Array) -> Array:
        """One layer, twelve calls: x (2, B, I), weight (2, 2, I, O), bias (2, 1, O) → (2, B, O)."""
        u = ((x @ weight).sum(1) + bias) * self.signs  # → (2, 2, B, O) → (2, B, O)
        return self.sigmoid(u)

    def sigmoid(self, u: Array) -> Array:
        """σ(u) with no exponential of a positive number, so that none overflows. Writes into u."""
        lib = library(u)
        u *= 2 / self.u0
        return lib.exp(lib.minimum(u, 0)) / (1 + lib.exp(-lib.abs(u)))

    def update(self, error: Array) -> None:
        """One step from error (B, 1). Forms every product, (…, 2, 2, B, I, O), before it takes the mean."""
        einsum = library(error).einsum
        for name, x in self.senders.items():
            y = self.answers[name]
            received = einsum("b,...pbo->...pbo", error[:, 0], y * (1 - y))  # (…, 2, B, O)
            weight, bias = self.state[f"{name}.weight"], self.state[f"{name}.bias"]
            weight += self.alpha * einsum("...pbo,...qbi->...pqbio", received, x).mean(-3)
            bias += self.alpha * received.mean(-2, keepdims=True)


class Logged(np.ndarray):
    """A NumPy array that writes down each call that works on it, in ``Logged.calls``: its name, and the shape
    of what it made. Each is a launch on a GPU, and has a price on a CPU. What is made is such an array again;
    ``array.view(Logged)`` makes the first one.
    """

    __module__ = "numpy"  # ed_lib asks which library an array comes from
    calls: list[tuple[str, tuple[int, ...]]] = []

    def log(self, name, function, *inputs, **options):
        """Calls ``function`` on plain arrays, and writes it down."""
        plain = lambda x: x.view(np.ndarray) if isinstance(x, Logged) else x  # noqa: E731
        if "out" in options:  # += writes into what is there
            options["out"] = tuple(map(plain, options["out"]))
        result = np.asarray(function(*map(plain, inputs), **options)).view(Logged)
        Logged.calls.append((name, result.shape))
        return result

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        name = "sum" if method == "reduce" else ufunc.__name__
        return self.log(name, getattr(ufunc, method), *inputs, **options)

    def __array_function__(self, function, types, inputs, options):
        return self.log(function.__name__, function, *inputs, **options)

    def mean(self, *axes, **options):  # one call, though NumPy's method makes several
        return self.log("mean", np.mean, self, *axes, **options)
