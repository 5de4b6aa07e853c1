"""Weights as ``cpu_kernels`` reads them: of W_hh for each thread the part that it keeps, in the order of its
loop, perhaps in few bits.

Letters: I inputs, H hidden, p threads, U the hidden numbers of a thread's part. Gates: i, f, g, o.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

VECTOR = 16  # numbers in a vector register
BITS = (32, 16, 8)  # a weight's, where it is held in float32


class Packed(NamedTuple):
    """A layer's weights, ready to be read."""

    w_ih: np.ndarray  # (I, 4H)
    bias: np.ndarray  # (4H,), both added
    w_hh: np.ndarray  # (p, H, 4U), of pack
    scale: np.ndarray  # (p, 4U)


def prepare(weights: Sequence[torch.Tensor], threads: int, bits: int = 32) -> Packed:
    """The weights of a layer, W_ih (4H, I), W_hh (4H, H) and two biases (4H,), for so many threads; bits:
    those that a number of W_hh is held in, one of BITS.
    """
    w_ih, w_hh, b_ih, b_hh = (weight.detach().numpy() for weight in weights)
    few, scale = (w_hh, np.ones(len(w_hh), w_hh.dtype)) if bits == 32 else in_few_bits(w_hh, bits)
    return Packed(np.ascontiguousarray(w_ih.T), b_ih + b_hh, pack(few, threads), pack_scale(scale, threads))


def stack(layers: Sequence[Packed]) -> tuple[np.ndarray, ...]:
    """Layers of one part each, for the wavefront: W_ih of the first (I, 4H), biases (L, 4H), W_ih of the
    others (L − 1, H, 4H), W_hh (L, H, 4H) and its scale (L, 4H).
    """
    size = layers[0].w_hh.shape[1]
    none = np.zeros((0, size, 4 * size), layers[0].w_ih.dtype)
    upward = [none, *(layer.w_ih[None] for layer in layers[1:])]
    w, scale = (np.concatenate(arrays) for arrays in list(zip(*layers, strict=True))[2:])
    return layers[0].w_ih, np.stack([layer.bias for layer in layers]), np.concatenate(upward), w, scale


def width_of(size: int, threads: int) -> int:
    """U: H / p, rounded up to whole vectors where H allows it."""
    width = -(-size // threads)
    return -(-width // VECTOR) * VECTOR if size >= VECTOR * threads else width


def pack(w_hh: np.ndarray, threads: int) -> np.ndarray:
    """W_hh (4H, H) → (p, H, 4U): for each thread what leads to its part, row by row as it reads it; what lies
    beyond H is zero.
    """
    size = w_hh.shape[1]
    width = width_of(size, threads)
    packed = np.zeros((threads, size, 4, width), w_hh.dtype)
    gates = w_hh.reshape(4, size, size)  # (4, H, H): gate, to, from
    for n in range(threads):
        part = gates[:, n * width : (n + 1) * width]  # (4, U, H)
        packed[n, :, :, : part.shape[1]] = part.transpose(2, 0, 1)
    return packed.reshape(threads, size, 4 * width)


def pack_back(w_hh: np.ndarray, threads: int) -> np.ndarray:
    """W_hh (4H, H) → (p, 4H, U): for each thread what leads back to its part."""
    size = w_hh.shape[1]
    width = width_of(size, threads)
    padded = np.zeros((4 * size, threads * width), w_hh.dtype)
    padded[:, :size] = w_hh
    return np.ascontiguousarray(padded.reshape(4 * size, threads, width).swapaxes(0, 1))


def in_few_bits(w_hh: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """W_hh (4H, H) float32 → the weights as int8 and a scale for each row, or as bfloat16's 16 bits and ones:
    (4H, H) and (4H,) float32.
    """
    if bits == 8:
        scale = np.maximum(np.abs(w_hh).max(1), np.finfo(np.float32).tiny) / np.float32(127)
        return np.rint(w_hh / scale[:, None]).astype(np.int8), scale
    rounded = torch.as_tensor(w_hh).to(torch.bfloat16)
    return rounded.view(torch.int16).numpy(), np.ones(len(w_hh), np.float32)


def pack_scale(scale: np.ndarray, threads: int) -> np.ndarray:
    """(4H,) → (p, 4U), in the order in which :func:`pack` lays the columns."""
    size = len(scale) // 4
    width = width_of(size, threads)
    padded = np.zeros((4, threads * width), scale.dtype)
    padded[:, :size] = scale.reshape(4, size)
    return np.ascontiguousarray(padded.reshape(4, threads, width).swapaxes(0, 1)).reshape(threads, -1)
