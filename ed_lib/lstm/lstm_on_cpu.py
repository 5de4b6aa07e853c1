"""An LSTM on a CPU, for one sequence or few: its whole sequence in one compiled call, of weights
laid once in the order in which they are read. Threads keep a part of them each and meet at a
barrier after each step: the persistent kernel of Diamos et al. (2016), on cores. With VNNI a lane
makes four products at once.

Letters: T steps, B batch, I inputs, H hidden, P: H rounded up to whole vectors, N = P / LANES
blocks: LANES hidden numbers with their four gates, i, f, g, o, so that a sample's sums fill four
vector registers.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numba import get_num_threads, njit, prange, types
from numba.extending import overload
from torch.nn.functional import pad

from ed_lib import check
from ed_lib.lstm.barrier import barrier
from ed_lib.lstm.doors import check_input, check_module
from ed_lib.registers import FAST, LANES, VNNI, product

F = np.float32  # numbers in the compiled code keep this type
PHASES = {
    "input product": 1,
    "recurrent product": 2,
    "cell": 4,
    "waiting": 8,
}  # a pass is their sum
PATIENCE = 10**10  # looks at another thread's counter, some ten seconds


class Packed:
    """A ``torch.nn.LSTM`` with the weights that it has now, packed once, for a CPU, without
    gradients.

    threads: how many share each layer. bits: of a number of W_hh and of h, 32, or 8, for which h0
    has to lie in [−1, 1]; W_ih and x keep theirs. ValueError or TypeError for what is no plain
    ``torch.nn.LSTM`` in float32 or float64 on a CPU, for more threads than Numba has, for bits=8 in
    float64 or without VNNI.
    """

    def __init__(self, module: torch.nn.LSTM, *, threads: int = 1, bits: int = 32):
        check_module(module)
        self.w_ih, self.size, most = module.all_weights[0][0], module.hidden_size, get_num_threads()
        check.choice("the weights' device", self.w_ih.device.type, ("cpu",))
        check.choice("the weights' dtype", self.w_ih.dtype, (torch.float32, torch.float64))
        if check.count("threads", threads) > most:  # they would wait for each other in turns
            raise ValueError(f"threads is {threads}; wanted at most {most}, as many as Numba has")
        check.choice("bits", bits, (32, 8) if self.w_ih.dtype == torch.float32 else (32,))
        if bits == 8 and not VNNI:
            raise ValueError("bits is 8; wanted 32 on a processor without AVX-512 VNNI")
        self.threads, self.bits, self.phases = int(threads), bits, sum(PHASES.values())
        self.layers = [pack(tuple(weights), bits) for weights in module.all_weights]

    def __call__(self, x: torch.Tensor, state: Sequence[torch.Tensor] | None = None) -> tuple:
        """x (T, B, I), state (h0, c0), each (L, B, H), or None for zeros → output (T, B, H), (h_n,
        c_n).
        """
        x, (h0, c0) = check_input(x, state, self.w_ih, (len(self.layers), self.size))
        if self.bits == 8 and state and not h0.abs().max() <= 1:
            raise ValueError("h0 has a number beyond 1; with bits=8 wanted all in [−1, 1]")
        y, h0, c0 = (each.detach().numpy() for each in (x, h0, c0))
        ends = []
        for weights, h, c in zip(self.layers, h0, c0, strict=True):
            y, cells = (array[1:, :, : self.size] for array in self.run(weights, y, h, c))
            ends.append((y[-1], cells[-1]))
        last = (torch.from_numpy(np.stack(each)) for each in zip(*ends, strict=True))
        return torch.from_numpy(y), tuple(last)

    def run(self, weights: tuple, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple:
        """All steps of a layer: x (T, B, I), h and c (B, H) → hidden and cells (T + 1, B, P)."""
        (steps, batch, inputs), count = x.shape, len(weights[0])
        gates = np.empty((count, steps * batch, 4 * LANES), x.dtype)  # in lines of a thread's own
        hidden, cells = np.empty((2, steps + 1, batch, count * LANES), x.dtype)
        for array, start in (hidden, h), (cells, c):
            array[0, :, : self.size], array[0, :, self.size :] = start, 0
        state, codes = hidden, None  # state: what the recurrent product reads
        if self.bits == 8:
            codes = np.empty(hidden.shape, np.uint8)  # of h
            codes[0], state = np.rint(127 * hidden[0]) + 128, codes.view(np.int32)
        counters = np.zeros((self.threads, 8), np.int64)  # of a cache line each
        rows = np.ascontiguousarray(x).reshape(-1, inputs)
        if not forward(
            rows, *weights, gates, state, hidden, codes, cells, counters, self.phases, PATIENCE
        ):
            raise RuntimeError(
                "a thread did not come to the end of a step; the result is not whole"
            )
        return hidden, cells


def pack(weights: Sequence[torch.Tensor], bits: int = 32) -> tuple[np.ndarray, ...]:
    """W_ih (4H, I), W_hh (4H, H) and two biases (4H,), in the order in which they are read: w_ih
    (N, I, 4 LANES), the biases' sum (N, 4 LANES), w_hh (N, P, 4 LANES), of eight bits (N, P / 4, 4
    LANES), four in an int32, and what a unit of the recurrent product is worth (N, 4 LANES). What
    is beyond H is 0.
    """
    w_ih, w_hh, b_ih, b_hh = (weight.detach() for weight in weights)
    size = w_hh.shape[1]
    more = -size % LANES
    w_ih = pad(w_ih.reshape(4, size, -1), (0, 0, 0, more))  # (4, P, I): gate, to, from
    w_hh = pad(w_hh.reshape(4, size, size), (0, more, 0, more))  # (4, P, P)
    bias = pad((b_ih + b_hh).view(4, size), (0, more))  # (4, P)
    scale = torch.ones_like(bias)
    if bits == 8:
        unit = (
            w_hh.abs().amax(2).clamp(min=torch.finfo(torch.float32).tiny) / 127
        )  # (4, P), of a weight
        w_hh, scale = (w_hh / unit[..., None]).round().to(torch.int8), unit / 127  # h has 127 units
        bias = bias - 128 * w_hh.sum(2) * scale  # since its bytes count from 128
    first, second = blocks(w_ih[..., None]), blocks(w_hh.unflatten(2, (-1, 32 // bits)))
    sums, units = (blocks(each[..., None, None])[:, 0] for each in (bias, scale))
    return first, sums, second.view(np.int32) if bits == 8 else second, units


def blocks(w: torch.Tensor) -> np.ndarray:
    """(4, P, K, n) → (N, K, 4 · LANES · n): a block's weights of each k side by side."""
    return w.unflatten(1, (-1, LANES)).permute(1, 3, 0, 2, 4).flatten(2).contiguous().numpy()


@njit(parallel=True, **FAST)
def forward(  # noqa: PLR0917
    x, w_ih, bias, w_hh, scale, gates, state, hidden, codes, cells, counters, phases, patience
):
    """``part`` on each thread → whether all came to the end."""
    ended = np.zeros(len(counters), np.bool_)
    for n in prange(len(counters)):
        ended[n] = part(
            n,
            x,
            w_ih,
            bias,
            w_hh,
            scale,
            gates,
            state,
            hidden,
            codes,
            cells,
            counters,
            phases,
            patience,
        )
    return ended.all()


@njit(**FAST)
def part(  # noqa: C901, PLR0917
    n, x, w_ih, bias, w_hh, scale, gates, state, hidden, codes, cells, counters, phases, patience
):
    """What thread n does: its columns of both products, and their cells; False if another does not
    come.
    """
    batch, count, threads = hidden.shape[1], len(w_hh), len(counters)
    own = range(n * count // threads, (n + 1) * count // threads)  # blocks
    if (
        phases & 1
    ):  # the products of the inputs wait for nothing, and stay with the thread that uses them
        for block in own:
            product(x, w_ih[block], np.broadcast_to(bias[block], gates[block].shape), gates[block])
    for t in range(len(hidden) - 1):
        for block in own:
            now = gates[block, t * batch : (t + 1) * batch]  # (B, 4 LANES)
            if phases & 2:
                product(state[t], w_hh[block], now, now, scale[block])
            if phases & 4:
                here = slice(block * LANES, (block + 1) * LANES)
                for b in range(batch):
                    cell(
                        now[b],
                        cells[t, b, here],
                        cells[t + 1, b, here],
                        hidden[t + 1, b, here],
                        LANES,
                    )
        if phases & 4 and codes is not None:
            mine = slice(own.start * LANES, own.stop * LANES)
            for b in range(batch):
                encode(hidden[t + 1, b, mine], codes[t + 1, b, mine])
        if phases & 8 and not barrier(n, t + 1, counters, patience):
            return False
    return True


@njit(**FAST)
def encode(h, codes):
    """h in (−1, 1) as bytes, round(127 h) + 128: (n,) both."""
    for j in range(len(h)):
        codes[j] = np.uint8(np.int32(h[j] * F(127) + F(128.5)))


@njit(**FAST)
def cell(gates, before, after, h, n):
    """One sample's step from the sums on: gates (4n,), i, f, g, o; the cell before → after and h,
    (n,). Two loops, since a compiler makes vector instructions of a loop over few arrays only.
    """
    for j in range(n):
        after[j] = sigmoid(gates[n + j]) * before[j] + sigmoid(gates[j]) * tanh(gates[2 * n + j])
    for j in range(n):
        h[j] = sigmoid(gates[3 * n + j]) * tanh(after[j])


@njit(**FAST)
def sigmoid(x):
    return F(1) / (F(2) + expm1(-x))


@njit(**FAST)
def tanh(x):
    twice = expm1(x + x)
    return twice / (twice + F(2))


def expm1(x):
    """e^x − 1, of which small x keep all digits; in float64 the library's."""


@overload(expm1)
def _(x):
    return (lambda x: series(x)) if x == types.float32 else (lambda x: np.expm1(min(x, 700.0)))


C2, C3, C4, C5, C6, C7 = [F(1 / np.prod(np.arange(1.0, n + 1))) for n in range(2, 8)]  # 1 / n!


@njit(**FAST)
def series(x):
    """e^x − 1 = 2^n (e^f − 1) + 2^n − 1 with n = round(x / ln 2), f = x − n ln 2, for x from −87 to
    87, in operations that a vector register does for all its numbers at once.
    """
    x = F(-87) if x < F(-87) else F(87) if x > F(87) else x  # NaN stays
    shifted = np.float32(x * F(1 / np.log(2)) + F(1.5 * 2**23))  # rounds: n is in its last bits
    n = shifted - F(1.5 * 2**23)
    f = (x - n * F(0.693359375)) + n * F(2.12194440e-4)  # ln 2 in two parts, the first of few bits
    power = np.int32((shifted.view(np.int32) + 127) * 2**23).view(np.float32)  # 2^n, by its bits
    return power * (f + f * f * (C2 + f * (C3 + f * (C4 + f * (C5 + f * (C6 + f * C7)))))) + (
        power - F(1)
    )
