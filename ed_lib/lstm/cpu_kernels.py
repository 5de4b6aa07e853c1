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
FEW = 6  # samples for which the loops below are faster than BLAS, which has to pack its operands in each call
UNROLLED = 8  # rows of W that one pass over the sums takes in
PATIENCE = 10**9  # looks at a counter, some seconds
FAST: dict[str, Any] = dict(fastmath=True, error_model="numpy", cache=True)
# 2^f for f in [−½, ½], to a relative error of 1e-7: the Taylor series of exp(f ln 2)
P0, P1, P2, P3, P4, P5, P6, P7 = [F(np.log(2) ** n / np.prod(np.arange(1.0, n + 1))) for n in range(8)]
LOG2 = F(-1 / np.log(2))


@njit(parallel=True, **FAST)
def forward(gates, hidden, cells, w, counters):
    """All steps of a layer → whether all threads arrived at the end.

    gates (T, B, 4H): W_ih x + b before, activated after. hidden, cells (T + 1, B, H): [0] is read, the rest
    is written. w: of :func:`packing.pack`. counters (p, n): zeros.
    """
    threads = counters.shape[0]
    ended = np.zeros(threads, np.bool_)
    for n in prange(threads):
        ended[n] = forward_part(n, gates, hidden, cells, w[n], counters, PATIENCE)
    return ended.all()


@njit(**FAST)
def forward_part(n, gates, hidden, cells, w, counters, patience):
    """What thread n does; False if another does not arrive."""
    (steps, batch, _), width = gates.shape, w.shape[1] // 4
    first = n * width
    sums = np.empty((batch, 4 * width), gates.dtype)
    for t in range(steps):
        product(hidden[t], w, sums)  # (B, H) (H, 4U) → (B, 4U)
        cell(gates[t], sums, cells[t], cells[t + 1], hidden[t + 1], first, width)
        if not meet(n, t + 1, counters, patience):
            return False
    return True


@njit(parallel=True, **FAST)
def forward_in_few_bits(gates, hidden, cells, w, scale, counters):
    """``forward`` with weights held in fewer bits than they are computed in: w (p, H, 4U) int8, times scale
    (p, 4U), or int16 that holds bfloat16's bits. float32 otherwise.
    """
    threads = counters.shape[0]
    ended = np.zeros(threads, np.bool_)
    for n in prange(threads):
        ended[n] = few_bits_part(n, gates, hidden, cells, w[n], scale[n], counters, PATIENCE)
    return ended.all()


@njit(**FAST)
def few_bits_part(n, gates, hidden, cells, w, scale, counters, patience):
    """What thread n does; False if another does not arrive."""
    (steps, batch, _), width = gates.shape, w.shape[1] // 4
    sums = np.empty((batch, 4 * width), gates.dtype)
    for t in range(steps):
        widened_product(hidden[t], w, scale, sums)
        cell(gates[t], sums, cells[t], cells[t + 1], hidden[t + 1], n * width, width)
        if not meet(n, t + 1, counters, patience):
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
def wavefront(gates, hidden, cells, upward, w, bias, counters, threads):
    """Several layers at once, each thread with its own: layer l takes a step when layer l − 1 has taken it →
    whether all arrived at the end.

    gates (L, T, B, 4H): [0] is W_ih x + b before; all activated after. hidden, cells (L, T + 1, B, H): [:, 0]
    is read, the rest is written. upward (L, H, 4H): W_ih transposed, [0] not read; w (L, H, 4H): W_hh
    transposed; bias (L, 4H). counters (L, n): zeros.
    """
    layers = gates.shape[0]
    ended = np.zeros(threads, np.bool_)
    for n in prange(threads):
        own = n * layers // threads, (n + 1) * layers // threads
        ended[n] = wavefront_part(own, gates, hidden, cells, upward, w, bias, counters, PATIENCE)
    return ended.all()


@njit(**FAST)
def wavefront_part(own, gates, hidden, cells, upward, w, bias, counters, patience):
    """The layers own[0] … own[1] − 1; False if the layer below does not arrive."""
    _, steps, batch, _ = gates.shape
    width = w.shape[1]
    sums = np.empty((batch, 4 * width), gates.dtype)
    for t in range(steps):
        for n in range(own[0], own[1]):
            if n > 0:
                if not arrived(counters, n - 1, t + 1, patience):
                    return False
                product(hidden[n - 1, t + 1], upward[n], gates[n, t])  # (B, H) (H, 4H) → (B, 4H)
                gates[n, t] += bias[n]
            product(hidden[n, t], w[n], sums)
            cell(gates[n, t], sums, cells[n, t], cells[n, t + 1], hidden[n, t + 1], 0, width)
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
    """sums (B, N) = h (B, H) w (H, N)."""
    if h.shape[0] > FEW:
        np.dot(h, w, sums)
    else:
        product_of_few(h, w, sums)


@njit(**FAST)
def widened_product(h, w, scale, sums):
    """``product`` with w in few bits, whose columns have a scale (N,)."""
    product_of_few(h, w, sums)
    for b in range(h.shape[0]):
        for j in range(scale.size):
            sums[b, j] *= scale[j]


@njit(**FAST)
def product_of_few(h, w, sums):
    """``product`` by walking through w once for each sample; a weight in few bits becomes float32 in a
    register, and no sooner.
    """
    batch, size = h.shape
    whole = size // UNROLLED * UNROLLED
    for b in range(batch):
        out = sums[b]
        for j in range(out.size):
            out[j] = 0
        for first in range(0, whole, UNROLLED):
            for j in range(out.size):
                total = out[j]
                for k in range(UNROLLED):
                    total += h[b, first + k] * widened(w, first + k, j)
                out[j] = total
        for k in range(whole, size):
            for j in range(out.size):
                out[j] += h[b, k] * widened(w, k, j)


@njit(**FAST)
def widened(w, k, j):
    """A weight as it is computed with: int8 as a number, int16 as bfloat16's bits, a float as it is."""
    if w.itemsize == 1:
        return F(w[k, j])
    return as_float32(I(w[k, j]) * I(2**16)) if w.itemsize == 2 else w[k, j]


@njit(**FAST)
def cell(gates, sums, before, after, h, first, width):
    """A step from the products on: gates (B, 4H) in place, the part's columns of after and h (B, H)."""
    batch, size = before.shape
    for b in range(batch):
        a, r = gates[b].reshape(4, size), sums[b].reshape(4, width)
        for u in range(min(width, size - first)):
            j = first + u
            i, f = sigmoid(a[0, j] + r[0, u], gates), sigmoid(a[1, j] + r[1, u], gates)
            g, o = tanh(a[2, j] + r[2, u], gates), sigmoid(a[3, j] + r[3, u], gates)
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
