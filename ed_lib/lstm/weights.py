"""The weights of an LSTM or GRU in the forms in which frameworks keep them, and the ways between these forms.

=============  ====================================================================================
form           what it is
=============  ====================================================================================
parameters     PyTorch's: {"weight_ih_l0": (G·H, I), "weight_hh_l0": (G·H, H), "bias_ih_l0": (G·H,),
               "bias_hh_l0": (G·H,), …}, the gates stacked; a second direction ends in "_reverse"
gates          one array for each gate: {"weight_ih_l0.i": (H, I), "bias_hh_l0.o": (H,), …}
flat buffer    all gates in one vector, as cuDNN takes them; a table of offsets says where
Keras          kernel (I, G·H), recurrent kernel (H, G·H), and a bias of its own shape for each cell
=============  ====================================================================================

I inputs, H hidden, G gates: i, f, g, o in an LSTM (g is the candidate, c elsewhere), r, z, n in a GRU.
The order of cuDNN's buffer, which it calls opaque, is the one that JAX's documentation describes
(jax.experimental.rnn); on a GPU a test compares PyTorch's views with it.
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
    cell: str, input_size: int, hidden_size: int, num_layers: int = 1, directions: int = 1
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
    for kind, layer, suffix in itertools.product(("weight", "bias"), layers, ways):
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

    ``weights``: kernel (I, G·H), recurrent kernel (H, G·H), and a bias: (4·H,) for an
    LSTM, which becomes the input's beside a zero, (2, 3·H) for a GRU. ``suffix`` ends
    the parameters' names: "l0", "l1_reverse". A GRU made with ``reset_after=False``
    has one bias as well, and is refused: cuDNN has no such cell.
    """
    kernel, recurrent, bias = (torch.as_tensor(array) for array in weights)
    h, rows = len(recurrent), len(ORDERS["keras"][cell]) * len(recurrent)  # H, G·H
    check.shape("the kernel", tuple(kernel.shape), ("I", rows))
    check.shape("the recurrent kernel", tuple(recurrent.shape), (h, rows))
    check.shape("the bias", tuple(bias.shape), (rows,) if cell == "lstm" else (2, rows))
    if cell == "lstm":
        bias = torch.stack([bias, torch.zeros_like(bias)])  # (2, G·H)
    stacked = zip(KINDS, (kernel.T, recurrent.T, *bias), strict=True)
    return {f"{name}_{suffix}": reorder(cell, array, "keras", "cudnn") for name, array in stacked}


def to_keras(cell: str, parameters: Tensors, suffix: str = "l0") -> list[np.ndarray]:
    """[kernel, recurrent kernel, bias] for ``set_weights`` of a Keras layer: the inverse of
    :func:`from_keras`, for the one layer and direction that ``suffix`` names. An LSTM's biases are added.
    """
    found = (parameters[f"{name}_{suffix}"].detach() for name in KINDS)
    w, u, b_i, b_h = (reorder(cell, array, "cudnn", "keras") for array in found)
    bias = b_i + b_h if cell == "lstm" else torch.stack([b_i, b_h])
    return [tensor.contiguous().cpu().numpy() for tensor in (w.T, u.T, bias)]


def layout_of(module: nn.RNNBase) -> list[Piece]:
    """The table for an ``nn.LSTM`` or ``nn.GRU`` with biases and without projection."""
    if not module.bias or module.proj_size:
        raise ValueError(f"module is {module}; wanted one with biases and without projection")
    sizes = module.input_size, module.hidden_size, module.num_layers
    return layout(module.mode.lower(), *sizes, directions=2 if module.bidirectional else 1)


def parameter_offsets(module: nn.RNNBase) -> dict[str, int]:
    """Where each parameter of an ``nn.LSTM`` or ``nn.GRU`` begins in the flat buffer: {name: elements}."""
    # where its first gate does, the last one to be written into the dict
    return {piece.name.partition(".")[0]: piece.offset for piece in reversed(layout_of(module))}


def is_flat(module: nn.RNNBase) -> bool:
    """Whether the parameters of an ``nn.LSTM`` or ``nn.GRU`` lie in one storage, where the table says."""
    parameters = dict(module.named_parameters())
    one = len({p.untyped_storage().data_ptr() for p in parameters.values()}) == 1
    return one and {name: p.storage_offset() for name, p in parameters.items()} == parameter_offsets(module)


@torch.no_grad()
def flatten(module: nn.RNNBase) -> torch.Tensor:
    """Moves the parameters of an ``nn.LSTM`` or ``nn.GRU`` into one flat buffer, whose views they become, and
    returns it: on any device what ``flatten_parameters()`` does on a GPU.
    """
    parameters = dict(module.named_parameters())
    flat = pack(layout_of(module), split_gates(module.mode.lower(), parameters))
    for name, begin in parameter_offsets(module).items():
        p = parameters[name]
        p.data = flat[begin : begin + p.numel()].view(p.shape)
    return flat


def why_not_persistent(module: nn.RNNBase, batch: int, dtype: torch.dtype, packed: bool = False) -> list[str]:
    """Which of PyTorch's conditions for cuDNN's persistent kernel a call of an nn.LSTM
    or nn.GRU misses: words. ``dtype``: what it computes in; ``packed``: whether the
    input is a PackedSequence.

    From PyTorch's aten/src/ATen/native/cudnn/RNN.cpp, for GPUs of compute capability
    8.0 or more, not x.6, with 98 multiprocessors or more. Volta has rules of its own;
    for all other GPUs PyTorch never asks for it.
    """
    h, i = module.hidden_size, module.input_size
    conditions = {
        "an LSTM": module.mode == "LSTM",
        "float16": dtype == torch.float16,
        "one layer": module.num_layers == 1,
        "one direction": not module.bidirectional,
        "no projection": module.proj_size == 0,
        "not packed": not packed,
        "hidden size 128, 256, … 1024": h % 128 == 0 and h <= 1024,
        "input size a multiple of 128": i % 128 == 0,
        "batch 8, 16, … 128": batch % 8 == 0 and batch <= 128,
    }
    return [name for name, met in conditions.items() if not met]


def algorithm(
    module: nn.RNNBase, batch: int, dtype: torch.dtype, packed: bool = False, backward: bool = False
) -> str:
    """What PyTorch asks cuDNN for in a forward or backward pass: "small persistent"
    (compute capability 6.0 or more), "persistent" or "standard". The small one comes
    first. Arguments and source: why_not_persistent.
    """
    allowed = dtype != torch.float64 and not packed and module.proj_size == 0
    if allowed and module.hidden_size <= (128 if backward else 192):
        return "small persistent"
    return "standard" if why_not_persistent(module, batch, dtype, packed) else "persistent"
