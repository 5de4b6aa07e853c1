"""Timing that waits for the device.

A GPU works on its own: a call returns once its work is queued, not once it is done. A clock read without
waiting measures the queueing. Everything here waits.
"""

import logging
from dataclasses import dataclass

import numpy as np

from ed_lib import arrays


@dataclass(frozen=True)
class Timing:
    """Seconds a call took until its work was done: median and quartiles of ``n`` repeated runs after a
    warm-up.
    """

    median: float
    q1: float
    q3: float
    n: int

    def __str__(self):
        scale, unit = (1, "s") if self.median >= 1 else (1e3, "ms") if self.median >= 1e-3 else (1e6, "µs")
        low, mid, high = (f"{seconds * scale:.3g}" for seconds in (self.q1, self.median, self.q3))
        return f"{mid} {unit} (quartiles {low} to {high}, n = {self.n})"


def measure(function, *, min_seconds=1.0):
    """How long ``function()`` takes until the device has done its work, as a :class:`Timing`.

    Runs it at least once before measuring and then for about ``min_seconds``. Stands on
    torch.utils.benchmark, which waits for the GPU where there is one (for CuPy's work on it as well).
    """
    return compare({"function": function}, min_seconds=min_seconds)["function"]


def compare(functions, *, min_seconds=1.0, rounds=5):
    """Times several functions in one process, taking turns: {name: function} → {name: Timing}.

    Each gets ``rounds`` turns that share ``min_seconds``, so that a disturbance of the machine falls on all
    of them.
    """
    # Importing PyTorch's benchmark module looks for a CUDA compiler; that there is none is no news here.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    import torch
    from torch.utils import benchmark

    rounds = arrays.check_count("rounds", rounds)
    threads = torch.get_num_threads()
    timers = {
        name: benchmark.Timer("f()", globals={"f": function}, num_threads=threads)
        for name, function in functions.items()
    }
    for timer in timers.values():
        timer.timeit(1)  # warm-up
    times = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            times[name] += timer.blocked_autorange(min_run_time=min_seconds / rounds).times
    return {name: _summary(seconds) for name, seconds in times.items()}


def _summary(seconds):
    q1, median, q3 = np.percentile(seconds, [25, 50, 75])
    return Timing(float(median), float(q1), float(q3), len(seconds))
