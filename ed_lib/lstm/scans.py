"""A linear recurrence, h_t = a_t h_{t−1} + b_t, step by step and as scans that need not wait for each step.

Two steps in a row are one step of the same kind: (a, b) and then (a', b') is (a' a, a' b + b'). This ∘ is
associative, so the steps may be put together in any grouping (G. Blelloch, "Prefix sums and their
applications", 1990; E. Martin and C. Cundy, "Parallelizing linear recurrent neural nets over sequence
length", 2018).

All functions take a and b (T, …), elementwise, and h (…), the state before the first step → all states,
(T, …).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def step_by_step(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """T steps, each of which waits: 2 T operations for a number of the state."""
    states = []
    for gain, gift in zip(a, b, strict=True):
        h = gain * h + gift
        states.append(h)
    return torch.stack(states)


def doubling(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """⌈log₂ T⌉ rounds, each over all steps at once: about 3 T log₂ T operations (Hillis and Steele, 1986).

    After a round each step stands for itself and the 2, 4, 8 … − 1 before it.
    """
    reach = 1
    while reach < len(a):
        gift = a[reach:] * b[:-reach] + b[reach:]
        a, b = torch.cat([a[:reach], a[reach:] * a[:-reach]]), torch.cat([b[:reach], gift])
        reach *= 2
    return a * h + b


def halving(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """2 log₂ T rounds over fewer and fewer steps, and back: about 5 T operations (Blelloch, 1990).

    Put neighbours together in pairs, solve for the pairs, and fill in the steps between.
    """
    if len(a) == 1:
        return a * h + b
    even, odd = a[:-1:2], a[1::2]  # (⌊T/2⌋, …) each
    ends = halving(odd * even, odd * b[:-1:2] + b[1::2], h)  # after steps 1, 3, 5 …
    before = torch.cat([h[None], ends])[: -(-len(a) // 2)]  # the state before steps 0, 2, 4 …
    states = torch.empty_like(b)
    states[0::2] = a[0::2] * before + b[0::2]
    states[1::2] = ends
    return states


def chunked(a: Tensor, b: Tensor, h: Tensor, chunk: int = 16) -> Tensor:
    """chunk + T / chunk steps that wait: inside all chunks side by side, then from chunk to chunk.

    What a processor with few lanes does: little more work than step by step, in fewer, wider steps.
    """
    steps = len(a)
    missing = -steps % chunk
    if missing:
        rest = (missing, *a.shape[1:])
        a, b = torch.cat([a, a.new_ones(rest)]), torch.cat([b, b.new_zeros(rest)])
    a, b = (array.unflatten(0, (-1, chunk)) for array in (a, b))  # (T / chunk, chunk, …)
    gain, local = torch.empty_like(a), torch.empty_like(b)  # since the chunk's start
    gain[:, 0], local[:, 0] = a[:, 0], b[:, 0]
    for k in range(1, chunk):
        gain[:, k] = a[:, k] * gain[:, k - 1]
        local[:, k] = a[:, k] * local[:, k - 1] + b[:, k]
    ends = step_by_step(gain[:, -1], local[:, -1], h)
    starts = torch.cat([h[None], ends[:-1]])  # (T / chunk, …)
    return (gain * starts[:, None] + local).flatten(0, 1)[:steps]


def compiled(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """Step by step, in one compiled call on a CPU: no call for a step, and no more work than there is."""
    from ed_lib.lstm import vectors  # with Numba, which not every machine with a GPU has

    states = torch.empty_like(b, memory_format=torch.contiguous_format)
    flat = (x.contiguous().view(*x.shape[: x.ndim - h.ndim], -1).detach().numpy() for x in (a, b, h, states))
    if h.numel() > 512:
        vectors.scan(*flat)
    else:
        vectors.scan_part(*flat, 0)  # on this thread: the others need not be woken
    return states


SCANS = {"step by step": step_by_step, "doubling": doubling, "halving": halving, "chunked": chunked,
         "compiled": compiled}  # fmt: skip


class Recurrence(torch.autograd.Function):
    """Any of SCANS with its gradient, which is a scan too, from the last step to the first:

    g_t = dy_t + a_{t+1} g_{t+1}, and then ∂b_t = g_t, ∂a_t = g_t h_{t−1}, ∂h = a_0 g_0.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, h: Tensor, scan: Callable) -> Tensor:
        """All states by a function ``scan``, one of SCANS."""
        states = scan(a, b, h)
        ctx.scan = scan
        ctx.save_for_backward(a, states, h)
        return states

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple:
        """The gradients of a, b and h, by the same."""
        a, states, h = ctx.saved_tensors
        later = torch.cat([a[1:], torch.zeros_like(a[:1])]).flip(0)
        g = ctx.scan(later, dy.flip(0), torch.zeros_like(h)).flip(0)  # (T, …)
        return g * torch.cat([h[None], states[:-1]]), g, a[0] * g[0], None


def solve(a: Tensor, b: Tensor, h: Tensor, scan: str = "halving") -> Tensor:
    """All states of h_t = a_t h_{t−1} + b_t by one of SCANS, with gradients.

    a, b (T, …), h (…): floats of one dtype. ValueError where shapes do not fit, T is 0, or scan is another.
    """
    if scan not in SCANS:
        raise ValueError(f"scan is {scan!r}; wanted one of {', '.join(SCANS)}")
    if a.shape != b.shape or a.shape[1:] != h.shape or not len(a):
        shapes = f"a is {tuple(a.shape)}, b {tuple(b.shape)}, h {tuple(h.shape)}"
        raise ValueError(f"{shapes}; wanted (T, …) twice, T at least 1, and (…)")
    return Recurrence.apply(a, b, h, SCANS[scan])
