"""Timing that waits for the device.

A GPU works on its own: a call returns once its work is queued, not once it is done. A clock read without
waiting measures the queueing. Everything here waits; :func:`apart` reports the queueing too, by its name.
"""

import functools
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from ed_lib import arrays, check

BLOCK, BLOCKS = 1e-3, 10  # seconds of a block between two CUDA events, and how many make a turn


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
        low, high = (f"{seconds * _unit(self.median)[0]:.3g}" for seconds in (self.q1, self.q3))
        return f"{text(self.median)} (quartiles {low} to {high}, n = {self.n})"


@dataclass(frozen=True)
class Apart:
    """Seconds of the same runs, to two ends: ``launch`` until the call returned, with its work queued, and
    ``completion`` until the work was done.
    """

    launch: Timing
    completion: Timing

    def __str__(self):
        return f"launch {self.launch}; completion {self.completion}"


def text(seconds: float) -> str:
    """Seconds for people, in the unit that fits: "3.02 s", "7.78 ms", "25 µs"."""
    scale, unit = _unit(seconds)
    return f"{seconds * scale:.3g} {unit}"


def _unit(seconds):
    return (1, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")


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
    elif cupy is not None:
        for index in range(_cupy_gpus()):
            cupy.cuda.Device(index).synchronize()


def measure(function: Callable, *, min_seconds: float = 1.0) -> Timing:
    """How long ``function()`` takes until the device has done its work, as a :class:`Timing`.

    Runs it at least once before measuring and then for about ``min_seconds``. Stands on
    torch.utils.benchmark, which waits for the GPU where there is one (for CuPy's work on it as well).
    """
    return compare({"function": function}, min_seconds=min_seconds)["function"]


def compare(
    functions: dict[str, Callable], *, min_seconds: float = 1.0, rounds: int = 5, events: bool = False
) -> dict[str, Timing]:
    """Times several functions in one process, taking turns: {name: function} → {name: Timing}.

    Each gets ``rounds`` turns that share ``min_seconds``, so that a disturbance of the machine falls on all
    of them. A function that takes longer than its turn runs once in each, and once before, to warm up. A
    shorter one runs in blocks, and ``n`` counts those: a block is as many runs as it takes for reading the
    clock not to matter.

    events: on a GPU, whether its own clock is read, by CUDA events before and after a block, and not the
    host's, which would have to wait for the end of every block. Blocks follow each other without a gap, so
    that a host that is ahead of the GPU does not count; one that is behind does. Only for functions all of
    whose work is on the current GPU.
    """
    # Importing PyTorch's benchmark module looks for a CUDA compiler; that there is none is no news here.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    import torch
    from torch.utils import benchmark

    rounds = check.count("rounds", rounds)
    turn = check.positive("min_seconds", min_seconds) / rounds
    if events:
        return by_events(functions, turn, rounds)
    threads = torch.get_num_threads()
    timers = {
        name: benchmark.Timer("f()", timer=now, globals={"f": function}, num_threads=threads)
        for name, function in functions.items()
    }
    for function in functions.values():
        function()  # warm-up
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            times[name] += take_turn(function, timers[name], turn)
    return {name: _summary(seconds) for name, seconds in times.items()}


def by_events(functions: dict[str, Callable], turn: float, rounds: int) -> dict[str, Timing]:
    """What ``compare`` does with CUDA events: at the most BLOCKS blocks in a turn, and that suffices."""
    sizes, times = {}, {name: list[float]() for name in functions}
    for name, function in functions.items():
        function()  # warm-up
        sizes[name] = max(1, round(BLOCK / max(elapsed(function)[0], 1e-7)))
    for _ in range(rounds):
        for name, function in functions.items():
            first = elapsed(function, sizes[name])
            fits = int(turn / (sizes[name] * first[0]))  # so many in the turn, that one included
            more = elapsed(function, sizes[name], min(fits, BLOCKS) - 1) if fits > 1 else []
            times[name] += first + more
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

    After a warm-up, runs it until ``min_seconds`` have been measured, and at least ``min_runs`` times. Each
    run finds the device idle and its queue empty; ``wait()`` returns when that is so. Without a GPU the two
    differ by microseconds, the cost of calling ``wait``.

    A GPU's queue has an end. A call that launches more than that many kernels (CUDA: about a thousand) waits
    for room in it, and its launch time then includes work.
    """
    check.positive("min_seconds", min_seconds)
    check.count("min_runs", min_runs)
    function()  # warm-up
    wait()
    launches, completions, total = list[float](), list[float](), 0.0
    while total < min_seconds or len(completions) < min_runs:
        start = perf_counter()
        function()
        launches.append(perf_counter() - start)
        wait()
        completions.append(perf_counter() - start)
        total += completions[-1]
    return Apart(_summary(launches), _summary(completions))


def now() -> float:
    """The clock's seconds, once the device has nothing left to do."""
    synchronize()
    return perf_counter()


def take_turn(function: Callable, timer: Any, seconds: float) -> list[float]:
    """Seconds per run, measured for about ``seconds``: a list with at least one entry.

    blocked_autorange alone would run a long function twice, once to find that one run fills a block.
    """
    start = now()
    function()
    first = now() - start
    return [first] if first >= seconds else timer.blocked_autorange(min_run_time=seconds).times


@functools.cache
def _cupy_gpus():
    return arrays.gpu_count("cupy")


def _summary(seconds):
    q1, median, q3 = np.percentile(seconds, [25, 50, 75])
    return Timing(float(median), float(q1), float(q3), len(seconds))
