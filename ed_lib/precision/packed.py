"""The product of one row of inputs with a weight in 4 bits, compiled: what a decoder does for each token."""

from typing import Any

import numpy as np
from numba import njit, prange
from torch import Tensor

from ed_lib.precision.weights_only import FewBits

F = np.float32
FAST: dict[str, Any] = dict(fastmath=True, error_model="numpy", cache=True, parallel=True)


def pack(few: FewBits) -> np.ndarray:
    """Codes of 4 bits, two in a byte: uint8 (O, I / group, half), as :func:`product` reads them."""
    if few.bits > 4:
        raise ValueError(f"few has codes of {few.bits} bits; wanted at most 4")
    codes = few.codes.view(len(few.codes), -1, 2, few.group // 2).numpy()  # (O, I / group, 2, half)
    return codes[:, :, 0] | codes[:, :, 1] << 4


def halves(x: Tensor, group: int) -> np.ndarray:
    """One row of inputs, (1, I) float32, as :func:`product` wants it: (I / group, 2, half)."""
    return x.view(-1, 2, group // 2).numpy()


@njit(**FAST)
def product(x, packed, scale, least):
    """y (O,) = weight x, float32. x (I / group, 2, half); packed uint8 (O, I / group, half), a byte of it
    with code j of a group in its low half and code j + half in its high half; scale, least (O, I / group).

    weight · x = Σ over groups of scale · Σ code · x + least · Σ x: the codes become numbers in registers.
    """
    outputs, groups, half = packed.shape
    y, sums = np.empty(outputs, F), np.empty(groups, F)
    for k in range(groups):
        sums[k] = x[k].sum()
    for o in prange(outputs):
        total = F(0)
        for k in range(groups):
            row, low, high, dot = packed[o, k, 0:half], x[k, 0, 0:half], x[k, 1, 0:half], F(0)
            for j in range(half):
                dot += low[j] * F(row[j] & 15) + high[j] * F(row[j] >> 4)
            total += scale[o, k] * dot + least[o, k] * sums[k]
        y[o] = total
    return y
