"""ED and backpropagation on equal terms: directions for the same weights, given to the same optimizers."""

from typing import Any

import numpy as np
import torch

from ed_lib import check
from ed_lib.ed import baselines
from ed_lib.ed.network import EDNetwork, check_target

METHODS = ("ed", *baselines.LOSSES)
OPTIMIZERS = ("sgd", "adam")


class Learner:
    """Trains an EDNetwork of the backend "torch", or a RoutedNetwork, one batch at a time, by ``step``.

    method: "ed", the direction of the network's rule; "squared" or "cross_entropy", the negative gradient of
    that loss by backpropagation, see :class:`ed_lib.ed.baselines.Backprop`. optimizer: "sgd" (with "ed" and
    α = ``rate`` this is ``net.step``) or "adam", both PyTorch's. rate: the step. steps: after so many steps
    the rate has fallen to zero, along half a cosine; None: it is constant. layers: which layers learn, a mask
    as :func:`mask` makes it; None: all.
    """

    def __init__(
        self, net: Any, method: str = "ed", optimizer: str = "sgd", rate: float = 0.1, *,
        steps: int | None = None, layers: np.ndarray | None = None,
    ):  # fmt: skip
        check.choice("method", method, METHODS)
        check.choice("optimizer", optimizer, OPTIMIZERS)
        check.positive("rate", rate)
        if net.space.backend != "torch":
            raise ValueError(f"net is of the backend {net.space.backend!r}; wanted 'torch'")
        if method != "ed" and not isinstance(net, EDNetwork):
            raise ValueError(f"method is {method!r}, and net is no EDNetwork; wanted 'ed'")
        self.net, self.method, self.rate = net, method, rate
        layers = np.ones(net.depth + 2, bool) if layers is None else np.asarray(layers)
        if layers.dtype != bool or layers.shape != (net.depth + 2,) or not layers.any():
            wanted = f"one truth value for each of the {net.depth + 2} layers of weights, not all False"
            raise ValueError(f"layers is {layers.tolist()}; wanted {wanted}")
        self.frozen = [int(layer) for layer in np.flatnonzero(~layers)]
        self.backprop = None if method == "ed" else baselines.Backprop(net, loss=method)
        self.directions = {name: torch.zeros_like(p) for name, p in net.parameters.items()}
        for name, parameter in net.parameters.items():
            parameter.grad = self.directions[name]
        kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam
        self.optimizer = kind(net.parameters.values(), lr=rate, maximize=True)
        self.schedule = None
        if steps is not None:
            steps = check.count("steps", steps)
            self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)

    def step(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """x (B, n_inputs), target (B, K) in [0, 1] → the outputs before the step, (B, K)."""
        output = self.net.forward(x)
        target = check_target(self.net, target, len(x))
        self.find_direction(target - output)
        self.optimizer.step()
        if self.method == "ed":
            self.net.keep_signs()
        if self.schedule:
            self.schedule.step()
        return output

    def find_direction(self, error: torch.Tensor) -> None:
        """Puts the direction for the last forward pass into each parameter's ``grad``: error (B, K)."""
        for direction in self.directions.values():
            direction.zero_()
        if self.backprop:
            self.backprop.chain(error)
            self.backprop.add_direction(self.directions, 1.0)
        else:
            with self.net.exclusive():
                self.net.add_direction(self.directions, error, 1.0)
        for name, direction in self.directions.items():
            for layer in self.frozen:
                if (place := part(name, layer, self.net.depth)) is not None:
                    direction[place] = 0


def mask(net: Any, *layers: str | int) -> np.ndarray:
    """Which of the network's depth + 2 layers of weights are named: a boolean array.

    Each name is "input", "hidden" (all hidden-to-hidden layers), "output", or a number from 0 (the input
    layer) to depth + 1 (the output layer).
    """
    places: dict[str | int, Any] = {"input": 0, "hidden": slice(1, -1), "output": -1}
    places |= {number: number for number in range(net.depth + 2)}
    named = np.zeros(net.depth + 2, bool)
    for layer in layers:
        check.choice("layers", layer, places)
        named[places[layer]] = True
    return named


def part(name: str, layer: int, depth: int) -> int | slice | None:
    """Where in the parameter ``name`` the weights of this layer lie, or None if they lie elsewhere."""
    place = "input" if layer == 0 else "output" if layer == depth + 1 else "hidden"
    if not name.startswith(place):
        return None
    return layer - 1 if place == "hidden" else slice(None)
