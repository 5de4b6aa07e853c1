"""Timing that waits for the device: on a GPU a call returns once its work is queued, not once it is
done. And the floor, the time that no run can be below.
"""

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import perf_counter

import numpy as np

from ed_lib import arrays, check

BLOCK = 1e-3  # seconds of a block between two CUDA events
BLOCKS = 10  # and how many make a turn
SHORTEST = 1e-7  # seconds: no run counts as shorter, so that a block has an end
ROUNDED_UP = 999.5  # with three digits it is 1000
UNREADABLE = 1e15  # a number with so many digits
QUICK = 0.02  # seconds of a turn where a call is tested, not timed


@dataclass(frozen=True)
class Timing:
    """Seconds a call took until its work was done: median and quartiles of ``n`` runs after a
    warm-up.
    """

    median: float
    q1: float
    q3: float
    n: int

    def __str__(self):
        # The quartiles are told in the median's unit, so that they can be compared at a glance.
        scale, _ = _unit(self.median)
        low = three_digits(self.q1 * scale)
        high = three_digits(self.q3 * scale)
        return f"{tell(self.median)} (quartiles {low} to {high}, n = {self.n})"


def floor(bytes: float, flops: float, *, bandwidth: float, rate: float) -> float:
    """Seconds that moving ``bytes`` and doing ``flops`` take at the least: at best the two overlap,
    and the longer one remains. The roofline model of S. Williams, A. Waterman and D. Patterson,
    Communications of the ACM 52 (4), 2009.

    bandwidth: bytes/s to and from memory; rate: FLOP/s; ``roofline`` measures a machine's. Data
    that stays in a cache between two runs can be faster. TypeError for what is no number,
    ValueError for one below 0 or not finite, and for a bandwidth or a rate of 0.

    2 GB and 2 GFLOP at 1 GB/s and 4 GFLOP/s: 2 s to move, 0.5 s to compute, so 2 s.
    """
    moving = check.amount("bytes", bytes) / check.positive("bandwidth", bandwidth)
    computing = check.amount("flops", flops) / check.positive("rate", rate)
    return max(moving, computing)


def tell(seconds: float) -> str:
    """Seconds for people, in the unit that fits: "3.02 s", "7.78 ms", "25 µs", the smallest."""
    scale, unit = _unit(seconds)
    return f"{three_digits(seconds * scale)} {unit}"


def three_digits(number: float) -> str:
    """A number for people: three significant digits, "0.25", and from 1000 on all that stand before
    the point, "1,234"; from 10¹⁵ on with an exponent.
    """
    # The format .3g writes 999.5 and all above as "1e+03".
    if ROUNDED_UP <= abs(number) < UNREADABLE:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def synchronize() -> None:
    """Waits until the GPUs have done all the work that PyTorch and CuPy, where imported, gave
    them.
    """
    # Whoever has not imported a library has given it no work, and importing takes seconds.
    torch = sys.modules.get("torch")
    cupy = sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            # A context of this process, CuPy's too: waiting would make one, and take memory for it.
            if torch._C._cuda_hasPrimaryContext(index):
                torch.cuda.synchronize(index)
    elif cupy is not None and cupy.is_available():
        cupy.cuda.runtime.deviceSynchronize()


def measure(function: Callable, *, min_seconds: float = 1.0) -> Timing:
    """How long ``function()`` takes until its work is done, in about ``min_seconds``, after a
    warm-up. Errors as :func:`compare`'s.
    """
    check.function("function", function)
    return compare({"function": function}, min_seconds=min_seconds)["function"]


def compare(
    functions: dict[str, Callable],
    *,
    min_seconds: float = 1.0,
    rounds: int = 5,
    events: bool = False,
) -> dict[str, Timing]:
    """Times functions that take turns, so that a disturbance falls on all: {name: function} →
    {name: Timing}.

    After a warm-up each gets ``rounds`` turns that share ``min_seconds``. One that takes longer
    than its turn runs once in each; a shorter one in blocks so long that reading the clock does not
    matter: ``n`` counts those. events: whether the current GPU's own clock is read, between blocks
    without a gap, so that the host's time does not count; for functions all of whose work is there.

    TypeError for what cannot be called, ValueError for no time, no round, or events without a GPU.
    """
    for name, function in functions.items():
        check.function(f"functions[{name!r}]", function)
    if events and not arrays.gpu_count():
        raise ValueError("events is True; wanted a GPU, of which PyTorch sees 0")
    rounds = check.count("rounds", rounds)
    turn = check.positive("min_seconds", min_seconds) / rounds
    if os.environ.get("ED_QUICK"):
        rounds = 1
        turn = min(turn, QUICK)
    if events:
        ready = _by_events
    else:
        import torch

        # Before any function has run, since one of them may set another number for itself.
        ready = partial(_by_the_hosts_clock, threads=torch.get_num_threads())
    take_turn = {}
    for name, function in functions.items():
        # To make a turn ready runs the function: that is the warm-up.
        take_turn[name] = ready(function, turn)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name in functions:
            times[name] += take_turn[name]()
    return {name: _summary(seconds) for name, seconds in times.items()}


def _by_the_hosts_clock(function, turn, threads):
    """A turn of about ``turn`` seconds, by the host's clock → a function that takes it, and returns
    the seconds of a run, in each block.
    """
    # Importing the timer makes PyTorch look for a CUDA compiler, and warn that there is none.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    from torch.utils import benchmark

    # The timer takes one thread, if nothing is said.
    timer = benchmark.Timer("f()", timer=now, globals={"f": function}, num_threads=threads)
    function()

    def take_turn():
        start = now()
        function()
        took = now() - start
        if took >= turn:
            return [took]
        return timer.blocked_autorange(min_run_time=turn).times

    return take_turn


def _by_events(function, turn):
    """The same by the current GPU's clock."""
    function()
    runs = max(1, round(BLOCK / max(elapsed(function)[0], SHORTEST)))

    def take_turn():
        found = elapsed(function, runs)
        # How many blocks fit into the turn, the one that was taken included.
        fits = int(turn / (runs * found[0]))
        if fits > 1:
            found += elapsed(function, runs, min(fits, BLOCKS) - 1)
        return found

    return take_turn


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
    # Events tell milliseconds.
    return [start.elapsed_time(end) / 1e3 / runs for start, end in pairwise(ends)]


def apart(
    function: Callable, *, min_seconds: float = 1.0, min_runs: int = 5, wait: Callable = synchronize
) -> tuple[Timing, Timing]:
    """How long ``function()`` takes until it returns, with its work queued, and until that is done.

    After a warm-up, for ``min_seconds`` and ``min_runs`` runs, each of which finds the device idle,
    as ``wait()`` sees to. The launch of more kernels than a GPU's queue holds, about a thousand,
    includes work. Errors as :func:`compare`'s.
    """
    check.function("function", function)
    check.positive("min_seconds", min_seconds)
    check.count("min_runs", min_runs)
    # The warm-up.
    function()
    wait()
    launches = list[float]()
    completions = list[float]()
    while sum(completions) < min_seconds or len(completions) < min_runs:
        start = perf_counter()
        function()
        launches.append(perf_counter() - start)
        wait()
        completions.append(perf_counter() - start)
    return _summary(launches), _summary(completions)


def now() -> float:
    """The clock's seconds, once the device has nothing left to do."""
    synchronize()
    return perf_counter()


def _unit(seconds):
    """(how many of it a second has, the unit's name): the smallest in which the time, rounded as it
    will be told, is below 1000.
    """
    for scale, unit in ((1e6, "µs"), (1e3, "ms")):
        if abs(seconds) * scale < ROUNDED_UP:
            return scale, unit
    return 1, "s"


def _summary(seconds):
    q1, median, q3 = np.percentile(seconds, [25, 50, 75])
    return Timing(float(median), float(q1), float(q3), len(seconds))
