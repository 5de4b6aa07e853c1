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
WAYS = ("", "_reverse")  # how the names of each direction's parameters end


def reorder(cell: str, stacked: torch.Tensor, source: str, target: str) -> torch.Tensor:
    """``stacked`` (G·H, …) with its gates in the order of ``target``, not ``source``:
    "cudnn", "keras" or "miopen" (NVIDIA's and PyTorch's, Keras', AMD's).
    """
    before = ORDERS[source][cell]
    after = ORDERS[target][cell]
    part_of = dict(zip(before, stacked.chunk(len(before)), strict=True))  # (H, …) each
    return torch.cat([part_of[gate] for gate in after])


def from_onnx(cell: str, weights: Sequence[np.ndarray], layer: int = 0) -> dict[str, torch.Tensor]:
    """Parameters of one layer from the W, R and B of ONNX's operator LSTM or GRU, or from W and R
    alone. A GRU's has to have ``linear_before_reset=1``: cuDNN has no other.
    """
    w, r, *bias = (torch.as_tensor(array) for array in weights)
    check.shape("R", tuple(r.shape), ("D", len(ORDERS["onnx"][cell]) * r.shape[-1], "H"))
    check.shape("W", tuple(w.shape), (*r.shape[:2], "I"))
    for b in bias:
        check.shape("B", tuple(b.shape), (len(r), 2 * r.shape[1]))
    # B holds the input's biases, and behind them the state's.
    halves = bias[0].chunk(2, 1) if bias else ()  # (D, G·H) each
    found = {}
    for kind, directions in zip(KINDS, (w, r, *halves), strict=False):
        for way, stacked in zip(WAYS, directions, strict=False):
            found[f"{kind}_l{layer}{way}"] = reorder(cell, stacked, "onnx", "cudnn")
    return found


def to_onnx(cell: str, parameters: Mapping[str, torch.Tensor], layer: int = 0) -> list[np.ndarray]:
    """[W, R, B] for ONNX's operator, of all directions of one layer: the inverse of
    :func:`from_onnx`.
    """
    arrays = []  # W, R and two biases, each (D, …)
    for kind in KINDS:
        names = [f"{kind}_l{layer}{way}" for way in WAYS]
        found = [parameters[name].detach().cpu() for name in names if name in parameters]
        if found:
            arrays.append(torch.stack([reorder(cell, one, "cudnn", "onnx") for one in found]))
    w, r, *biases = arrays
    if not biases:
        return [w.numpy(), r.numpy()]
    return [w.numpy(), r.numpy(), torch.cat(biases, 1).numpy()]
