"""Timing that waits for the device.

A GPU works on its own: a call returns once its work is queued, not once it is done. A clock read without
waiting measures the queueing. Everything here waits; :func:`apart` reports the queueing too, by its name.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from ed_lib import check

BLOCK, BLOCKS = 1e-3, 10  # seconds of a block between two CUDA events, and how many make a turn


@dataclass(frozen=True)
class Timing:
    """Seconds a call took until its work was done: median and quartiles of ``n`` runs after a warm-up."""

    median: float
    q1: float
    q3: float
    n: int

    def __str__(self):
        low, high = (f"{seconds * _unit(self.median)[0]:.3g}" for seconds in (self.q1, self.q3))
        return f"{tell(self.median)} (quartiles {low} to {high}, n = {self.n})"


@dataclass(frozen=True)
class Apart:
    """Seconds of the same runs, to two ends: ``launch`` until the call returned, with its work queued, and
    ``completion`` until the work was done.
    """

    launch: Timing
    completion: Timing

    def __str__(self):
        return f"launch {self.launch}; completion {self.completion}"


def tell(seconds: float) -> str:
    """Seconds for people, in the unit that fits: "3.02 s", "7.78 ms", "25 µs"."""
    scale, unit = _unit(seconds)
    return f"{seconds * scale:.3g} {unit}"


def synchronize() -> None:
    """Waits until the GPUs have done all the work that PyTorch and CuPy gave them; none, no wait.

    Imports neither: what was not imported has given no work.
    """
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            # Waiting for a GPU that this process does not use would take memory on it, for a context. The
            # context is the same for both libraries, so this waits for CuPy's work as well.
            if torch._C._cuda_hasPrimaryContext(index):
                torch.cuda.synchronize(index)
    elif cupy is not None and cupy.is_available():
        cupy.cuda.runtime.deviceSynchronize()


def measure(function: Callable, *, min_seconds: float = 1.0) -> Timing:
    """How long ``function()`` takes until the device has done its work: at least one run to warm up, and then
    about ``min_seconds`` of them.
    """
    return compare({"function": function}, min_seconds=min_seconds)["function"]


def compare(
    functions: dict[str, Callable], *, min_seconds: float = 1.0, rounds: int = 5, events: bool = False
) -> dict[str, Timing]:
    """Times several functions in one process, taking turns: {name: function} → {name: Timing}.

    After a warm-up each gets ``rounds`` turns that share ``min_seconds``, so that a disturbance of the
    machine falls on all of them. One that takes longer than its turn runs once in each; a shorter one runs in
    blocks of so many runs that reading the clock does not matter, and ``n`` counts those.

    events: on a GPU, whether its own clock is read, between blocks that follow each other without a gap, so
    that a host that is ahead does not count. Only for functions all of whose work is on the current GPU.
    """
    # Importing PyTorch's benchmark module looks for a CUDA compiler; that there is none is no news here.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    import torch
    from torch.utils import benchmark

    rounds = check.count("rounds", rounds)
    turn = check.positive("min_seconds", min_seconds) / rounds
    timers, sizes, threads = {}, {}, torch.get_num_threads()
    for name, function in functions.items():
        timers[name] = benchmark.Timer("f()", timer=now, globals={"f": function}, num_threads=threads)
        function()  # warm-up
        sizes[name] = max(1, round(BLOCK / max(elapsed(function)[0], 1e-7))) if events else 1
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            if events:
                first = elapsed(function, sizes[name])
                fits = int(turn / (sizes[name] * first[0]))  # so many blocks in the turn, that one included
                found = first + (elapsed(function, sizes[name], min(fits, BLOCKS) - 1) if fits > 1 else [])
            else:
                start = now()
                function()
                found = [now() - start]
                if found[0] < turn:
                    found = timers[name].blocked_autorange(min_run_time=turn).times
            times[name] += found
    return {name: _summary(seconds) for name, seconds in times.items()}


def elapsed(function: Callable, runs: int = 1, blocks: int = 1) -> list[float]:
    """Seconds of the current GPU for one run, in each of so many blocks of so many runs: a list."""
    import torch

    ends = [torch.cuda.Event(enable_timing=True) for _ in range(blocks + 1)]
    synchronize()
    ends[0].record()
    for end in ends[1:]:
        for _ in range(runs):
            function()
        end.record()
    synchronize()
    pairs = zip(ends[:-1], ends[1:], strict=True)
    return [start.elapsed_time(end) / 1e3 / runs for start, end in pairs]


def apart(
    function: Callable, *, min_seconds: float = 1.0, min_runs: int = 5, wait: Callable = synchronize
) -> Apart:
    """How long ``function()`` takes until it returns, and until its work is done, as an :class:`Apart`.

    After a warm-up, for ``min_seconds`` and at least ``min_runs`` runs, each of which finds the device idle;
    ``wait()`` returns when it is. A call that launches more kernels than a GPU's queue holds, about a
    thousand, waits for room in it, and its launch time then includes work.
    """
    check.positive("min_seconds", min_seconds)
    check.count("min_runs", min_runs)
    function()  # warm-up
    wait()
    launches, completions = list[float](), list[float]()
    while sum(completions) < min_seconds or len(completions) < min_runs:
        start = perf_counter()
        function()
        launches.append(perf_counter() - start)
        wait()
        completions.append(perf_counter() - start)
    return Apart(_summary(launches), _summary(completions))


def _unit(seconds):
    return (1, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")


def now() -> float:
    """The clock's seconds, once the device has nothing left to do."""
    synchronize()
    return perf_counter()


def _summary(seconds):
    q1, median, q3 = np.percentile(seconds, [25, 50, 75])
    return Timing(float(median), float(q1), float(q3), len(seconds))
