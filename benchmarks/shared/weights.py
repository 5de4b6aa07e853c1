"""A layer's weight in each format of a product, and a Linear layer that keeps it so.

Letters: B rows of a batch, I inputs, O outputs; N is all rows together.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from ed_lib import machine
from ed_lib.precision import quantization, weight_only
from ed_lib.precision.weight_only import Linear4

FORMATS = "float32", "float32, w xᵀ", "float32, NumPy", "bfloat16", "int8", "int4", "W8A8"
# Weights of a row that share a scale in four bits.
GROUP = 128
POOL = ThreadPoolExecutor(machine.threads())


def kept_as(format, w):
    """A weight (O, I) → (the product with a copy of it in this format, of x (B, I); the numbers;
    bytes).
    """
    if format == "int8":
        # A scale for each output, (O, 1); the product wants them as (O,) in bfloat16.
        scale = quantization.choose_scale(w)
        codes = quantization.quantize(w, scale, 8)
        short = scale[:, 0].bfloat16()
        product = torch.ops.aten._weight_int8pack_mm
        return lambda x: product(x, codes, short), codes * scale, codes.nbytes
    if format == "W8A8":
        layer = quantization.W8A8(w)
        return layer, layer.codes * layer.scale[:, None], layer.codes.nbytes
    if format == "int4":
        few = weight_only.rtn(w, 4, GROUP)
        return Linear4(few), few.weight(), few.bytes
    w = w.bfloat16() if format == "bfloat16" else w.clone()
    if "NumPy" in format:
        return in_numpy(w), w, w.nbytes
    if "xᵀ" in format:
        return lambda x: (w @ x.T).T, w, w.nbytes
    return lambda x: x @ w.T, w, w.nbytes


def in_numpy(w):
    """The product with w by NumPy's BLAS, a part of w on each thread: its own threads, which spin
    when they have done, would slow down who comes next.
    """
    parts = np.array_split(w.numpy(), machine.threads())

    def product(x):
        # Each thread's outputs, (O / threads, B).
        found = [*POOL.map(lambda part: part @ x.numpy().T, parts)]
        return torch.from_numpy(np.concatenate(found).T)

    return product


class Rounded(nn.Module):
    """A Linear layer with its weight in few bits: (…, I) → (…, O), float32, with inputs in
    bfloat16; W8A8 rounds its inputs itself.
    """

    def __init__(self, linear, format):
        super().__init__()
        self.bias = linear.bias
        self.outputs = linear.out_features
        self.takes = torch.float32 if format == "W8A8" else torch.bfloat16
        self.product, self.numbers, self.bytes = kept_as(format, linear.weight.detach())

    def forward(self, x):
        # A product is of rows: (…, I) → (N, I) → (N, O).
        rows = x.flatten(0, -2).to(self.takes)
        y = self.product(rows).float()
        return y.view(*x.shape[:-1], self.outputs) + self.bias
