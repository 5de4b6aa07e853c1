"""An LSTM on a CPU, for one sequence or few: a ladder of which each rung removes a cause of its time.

``compiled_cell``: a call for each pointwise operation. ``all_inputs``: an input product at each step.
:class:`Packed` runs the whole sequence in one call, and lays the weights once in the order in which they are
read. Its ``threads`` keep a part of them each and meet at a barrier after each step: the persistent kernel of
Diamos et al. (2016), on cores. Its ``bits=8`` make four products in a lane at once, where there is VNNI.

Letters: T steps, B batch, I inputs, H hidden, P: H rounded up to whole vectors, N = P / LANES blocks: LANES
hidden numbers with their four gates, i, f, g, o, so that a sample's sums fill four vector registers.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numba import get_num_threads, njit, prange, types
from numba.extending import intrinsic
from torch.nn.functional import pad

from ed_lib import check
from ed_lib.lstm.ladder import Weights
from ed_lib.lstm.module import check_module, checked
from ed_lib.lstm.vectors import FAST, LANES, VNNI, F, product, sigmoid, tanh

PHASES = {"input product": 1, "recurrent product": 2, "cell": 4, "waiting": 8}  # a pass is their sum
PATIENCE = 10**10  # looks at another thread's counter, some ten seconds


@torch.no_grad()
def compiled_cell(module: torch.nn.LSTM, x: torch.Tensor) -> tuple:
    """All pointwise work of a step in one compiled call; its two products are PyTorch's. x (T, B, I), of one
    layer → as the module.
    """
    w_ih, _, b_ih, b_hh = module.all_weights[0]
    return steps(module, (torch.addmm(b_ih + b_hh, now, w_ih.t()) for now in x), x)  # (B, I) (I, 4H) each


@torch.no_grad()
def all_inputs(module: torch.nn.LSTM, x: torch.Tensor) -> tuple:
    """The same with one input product for all steps, since it waits for none of them."""
    w_ih, _, b_ih, b_hh = module.all_weights[0]
    gates = torch.addmm(b_ih + b_hh, x.flatten(0, 1), w_ih.t())  # (T · B, I) (I, 4H) → (T · B, 4H)
    return steps(module, gates.unflatten(0, x.shape[:2]), x)


def steps(module: torch.nn.LSTM, gates: Iterable[torch.Tensor], x: torch.Tensor) -> tuple:
    """The steps from their input products on, (B, 4H) each."""
    w_hh = module.all_weights[0][1].t()
    hidden, cells = x.new_zeros(2, len(x) + 1, x.shape[1], module.hidden_size)
    for t, a in enumerate(gates):
        recurrent = torch.mm(hidden[t], w_hh)  # (B, H) (H, 4H) → (B, 4H)
        arrays = a, recurrent, cells[t], cells[t + 1], hidden[t + 1]
        whole_cell(*(array.numpy() for array in arrays))
    return hidden[1:], (hidden[-1:], cells[-1:])


class Packed:
    """A ``torch.nn.LSTM`` with the weights that it has now, packed once, for a CPU, without gradients.

    threads: how many share each layer. bits: of a number of W_hh and of h, 32, or 8, for which h0 has to lie
    in [−1, 1]; W_ih and x keep theirs. ValueError or TypeError for what is no plain ``torch.nn.LSTM`` in
    float32 or float64 on a CPU, for more threads than Numba has, for bits=8 in float64 or without VNNI.
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
        self.layers = [pack(tuple(weights), bits) for weights in module.all_weights]  # type: ignore[arg-type]

    def __call__(self, x: torch.Tensor, state: Sequence[torch.Tensor] | None = None) -> tuple:
        """x (T, B, I), state (h0, c0), each (L, B, H), or None for zeros → output (T, B, H), (h_n, c_n)."""
        x, (h0, c0) = checked(x, state, self.w_ih, (len(self.layers), self.size))
        if self.bits == 8 and state and not h0.abs().max() <= 1:
            raise ValueError("h0 has a number beyond 1; with bits=8 wanted all in [−1, 1]")
        ends = []
        for weights, h, c in zip(self.layers, h0.detach().numpy(), c0.detach().numpy(), strict=True):
            made = self.run(weights, x.detach().numpy(), h, c)
            x, cells = (torch.from_numpy(array)[1:, :, : self.size] for array in made)
            ends.append((x[-1], cells[-1]))
        return x, tuple(map(torch.stack, zip(*ends, strict=True)))

    def run(self, weights: "Blocks", x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple:
        """All steps of a layer: x (T, B, I), h and c (B, H) → hidden and cells (T + 1, B, P)."""
        (steps, batch, inputs), padded = x.shape, LANES * len(weights.w_hh)
        gates = np.empty((len(weights.w_hh), steps * batch, 4 * LANES), x.dtype)  # a thread's lie together
        hidden, cells = np.empty((2, steps + 1, batch, padded), x.dtype)
        for array, start in (hidden, h), (cells, c):
            array[0, :, : self.size], array[0, :, self.size :] = start, 0
        state, codes = hidden, None  # state: what the recurrent product reads
        if self.bits == 8:
            codes = np.empty(hidden.shape, np.uint8)  # of h
            codes[0], state = np.rint(127 * hidden[0]) + 128, codes.view(np.int32)
        counters = np.zeros((self.threads, 8), np.int64)  # of a cache line each
        rows = np.ascontiguousarray(x).reshape(-1, inputs)
        if not forward(rows, *weights, gates, state, hidden, codes, cells, counters, self.phases, PATIENCE):
            raise RuntimeError("a thread did not come to the end of a step; the result is not whole")
        return hidden, cells


class Blocks(NamedTuple):
    """A layer's weights in the order in which they are read; what is beyond H is zero."""

    w_ih: np.ndarray  # (N, I, 4 LANES)
    bias: np.ndarray  # (N, 4 LANES), both added
    w_hh: np.ndarray  # (N, P, 4 LANES); of eight bits (N, P / 4, 4 LANES), four in an int32
    scale: np.ndarray  # (N, 4 LANES): what a unit of the recurrent product is worth, 1 but in eight bits


def pack(weights: Weights, bits: int = 32) -> Blocks:
    """W_ih (4H, I), W_hh (4H, H) and two biases (4H,) as :class:`Blocks`."""
    w_ih, w_hh, b_ih, b_hh = (weight.detach() for weight in weights)
    size = w_hh.shape[1]
    more = -size % LANES
    w_hh = pad(w_hh.reshape(4, size, size), (0, more, 0, more))  # (4, P, P): gate, to, from
    bias = pad((b_ih + b_hh).view(4, size), (0, more))  # (4, P)
    first = blocks(pad(w_ih.reshape(4, size, -1), (0, 0, 0, more))[..., None])
    if bits == 32:
        return Blocks(first, vectors(bias), blocks(w_hh[..., None]), vectors(torch.ones_like(bias)))
    unit = w_hh.abs().amax(2).clamp(min=torch.finfo(torch.float32).tiny) / 127  # (4, P), of a weight
    few, scale = (w_hh / unit[..., None]).round().to(torch.int8), unit / 127  # h has 127 units
    bias = bias - 128 * few.sum(2) * scale  # since its bytes count from 128
    return Blocks(first, vectors(bias), blocks(few.unflatten(2, (-1, 4))).view(np.int32), vectors(scale))


def blocks(w: torch.Tensor) -> np.ndarray:
    """(4, P, K, n) → (N, K, 4 · LANES · n): a block's weights of each k side by side."""
    w = w.unflatten(1, (-1, LANES)).permute(1, 3, 0, 2, 4)  # (N, K, 4, LANES, n)
    return w.flatten(2).contiguous().numpy()


def vectors(numbers: torch.Tensor) -> np.ndarray:
    """(4, P) → (N, 4 · LANES): those of a block side by side."""
    return blocks(numbers[..., None, None])[:, 0]


@njit(parallel=True, **FAST)
def forward(x, w_ih, bias, w_hh, scale, gates, state, hidden, codes, cells, counters, phases, patience):
    """``part`` on each thread → whether all came to the end."""
    ended = np.zeros(len(counters), np.bool_)
    for n in prange(len(counters)):
        ended[n] = part(
            n, x, w_ih, bias, w_hh, scale, gates, state, hidden, codes, cells, counters, phases, patience
        )
    return ended.all()


@njit(**FAST)
def part(n, x, w_ih, bias, w_hh, scale, gates, state, hidden, codes, cells, counters, phases, patience):
    """What thread n does: its columns of both products, and their cells; False if another does not come."""
    batch, count, threads = hidden.shape[1], len(w_hh), len(counters)
    own = range(n * count // threads, (n + 1) * count // threads)  # blocks
    if phases & 1:  # the products of the inputs wait for nothing, and stay with the thread that uses them
        for block in own:
            gates[block] = bias[block]
            product(x, w_ih[block], gates[block], scale[block])
    for t in range(len(hidden) - 1):
        for block in own:
            now = gates[block, t * batch : (t + 1) * batch]  # (B, 4 LANES)
            if phases & 2:
                product(state[t], w_hh[block], now, scale[block])
            if phases & 4:
                block_cell(t, block, now, cells, hidden, codes)
        if phases & 8 and not barrier(n, t + 1, counters, patience):
            return False
    return True


@njit(**FAST)
def block_cell(t, block, gates, cells, hidden, codes):
    """The rest of step t for a block. h in (−1, 1) becomes a byte as well, round(127 h) + 128."""
    own = slice(block * LANES, (block + 1) * LANES)
    for b in range(len(gates)):
        h = hidden[t + 1, b, own]
        cell(gates[b], cells[t, b, own], cells[t + 1, b, own], h, LANES)
        if codes is not None:
            few = codes[t + 1, b, own]
            for j in range(LANES):
                few[j] = np.uint8(np.int32(h[j] * F(127) + F(128.5)))


@njit(**FAST)
def whole_cell(gates, recurrent, before, after, h):
    """A step from its products on: gates (B, 4H), left summed, recurrent (B, 4H), the rest (B, H)."""
    for b in range(len(h)):
        for j in range(gates.shape[1]):
            gates[b, j] += recurrent[b, j]
        cell(gates[b], before[b], after[b], h[b], h.shape[1])


@njit(**FAST)
def cell(gates, before, after, h, n):
    """One sample's step from the sums on: gates (4n,), i, f, g, o; the cell before → after and h, (n,). Two
    loops, since a compiler makes vector instructions of a loop over few arrays only.
    """
    for j in range(n):
        after[j] = sigmoid(gates[n + j]) * before[j] + sigmoid(gates[j]) * tanh(gates[2 * n + j])
    for j in range(n):
        h[j] = sigmoid(gates[3 * n + j]) * tanh(after[j])


@njit(**FAST)
def barrier(n, step, counters, patience):
    """Says that thread n has done ``step``, and waits until all have; False if one does not come."""
    store_release(counters[n], step)
    for other in range(len(counters)):
        looks = 0
        while load_acquire(counters[other]) < step:
            looks += 1
            if looks > patience:
                return False
    return True


@intrinsic
def store_release(typing, counter, value):
    """counter[0] = value, after all that was written before it. counter: int64."""

    def emit(context, builder, signature, arguments):
        place = context.make_array(counter)(context, builder, arguments[0]).data
        builder.store_atomic(arguments[1], place, "release", 8)
        return context.get_dummy_value()

    return types.none(counter, types.int64), emit


@intrinsic
def load_acquire(typing, counter):
    """counter[0], before all that is read after it."""

    def emit(context, builder, signature, arguments):
        place = context.make_array(counter)(context, builder, arguments[0]).data
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(counter), emit
