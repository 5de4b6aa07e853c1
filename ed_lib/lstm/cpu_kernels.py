"""A layer's whole sequence in one compiled call, on a CPU: alone, or shared by threads that keep their part.

Thread n of p computes the hidden numbers of its part for every step, so that it reads its columns of W_hh and
no others, and they stay in its core's private cache: the persistent kernel of Diamos et al. (2016), whose
thread blocks keep theirs in registers. After each step the threads wait for one another at counters.

Letters: T time steps, B batch, H hidden, U the hidden numbers of a part, p threads. Gates lie side by side in
the order i, f, g, o. float32, where σ and tanh are short series, or float64, where they are the library's.
"""

from typing import Any

import numpy as np
from numba import njit, prange, types
from numba.extending import overload

from ed_lib.lstm.atomics import arrived, as_float32, store_release

F, I = np.float32, np.int32  # numbers in the compiled code keep these types  # noqa: E741
FEW = 24  # samples for which loops are faster than BLAS, which has to pack its operands in each call
LINE = 8  # int64 numbers in a cache line: a counter for each thread, none beside another's
PATIENCE = 10**11  # looks at a counter, a minute or two
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


@njit(parallel=True, **FAST)
def meetings(counters, times):
    """So many meetings of all threads, and nothing else: what they cost. counters (p, n): any."""
    threads = counters.shape[0]
    for n in prange(threads):
        counters[n, 0] = 0
    for n in prange(threads):
        for step in range(times):
            meet(n, step + 1, counters, PATIENCE)


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
    at = first, size + first, 2 * size + first, 3 * size + first
    n = last - first
    return (
        gates[at[0] : at[0] + n],
        gates[at[1] : at[1] + n],
        gates[at[2] : at[2] + n],
        gates[at[3] : at[3] + n],
    )


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
