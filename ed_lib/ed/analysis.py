"""Looking into a network: does ED's update point the way of the gradient, and which layers do anything?

Everything here is computed in float64 by the clear formulas of ``rules``, with PyTorch's autograd for the
gradient. Layers of weights are counted from 0, the input layer, to depth + 1, the output layer; hidden layers
of cells from 0 to depth. ``saturation``, ``one_number`` and ``votes`` look at the last ``forward``.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy

from ed_lib import arrays, check
from ed_lib.ed import rules
from ed_lib.ed.network import EDNetwork
from ed_lib.ed.rivals import LOSSES

SATURATED = 0.01  # a cell whose output is nearer than this to 0 or 1
EXACT = arrays.space("numpy", dtype="float64")


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
    sent = torch.as_tensor(EXACT.check("x", x, ("B", net.n_inputs)))
    sent = sent.expand(net.n_outputs, 2, *sent.shape)  # (K, 2, B, I)
    state, layers = net.state_dict(), []
    for arrays_ in zip(by_layer(state, "weight"), by_layer(state, "bias"), strict=True):
        weight, bias = map(torch.as_tensor, arrays_)
        weight.requires_grad_()
        if net.bias == "cells":
            bias = rules.BIAS_CELL * bias.sum(2)  # (K, 2, 2, 1, O) → (K, 2, 1, O)
        answered = rules.layer(sent, weight, bias, net.u0)
        layers.append(Layer(weight, sent, answered))
        sent = answered
    return layers


def by_layer(state: dict[str, np.ndarray], part: str) -> list[np.ndarray]:
    """The "weight" or "bias" of each of the depth + 2 layers in a ``state_dict``, in float64."""
    first, hidden, last = (state[f"{name}.{part}"].astype(float) for name in ("input", "hidden", "output"))
    return [first, *hidden, last]


def saturation(net: EDNetwork) -> np.ndarray:
    """The share of each hidden layer's answers that are nearer than 0.01 to 0 or 1: (depth + 1,)."""
    y = _answers(net)
    return ((y < SATURATED) | (y > 1 - SATURATED)).mean(axis=(1, 2, 3))


def one_number(net: EDNetwork) -> np.ndarray:
    """How nearly each hidden layer passes on a single number: (depth + 1,). That is the share of its answers'
    variance, over the batch, along their first principal component, averaged over the K networks: 1 when all
    cells move together; NaN where no answer differs between samples.
    """
    y = _answers(net)
    y -= y.mean(axis=2, keepdims=True)
    covariance = y.swapaxes(-1, -2) @ y  # (depth + 1, K, 2W, 2W), times the batch
    total, largest = np.trace(covariance, axis1=-2, axis2=-1), np.linalg.eigvalsh(covariance)[..., -1]
    with np.errstate(invalid="ignore"):
        return np.where(total > 0, largest / total, np.nan).mean(axis=1)


def votes(net: EDNetwork) -> np.ndarray:
    """What each hidden layer says to each sample: (depth + 1, K, B), in (−1, 1). The mean answer of its
    excitatory cells less that of its inhibitory cells; above zero is a vote for 1.
    """
    y = _answers(net)
    return y[..., : net.width].mean(axis=-1) - y[..., net.width :].mean(axis=-1)


def _answers(net: EDNetwork) -> np.ndarray:
    """What the hidden cells answered in the last ``forward``, (depth + 1, K, B, 2W), float64."""
    if net.activations is None:
        raise RuntimeError("the network has no activations: it never ran; call forward(x) first")
    return arrays.to_numpy(net.states).astype(float)


def moved(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> np.ndarray:
    """How far each layer of weights went, ‖W_after − W_before‖ / ‖W_before‖ of two states: (depth + 2,)."""
    layers = zip(by_layer(before, "weight"), by_layer(after, "weight"), strict=True)
    return np.array([np.linalg.norm(new - old) / np.linalg.norm(old) for old, new in layers])
