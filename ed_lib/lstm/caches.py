"""How fast a processor reads its caches: the floor of a recurrence, which reads one matrix in every step."""

from time import perf_counter

import numpy as np
from numba import get_num_threads, njit, prange

from ed_lib import check


def cache_rate(size: float, threads: int = 1, seconds: float = 0.1) -> float:
    """Bytes per second, the highest seen, at which ``threads`` together read ``size`` bytes, an equal part
    each, again and again.
    """
    if check.count("threads", threads) > get_num_threads():
        raise ValueError(f"threads is {threads}; wanted at most {get_num_threads()}, as many as Numba has")
    if size < 1024 * threads:
        raise ValueError(f"size is {size}; wanted at least {1024 * threads}, 1024 a thread")
    blocks, best, times = np.ones((threads, int(size) // 4 // threads), np.float32), 0.0, 1
    read(blocks, 1)
    end = perf_counter() + seconds
    while (start := perf_counter()) < end:
        read(blocks, times)
        took = perf_counter() - start
        best = max(best, times * blocks.nbytes / took)
        times = min(2 * times, 10**6) if took < seconds / 20 else times
    return best


@njit(parallel=True, fastmath=True)
def read(blocks, times):
    """Sums blocks (threads, numbers), each on its thread, so many times → (threads,)."""
    totals = np.zeros(blocks.shape[0], np.float32)
    for n in prange(blocks.shape[0]):
        for turn in range(times):
            blocks[n, turn % blocks.shape[1]] = 1  # so that a turn cannot be left out as the one before
            total = np.float32(0)
            for k in range(blocks.shape[1]):
                total += blocks[n, k]
            totals[n] += total
    return totals
