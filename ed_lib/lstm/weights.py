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
cuDNN calls its buffer opaque and offers cudnnGetRNNWeightParams to look into it. The order here is the one
that JAX's documentation describes (jax.experimental.rnn); on a GPU a test compares PyTorch's views with it.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
Tensors = Mapping[str, torch.Tensor]  # by name


@dataclass(frozen=True)
class Piece:
    """One gate's matrix or bias in the flat buffer: where it begins, in elements, and its shape."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        return self.offset + self.size


def layout(
    cell: str, input_size: int, hidden_size: int, num_layers: int = 1, directions: int = 1
) -> list[Piece]:
    """The table of cuDNN's flat buffer for a cell, "lstm" or "gru": a list of
    :class:`Piece`, in order.

    First the matrices of all layers, then the biases of all layers. In a layer: the
    forward direction, then the reverse one; in a direction what multiplies the input,
    then what multiplies the state; in these the gates in cuDNN's order. Every matrix
    is (H, columns), row after row.
    """
    gates = _order(cell)
    i = check.count("input_size", input_size)
    h = check.count("hidden_size", hidden_size)
    layers = range(check.count("num_layers", num_layers))
    check.choice("directions", directions, (1, 2))
    pieces: list[Piece] = []
    offset, ways = 0, ("", "_reverse")[:directions]
    for kind, layer, suffix in itertools.product(("weight", "bias"), layers, ways):
        inputs = i if layer == 0 else directions * h
        for side, gate in itertools.product(("ih", "hh"), gates):
            shape = (h,) if kind == "bias" else (h, inputs if side == "ih" else h)
            pieces.append(Piece(f"{kind}_{side}_l{layer}{suffix}.{gate}", offset, shape))
            offset = pieces[-1].end
    return pieces


def pack(pieces: list[Piece], gates: Tensors) -> torch.Tensor:
    """The flat buffer, a vector, of separate gates {name: tensor}, as the table ``pieces`` orders them."""
    _check_names("gates", gates, [piece.name for piece in pieces])
    for piece in pieces:
        check.shape(piece.name, tuple(gates[piece.name].shape), piece.shape)
    if len(dtypes := {gate.dtype for gate in gates.values()}) > 1:
        raise ValueError(f"gates have the dtypes {', '.join(map(str, dtypes))}; wanted one")
    return torch.cat([gates[piece.name].reshape(-1) for piece in pieces])


def unpack(pieces: list[Piece], flat: torch.Tensor) -> dict[str, torch.Tensor]:
    """The separate gates {name: tensor} of a flat buffer: views, so that what writes one writes both."""
    check.shape("flat", tuple(flat.shape), (pieces[-1].end,))
    return {piece.name: flat[piece.offset : piece.end].view(piece.shape) for piece in pieces}


def split_gates(cell: str, parameters: Tensors) -> dict[str, torch.Tensor]:
    """Parameters, gates stacked {"weight_ih_l0": (G·H, I)} → separate gates {"weight_ih_l0.i": (H, I)}."""
    gates: dict[str, torch.Tensor] = {}
    for name, tensor in parameters.items():
        gates |= {f"{name}.{gate}": part for gate, part in _split(name, tensor, _order(cell)).items()}
    return gates


def join_gates(cell: str, gates: Tensors) -> dict[str, torch.Tensor]:
    """Separate gates → parameters, gates stacked; the inverse of :func:`split_gates`."""
    order = _order(cell)
    names = list(dict.fromkeys(name.partition(".")[0] for name in gates))
    _check_names("gates", gates, [f"{name}.{gate}" for name in names for gate in order])
    return {name: torch.cat([gates[f"{name}.{gate}"] for gate in order]) for name in names}


def reorder(cell: str, stacked: torch.Tensor, source: str, target: str) -> torch.Tensor:
    """``stacked`` (G·H, …) with its gates in the order of ``target``, not ``source``:
    "cudnn", "keras" or "miopen" (NVIDIA's and PyTorch's, Keras', AMD's).
    """
    for name, value in (("source", source), ("target", target)):
        check.choice(name, value, ORDERS)
    parts = _split("stacked", stacked, _order(cell, source))
    return torch.cat([parts[gate] for gate in _order(cell, target)])


def from_keras(cell: str, weights: Sequence[np.ndarray], suffix: str = "l0") -> dict[str, torch.Tensor]:
    """Parameters of one layer and direction from a Keras layer's ``get_weights()``.

    ``weights`` are NumPy arrays: kernel (I, G·H), recurrent kernel (H, G·H), and a
    bias: (4·H,) for an LSTM, (2, 3·H) for a GRU. ``suffix`` ends the parameters'
    names: "l0", "l1_reverse". An LSTM's one bias becomes the input's, and the state's
    is zero. A GRU made with ``reset_after=False`` has one bias as well, and is refused:
    it is another cell, and cuDNN has no such one.
    """
    kernel, recurrent, bias = (torch.as_tensor(array) for array in weights)
    h, rows = len(recurrent), len(_order(cell)) * len(recurrent)  # H, G·H
    check.shape("the kernel", tuple(kernel.shape), ("I", rows))
    check.shape("the recurrent kernel", tuple(recurrent.shape), (h, rows))
    check.shape("the bias", tuple(bias.shape), (rows,) if cell == "lstm" else (2, rows))
    if cell == "lstm":
        bias = torch.stack([bias, torch.zeros_like(bias)])  # (2, G·H)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    stacked = dict(zip(names, (kernel.T, recurrent.T, *bias), strict=True))
    stacked = {n: reorder(cell, a, "keras", "cudnn") for n, a in stacked.items()}
    return {f"{name}_{suffix}": array for name, array in stacked.items()}


def to_keras(cell: str, parameters: Tensors, suffix: str = "l0") -> list[np.ndarray]:
    """[kernel, recurrent kernel, bias] for ``set_weights`` of a Keras layer: the inverse of
    :func:`from_keras`, for the one layer and direction that ``suffix`` names. An LSTM's biases are added.
    """
    names = [f"{name}_{suffix}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    w, u, b_i, b_h = (reorder(cell, parameters[name].detach(), "cudnn", "keras") for name in names)
    bias = b_i + b_h if cell == "lstm" else torch.stack([b_i, b_h])
    return [tensor.contiguous().cpu().numpy() for tensor in (w.T, u.T, bias)]


def merge_biases(
    cell: str, bias_ih: torch.Tensor, bias_hh: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two biases (G·H,) as one and a zero, for the same cell: (bias_ih + bias_hh, 0).

    In an LSTM both are added to the same sum, so this is always possible. In a GRU it holds for r and z, but
    n = tanh(W x + b_ih + r · (U h + b_hh)): the candidate's state bias lies inside the reset gate, and has to
    be zero.
    """
    candidate = bias_hh.chunk(3)[2] if cell == "gru" else torch.zeros(1)
    if candidate.any():
        raise ValueError(
            "bias_hh is not zero for the candidate n: in a GRU the reset gate multiplies that bias, and not "
            "bias_ih; wanted zeros in the last third"
        )
    return bias_ih + bias_hh, torch.zeros_like(bias_hh)


def layout_of(module: nn.RNNBase) -> list[Piece]:
    """The table for an ``nn.LSTM`` or ``nn.GRU`` with biases and without projection."""
    cell = _cell_of(module)
    if not module.bias or module.proj_size:
        raise ValueError(f"module is {module}; wanted one with biases and without projection")
    directions = 2 if module.bidirectional else 1
    return layout(cell, module.input_size, module.hidden_size, module.num_layers, directions)


def parameter_offsets(module: nn.RNNBase) -> dict[str, int]:
    """Where each parameter of an ``nn.LSTM`` or ``nn.GRU`` begins in the flat buffer: {name: elements}."""
    offsets: dict[str, int] = {}
    for piece in layout_of(module):
        offsets.setdefault(piece.name.partition(".")[0], piece.offset)  # that of its first gate
    return offsets


def is_flat(module: nn.RNNBase) -> bool:
    """Whether the parameters of an ``nn.LSTM`` or ``nn.GRU`` lie in one buffer, each where the table says.

    (In one *storage*: two arrays that an allocator happened to put side by side are no buffer.)
    """
    parameters = dict(module.named_parameters())
    one = len({p.untyped_storage().data_ptr() for p in parameters.values()}) == 1
    return one and {name: p.storage_offset() for name, p in parameters.items()} == parameter_offsets(module)


@torch.no_grad()
def flatten(module: nn.RNNBase) -> torch.Tensor:
    """Moves the parameters of an ``nn.LSTM`` or ``nn.GRU`` into one flat buffer, on
    any device, and returns it; on a GPU ``flatten_parameters()`` does this. Values and
    names stay; the parameters become views of the buffer.
    """
    parameters = dict(module.named_parameters())
    flat = pack(layout_of(module), split_gates(_cell_of(module), parameters))
    for name, begin in parameter_offsets(module).items():
        p = parameters[name]
        p.data = flat[begin : begin + p.numel()].view(p.shape)
    return flat


def why_not_persistent(module: nn.RNNBase, batch: int, dtype: torch.dtype, packed: bool = False) -> list[str]:
    """Which of PyTorch's conditions for cuDNN's persistent kernel a call does not
    meet: a list of words, empty if it meets them all. ``module`` is an nn.LSTM or
    nn.GRU, ``batch`` the sequences, ``dtype`` what it computes in, ``packed`` whether
    the input is a PackedSequence.

    From PyTorch's aten/src/ATen/native/cudnn/RNN.cpp, for GPUs of compute capability
    8.0 or more, not x.6, with 98 multiprocessors or more. Volta has rules of its own;
    for all other GPUs PyTorch never asks for it.
    """
    cell, h, i = _cell_of(module), module.hidden_size, module.input_size
    conditions = {
        "an LSTM": cell == "lstm",
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
    missed = why_not_persistent(module, batch, dtype, packed)
    largest = 128 if backward else 192
    allowed = dtype != torch.float64 and not packed and module.proj_size == 0
    if allowed and module.hidden_size <= largest:
        return "small persistent"
    return "standard" if missed else "persistent"


def _order(cell, library="cudnn"):
    """The gates of a cell in the order of a library."""
    check.choice("cell", cell, CELLS)
    return ORDERS[library][cell]


def _cell_of(module):
    cell = getattr(module, "mode", "").lower()
    if cell not in CELLS:
        raise TypeError(f"module is a {type(module).__name__}; wanted an nn.LSTM or nn.GRU")
    return cell


def _split(name, tensor, order):
    """{gate: (H, …)} of a tensor (G·H, …) whose gates are stacked in that order."""
    if len(tensor) % len(order):
        shape = f"{name} has the shape {tuple(tensor.shape)}"
        raise ValueError(f"{shape}; wanted a first axis that {len(order)} gates share")
    return dict(zip(order, tensor.chunk(len(order)), strict=True))


def _check_names(what, given, wanted):
    if missing := [name for name in wanted if name not in given]:
        raise ValueError(f"{what} lacks {', '.join(missing)}")
    if unknown := [name for name in given if name not in set(wanted)]:
        raise ValueError(f"{what} holds {', '.join(unknown)}, which the table has not")
