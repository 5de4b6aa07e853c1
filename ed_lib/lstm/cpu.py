"""An LSTM on a CPU, for one sequence or few: a ladder of which each rung removes a cause of its time.

``compiled_cell``: a call for each pointwise operation. ``all_inputs``: an input product at each step.
``one_call``: Python between steps. :class:`Packed` lays the weights once in the order in which they are read.
Its ``threads`` keep a part of them each and meet at a barrier after each step: the persistent kernel of
Diamos et al. (2016), on cores. Its ``bits=8`` make four products in a lane at once, where there is VNNI.

Letters: T steps, B batch, I inputs, H hidden, P: H rounded up to whole vectors. Gates: i, f, g, o. A block is
LANES hidden numbers with their four gates, so that a sample's sums fill four vector registers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numba import njit, prange
from torch.nn.functional import pad

from ed_lib import check
from ed_lib.lstm.ladder import Layer, Weights
from ed_lib.lstm.module import check_module, check_on_cpu, check_threads, checked
from ed_lib.lstm.vectors import FAST, LANES, VNNI, F, barrier, product, sigmoid, tanh

PHASES = {"input product": 1, "recurrent product": 2, "cell": 4, "waiting": 8}  # a pass is their sum
PATIENCE = 10**10  # looks at another thread's counter, some ten seconds


def compiled_cell(layer: Layer) -> None:
    """All pointwise work of a step in one compiled call; its two products are PyTorch's."""
    bias = layer.b_ih + layer.b_hh
    for t in range(len(layer.x)):
        torch.addmm(bias, layer.x[t], layer.w_ih.t(), out=layer.gates[t])  # (B, I) (I, 4H) → (B, 4H)
        step(layer, t)
    layer.output.copy_(layer.hidden[1:])


def all_inputs(layer: Layer) -> None:
    """One input product for all steps, since it waits for none of them."""
    x, gates = layer.x.flatten(0, 1), layer.gates.flatten(0, 1)
    torch.addmm(layer.b_ih + layer.b_hh, x, layer.w_ih.t(), out=gates)  # (T · B, I) (I, 4H) → (T · B, 4H)
    for t in range(len(layer.x)):
        step(layer, t)
    layer.output.copy_(layer.hidden[1:])


def step(layer: Layer, t: int) -> None:
    """The recurrent product of a step, and the rest in one compiled call."""
    torch.mm(layer.hidden[t], layer.w_hh.t(), out=layer.recurrent)  # (B, H) (H, 4H) → (B, 4H)
    pointwise(layer, t)


def pointwise(layer: Layer, t: int) -> None:
    """The pointwise work of a step, biases apart, in one compiled call; the gates are left summed."""
    arrays = layer.gates[t], layer.recurrent, layer.cells[t], layer.cells[t + 1], layer.hidden[t + 1]
    whole_cell(*(array.numpy() for array in arrays))


def one_call(layer: Layer) -> None:
    """The loop over the steps compiled too: one call for the whole sequence."""
    weights = pack((layer.w_ih, layer.w_hh, layer.b_ih, layer.b_hh))
    size, made = layer.hidden.shape[-1], run(weights, layer.x, layer.hidden[0], layer.cells[0])
    gates, layer.hidden, layer.cells = (torch.from_numpy(array)[..., :size] for array in made)
    layer.gates = gates.reshape(layer.gates.shape)  # (T · B, 4, H) → (T, B, 4H)
    layer.output.copy_(layer.hidden[1:])


class Packed:
    """A ``torch.nn.LSTM`` with the weights that it has now, packed once, for a CPU, without gradients.

    threads: how many share each layer. bits: of a number of W_hh and of h, 32, or 8, for which h0 has to lie
    in [−1, 1]; W_ih and x keep theirs. ValueError or TypeError for what is no plain ``torch.nn.LSTM`` in
    float32 or float64 on a CPU, for more threads than Numba has, for bits=8 in float64 or without VNNI.
    """

    def __init__(self, module: torch.nn.LSTM, *, threads: int = 1, bits: int = 32):
        check_module(module)
        self.w_ih, self.size, self.threads = (
            module.all_weights[0][0],
            module.hidden_size,
            check_threads(threads),
        )
        check_on_cpu(self.w_ih)
        check.choice("module.bidirectional", module.bidirectional, (False,))
        check.choice("bits", bits, (32, 8) if self.w_ih.dtype == torch.float32 else (32,))
        if bits == 8 and not VNNI:
            raise ValueError("bits is 8; wanted 32 on a processor without AVX-512 VNNI")
        self.bits, self.phases = bits, sum(PHASES.values())
        self.layers = [pack(tuple(weights), bits) for weights in module.all_weights]  # type: ignore[arg-type]

    def __call__(self, x: torch.Tensor, state: Sequence[torch.Tensor] | None = None) -> tuple:
        """x (T, B, I), state (h0, c0), each (L, B, H), or None for zeros → output (T, B, H), (h_n, c_n)."""
        x, (h0, c0) = checked(x, state, self.w_ih, (len(self.layers), self.size))
        if self.bits == 8 and state and not h0.abs().max() <= 1:
            raise ValueError("h0 has a number beyond 1; with bits=8 wanted all in [−1, 1]")
        ends = []
        for weights, h, c in zip(self.layers, h0, c0, strict=True):
            made = run(weights, x, h, c, self.threads, self.phases)[1:]
            x, cells = (torch.from_numpy(array[1:, :, : self.size]) for array in made)
            ends.append((x[-1], cells[-1]))
        return x, tuple(map(torch.stack, zip(*ends, strict=True)))


class Blocks(NamedTuple):
    """A layer's weights in the order in which they are read; what is beyond H is zero."""

    w_ih: np.ndarray  # (P / LANES, I, 4 LANES)
    bias: np.ndarray  # (4, P), both added
    w_hh: np.ndarray  # (P / LANES, P, 4 LANES); of eight bits (P / LANES, P / 4, 4 LANES), four in an int32
    scale: np.ndarray | None = None  # (4, P): what a unit of the product of eight bits is worth


def pack(weights: Weights, bits: int = 32) -> Blocks:
    """W_ih (4H, I), W_hh (4H, H) and two biases (4H,) as :class:`Blocks`."""
    w_ih, w_hh, b_ih, b_hh = (weight.detach() for weight in weights)
    size = w_hh.shape[1]
    more = -size % LANES
    w_hh = pad(w_hh.reshape(4, size, size), (0, more, 0, more))  # (4, P, P): gate, to, from
    bias = pad((b_ih + b_hh).view(4, size), (0, more))  # (4, P)
    first = blocks(pad(w_ih.reshape(4, size, -1), (0, 0, 0, more))[..., None])
    if bits == 32:
        return Blocks(first, bias.numpy(), blocks(w_hh[..., None]))
    unit = w_hh.abs().amax(2).clamp(min=torch.finfo(torch.float32).tiny) / 127  # (4, P), of a weight
    few, scale = (w_hh / unit[..., None]).round().to(torch.int8), unit / 127  # h has 127 units
    bias = bias - 128 * few.sum(2) * scale  # since its bytes count from 128
    return Blocks(first, bias.numpy(), blocks(few.unflatten(2, (-1, 4))).view(np.int32), scale.numpy())


def blocks(w: torch.Tensor) -> np.ndarray:
    """(4, P, K, n) → (P / LANES, K, 4 · LANES · n): a block's weights of each k side by side."""
    w = w.unflatten(1, (-1, LANES)).permute(1, 3, 0, 2, 4)  # (P / LANES, K, 4, LANES, n)
    return w.flatten(2).contiguous().numpy()


def run(
    weights: Blocks, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, threads: int = 1, phases: int = 15
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All steps of a layer: x (T, B, I), h and c (B, H) → gates, summed, (T · B, 4, P), hidden and cells
    (T + 1, B, P).
    """
    (steps, batch, _), size, padded = x.shape, h.shape[1], weights.bias.shape[1]
    rows, few = x.detach().numpy().reshape(steps * batch, -1), None
    gates = np.empty((len(rows), 4, padded), rows.dtype)
    hidden, cells = np.empty((2, steps + 1, batch, padded), rows.dtype)
    hidden[0], cells[0] = (pad(start.detach(), (0, padded - size)).numpy() for start in (h, c))
    if weights.scale is not None:
        codes = np.empty(hidden.shape, np.uint8)  # of h
        codes[0] = np.rint(127 * hidden[0]) + 128
        few = weights.scale, codes
    counters = np.zeros((threads, 8), np.int64)  # of a cache line each
    arrays = rows, *weights[:3], few, gates, hidden, cells, counters, phases, PATIENCE
    if not (forward(*arrays) if threads > 1 else part(0, *arrays)):
        raise RuntimeError("a thread did not come to the end of a step; the result is not whole")
    return gates, hidden, cells


@njit(parallel=True, **FAST)
def forward(x, w_ih, bias, w_hh, few, gates, hidden, cells, counters, phases, patience):
    """``part`` on each thread → whether all came to the end."""
    ended = np.zeros(len(counters), np.bool_)
    for n in prange(len(counters)):
        ended[n] = part(n, x, w_ih, bias, w_hh, few, gates, hidden, cells, counters, phases, patience)
    return ended.all()


@njit(**FAST)
def part(n, x, w_ih, bias, w_hh, few, gates, hidden, cells, counters, phases, patience):
    """What thread n does: its columns of both products, and their cells; False if another does not come."""
    batch, count, threads = hidden.shape[1], len(w_hh), len(counters)
    own = range(n * count // threads, (n + 1) * count // threads)  # blocks
    if phases & 1:  # the products of the inputs wait for nothing, and stay with the thread that uses them
        inputs(x, w_ih, bias, gates, own)
    for t in range(len(hidden) - 1):
        now = gates[t * batch : (t + 1) * batch]  # (B, 4, P)
        if phases & 2:
            recurrent(t, hidden, w_hh, few, now, own)
        if phases & 4:
            pointwise_part(t, now, cells, hidden, few, own)
        if phases & 8 and not barrier(n, t + 1, counters, patience):
            return False
    return True


@njit(**FAST)
def inputs(x, w_ih, bias, gates, own):
    """gates = x W_ih + b in a thread's columns: x (T · B, I), gates (T · B, 4, P)."""
    for block in own:
        at = block * LANES
        gates[:, :, at : at + LANES] = bias[:, at : at + LANES]
        product(x, w_ih[block], gates, at, None)


@njit(**FAST)
def recurrent(t, hidden, w_hh, few, gates, own):
    """gates += h W_hh in a thread's columns: hidden[t] (B, P), gates (B, 4, P)."""
    if few is None:
        for block in own:
            product(hidden[t], w_hh[block], gates, block * LANES, None)
    else:
        scale, codes = few
        for block in own:
            product(codes[t].view(np.int32), w_hh[block], gates, block * LANES, scale)


@njit(**FAST)
def pointwise_part(t, gates, cells, hidden, few, own):
    """The rest of step t in a thread's columns. h in (−1, 1) becomes a byte, round(127 h) + 128."""
    first, last = own.start * LANES, own.stop * LANES
    for b in range(len(gates)):
        i, f, g, o = (
            gates[b, 0, first:last],
            gates[b, 1, first:last],
            gates[b, 2, first:last],
            gates[b, 3, first:last],
        )
        h = hidden[t + 1, b, first:last]
        cell(i, f, g, o, cells[t, b, first:last], cells[t + 1, b, first:last], h)
        if few is not None:
            codes = few[1][t + 1, b, first:last]
            for j in range(h.size):
                codes[j] = np.uint8(np.int32(h[j] * F(127) + F(128.5)))


@njit(**FAST)
def whole_cell(gates, recurrent, before, after, h):
    """A step from its products on: gates (B, 4H), left summed, recurrent (B, 4H), the rest (B, H)."""
    n = h.shape[1]
    for b in range(len(h)):
        a, r = gates[b], recurrent[b]
        for j in range(a.size):
            a[j] += r[j]
        cell(a[:n], a[n : 2 * n], a[2 * n : 3 * n], a[3 * n :], before[b], after[b], h[b])


@njit(**FAST)
def cell(i, f, g, o, before, after, h):
    """One sample's step from the sums on, all (·,): i, f, g, o and the cell before → after and h. Two loops,
    since a compiler makes vector instructions of a loop over few arrays only.
    """
    for j in range(h.size):
        after[j] = sigmoid(f[j]) * before[j] + sigmoid(i[j]) * tanh(g[j])
    for j in range(h.size):
        h[j] = sigmoid(o[j]) * tanh(after[j])
