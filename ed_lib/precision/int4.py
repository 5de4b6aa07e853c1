"""Products of inputs with a weight in 4 bits: PyTorch's operator as a layer, and one of ours for one row."""

from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor, nn

from ed_lib.precision.weight_only import FewBits

F = np.float32
FAST: dict[str, Any] = dict(fastmath=True, error_model="numpy", cache=True, parallel=True)


class Linear4(nn.Module):
    """A Linear layer whose weight has 4 bits, by PyTorch's operator: (…, I) → (…, O), of x's dtype.

    factors: what AWQ multiplied the columns by, or None.
    """

    def __init__(self, few: FewBits, bias: Tensor | None = None, factors: Tensor | None = None):
        super().__init__()
        if few.bits != 4 or few.group not in (32, 64, 128, 256):
            raise ValueError(f"few has {few.bits} bits, groups of {few.group}; wanted 4, of 32, 64, 128, 256")
        if len(few.codes) % 16:
            raise ValueError(f"few has {len(few.codes)} rows; wanted a multiple of 16")
        self.group = few.group
        self.bias = None if bias is None else nn.Buffer(bias)
        self.factors = None if factors is None else nn.Buffer(factors)
        self.packed = nn.Buffer(torch.ops.aten._convert_weight_to_int4pack_for_cpu(few.codes.int(), 1))
        middle = few.least + 8 * few.scale  # the operator's numbers are (code − 8) · scale + middle
        self.grids = nn.Buffer(torch.stack([few.scale.T, middle.T], dim=2).contiguous())  # (I / group, O, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows = x if self.factors is None else (x / self.factors).to(x.dtype)
        rows, grids = rows.reshape(-1, x.shape[-1]).contiguous(), self.grids.to(x.dtype)  # (…, I) → (N, I)
        y = rows.new_empty(0, grids.shape[1])
        if len(rows):
            y = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.packed, self.group, grids)  # (N, O)
        y = y.view(*x.shape[:-1], grids.shape[1])
        return y if self.bias is None else y + self.bias


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
