"""An LSTM on a CPU, for one sequence or few: its whole sequence in one compiled call, of weights
laid once in the order in which they are read. Threads keep a part of them each and meet at a
barrier after each step: the persistent kernel of Diamos et al. (2016), on cores. With VNNI a lane
makes four products at once.

Letters: T steps, B batch, I inputs, H hidden, P: H rounded up to whole vectors, N = P / LANES
blocks: LANES hidden numbers with their four gates, i, f, g, o, so that a sample's sums fill four
vector registers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numba import get_num_threads, prange
from torch.nn.functional import pad

from ed_lib import check
from ed_lib.compiled import cached, check_threads
from ed_lib.flush_to_zero import without_subnormals
from ed_lib.lstm.barrier import barrier
from ed_lib.lstm.codes import MIDDLE, UNITS, encode, find_lost, lose
from ed_lib.lstm.doors import check_input, check_module
from ed_lib.lstm.exponential import sigmoid, tanh
from ed_lib.registers import BYTES, FAST, LANES, VNNI, product

# the phases of a pass, which is their sum
INPUT = 1
RECURRENT = 2
CELL = 4
WAIT = 8
PHASES = {"input product": INPUT, "recurrent product": RECURRENT, "cell": CELL, "waiting": WAIT}
PATIENCE = 10**10  # looks at another thread's counter, some ten seconds
CACHE_LINE = 8  # numbers of 64 bits in one


class Packed:
    """A ``torch.nn.LSTM`` with the weights that it has now, packed once, for a CPU, without
    gradients.

    threads: how many share each layer. bits: of a number of W_hh and of h, 32, or 8, for which h0
    has to lie in [−1, 1]; W_ih and x keep theirs. ValueError or TypeError for what is no plain
    ``torch.nn.LSTM`` in float32 or float64 on a CPU, for more threads than Numba has, for bits=8 in
    float64, without VNNI, or where W_hh holds NaN or infinity.
    """

    def __init__(self, module: torch.nn.LSTM, *, threads: int = 1, bits: int = 32):
        check_module(module)
        w_ih = module.all_weights[0][0]
        check.choice("the weights' device", w_ih.device.type, ("cpu",))
        check.choice("the weights' dtype", w_ih.dtype, (torch.float32, torch.float64))
        self.threads = check.count("threads", threads)
        check_count(self.threads)
        check.choice("bits", bits, (32, 8) if w_ih.dtype == torch.float32 else (32,))
        if bits == 8 and not VNNI:
            raise ValueError("bits is 8; wanted 32 on a processor without AVX-512 VNNI")
        self.bits = bits
        self.size = module.hidden_size
        self.phases = sum(PHASES.values())
        # W_ih's columns and dtype, which an input has to fit; the module may get others later
        self.like = w_ih.new_empty(0, w_ih.shape[1])
        self.layers = [pack(tuple(weights), bits) for weights in module.all_weights]

    def __call__(self, x: torch.Tensor, state: Sequence[torch.Tensor] | None = None) -> tuple:
        """x (T, B, I), state (h0, c0), each (L, B, H), or None for zeros → output (T, B, H), (h_n,
        c_n).

        ValueError too where Numba has fewer threads by now (``numba.set_num_threads``); and
        RuntimeError in a process that was forked after Numba's threads had started.
        """
        check_threads()
        check_count(self.threads)
        x, (h0, c0) = check_input(x, state, self.like, (len(self.layers), self.size))
        if self.bits == 8 and state and not h0.abs().max() <= 1:
            raise ValueError("h0 has a number beyond 1; with bits=8 wanted all in [−1, 1]")
        y, h0, c0 = (each.detach().numpy() for each in (x, h0, c0))
        ends = []
        for weights, h, c in zip(self.layers, h0, c0, strict=True):
            hidden, cells = self.run(weights, y, h, c)
            y = hidden[1:, :, : self.size]
            ends.append((y[-1], cells[-1, :, : self.size]))
        last = (torch.from_numpy(np.stack(each)) for each in zip(*ends, strict=True))
        return torch.from_numpy(y), tuple(last)

    def run(self, weights: "Weights", x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple:
        """All steps of a layer: x (T, B, I), h and c (B, H) → hidden and cells (T + 1, B, P)."""
        steps, batch, inputs = x.shape
        count = len(weights.w_hh)
        # a block's sums of all steps side by side, so that no two threads write to one cache line
        gates = np.empty((count, steps * batch, 4 * LANES), x.dtype)
        hidden, cells = np.empty((2, steps + 1, batch, count * LANES), x.dtype)
        for array, start in ((hidden, h), (cells, c)):
            array[0, :, : self.size] = start
            array[0, :, self.size :] = 0
        # what the recurrent product reads
        state, codes = hidden, None
        if self.bits == 8:
            codes = np.empty(hidden.shape, np.uint8)
            codes[0] = np.rint(UNITS * hidden[0]) + MIDDLE
            state = codes.view(np.int32)
        # a cache line for each thread's counter
        counters = np.zeros((self.threads, CACHE_LINE), np.int64)
        rows = np.ascontiguousarray(x).reshape(-1, inputs)
        buffers = Buffers(gates, state, hidden, cells)
        if not forward(rows, *weights, *buffers, codes, self.size, counters, self.phases, PATIENCE):
            raise RuntimeError(
                "a thread did not come to the end of a step; the result is not whole"
            )
        return hidden, cells


def check_count(threads: int) -> None:
    """ValueError for more threads than Numba has now: they would wait for each other in turns."""
    if threads == 1:
        # to ask Numba takes as long as much of a short call
        return
    most = get_num_threads()
    if threads > most:
        raise ValueError(f"threads is {threads}; wanted at most {most}, as many as Numba has")


class Weights(NamedTuple):
    """A layer's weights in the order in which they are read. Of eight bits, W_hh lies by four in an
    int32, and K is H / 4, rounded up; else it is H.
    """

    w_ih: np.ndarray  # (N, I, 4 LANES)
    bias: np.ndarray  # (N, 4 LANES), the sum of both
    w_hh: np.ndarray  # (N, K, 4 LANES)
    scale: np.ndarray  # (N, 4 LANES), what a unit of the recurrent product is worth


class Buffers(NamedTuple):
    """What a layer computes, of all steps."""

    gates: np.ndarray  # (N, T · B, 4 LANES), the sums
    state: np.ndarray  # (T + 1, B, P), what the recurrent product reads: hidden, or its codes
    hidden: np.ndarray  # (T + 1, B, P)
    cells: np.ndarray  # (T + 1, B, P)


def pack(weights: Sequence[torch.Tensor], bits: int = 32) -> Weights:
    """W_ih (4H, I), W_hh (4H, H) and two biases (4H,), packed: copies, whatever comes of the
    tensors. Hidden units beyond H have weights of 0, and no one reads what they answer, since it
    need not be 0: 0 times an infinite x is NaN.
    """
    w_ih, w_hh, b_ih, b_hh = (weight.detach() for weight in weights)
    size = w_hh.shape[1]
    more = -size % LANES
    # (4, P, I) and (4, P, H): gate, to, from
    w_ih = pad(w_ih.reshape(4, size, -1), (0, 0, 0, more))
    w_hh = pad(w_hh.reshape(4, size, size), (0, 0, 0, more))
    bias = pad((b_ih + b_hh).view(4, size), (0, more))  # (4, P)
    scale = torch.ones_like(bias)
    if bits == 8:
        if not w_hh.isfinite().all():
            raise ValueError("W_hh holds NaN or infinity; with bits=8 wanted finite numbers")
        # (4, P), what a unit of a row's weights is worth; a row of zeros has one, too
        smallest = torch.finfo(torch.float32).tiny
        unit = w_hh.abs().amax(2).clamp(min=smallest) / UNITS
        w_hh = (w_hh / unit[..., None]).round().to(torch.int8)
        scale = unit / UNITS
        # the codes of h count from 128, which adds 128 times each weight
        bias = bias - MIDDLE * w_hh.sum(2) * scale
        # four weights of a row, of four h that follow one another, side by side: (4, P, K, 4)
        w_hh = pad(w_hh, (0, -size % BYTES)).unflatten(2, (-1, BYTES))
    else:
        w_hh = w_hh[..., None]  # (4, P, H, 1)
    packed = blocks(w_hh)
    return Weights(
        w_ih=blocks(w_ih[..., None]),
        bias=blocks(bias[..., None, None])[:, 0],
        w_hh=packed.view(np.int32) if bits == 8 else packed,
        scale=blocks(scale[..., None, None])[:, 0],
    )


def blocks(w: torch.Tensor) -> np.ndarray:
    """(gates, units, K, n) → (blocks, K, 4 · LANES · n): a block's weights of each k together."""
    w = w.unflatten(1, (-1, LANES))  # (gates, blocks, LANES, K, n)
    w = w.permute(1, 3, 0, 2, 4)  # (blocks, K, gates, LANES, n)
    return w.flatten(2).contiguous().numpy()


@cached(parallel=True, **FAST)
def forward(  # noqa: PLR0917
    x, w_ih, bias, w_hh, scale, gates, state, hidden, cells, codes, size, counters, phases, patience
):
    """``part`` on each thread → whether all came to the end."""
    ended = np.zeros(len(counters), np.bool_)
    for n in prange(len(counters)):
        weights = Weights(w_ih, bias, w_hh, scale)
        buffers = Buffers(gates, state, hidden, cells)
        ended[n] = without_subnormals(
            part, (n, x, weights, buffers, codes, size, counters, phases, patience)
        )
    return ended.all()


@cached(**FAST)
def part(n, x, weights, buffers, codes, size, counters, phases, patience):  # noqa: C901, PLR0917
    """What thread n does: its blocks of both products, and their cells; False if another thread
    does not come. x (T · B, I), codes None or (T + 1, B, P).
    """
    steps = len(buffers.hidden) - 1
    batch = buffers.hidden.shape[1]
    count, threads = len(weights.w_hh), len(counters)
    # the same blocks in each step, so that their weights stay in the cache of this thread's core
    own = range(n * count // threads, (n + 1) * count // threads)
    whole = slice(own.start * LANES, own.stop * LANES)
    numbers = slice(whole.start, min(whole.stop, size))
    gates = np.empty(4 * (whole.stop - whole.start), buffers.gates.dtype)
    if phases & INPUT:
        # of all steps at once, since they wait for nothing; and by the thread that uses them
        for block in own:
            sums = buffers.gates[block]  # (T · B, 4 LANES)
            bias = np.broadcast_to(weights.bias[block], sums.shape)
            product(x=x, w=weights.w_ih[block], start=bias, out=sums)
    lost = np.zeros(batch, np.bool_)
    for t in range(steps):
        if phases & CELL and codes is not None:
            find_lost(codes[t], size, lost)
        for block in own:
            sums = buffers.gates[block, t * batch : (t + 1) * batch]  # (B, 4 LANES)
            if phases & RECURRENT:
                # (B, K) times (K, 4 LANES), added to what the input product has left there
                product(
                    x=buffers.state[t],
                    w=weights.w_hh[block],
                    start=sums,
                    out=sums,
                    scale=weights.scale[block],
                )
            if phases & CELL and codes is not None:
                lose(lost, sums)
        if phases & CELL:
            for b in range(batch):
                side_by_side(buffers.gates, own.start, t * batch + b, gates)
                before, after = buffers.cells[t, b, whole], buffers.cells[t + 1, b, whole]
                h = buffers.hidden[t + 1, b, whole]
                cell(gates=gates, before=before, after=after, h=h, n=len(h))
        if phases & CELL and codes is not None:
            for b in range(batch):
                encode(buffers.hidden[t + 1, b, numbers], codes[t + 1, b, numbers])
        # the next step reads what all threads have written in this one
        if phases & WAIT and not barrier(n, t + 1, counters, patience):
            return False
    return True


@cached(**FAST)
def side_by_side(sums, first, row, gates):
    """The sums of a row, of as many blocks as fit, by gate: sums (N, T · B, 4 LANES), gates (4n,).
    A loop over the few numbers of one block would not become vector instructions.
    """
    n = len(gates) // 4
    for k in range(n // LANES):
        for gate in range(4):
            for j in range(LANES):
                gates[gate * n + k * LANES + j] = sums[first + k, row, gate * LANES + j]


@cached(**FAST)
def cell(gates, before, after, h, n):
    """One sample's step from the sums on: gates (4n,), i, f, g, o; the cell before → after and h,
    (n,). Two loops, since a compiler makes vector instructions of a loop over few arrays only.
    """
    for j in range(n):
        after[j] = sigmoid(gates[n + j]) * before[j] + sigmoid(gates[j]) * tanh(gates[2 * n + j])
    for j in range(n):
        h[j] = sigmoid(gates[3 * n + j]) * tanh(after[j])
