"""Products of a few samples with a matrix in floats or in few bits, for functions that Numba compiles."""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from ed_lib.lstm.atomics import as_float32

F, I = np.float32, np.int32  # numbers in the compiled code keep these types  # noqa: E741
FEW = 24  # samples for which loops are faster than BLAS, which has to pack its operands in each call
APART = 32  # numbers more in a row of sums
FAST: dict[str, Any] = dict(fastmath=True, error_model="numpy", cache=True)


@njit(**FAST)
def room(batch, width, like):
    """For the sums of a product, (B, N) or, in the loops, a little wider: of rows that lie 4 kB apart, a
    processor takes a read of one for a read of what it has just written to another, and waits.
    """
    return np.empty((batch, width if batch > FEW else width + APART), like.dtype)


@njit(**FAST)
def product(h, w, sums):
    """sums (B, N) = h (B, K) w (K, N)."""
    if h.shape[0] > FEW:
        blas(h, w, sums)
    else:
        product_of_few(h, w, sums)


def blas(h, w, sums):
    """``product`` by BLAS, if w is in floats, which packs its operands first: many samples pay for that."""


@overload(blas)
def _(h, w, sums):
    if isinstance(w.dtype, types.Float):
        return lambda h, w, sums: np.dot(h, w, sums)
    return lambda h, w, sums: product_of_few(h, w, sums)


@njit(**FAST)
def product_of_few(h, w, sums):
    """``product`` in one walk through w, four rows at a time, each used for four samples. A weight in few
    bits becomes a float32 in a register, and no sooner.
    """
    (batch, size), width, fours = h.shape, w.shape[1], h.shape[0] // 4 * 4
    sums[:] = 0
    for k in range(0, size // 4 * 4, 4):
        # rows as slices, not as w[k]: only then does the compiler see that rows of sums do not overlap
        r, s, t, u = w[k, 0:width], w[k + 1, 0:width], w[k + 2, 0:width], w[k + 3, 0:width]
        for n in range(0, fours, 4):
            o0, o1 = sums[n, 0:width], sums[n + 1, 0:width]
            o2, o3 = sums[n + 2, 0:width], sums[n + 3, 0:width]
            a0, a1, a2, a3 = h[n, k], h[n, k + 1], h[n, k + 2], h[n, k + 3]  # by name: they stay in registers
            b0, b1, b2, b3 = h[n + 1, k], h[n + 1, k + 1], h[n + 1, k + 2], h[n + 1, k + 3]
            c0, c1, c2, c3 = h[n + 2, k], h[n + 2, k + 1], h[n + 2, k + 2], h[n + 2, k + 3]
            d0, d1, d2, d3 = h[n + 3, k], h[n + 3, k + 1], h[n + 3, k + 2], h[n + 3, k + 3]
            for j in range(width):
                w0, w1, w2, w3 = widened(r[j]), widened(s[j]), widened(t[j]), widened(u[j])
                o0[j] += a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
                o1[j] += b0 * w0 + b1 * w1 + b2 * w2 + b3 * w3
                o2[j] += c0 * w0 + c1 * w1 + c2 * w2 + c3 * w3
                o3[j] += d0 * w0 + d1 * w1 + d2 * w2 + d3 * w3
        for n in range(fours, batch):
            a0, a1, a2, a3 = h[n, k], h[n, k + 1], h[n, k + 2], h[n, k + 3]
            out = sums[n, 0:width]
            for j in range(width):
                w0, w1, w2, w3 = widened(r[j]), widened(s[j]), widened(t[j]), widened(u[j])
                out[j] += a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
    for k in range(size // 4 * 4, size):
        for n in range(batch):
            row, out, a0 = w[k, 0:width], sums[n, 0:width], h[n, k]
            for j in range(width):
                out[j] += a0 * widened(row[j])


def widened(weight):
    """A weight as it is computed with: int8 as a number, int16 as bfloat16's bits, a float as it is."""


@overload(widened)
def _(weight):
    if isinstance(weight, types.Float):
        return lambda weight: weight
    if weight.bitwidth == 8:
        return lambda weight: F(weight)
    return lambda weight: as_float32(I(weight) * I(2**16))
