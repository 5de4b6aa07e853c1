"""ED and backpropagation on equal terms: directions for the same weights, given to the same optimizers."""

import numpy as np

from ed_lib import check
from ed_lib.ed import baselines
from ed_lib.ed.network import EDNetwork, check_target

METHODS = ("ed", *baselines.LOSSES)
OPTIMIZERS = ("sgd", "adam")


class Learner:
    """Trains an EDNetwork of the backend "torch", one batch at a time, by ``step``.

    method: "ed", the direction of the network's rule; "squared" or "cross_entropy", the negative gradient of
    that loss by backpropagation, see :class:`ed_lib.ed.baselines.Backprop`. optimizer: "sgd" (with "ed" and
    α = ``rate`` this is ``net.step``) or "adam", both PyTorch's. rate: the step. steps: after so many steps
    the rate has fallen to zero, along half a cosine; None: it is constant. layers: which layers learn, a mask
    as :func:`mask` makes it; None: all.

    ValueError or TypeError for a bad argument, naming it.
    """

    def __init__(self, net, method="ed", optimizer="sgd", rate=0.1, *, steps=None, layers=None):
        import torch

        check.choice("method", method, METHODS)
        check.choice("optimizer", optimizer, OPTIMIZERS)
        check.positive("rate", rate)
        if net.space.backend != "torch":
            raise ValueError(f"net is of the backend {net.space.backend!r}; wanted 'torch'")
        if method != "ed" and not isinstance(net, EDNetwork):
            raise ValueError(f"method is {method!r}, and net is no EDNetwork; wanted 'ed'")
        self.net, self.method, self.rate = net, method, rate
        self.frozen = ~check_mask(net, np.ones(net.depth + 2, bool) if layers is None else layers)
        self.backprop = None if method == "ed" else baselines.Backprop(net, loss=method)
        for parameter in net.parameters.values():
            parameter.grad = torch.zeros_like(parameter)  # holds the direction in which to go
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
        self.optimizer = kind(net.parameters.values(), lr=rate, maximize=True)
        self.schedule = None
        if steps is not None:
            steps = check.count("steps", steps)
            self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)

    def step(self, x, target):
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

    def find_direction(self, error):
        """Puts the direction for the last forward pass into each parameter's ``grad``: error (B, K)."""
        directions = {name: parameter.grad for name, parameter in self.net.parameters.items()}
        for direction in directions.values():
            direction.zero_()
        if self.method == "ed":
            with self.net.exclusive():
                self.net.add_direction(directions, error, 1.0)
        else:
            self.backprop.chain(error)
            self.backprop.add_direction(directions, 1.0)
        for name, direction in directions.items():
            for layer in np.flatnonzero(self.frozen):
                if (place := part(name, int(layer), self.net.depth)) is not None:
                    direction[place] = 0


def mask(net, *layers):
    """Which of the network's depth + 2 layers of weights are named: a boolean array.

    Each name is "input", "hidden" (all hidden-to-hidden layers), "output", or a number from 0 (the input
    layer) to depth + 1 (the output layer). ValueError for a name that is unknown, or a mask that names no
    layer.
    """
    named = np.zeros(net.depth + 2, bool)
    places = {"input": 0, "hidden": slice(1, -1), "output": -1}
    for layer in layers:
        if isinstance(layer, str):
            check.choice("layers", layer, places)
            named[places[layer]] = True
        elif check.count("layers", layer, least=0) <= net.depth + 1:
            named[layer] = True
        else:
            raise ValueError(f"layers names {layer}; wanted at most {net.depth + 1}, the output layer")
    return check_mask(net, named)


def check_mask(net, layers):
    """``layers`` as a boolean array (depth + 2,). ValueError unless it is one, and names a layer."""
    layers = np.asarray(layers)
    if layers.dtype != bool or layers.shape != (net.depth + 2,):
        wanted = f"one truth value for each of the {net.depth + 2} layers of weights"
        raise ValueError(f"layers is {layers.dtype} of the shape {layers.shape}; wanted {wanted}")
    if not layers.any():
        raise ValueError("layers names no layer of this network; wanted at least one")
    return layers


def part(name, layer, depth):
    """Where in the parameter ``name`` the weights of this layer lie, or None if they lie elsewhere."""
    place = "input" if layer == 0 else "output" if layer == depth + 1 else "hidden"
    if not name.startswith(place):
        return None
    return layer - 1 if place == "hidden" else slice(None)
