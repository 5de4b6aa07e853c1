"""The pointwise work of an LSTM's step, forward and backward, in loops that Numba compiles to vector
instructions. float32, where σ and tanh are short series, or float64, where they are the library's.

Letters: B batch, H hidden, U the hidden numbers of a part. Gates lie side by side in the order i, f, g, o.
"""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from ed_lib.lstm.atomics import as_float32

F, I = np.float32, np.int32  # numbers in the compiled code keep these types  # noqa: E741
# 2^f for f in [−½, ½], to a relative error of 1e-7: the Taylor series of exp(f ln 2)
P0, P1, P2, P3, P4, P5, P6, P7 = [F(np.log(2) ** n / np.prod(np.arange(1.0, n + 1))) for n in range(8)]
LOG2 = F(-1 / np.log(2))
FAST: dict[str, Any] = dict(fastmath=True, error_model="numpy", cache=True)


@njit(**FAST)
def whole_cell(gates, sums, before, after, h):
    """A step from the products on, all of it: gates (B, 4H) in place, sums (B, 4H), the rest (B, H)."""
    cell(gates, sums, np.ones(gates.shape[1], gates.dtype), before, after, h, 0)


@njit(**FAST)
def cell(gates, sums, scale, before, after, h, first):
    """A step from the products on: gates (B, 4H) in place, and of after and h (B, H) the columns from
    ``first`` on for which there are sums (B, 4U), which count times scale (4U,).

    One loop for each thing to do: a compiler makes vector instructions of a loop over few arrays only.
    """
    (batch, size), width = before.shape, scale.size // 4
    last = min(first + width, size)
    for b in range(batch):
        a, r = gates[b], sums[b]
        for gate in range(4):
            at, part = gate * size + first, slice(gate * width, (gate + 1) * width)
            add_scaled(a[at : gate * size + last], scale[part], r[part])
            activate(a[at : gate * size + last], gate == 2)
        i, f, g, o = four(a, size, first, last)
        c_before, c, y = before[b, first:last], after[b, first:last], h[b, first:last]
        for j in range(c.size):
            c[j] = f[j] * c_before[j] + i[j] * g[j]
        y[:] = c
        activate(y, True)
        for j in range(c.size):
            y[j] *= o[j]


@njit(**FAST)
def four(gates, size, first, last):
    """The four gates of a part: (4H,) → four of (last − first,)."""
    n, f, g, o = last - first, size + first, 2 * size + first, 3 * size + first
    return gates[first:last], gates[f : f + n], gates[g : g + n], gates[o : o + n]


@njit(**FAST)
def add_scaled(a, scale, sums):
    """a += scale · sums."""
    for j in range(a.size):
        a[j] += scale[j] * sums[j]


@njit(**FAST)
def activate(a, by_tanh):
    """a becomes σ(a), or tanh(a)."""
    if by_tanh:
        for j in range(a.size):
            a[j] = tanh(a[j])
    else:
        for j in range(a.size):
            a[j] = sigmoid(a[j])


@njit(**FAST)
def cell_backward(gates, before, after, dy, dh, dc, dgates, first, width):
    """The step backwards, for the part's columns: dc (B, H) in place, dgates (B, 4H) written."""
    (batch, size), last = dc.shape, min(first + width, dc.shape[1])
    back, tanh_c = np.empty((2, last - first), gates.dtype)
    for b in range(batch):
        i, f, g, o = four(gates[b], size, first, last)
        di, df, dg, do = four(dgates[b], size, first, last)
        of_c, c_before = dc[b, first:last], before[b, first:last]
        tanh_c[:] = after[b, first:last]
        activate(tanh_c, True)
        add_to(back, dh[b, first:last], dy[b, first:last])
        for j in range(back.size):
            do[j] = back[j] * tanh_c[j] * o[j] * (1 - o[j])
            of_c[j] += back[j] * o[j] * (1 - tanh_c[j] * tanh_c[j])
        for j in range(back.size):
            di[j] = of_c[j] * g[j] * i[j] * (1 - i[j])
        for j in range(back.size):
            df[j] = of_c[j] * c_before[j] * f[j] * (1 - f[j])
        for j in range(back.size):
            dg[j] = of_c[j] * i[j] * (1 - g[j] * g[j])
        for j in range(back.size):
            of_c[j] *= f[j]


@njit(**FAST)
def add_to(total, a, b):
    """total = a + b."""
    for j in range(total.size):
        total[j] = a[j] + b[j]


def sigmoid(x):
    """σ(x): in float32 by a short series, in float64 by the library's exp."""


@overload(sigmoid)
def _(x):
    return (lambda x: series(x)) if x == types.float32 else (lambda x: 1 / (1 + np.exp(-x)))


def tanh(x):
    """tanh(x), likewise."""


@overload(tanh)
def _(x):
    return (lambda x: F(2) * series(F(2) * x) - F(1)) if x == types.float32 else (lambda x: np.tanh(x))


@njit(**FAST)
def series(x):
    """σ(x) = 1 / (1 + 2^t), in operations that a vector register does for all its numbers at once.

    2^t = 2^n 2^f with n = round(t). The first factor is the number whose exponent bits are n + 127.
    """
    t = min(max(x * LOG2, F(-126)), F(126))
    n = I(t + F(126.5)) - I(126)  # what is positive is rounded towards zero
    f = t - F(n)
    power = P0 + f * (P1 + f * (P2 + f * (P3 + f * (P4 + f * (P5 + f * (P6 + f * P7))))))
    return F(1) / (F(1) + power * as_float32((n + I(127)) * I(2**23)))
