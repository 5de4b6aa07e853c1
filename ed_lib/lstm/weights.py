"""The weights of an LSTM or GRU in the forms in which frameworks keep them, and the ways between these forms.

=============  ====================================================================================
form           what it is
=============  ====================================================================================
parameters     PyTorch's: {"weight_ih_l0": (G·H, I), "weight_hh_l0": (G·H, H), "bias_ih_l0": (G·H,),
               "bias_hh_l0": (G·H,), …}, the gates stacked; a second direction ends in "_reverse"
gates          one array for each gate: {"weight_ih_l0.i": (H, I), "bias_hh_l0.o": (H,), …}
flat buffer    all gates in one vector, as cuDNN takes them; a table of offsets says where
Keras          kernel (I, G·H), recurrent kernel (H, G·H), and a bias of its own shape for each cell
ONNX           W (D, G·H, I), R (D, G·H, H) and B (D, 2·G·H), D directions
=============  ====================================================================================

I inputs, H hidden, G gates: i, f, g, o in an LSTM (g is the candidate, c elsewhere), r, z, n in a GRU. With
``bias=False`` the biases are not there, in each of the forms. The order of cuDNN's buffer, which it calls
opaque, is the one that JAX's documentation describes (jax.experimental.rnn); on a GPU a test compares
PyTorch's views with it.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from ed_lib import check

ORDERS = {  # of the gates
    "cudnn": {"lstm": "ifgo", "gru": "rzn"},  # PyTorch's as well
    "keras": {"lstm": "ifgo", "gru": "zrn"},
    "miopen": {"lstm": "ifog", "gru": "zrn"},  # AMD's library
    "onnx": {"lstm": "iofg", "gru": "zrn"},
}
CELLS = ("lstm", "gru")
KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
Tensors = Mapping[str, torch.Tensor]  # by name


class Piece(NamedTuple):
    """One gate's matrix or bias in the flat buffer: where it begins, in elements, and its shape."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.offset + math.prod(self.shape)


def layout(
    cell: str, input_size: int, hidden_size: int, num_layers: int = 1, directions: int = 1, bias: bool = True
) -> list[Piece]:
    """The table of cuDNN's flat buffer for a cell, "lstm" or "gru", in order.

    All layers' matrices, then all layers' biases. In a layer: the forward direction,
    then the reverse one; in these what multiplies the input, then what multiplies the
    state; in these the gates in cuDNN's order. A matrix is (H, columns), row by row.
    """
    check.choice("cell", cell, CELLS)
    i = check.count("input_size", input_size)
    h = check.count("hidden_size", hidden_size)
    layers = range(check.count("num_layers", num_layers))
    check.choice("directions", directions, (1, 2))
    pieces: list[Piece] = []
    offset, ways = 0, ("", "_reverse")[:directions]
    for kind, layer, suffix in itertools.product(("weight", "bias")[: 1 + bias], layers, ways):
        inputs = i if layer == 0 else directions * h
        for side, gate in itertools.product(("ih", "hh"), ORDERS["cudnn"][cell]):
            shape = (h,) if kind == "bias" else (h, inputs if side == "ih" else h)
            pieces.append(Piece(f"{kind}_{side}_l{layer}{suffix}.{gate}", offset, shape))
            offset = pieces[-1].end
    return pieces


def pack(pieces: list[Piece], gates: Tensors) -> torch.Tensor:
    """The flat buffer, a vector, of separate gates {name: tensor}, as the table ``pieces`` orders them.
    ValueError for a gate that is missing, too many, or of another shape than the table's.
    """
    if odd := {piece.name for piece in pieces} ^ set(gates):
        raise ValueError(f"gates and the table differ in {', '.join(sorted(odd))}; wanted the same names")
    for piece in pieces:
        check.shape(piece.name, tuple(gates[piece.name].shape), piece.shape)
    return torch.cat([gates[piece.name].reshape(-1) for piece in pieces])


def unpack(pieces: list[Piece], flat: torch.Tensor) -> dict[str, torch.Tensor]:
    """The separate gates {name: tensor} of a flat buffer: views of it."""
    check.shape("flat", tuple(flat.shape), (pieces[-1].end,))
    return {piece.name: flat[piece.offset : piece.end].view(piece.shape) for piece in pieces}


def split_gates(cell: str, parameters: Tensors) -> dict[str, torch.Tensor]:
    """Parameters, gates stacked {"weight_ih_l0": (G·H, I)} → separate gates {"weight_ih_l0.i": (H, I)}."""
    order = ORDERS["cudnn"][cell]
    parts = {name: tensor.chunk(len(order)) for name, tensor in parameters.items()}
    return {f"{name}.{gate}": part[n] for name, part in parts.items() for n, gate in enumerate(order)}


def join_gates(cell: str, gates: Tensors) -> dict[str, torch.Tensor]:
    """Separate gates → parameters, gates stacked; the inverse of :func:`split_gates`."""
    names = dict.fromkeys(name.partition(".")[0] for name in gates)
    return {name: torch.cat([gates[f"{name}.{gate}"] for gate in ORDERS["cudnn"][cell]]) for name in names}


def reorder(cell: str, stacked: torch.Tensor, source: str, target: str) -> torch.Tensor:
    """``stacked`` (G·H, …) with its gates in the order of ``target``, not ``source``:
    "cudnn", "keras" or "miopen" (NVIDIA's and PyTorch's, Keras', AMD's).
    """
    order = ORDERS[source][cell]
    parts = dict(zip(order, stacked.chunk(len(order)), strict=True))
    return torch.cat([parts[gate] for gate in ORDERS[target][cell]])


def from_keras(cell: str, weights: Sequence[np.ndarray], suffix: str = "l0") -> dict[str, torch.Tensor]:
    """Parameters of one layer and direction from a Keras layer's ``get_weights()``.

    ``weights``: kernel (I, G·H), recurrent kernel (H, G·H), and a bias, unless the layer has none: (4·H,) for
    an LSTM, which becomes the input's beside a zero, (2, 3·H) for a GRU. ``suffix`` ends the parameters'
    names: "l0", "l1_reverse". A GRU made with ``reset_after=False`` has one bias as well, and is refused:
    cuDNN has no such cell.
    """
    kernel, recurrent, *bias = (torch.as_tensor(array) for array in weights)
    h, rows = len(recurrent), len(ORDERS["keras"][cell]) * len(recurrent)  # H, G·H
    check.shape("the kernel", tuple(kernel.shape), ("I", rows))
    check.shape("the recurrent kernel", tuple(recurrent.shape), (h, rows))
    if bias and cell == "lstm":
        if bias[0].shape == (2 * rows,):
            raise ValueError(
                f"the bias has {2 * rows} numbers, a CuDNNLSTM's two; wanted {rows}: add its halves"
            )
        check.shape("the bias", tuple(bias[0].shape), (rows,))
        bias = [bias[0], torch.zeros_like(bias[0])]
    elif bias:
        check.shape("the bias", tuple(bias[0].shape), (2, rows))
        bias = [*bias[0]]
    stacked = zip(KINDS, (kernel.T, recurrent.T, *bias), strict=False)
    return {f"{name}_{suffix}": reorder(cell, array, "keras", "cudnn") for name, array in stacked}


def to_keras(cell: str, parameters: Tensors, suffix: str = "l0") -> list[np.ndarray]:
    """[kernel, recurrent kernel, bias] for ``set_weights`` of a Keras layer: the inverse of
    :func:`from_keras`, for the one layer and direction that ``suffix`` names. An LSTM's biases are added.
    """
    names = [f"{kind}_{suffix}" for kind in KINDS if f"{kind}_{suffix}" in parameters]
    w, u, *b = (reorder(cell, parameters[name].detach(), "cudnn", "keras") for name in names)
    bias = [sum(b) if cell == "lstm" else torch.stack(b)] if b else []
    return [tensor.contiguous().cpu().numpy() for tensor in (w.T, u.T, *bias)]  # type: ignore[union-attr]


def from_onnx(cell: str, weights: Sequence[np.ndarray], layer: int = 0) -> dict[str, torch.Tensor]:
    """Parameters of one layer from the W, R and B of ONNX's operator LSTM or GRU, or from W and R alone. A
    GRU's has to have ``linear_before_reset=1``: cuDNN has no other.
    """
    w, r, *bias = (torch.as_tensor(array) for array in weights)
    check.shape("R", tuple(r.shape), ("D", len(ORDERS["onnx"][cell]) * r.shape[-1], "H"))
    check.shape("W", tuple(w.shape), (*r.shape[:2], "I"))
    for b in bias:
        check.shape("B", tuple(b.shape), (len(r), 2 * r.shape[1]))
    halves = bias[0].chunk(2, 1) if bias else ()  # of the input and of the state
    found = {}
    for kind, stacked in zip(KINDS, (w, r, *halves), strict=False):
        for d, array in enumerate(stacked):
            name = f"{kind}_l{layer}{('', '_reverse')[d]}"
            found[name] = reorder(cell, array, "onnx", "cudnn")
    return found


def to_onnx(cell: str, parameters: Tensors, layer: int = 0) -> list[np.ndarray]:
    """[W, R, B] for ONNX's operator, of all directions of one layer: the inverse of :func:`from_onnx`."""
    of = []  # W, R and two biases, each (D, …)
    for kind in KINDS:
        names = [f"{kind}_l{layer}{way}" for way in ("", "_reverse")]
        found = [parameters[name].detach().cpu() for name in names if name in parameters]
        if found:
            of.append(torch.stack([reorder(cell, array, "cudnn", "onnx") for array in found]))
    w, r, *biases = of
    return [array.numpy() for array in (w, r, *([torch.cat(biases, 1)] if biases else []))]


def layout_of(module: nn.RNNBase) -> list[Piece]:
    """The table for an ``nn.LSTM`` or ``nn.GRU`` without projection."""
    if module.proj_size:
        raise ValueError(f"module is {module}; wanted one without projection")
    sizes = module.input_size, module.hidden_size, module.num_layers
    return layout(module.mode.lower(), *sizes, 2 if module.bidirectional else 1, bool(module.bias))
