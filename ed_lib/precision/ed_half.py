"""ED in half precision: an EDNetwork's twin whose weights, activations and updates have 16 bits.

As on a GPU's half-precision units, products are summed in float32; what is stored is rounded.
"""

import numpy as np
import torch

from ed_lib import arrays, check
from ed_lib.ed import EDNetwork, rules
from ed_lib.precision.formats import FORMATS

HELD_IN = ("float32", "float16", "bfloat16")
STORES = ("nearest", "stochastic", "master")


class HalfED:
    """Starts from ``net``, an :class:`~ed_lib.ed.EDNetwork` with free biases, and learns by its rule.

    format: of weights, activations and updates, a name in HELD_IN. Biases stay float32. store, how a weight
    takes its update: "nearest", their sum is rounded to nearest; "stochastic", see
    :func:`round_stochastically`; "master", the sum is kept in float32, and layers compute with it rounded.

    Is trained by :func:`ed_lib.ed.training.train`. After a step, ``weights`` (a tensor (K, 2, 2, I, O) for
    each layer, input first) have changed, and ``lost`` holds for each layer the share of its updates, of
    those that are not zero, that changed no stored weight.

    On a CPU, wherever ``net`` is.
    """

    def __init__(self, net: EDNetwork, format: str = "float16", store: str = "nearest", seed: int = 0):
        check.choice("format", format, HELD_IN)
        check.choice("store", store, STORES)
        check.choice("net.bias", net.bias, ("free",))
        self.format, self.store = format, store
        self.rule, self.alpha, self.u0 = net.rule, net.alpha, net.u0
        self.n_inputs, self.n_outputs = net.n_inputs, net.n_outputs
        self.space = arrays.space("torch")
        self.random = torch.Generator().manual_seed(check.count("seed", seed, least=0))
        self.weights, self.biases = (self._layers(net.state_dict(), kind) for kind in ("weight", "bias"))
        if store != "master":
            self.weights = [self._round(weight) for weight in self.weights]
        self.lost: list[float] = []

    def asarray(self, array: np.ndarray) -> torch.Tensor:
        """A NumPy array as a tensor of float32."""
        return self.space.asarray(array)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs, x (B, n_inputs) → (B, K)."""
        return self._answers(x)[-1][:, 0, :, 0].T  # the excitatory cell's: (K, B) → (B, K)

    def step(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """``forward``, then one ED update: x (B, n_inputs), target (B, K) → the outputs before it, (B, K)."""
        answers = self._answers(x)
        output = answers[-1][:, 0, :, 0].T  # (K, B) → (B, K)
        error = self.space.check("target", target, tuple(output.shape)) - output
        self.lost = []
        for layer, (sent, answer) in enumerate(zip(answers[:-1], answers[1:], strict=True)):
            update = self._round(rules.weight_update(sent, answer, error, self.alpha, self.rule))
            before = self.weights[layer]
            self.weights[layer] = self._stored(before + update)
            moving = update != 0
            still = moving & (self.weights[layer] == before)
            self.lost.append(int(still.sum()) / max(int(moving.sum()), 1))
            self.biases[layer] = self.biases[layer] + rules.bias_update(answer, error, self.alpha)
        return output

    def _answers(self, x):
        """What every layer answers, and before it x: a list of (K, 2, B, cells)."""
        x = self._round(self.space.check("x", x, ("B", self.n_inputs)))
        answers = [x.expand(self.n_outputs, 2, *x.shape)]  # (B, I) → (K, 2, B, I)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            answers.append(self._round(rules.layer(answers[-1], self._round(weight), bias, self.u0)))
        return answers

    def _round(self, x):
        return x.to(getattr(torch, self.format)).float()

    def _stored(self, weight):
        if self.store == "master":
            return weight
        if self.store == "stochastic":
            return round_stochastically(weight, self.format, self.random)
        return self._round(weight)

    def _layers(self, state, kind):
        first, hidden, last = (self.asarray(state[f"{at}.{kind}"]) for at in ("input", "hidden", "output"))
        return [first, *hidden, last]


def round_stochastically(x: torch.Tensor, format: str, random: torch.Generator | None = None) -> torch.Tensor:
    """Each x to the number of the format below or above it, the nearer more often, so that the mean is x.

    x: a tensor of float32 of any shape, within the format's largest number; so is what comes back. format: a
    name in FORMATS of at most 22 bits of mantissa. random: a torch.Generator; None: torch's own.
    """
    f = FORMATS[format]
    _, exponent = torch.frexp(x)  # |x| = m · 2^exponent, ½ ≤ m < 1
    spacing = torch.ldexp(torch.ones_like(x), exponent - 1 - f.mantissa).clamp(min=f.smallest)
    below = torch.floor(x / spacing)
    up = torch.rand(x.shape, generator=random) < x / spacing - below  # exact, which below + rand would not be
    return (below + up) * spacing
