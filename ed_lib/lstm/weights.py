"""The order of the gates in an LSTM's or GRU's weights, library by library, and the way to ONNX and
back.

PyTorch's parameters are {"weight_ih_l0": (G·H, I), "weight_hh_l0": (G·H, H), "bias_ih_l0": (G·H,),
"bias_hh_l0": (G·H,), …}, the gates stacked; a second direction's names end in "_reverse". I inputs,
H hidden, G gates: i, f, g, o in an LSTM (g is the candidate, c elsewhere), r, z, n in a GRU.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from ed_lib import check

ORDERS = {  # of the gates
    "cudnn": {"lstm": "ifgo", "gru": "rzn"},  # PyTorch's as well
    "keras": {"lstm": "ifgo", "gru": "zrn"},
    # AMD's library, by the numbers that its miopenGetRNNLayerParamSize has for them
    "miopen": {"lstm": "ifog", "gru": "zrn"},
    "onnx": {"lstm": "iofg", "gru": "zrn"},
}
KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
WAYS = ("", "_reverse")  # how the names of each direction's parameters end


def reorder(cell: str, stacked: torch.Tensor, source: str, target: str) -> torch.Tensor:
    """``stacked`` (G·H, …), of a ``cell`` "lstm" or "gru", with its gates in the order of
    ``target``, not ``source``: "cudnn" (NVIDIA's, and PyTorch's), "keras", "miopen" (AMD's) or
    "onnx". ValueError for another name, or for rows that are no such stack.
    """
    gates = _gates(cell)
    check.choice("source", source, ORDERS)
    check.choice("target", target, ORDERS)
    if not isinstance(stacked, torch.Tensor):
        raise TypeError(f"stacked is a {type(stacked).__name__}; wanted a torch.Tensor")
    rows = len(stacked) if stacked.ndim else 0
    if not rows or rows % gates:
        shape = tuple(stacked.shape)
        raise ValueError(f"stacked has the shape {shape}; wanted ({gates} · H, …) for {cell!r}")
    before = ORDERS[source][cell]
    after = ORDERS[target][cell]
    part_of = dict(zip(before, stacked.chunk(gates), strict=True))  # (H, …) each
    return torch.cat([part_of[gate] for gate in after])


def from_onnx(cell: str, weights: Sequence[np.ndarray], layer: int = 0) -> dict[str, torch.Tensor]:
    """Parameters of one layer from the W (D, G·H, I), R (D, G·H, H) and B (D, 2·G·H) of ONNX's
    operator LSTM or GRU, or from W and R alone; D directions, 1 or 2. A GRU's has to have
    ``linear_before_reset=1``: cuDNN has no other. ValueError for what does not fit.
    """
    gates = _gates(cell)
    layer = check.count("layer", layer, least=0)
    if len(weights) not in (2, 3):
        raise ValueError(f"weights holds {len(weights)} arrays; wanted W, R and B, or W and R")
    w, r, *bias = (torch.as_tensor(array) for array in weights)
    check.shape("R", tuple(r.shape), ("D", gates * (r.shape[-1] if r.ndim else 1), "H"))
    directions, rows, _ = r.shape
    check.choice("R's directions", directions, (1, 2))
    check.shape("W", tuple(w.shape), (directions, rows, "I"))
    for b in bias:
        check.shape("B", tuple(b.shape), (directions, 2 * rows))
    # B holds the input's biases, and behind them the state's.
    halves = bias[0].chunk(2, 1) if bias else ()  # (D, G·H) each
    found = {}
    for kind, of_directions in zip(KINDS, (w, r, *halves), strict=False):
        for way, stacked in zip(WAYS, of_directions, strict=False):
            found[f"{kind}_l{layer}{way}"] = reorder(cell, stacked, "onnx", "cudnn")
    return found


def to_onnx(cell: str, parameters: Mapping[str, torch.Tensor], layer: int = 0) -> list[np.ndarray]:
    """[W, R, B] for ONNX's operator, of all directions of one layer, or [W, R] of a layer without
    biases: the inverse of :func:`from_onnx`. ``parameters``: a ``state_dict()``. ValueError for a
    layer that is not there, or not whole, for another cell's, and for projections.
    """
    kinds, ways = _check_layer(cell, parameters, layer)
    arrays = []  # W, R and two biases, each (D, …)
    for kind in kinds:
        stacked = [parameters[f"{kind}_l{layer}{way}"].detach().cpu() for way in ways]
        arrays.append(torch.stack([reorder(cell, one, "cudnn", "onnx") for one in stacked]))
    w, r, *biases = arrays
    if not biases:
        return [w.numpy(), r.numpy()]
    return [w.numpy(), r.numpy(), torch.cat(biases, 1).numpy()]


def _gates(cell):
    """How many gates a cell has."""
    check.choice("cell", cell, ORDERS["cudnn"])
    return len(ORDERS["cudnn"][cell])


def _check_layer(cell, parameters, layer):
    """The kinds and the ways of a layer's parameters, once it is known that they are all there,
    that nothing else is, and that they fit.
    """
    gates = _gates(cell)
    layer = check.count("layer", layer, least=0)
    if not isinstance(parameters, Mapping):
        found = type(parameters).__name__
        raise TypeError(f"parameters is a {found}; wanted a mapping, as state_dict() gives")
    kinds = KINDS if f"bias_hh_l{layer}" in parameters else KINDS[:2]
    ways = WAYS if f"weight_hh_l{layer}_reverse" in parameters else WAYS[:1]
    wanted = [f"{kind}_l{layer}{way}" for way in ways for kind in kinds]
    missing = [name for name in wanted if name not in parameters]
    if missing:
        there = ", ".join(parameters)
        raise ValueError(f"parameters has no {', '.join(missing)}; there are {there}")
    # The matrix of a projection, say, "weight_hr_l0", or one bias alone.
    of_layer = re.compile(rf"\w+_l{layer}(_reverse)?")
    more = [name for name in parameters if of_layer.fullmatch(name) and name not in wanted]
    if more:
        raise ValueError(f"parameters has {', '.join(more)}; ONNX's {cell} has no place for it")
    for name, columns in ((wanted[0], "I"), (wanted[1], "H")):
        check.shape(name, tuple(parameters[name].shape), (f"{gates} · H", columns))
    inputs = parameters[wanted[0]].shape[1]
    hidden = parameters[wanted[1]].shape[1]
    rows = gates * hidden
    shapes = dict(zip(KINDS, [(rows, inputs), (rows, hidden), (rows,), (rows,)], strict=True))
    for name in wanted:
        kind, _, _ = name.partition("_l")
        check.shape(name, tuple(parameters[name].shape), shapes[kind])
    return kinds, ways
