"""What this machine takes for a call, and how fast it moves data that a cache still holds: measured
in half a second, once a process.
"""

import functools
import itertools
import statistics
from bisect import bisect_left
from dataclasses import dataclass
from time import perf_counter

import torch

from ed_lib import machine, roofline, timing
from ed_lib.diagnose.watching import Call, Watch

CALLS = 300  # of a block
BLOCKS = 5  # of which the median counts
KIB = 2**10
# Bytes of a working set, from what a core's own cache holds to what no cache holds
WORKING_SETS = tuple(256 * KIB * 4**n for n in range(5))
SHARE = 0.05  # seconds for each
CHAIN = 40  # operators of the small net by which a call is timed
FILLED = 9  # times
LARGE = 64 * 2**20  # bytes: what no library keeps for the next tensor


@dataclass(frozen=True)
class CallCosts:
    """Seconds for one operator on one number: called without a gradient, as an optimizer does; as
    part of a forward and a backward pass, the autograd engine's share included; and as the watcher
    sees it, from its start to its return.
    """

    plain: float
    differentiated: float
    watched: float


@dataclass(frozen=True)
class PageCosts:
    """Seconds for one page of memory: for the system to hand it out, which happens when a kernel
    first writes to it, and to take it back when the tensor is freed.
    """

    given: float
    taken_back: float


@dataclass(frozen=True)
class Memory:
    """Bytes/s by working set: {bytes: bytes/s}, and for what no cache holds."""

    cached: tuple[tuple[int, float], ...]
    bandwidth: float

    def seconds(self, call: Call) -> float:
        """What moving a call's bytes takes at the least. Bytes that the step touched a while ago
        come from the smallest cache that holds what has moved since; bytes touched for the first
        time come from memory.
        """
        return sum(touch.bytes / self.speed(touch.distance) for touch in call.touches)

    def speed(self, distance: int | None) -> float:
        """Bytes/s for what was touched so many bytes ago; None: never."""
        if distance is None:
            return self.bandwidth
        nth = bisect_left([size for size, _ in self.cached], distance)
        return self.cached[nth][1] if nth < len(self.cached) else self.bandwidth


@functools.cache
def call_costs(device: str, threads: int) -> CallCosts:
    """The :class:`CallCosts` of "cpu" or "cuda:0". ``threads`` are those of this process, which a
    measurement holds for.
    """
    x = torch.ones(1, device=device)
    w = torch.ones(1, device=device, requires_grad=True)

    def forward_and_backward():
        y = x
        for _ in range(CHAIN):
            y = y * w
        y.backward()

    with Watch() as watch:
        forward_and_backward()
    # The gradient of ``w`` is added up: these operators are of the same kind.
    each = _median(forward_and_backward, CALLS // CHAIN) / len(watch.calls)
    plain = _median(lambda: x.mul_(1.0), CALLS)
    seen = Watch()
    with seen:
        for _ in range(CALLS):
            x.mul_(1.0)
    watched = sorted(call.seconds for call in seen.calls)[CALLS // 2]
    return CallCosts(plain, max(plain, each), watched)


@functools.cache
def page_costs(threads: int) -> PageCosts:
    """The :class:`PageCosts` of this machine, with so many threads writing: what a large new tensor
    takes longer to fill than to fill again.
    """
    found = [_fill_anew() for _ in range(FILLED)]
    # The third quartile, since what is promised is a bound
    quartiles = [statistics.quantiles(costs, n=4) for costs in zip(*found, strict=True)]
    return PageCosts(*(third for _, _, third in quartiles))


def _fill_anew():
    """Seconds a page: (handed out, taken back)."""
    before = machine.pages_handed_out()
    times = [perf_counter()]
    x = torch.empty(LARGE // 4)
    for value in (1.0, 2.0):
        x.fill_(value)
        times.append(perf_counter())
    del x
    times.append(perf_counter())
    new, again, freed = (b - a for a, b in itertools.pairwise(times))
    pages = max(1, machine.pages_handed_out() - before)
    return max(0.0, new - again) / pages, freed / pages


def _median(function, times):
    found = []
    function()
    for _ in range(BLOCKS):
        timing.synchronize()
        start = perf_counter()
        for _ in range(times):
            function()
        # Until the call returns: what a launch costs the host.
        found.append((perf_counter() - start) / times)
    timing.synchronize()
    return statistics.median(found)


@functools.cache
def memory(device: str, threads: int) -> Memory:
    """The :class:`Memory` of "cpu" or "cuda:0", with so many threads."""
    bandwidth = roofline.ceilings(device, threads=threads).bandwidth
    call = call_costs(device, threads).plain
    found = []
    for size in WORKING_SETS:
        # Two arrays, of which one is read and one written, are the working set.
        x = torch.ones(size // 8, device=device)
        y = torch.empty_like(x)
        copying = roofline.fastest(lambda x=x, y=y: y.copy_(x), SHARE, device)
        found.append((size, size / max(copying - call, timing.SHORTEST)))
    # A smaller set is never slower: where it was, something disturbed its measurement.
    best = bandwidth
    curve: list[tuple[int, float]] = []
    for size, speed in reversed(found):
        best = max(best, speed)
        curve.insert(0, (size, best))
    return Memory(tuple(curve), bandwidth)
