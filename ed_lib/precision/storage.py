"""The bytes that a network takes when it is stored.

A weight is written in the smallest of three forms: all numbers (*dense*); a bit for each number that says
whether it is zero, and the others (*bitmap*); or for each row how many are not zero, where, and what (*CSR*).
"""

from typing import Any

import numpy as np
from torch import Tensor

from ed_lib.precision.quantization import LAYERS, Quantized


def sizes(weight: Tensor | np.ndarray, bits: int) -> dict[str, int]:
    """Bytes of a weight (rows, …), whose numbers have so many bits, in each form: {form: bytes}. CSR has row
    starts of 4 bytes, and a column's number of 2 (or 4, if there are more than 2¹⁶) for each that is not 0.
    """
    rows, n, there = len(weight), weight.reshape(-1).shape[0], int((weight != 0).sum())
    values, column = -(-there * bits // 8), 2 if n <= rows * 2**16 else 4
    bitmap, csr = -(-n // 8) + values, 4 * (rows + 1) + column * there + values
    return {"dense": -(-n * bits // 8), "bitmap": bitmap, "csr": csr}


def stored_bytes(model: Any) -> int:
    """Bytes of a model's parameters: weights in their smallest form, quantized ones as codes with their
    scales (4 bytes each; for inputs 5, with a zero point), all else as it is. ``model`` may have masks.
    """
    layer = model.layer if isinstance(model, Quantized) else model
    if not isinstance(layer, LAYERS):
        inside = sum(p.nbytes for p in model.parameters(recurse=False))
        return inside + sum(stored_bytes(module) for module in model.children())
    total = 0 if layer.bias is None else layer.bias.nbytes
    if layer is model:
        return total + min(sizes(layer.weight, 8 * layer.weight.element_size()).values())
    total += model.weights.scale.nbytes + (0 if model.inputs is None else 5)
    return total + min(sizes(model.codes(), model.weights.bits).values())
