"""Looking into a network: does ED's update point the way of the gradient?

Everything here is computed in float64 by the clear formulas of ``rules``, with PyTorch's autograd for the
gradient. Layers of weights are counted from 0, the input layer, to depth + 1, the output layer.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy

from ed_lib import check
from ed_lib.ed import rules
from ed_lib.ed.network import EDNetwork
from ed_lib.ed.rivals import LOSSES, by_layer
from ed_lib.ed.space import space

EXACT = space("numpy", dtype="float64")


class Agreement(NamedTuple):
    """How an ED direction compares with a gradient, over the weights of one layer of all K networks."""

    same_sign: float  # of the weights that both would move, the share that they move the same way, or NaN
    cosine: float  # of the two directions; NaN if one is zero
    counted: float  # the share of weights that both would move


def directions(
    net: EDNetwork, x: np.ndarray, target: np.ndarray, loss: str = "squared"
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For each layer of weights, what ED adds to it (with α = 1) and what gradient descent adds.

    x (B, n_inputs), target (B, K): NumPy arrays. ``loss`` as in :class:`ed_lib.ed.rivals.Backprop`. → two
    lists of depth + 2 NumPy arrays (K, 2, 2, I, O), as in ``state_dict``. The output's inhibitory cell, which
    nobody reads, is left out: (K, 1, 2, W, 1).
    """
    check.choice("loss", loss, LOSSES)
    layers = trace(net, x)
    out = layers[-1].answered[:, 0, :, 0].T  # (K, 2, B, 1) → (B, K)
    wanted = torch.as_tensor(EXACT.check("target", target, tuple(out.shape)))
    error = wanted - out
    total = (error**2).sum() / 2 if loss == "squared" else binary_cross_entropy(out, wanted, reduction="sum")
    gradients = torch.autograd.grad(total / len(x), [layer.weight for layer in layers])
    with torch.no_grad():
        ed = [rules.weight_update(n.sent, n.answered, error, 1.0, net.rule).numpy() for n in layers]
    descent = [-gradient.numpy() for gradient in gradients]
    for found in (ed, descent):
        found[-1] = found[-1][:, :1]
    return ed, descent


def agreement(net: EDNetwork, x: np.ndarray, target: np.ndarray, loss: str = "squared") -> list[Agreement]:
    """An :class:`Agreement` for each of the depth + 2 layers of weights; arguments as in ``directions``."""
    return [compare(ed, descent) for ed, descent in zip(*directions(net, x, target, loss), strict=True)]


def compare(ed: np.ndarray, descent: np.ndarray) -> Agreement:
    """The :class:`Agreement` of two directions, arrays of the same shape."""
    ed, descent = (np.ravel(v) / (np.abs(v).max() or 1) for v in (ed, descent))  # or squares underflow
    both = (ed != 0) & (descent != 0)
    same = float((np.sign(ed) == np.sign(descent))[both].mean()) if both.any() else np.nan
    lengths = np.linalg.norm(ed) * np.linalg.norm(descent)
    return Agreement(same, float(ed @ descent / lengths) if lengths else np.nan, float(both.mean()))


def adjoints(net: EDNetwork, x: np.ndarray) -> np.ndarray:
    """∂o/∂y, the adjoint of each hidden cell: what backpropagation sends back to it, up to the error.

    x (B, n_inputs) → (depth + 1, K, 2, B, W), a NumPy array. In a network whose weights have their signs it
    is nowhere negative for type 0, nowhere positive for type 1.
    """
    layers = trace(net, x)
    out = layers[-1].answered[:, 0].sum()  # samples and networks do not mix: each has its own derivative
    found = torch.autograd.grad(out, [layer.answered for layer in layers[:-1]])
    return torch.stack(found).numpy()


class Layer(NamedTuple):
    """Tensors of one layer that autograd follows."""

    weight: torch.Tensor  # (K, 2, 2, I, O)
    sent: torch.Tensor  # (K, 2, B, I)
    answered: torch.Tensor  # (K, 2, B, O)


def trace(net: EDNetwork, x: np.ndarray) -> list[Layer]:
    """The forward pass for x (B, n_inputs), a NumPy array, as a list of depth + 2 :class:`Layer`."""
    sent, layers = torch.as_tensor(EXACT.check("x", x, ("B", net.n_inputs))), []
    sent = sent.expand(net.n_outputs, 2, *sent.shape)  # (K, 2, B, I)
    for weight, bias in by_layer(net.state_dict(), lambda array: torch.as_tensor(array.astype(float))):
        if net.bias == "cells":
            bias = rules.BIAS_CELL * bias.sum(2)  # (K, 2, 2, 1, O) → (K, 2, 1, O)
        answered = rules.layer(sent, weight.requires_grad_(), bias, net.u0)
        layers.append(Layer(weight, sent, answered))
        sent = answered
    return layers
