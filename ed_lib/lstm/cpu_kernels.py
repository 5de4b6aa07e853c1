"""A layer's whole sequence in one compiled call, on a CPU: alone, or shared by threads that keep their part.

Thread n of p computes the hidden numbers of its part for every step, so that it reads its columns of W_hh and
no others, and they stay in its core's private cache: the persistent kernel of Diamos et al. (2016), whose
thread blocks keep theirs in registers. After each step the threads wait for one another at counters.

Letters: T time steps, B batch, H hidden, U the hidden numbers of a part, p threads. Gates lie side by side in
the order i, f, g, o. float32 or float64.
"""

from typing import Any

import numpy as np
from numba import njit, prange

from ed_lib.lstm import atomics, cpu_cell, cpu_products
from ed_lib.lstm.atomics import arrived, store_release
from ed_lib.lstm.cpu_cell import cell, cell_backward
from ed_lib.lstm.cpu_products import product, room

atomics.compiled_anew(__file__, cpu_cell, cpu_products, atomics)

LINE = 8  # int64 numbers in a cache line: a counter for each thread, none beside another's
PATIENCE = 10**11  # looks at a counter, a minute or two
FAST: dict[str, Any] = dict(fastmath=True, error_model="numpy", cache=True)


@njit(parallel=True, **FAST)
def forward(x, w_ih, bias, gates, hidden, cells, w, scale, counters, turn):
    """All steps of a layer → whether all threads arrived at the end.

    x (T · B, I); w_ih (I, 4H); bias (4H,). gates (T, B, 4H) is written: activated. hidden, cells
    (T + 1, B, H): [0] is read, the rest is written. w: of :func:`packing.pack`, perhaps int8, or int16 that
    holds bfloat16's bits; it counts times scale (p, 4U). counters (p, n): zeros. turn: 0, or by how many
    parts the threads move on after each step, so that none keeps its own.
    """
    threads = counters.shape[0]
    ended = np.zeros(threads, np.bool_)
    for n in prange(threads):
        inputs_part(n, threads, x, w_ih, bias, gates)
        ended[n] = forward_part(n, turn, gates, hidden, cells, w, scale, counters, PATIENCE)
    return ended.all()


@njit(**FAST)
def forward_alone(x, w_ih, bias, gates, hidden, cells, w, scale, counters, turn):
    """``forward`` on the thread that calls it, which wakes no other."""
    inputs_part(0, 1, x, w_ih, bias, gates)
    return forward_part(0, turn, gates, hidden, cells, w, scale, counters, PATIENCE)


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
def forward_part(n, turn, gates, hidden, cells, w, scale, counters, patience):
    """What thread n does; False if another does not arrive."""
    (steps, batch, _), (parts, _, columns) = gates.shape, w.shape
    sums = room(batch, columns, gates)
    if not barrier(n, 1, counters, patience):  # all of W_ih x + b
        return False
    for t in range(steps):
        part = (n + turn * t) % parts
        product(hidden[t], w[part], sums)  # (B, H) (H, 4U) → (B, 4U)
        cell(gates[t], sums, scale[part], cells[t], cells[t + 1], hidden[t + 1], part * (columns // 4))
        if not barrier(n, t + 2, counters, patience):
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
    sums = room(batch, width, gates)
    for back in range(steps):
        t = steps - 1 - back
        cell_backward(gates[t], cells[t], cells[t + 1], dy[t], dh, dc, dgates[t], first, width)
        if not barrier(n, back + 1, counters, patience):
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
        if barrier(n, 1, counters[:threads], PATIENCE):
            own = n * layers // threads, (n + 1) * layers // threads
            steps = counters[threads:]  # how far each layer is
            ended[n] = layers_part(own, gates, hidden, cells, upward, w, bias, scale, steps, PATIENCE)
    return ended.all()


@njit(**FAST)
def layers_part(own, gates, hidden, cells, upward, w, bias, scale, counters, patience):
    """The layers own[0] … own[1] − 1; False if the layer below does not arrive."""
    _, steps, batch, _ = gates.shape
    sums = room(batch, w.shape[2], gates)
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
def barrier(n, step, counters, patience):
    """Says that thread n has done ``step``, and waits until all have; False if one does not arrive."""
    if counters.shape[0] == 1:
        return True
    store_release(counters[n], 0, step)
    for other in range(counters.shape[0]):
        if not arrived(counters, other, step, patience):
            return False
    return True


@njit(parallel=True, **FAST)
def barriers(counters, times):
    """So many barriers of all threads, and nothing else: what they cost. counters (p, n): any."""
    threads = counters.shape[0]
    for n in prange(threads):
        counters[n, 0] = 0
    for n in prange(threads):
        for step in range(times):
            barrier(n, step + 1, counters, PATIENCE)
