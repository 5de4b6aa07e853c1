"""The bytes that a network takes when it is stored, counted by making them.

A weight is written in the smallest of three forms: all numbers (*dense*); a bit for each number that says
whether it is zero, and the others (*bitmap*); or for each row how many are not zero, where, and what (*CSR*).
"""

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from ed_lib.precision.quantization import LAYERS, Quantized


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes, int8 or uint8 of any shape, as bytes (⌈n · bits / 8⌉,) uint8: the low ``bits`` bits of each."""
    codes = np.asarray(codes).reshape(-1).view(np.uint8)
    planes = np.unpackbits(codes[:, None], axis=1, bitorder="little")  # (n,) → (n, 8), the lowest bit first
    return np.packbits(planes[:, :bits], bitorder="little")


def forms(numbers: np.ndarray, bits: int) -> dict[str, list[np.ndarray]]:
    """A weight (rows, …) in each form: {form: list of arrays}. CSR's are row starts uint32, columns uint16 or
    uint32, and values. ``bits``: 8 or less for codes, or the bits of numbers that come as they are.
    """
    numbers = np.asarray(numbers).reshape(len(numbers), -1)
    there = numbers != 0  # (rows, columns)

    values = (lambda some: pack(some, bits)) if bits <= 8 else np.ravel
    starts = np.concatenate([[0], there.sum(axis=1).cumsum()]).astype(np.uint32)
    columns = there.nonzero()[1].astype(np.uint16 if numbers.shape[1] <= 2**16 else np.uint32)
    return {
        "dense": [values(numbers)],
        "bitmap": [np.packbits(there), values(numbers[there])],
        "csr": [starts, columns, values(numbers[there])],
    }


def sizes(numbers: np.ndarray, bits: int) -> dict[str, int]:
    """Bytes of a weight in each form: {form: bytes}."""
    return {form: sum(array.nbytes for array in arrays) for form, arrays in forms(numbers, bits).items()}


def stored_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters: weights in their smallest form, quantized ones as codes with their
    scales (4 bytes each; for inputs 5, with a zero point), all else as it is. ``model`` may have masks.
    """
    total, inside = 0, set()
    for module in model.modules():
        if isinstance(module, Quantized):
            inside.add(module.layer)
            total += min(sizes(module.codes().cpu().numpy(), module.weights.bits).values())
            total += module.weights.scale.nbytes + (5 if module.inputs is not None else 0)
            total += 0 if module.layer.bias is None else module.layer.bias.nbytes
        elif isinstance(module, LAYERS) and module not in inside:
            weight = module.weight.detach().cpu()  # NumPy has no bfloat16
            weight = weight.view(torch.int16) if weight.dtype == torch.bfloat16 else weight
            total += min(sizes(weight.numpy(), 8 * weight.element_size()).values())
            total += 0 if module.bias is None else module.bias.nbytes
        elif not isinstance(module, (*LAYERS, ParametrizationList)):
            total += sum(parameter.nbytes for parameter in module.parameters(recurse=False))
    return total
