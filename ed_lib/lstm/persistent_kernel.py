"""The kernel of :mod:`~ed_lib.lstm.persistent`: what a program does from the first step to the last."""

from __future__ import annotations

from ed_lib.lstm.kernels import jit, sigmoid, tanh, tl


@jit
def kernel(
    x, w_ih, w_hh, bias, h, c, done, first, steps, groups, tiles, one, STACKED: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr, HIDDEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All steps of UNITS hidden units of one layer, for ROWS rows of the batch; arrays
    as in ``persistent.Run``. A product is W hᵀ, (4 · UNITS, H) @ (H, ROWS): a Hopper GPU's
    tensor cores take 64 lines, and few columns.
    """
    number = first + tl.program_id(0)
    tile, group, layer = number % tiles, number // tiles % groups, number // tiles // groups
    unit = tile * UNITS + tl.arange(0, UNITS)  # (UNITS,)
    row = group * ROWS + tl.arange(0, ROWS)  # (ROWS,)
    k = tl.arange(0, HIDDEN)  # (HIDDEN,)
    line = tl.arange(0, 4 * UNITS)  # (4 · UNITS,): UNITS of gate i, as many of f, g, o
    line = line // UNITS * HIDDEN + tile * UNITS + line % UNITS  # where among the 4H
    at_w = line[:, None] * HIDDEN + k[None, :]  # (4 · UNITS, HIDDEN)
    at_x = line[:, None] + row[None, :] * (4 * HIDDEN)  # (4 · UNITS, ROWS)
    at_h = k[:, None] + row[None, :] * HIDDEN  # (HIDDEN, ROWS): all units, read
    at_new = unit[:, None] + row[None, :] * HIDDEN  # (UNITS, ROWS): the own, written
    one = one.to(tl.int64)  # B · H, the numbers of one h; all of them may be over 2³¹
    h += layer * (steps + 1) * one
    c += layer * one
    done += layer * groups + group
    w = tl.load(w_hh + layer * (4 * HIDDEN * HIDDEN) + at_w)  # on chip from here on
    if STACKED:
        w_in = tl.load(w_ih + layer * (4 * HIDDEN * HIDDEN) + at_w)
        b = tl.load(bias + layer * (4 * HIDDEN) + line)  # (4 · UNITS,)
    cell = tl.load(c + at_new)  # (UNITS, ROWS)
    if not STACKED:
        x_t = tl.load(x + at_x)  # (4 · UNITS, ROWS)
    for t in tl.range(steps, num_stages=1):  # not pipelined: no h may be read too early
        if STACKED and layer > 0:
            wait(done - groups, tiles * (t + 1))  # for step t of the layer below
            below = tl.load(h - steps * one + at_h, cache_modifier=".cg")  # from L2, to which all write
            z = tl.dot(w_in, below, input_precision=PRECISION) + b[:, None]  # (4 · UNITS, ROWS)
        else:
            z = (tl.load(x + at_x) if STACKED else x_t).to(tl.float32)
        wait(done, tiles * t)  # for step t − 1 of the own layer
        h_t = tl.load(h + at_h, cache_modifier=".cg")
        z = tl.dot(w, h_t, z, input_precision=PRECISION)
        x += (t + 1 < steps) * 4 * one  # after the last step, the last again
        if not STACKED:  # the next step's: it comes while this program counts and waits
            x_t = tl.load(x + at_x)  # (more layers have no registers to spare for it)
        z = tl.permute(tl.reshape(z, (2, 2, UNITS, ROWS)), (2, 3, 0, 1))  # for tl.split
        i_g, f_o = tl.split(z)  # (UNITS, ROWS, 2) each
        i, g = tl.split(i_g)  # (UNITS, ROWS) each
        f, o = tl.split(f_o)
        cell = sigmoid(f) * cell + sigmoid(i) * tanh(g)
        h += one
        tl.store(h + at_new, (sigmoid(o) * tanh(cell)).to(h.dtype.element_ty))
        tl.debug_barrier()  # all threads of this program have written
        tl.atomic_add(done, 1, sem="release", scope="gpu")  # whoever sees the count sees h as well
    tl.store(c + at_new, cell)


@jit
def wait(counter, count):
    """Until ``count`` is reached; what the others wrote before they counted can be read afterwards.

    Written as an addition of 0, which Triton compiles for NVIDIA's GPUs to a load with acquire.
    """
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < count:
        pass
