"""The order of the gates in an LSTM's or GRU's weights, library by library, and the way to ONNX and
back.

PyTorch's parameters are {"weight_ih_l0": (G·H, I), "weight_hh_l0": (G·H, H), "bias_ih_l0": (G·H,),
"bias_hh_l0": (G·H,), …}, the gates stacked; a second direction's names end in "_reverse". I inputs,
H hidden, G gates: i, f, g, o in an LSTM (g is the candidate, c elsewhere), r, z, n in a GRU.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from ed_lib import check

ORDERS = {  # of the gates
    "cudnn": {"lstm": "ifgo", "gru": "rzn"},  # PyTorch's as well
    "keras": {"lstm": "ifgo", "gru": "zrn"},
    "miopen": {"lstm": "ifog", "gru": "zrn"},  # AMD's library
    "onnx": {"lstm": "iofg", "gru": "zrn"},
}
KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def reorder(cell: str, stacked: torch.Tensor, source: str, target: str) -> torch.Tensor:
    """``stacked`` (G·H, …) with its gates in the order of ``target``, not ``source``:
    "cudnn", "keras" or "miopen" (NVIDIA's and PyTorch's, Keras', AMD's).
    """
    order = ORDERS[source][cell]
    parts = dict(zip(order, stacked.chunk(len(order)), strict=True))
    return torch.cat([parts[gate] for gate in ORDERS[target][cell]])


def from_onnx(cell: str, weights: Sequence[np.ndarray], layer: int = 0) -> dict[str, torch.Tensor]:
    """Parameters of one layer from the W, R and B of ONNX's operator LSTM or GRU, or from W and R
    alone. A GRU's has to have ``linear_before_reset=1``: cuDNN has no other.
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


def to_onnx(cell: str, parameters: Mapping[str, torch.Tensor], layer: int = 0) -> list[np.ndarray]:
    """[W, R, B] for ONNX's operator, of all directions of one layer: the inverse of
    :func:`from_onnx`.
    """
    of = []  # W, R and two biases, each (D, …)
    for kind in KINDS:
        names = [f"{kind}_l{layer}{way}" for way in ("", "_reverse")]
        found = [parameters[name].detach().cpu() for name in names if name in parameters]
        if found:
            of.append(torch.stack([reorder(cell, array, "cudnn", "onnx") for array in found]))
    w, r, *biases = of
    return [array.numpy() for array in (w, r, *([torch.cat(biases, 1)] if biases else []))]
