"""A layer's whole sequence in one compiled call, on a CPU: alone, or shared by threads that keep their part.

Thread n of p computes the hidden numbers of its part for every step, so that it reads its columns of W_hh and
no others, and they stay in its core's private cache: the persistent kernel of Diamos et al. (2016), whose
thread blocks keep theirs in registers. After each step the threads wait for one another at counters.

Letters: T time steps, B batch, H hidden, U the hidden numbers of a part, p threads. Gates lie side by side in
the order i, f, g, o. float32, where σ and tanh are short series, or float64, where they are the library's.
"""

from typing import Any

import numpy as np
from numba import njit, prange

from ed_lib.lstm.atomics import arrived, as_float32, store_release

F, I = np.float32, np.int32  # numbers in the compiled code keep these types  # noqa: E741
UNROLLED, COLUMNS = 8, 512  # rows of W that one pass over the sums takes in, and how many sums
PATIENCE = 10**9  # looks at a counter, some seconds
FAST: dict[str, Any] = dict(fastmath=True, error_model="numpy", cache=True)
# 2^f for f in [−½, ½], to a relative error of 1e-7: the Taylor series of exp(f ln 2)
P0, P1, P2, P3, P4, P5, P6, P7 = [F(np.log(2) ** n / np.prod(np.arange(1.0, n + 1))) for n in range(8)]
LOG2 = F(-1 / np.log(2))


@njit(parallel=True, **FAST)
def forward(x, w_ih, bias, gates, hidden, cells, w, scale, counters):
    """All steps of a layer → whether all threads arrived at the end.

    x (T · B, I); w_ih (I, 4H); bias (4H,). gates (T, B, 4H) is written: activated. hidden, cells
    (T + 1, B, H): [0] is read, the rest is written. w: of :func:`packing.pack`, perhaps int8, or int16 that
    holds bfloat16's bits; it counts times scale (p, 4U). counters (p, n): zeros.
    """
    threads = counters.shape[0]
    ended = np.zeros(threads, np.bool_)
    for n in prange(threads):
        inputs_part(n, threads, x, w_ih, bias, gates)
        ended[n] = forward_part(n, gates, hidden, cells, w[n], scale[n], counters, PATIENCE)
    return ended.all()


@njit(**FAST)
def inputs_part(n, threads, x, w_ih, bias, gates):
    """Thread n's rows of W_ih x + b, which wait for no step: one product for all of them."""
    rows, size = x.shape[0], bias.size
    first, last = n * rows // threads, (n + 1) * rows // threads
    flat = gates.reshape(rows, size)
    if first < last:
        product(x[first:last], w_ih, flat[first:last])  # (rows, I) (I, 4H) → (rows, 4H)
    for r in range(first, last):
        for j in range(size):
            flat[r, j] += bias[j]


@njit(**FAST)
def forward_part(n, gates, hidden, cells, w, scale, counters, patience):
    """What thread n does; False if another does not arrive."""
    (steps, batch, _), width = gates.shape, w.shape[1] // 4
    sums = np.empty((batch, 4 * width), gates.dtype)
    if not meet(n, 1, counters, patience):  # all of W_ih x + b
        return False
    for t in range(steps):
        product(hidden[t], w, sums)  # (B, H) (H, 4U) → (B, 4U)
        cell(gates[t], sums, scale, cells[t], cells[t + 1], hidden[t + 1], n * width)
        if not meet(n, t + 2, counters, patience):
            return False
    return True


@njit(parallel=True, **FAST)
def backward(gates, cells, dy, dh, dc, dgates, w, counters):
    """Backpropagation through time: all steps from the last → whether all threads arrived at the end.

    gates and cells as ``forward`` left them; dy (T, B, H): the gradient of the output. dh, dc (B, H): those
    of the last state before, of the first after. dgates (T, B, 4H) is written: of W_ih x + b. w: of
    :func:`packing.pack_back`. counters (p, n): zeros.
    """
    threads = counters.shape[0]
    ended = np.zeros(threads, np.bool_)
    for n in prange(threads):
        ended[n] = backward_part(n, gates, cells, dy, dh, dc, dgates, w[n], counters, PATIENCE)
    return ended.all()


@njit(**FAST)
def backward_part(n, gates, cells, dy, dh, dc, dgates, w, counters, patience):
    """What thread n does; False if another does not arrive."""
    (steps, batch, size), width = dy.shape, w.shape[1]
    first = n * width
    sums = np.empty((batch, width), gates.dtype)
    for back in range(steps):
        t = steps - 1 - back
        cell_backward(gates[t], cells[t], cells[t + 1], dy[t], dh, dc, dgates[t], first, width)
        if not meet(n, back + 1, counters, patience):
            return False
        product(dgates[t], w, sums)  # (B, 4H) (4H, U) → (B, U)
        for b in range(batch):
            for u in range(min(width, size - first)):
                dh[b, first + u] = sums[b, u]
    return True


@njit(parallel=True, **FAST)
def wavefront(x, w_ih, bias, gates, hidden, cells, upward, w, scale, counters, threads):
    """Several layers at once, each thread with its own: layer l takes a step when layer l − 1 has taken it →
    whether all arrived at the end.

    x (T · B, I); w_ih (I, 4H) of layer 0; upward (L − 1, H, 4H): those of the others; bias (L, 4H);
    w (L, H, 4U), scale (L, 4U): of one part for each layer. gates (L, T, B, 4H) is written; hidden, cells
    (L, T + 1, B, H): [:, 0] is read, the rest is written. counters (p + L, n): zeros.
    """
    layers = gates.shape[0]
    ended = np.zeros(threads, np.bool_)
    for n in prange(threads):
        inputs_part(n, threads, x, w_ih, bias[0], gates[0])
        if meet(n, 1, counters[:threads], PATIENCE):
            own = n * layers // threads, (n + 1) * layers // threads
            steps = counters[threads:]  # how far each layer is
            ended[n] = layers_part(own, gates, hidden, cells, upward, w, bias, scale, steps, PATIENCE)
    return ended.all()


@njit(**FAST)
def layers_part(own, gates, hidden, cells, upward, w, bias, scale, counters, patience):
    """The layers own[0] … own[1] − 1; False if the layer below does not arrive."""
    _, steps, batch, _ = gates.shape
    sums = np.empty((batch, w.shape[2]), gates.dtype)
    for t in range(steps):
        for n in range(own[0], own[1]):
            if n > 0:
                if not arrived(counters, n - 1, t + 1, patience):
                    return False
                product(hidden[n - 1, t + 1], upward[n - 1], gates[n, t])  # (B, H) (H, 4H) → (B, 4H)
                for b in range(batch):
                    for j in range(bias.shape[1]):
                        gates[n, t, b, j] += bias[n, j]
            product(hidden[n, t], w[n], sums)  # (B, H) (H, 4U) → (B, 4U)
            cell(gates[n, t], sums, scale[n], cells[n, t], cells[n, t + 1], hidden[n, t + 1], 0)
            store_release(counters[n], 0, t + 1)
    return True


@njit(**FAST)
def meet(n, step, counters, patience):
    """Says that thread n has done ``step``, and waits until all have; False if one does not arrive."""
    if counters.shape[0] == 1:
        return True
    store_release(counters[n], 0, step)
    for other in range(counters.shape[0]):
        if not arrived(counters, other, step, patience):
            return False
    return True


@njit(**FAST)
def product(h, w, sums):
    """sums (B, N) = h (B, K) w (K, N), a few rows and columns of w at a time, which stay in the fastest cache
    for all samples. A weight in few bits becomes a float32 in a register, and no sooner.
    """
    (batch, size), whole = h.shape, h.shape[1] // UNROLLED * UNROLLED
    for left in range(0, sums.shape[1], COLUMNS):
        columns = min(COLUMNS, sums.shape[1] - left)
        for b in range(batch):
            for j in range(columns):
                sums[b, left + j] = 0
        for first in range(0, whole, UNROLLED):
            for b in range(batch):
                out = sums[b, left : left + columns]
                for j in range(columns):
                    total = out[j]
                    for k in range(UNROLLED):
                        total += h[b, first + k] * widened(w, first + k, left + j)
                    out[j] = total
        for k in range(whole, size):
            for b in range(batch):
                for j in range(columns):
                    sums[b, left + j] += h[b, k] * widened(w, k, left + j)


@njit(**FAST)
def widened(w, k, j):
    """A weight as it is computed with: int8 as a number, int16 as bfloat16's bits, a float as it is."""
    if w.itemsize == 1:
        return F(w[k, j])
    return as_float32(I(w[k, j]) * I(2**16)) if w.itemsize == 2 else w[k, j]


@njit(**FAST)
def whole_cell(gates, sums, before, after, h):
    """A step from the products on, all of it: gates (B, 4H) in place, sums (B, 4H), the rest (B, H)."""
    cell(gates, sums, np.ones(gates.shape[1], gates.dtype), before, after, h, 0)


@njit(**FAST)
def cell(gates, sums, scale, before, after, h, first):
    """A step from the products on: gates (B, 4H) in place, and of after and h (B, H) the columns from
    ``first`` on for which there are sums (B, 4U), which count times scale (4U,).
    """
    (batch, size), width = before.shape, scale.size // 4
    s = scale.reshape(4, width)
    for b in range(batch):
        a, r = gates[b].reshape(4, size), sums[b].reshape(4, width)
        for u in range(min(width, size - first)):
            j = first + u
            i, f = sigmoid(a[0, j] + s[0, u] * r[0, u], gates), sigmoid(a[1, j] + s[1, u] * r[1, u], gates)
            g, o = tanh(a[2, j] + s[2, u] * r[2, u], gates), sigmoid(a[3, j] + s[3, u] * r[3, u], gates)
            c = f * before[b, j] + i * g
            a[0, j], a[1, j], a[2, j], a[3, j] = i, f, g, o
            after[b, j], h[b, j] = c, o * tanh(c, gates)


@njit(**FAST)
def cell_backward(gates, before, after, dy, dh, dc, dgates, first, width):
    """The step backwards, for the part's columns: dc (B, H) in place, dgates (B, 4H) written."""
    batch, size = dc.shape
    for b in range(batch):
        a, d = gates[b].reshape(4, size), dgates[b].reshape(4, size)
        for j in range(first, min(first + width, size)):
            i, f, g, o = a[0, j], a[1, j], a[2, j], a[3, j]
            tanh_c, back = tanh(after[b, j], gates), dh[b, j] + dy[b, j]
            of_c = dc[b, j] + back * o * (1 - tanh_c * tanh_c)
            d[0, j] = of_c * g * i * (1 - i)
            d[1, j] = of_c * before[b, j] * f * (1 - f)
            d[2, j] = of_c * i * (1 - g * g)
            d[3, j] = back * tanh_c * o * (1 - o)
            dc[b, j] = of_c * f


@njit(**FAST)
def sigmoid(x, like):
    return series(F(x)) if like.itemsize == 4 else 1 / (1 + np.exp(-x))


@njit(**FAST)
def tanh(x, like):
    return F(2) * series(F(2) * F(x)) - F(1) if like.itemsize == 4 else np.tanh(x)


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
