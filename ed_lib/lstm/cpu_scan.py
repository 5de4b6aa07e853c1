"""A linear recurrence step by step in one compiled call, for a CPU: each thread has columns of the state."""

from typing import Any

from numba import njit, prange

WIDTH = 512  # numbers of the state that a thread takes through all steps at a time
FAST: dict[str, Any] = dict(fastmath=True, error_model="numpy", cache=True)


@njit(parallel=True, **FAST)
def walk(a, b, h, states):
    """states[t] = a[t] states[t − 1] + b[t]; a, b and states (T, N), h (N,), the state before the first."""
    for part in prange(-(-h.size // WIDTH)):
        walk_part(a, b, h, states, part * WIDTH)


@njit(**FAST)
def walk_part(a, b, h, states, first):
    """WIDTH columns of it, or as many as there are."""
    last = min(first + WIDTH, h.size)
    before = h[first:last]
    for t in range(len(a)):
        gain, gift, after = a[t, first:last], b[t, first:last], states[t, first:last]
        for j in range(last - first):
            after[j] = gain[j] * before[j] + gift[j]
        before = after
