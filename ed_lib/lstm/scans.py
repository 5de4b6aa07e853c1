"""A linear recurrence, h_t = a_t h_{t−1} + b_t, by any scan, with its gradient; and minGRU, whose
gates do not look at the state, so that its recurrence is one: "Were RNNs all we needed?" (L. Feng
and others, 2024), without its logarithms.

A scan takes a and b (T, …), elementwise, and h (…), the state before the first step → all states,
(T, …). Letters: T time steps, B batch, I inputs, H hidden.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ed_lib.compiled import cached

BLOCK = 512  # numbers of the state that are carried through all steps together


def compiled(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """Step by step, in one compiled call on a CPU: no call for a step, and no more work than there
    is.
    """
    states = torch.empty_like(b, memory_format=torch.contiguous_format)
    steps = len(a)
    # Numba takes NumPy's arrays, and compiles once for those that are contiguous.
    scan_blocks(
        a.detach().contiguous().view(steps, -1).numpy(),
        b.detach().contiguous().view(steps, -1).numpy(),
        h.detach().contiguous().view(-1).numpy(),
        states.view(steps, -1).numpy(),
    )
    return states


@cached(fastmath={"contract"})
def scan_blocks(a, b, h, states):
    """a, b, states (T, N), h (N,). So many numbers of the state at a time, BLOCK, stay in the
    nearest cache for all steps.
    """
    for first in range(0, h.size, BLOCK):
        part = slice(first, min(first + BLOCK, h.size))
        before = h[part]
        for t in range(len(a)):
            gain = a[t, part]
            gift = b[t, part]
            after = states[t, part]
            for j in range(after.size):
                after[j] = gain[j] * before[j] + gift[j]
            before = after


class Recurrence(torch.autograd.Function):
    """Any scan with its gradient, which is a scan too, from the last step to the first:

    g_t = dy_t + a_{t+1} g_{t+1}, and then ∂b_t = g_t, ∂a_t = g_t h_{t−1}, ∂h = a_0 g_0.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, h: Tensor, scan: Callable) -> Tensor:
        """All states, by a function ``scan``."""
        states = scan(a, b, h)
        ctx.scan = scan
        ctx.save_for_backward(a, states, h)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple:
        """The gradients of a, b and h, by the same scan."""
        a, states, h = ctx.saved_tensors
        # From the last step to the first: a_{t+1}, of which the last step has none
        later = torch.cat([a[1:], torch.zeros_like(a[:1])]).flip(0)
        g = ctx.scan(later, dy.flip(0), torch.zeros_like(h)).flip(0)  # (T, …)
        before = torch.cat([h[None], states[:-1]])  # (T, …), h_{t−1}
        return g * before, g, a[0] * g[0], None


def solve(a: Tensor, b: Tensor, h: Tensor, scan: Callable = compiled) -> Tensor:
    """All states of h_t = a_t h_{t−1} + b_t by a function ``scan``, with gradients.

    a, b (T, …), h (…): floats of one dtype, for ``compiled`` float32 or float64 on a CPU.
    ValueError where shapes or dtypes do not fit, or T is 0; TypeError for what is no tensor.
    """
    for name, x in (("a", a), ("b", b), ("h", h)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; wanted a torch.Tensor")
    if a.shape != b.shape or a.shape[1:] != h.shape or not len(a):
        shapes = f"a is {tuple(a.shape)}, b {tuple(b.shape)}, h {tuple(h.shape)}"
        raise ValueError(f"{shapes}; wanted (T, …) twice, T at least 1, and (…)")
    dtypes = {x.dtype for x in (a, b, h)}
    if len(dtypes) > 1:
        raise ValueError(f"a is {a.dtype}, b {b.dtype}, h {h.dtype}; wanted one dtype")
    if scan is compiled:
        for x in (a, b, h):
            if x.dtype not in (torch.float32, torch.float64) or x.device.type != "cpu":
                found = f"{x.dtype} on {x.device.type}"
                raise ValueError(f"a, b, h are {found}; wanted float32 or float64 on a CPU")
    return Recurrence.apply(a, b, h, scan)


class MinGRU(nn.Module):
    """h_t = (1 − z_t) h_{t−1} + z_t h̃_t, with z = σ(W_z x + b_z) and h̃ = W_h x + b_h.

    Called as ``torch.nn.GRU`` is, sequence first: x (T, B, I), h0 (1, B, H) or None for zeros →
    output (T, B, H) and h_n (1, B, H). scan: how its states are computed.
    """

    gates = 2

    def __init__(self, input_size: int, hidden_size: int, *, scan: Callable = compiled):
        super().__init__()
        self.hidden_size = hidden_size
        self.scan = scan
        self.inputs = nn.Linear(input_size, self.gates * hidden_size)

    def forward(self, x: Tensor, h0: Tensor | None = None) -> tuple[Tensor, Tensor]:
        # No gate looks at the state: one matrix product serves all steps.
        gates = self.inputs(x)  # (T, B, gates · H)
        a, b = self.recurrence(gates)  # (T, B, H) each
        h = x.new_zeros(x.shape[1], self.hidden_size) if h0 is None else h0[0]
        states = solve(a, b, h, self.scan)
        return states, states[-1:]

    @staticmethod
    def recurrence(gates: Tensor) -> tuple[Tensor, Tensor]:
        """(T, B, 2H) → a and b of h_t = a_t h_{t−1} + b_t."""
        z, new = gates.chunk(2, -1)
        # 1 − σ(z) = σ(−z), which keeps its digits where z is large.
        return torch.sigmoid(-z), torch.sigmoid(z) * new


class SignedMinGRU(MinGRU):
    """A minGRU whose gate may be negative: a_t = 1 − 2z_t lies between −1 and 1, so that a step can
    turn the state over. b_t is a minGRU's.
    """

    @staticmethod
    def recurrence(gates: Tensor) -> tuple[Tensor, Tensor]:
        z, new = gates.chunk(2, -1)
        return 1 - 2 * torch.sigmoid(z), torch.sigmoid(z) * new
