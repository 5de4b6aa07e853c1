"""How fast a processor reads what it read a moment ago, by how much that is: from a core's own cache, from
the one that cores share, or from memory. The floor of a recurrence that reads the same weights in every step.
"""

import time

import numpy as np
from numba import get_num_threads, njit, prange

from ed_lib import check

VECTOR = 64  # float32 numbers: several vector registers


def read_rate(size: float, threads: int = 1, seconds: float = 0.1) -> float:
    """Bytes per second, the highest seen, at which ``threads`` together read ``size`` bytes, an equal part
    each, again and again for so many seconds: sums of float32, by a loop of ours and by BLAS.

    ValueError for more threads than Numba has, and for less than a few vectors for each.
    """
    check.count("threads", threads)
    if threads > get_num_threads():
        raise ValueError(f"threads is {threads}; wanted at most {get_num_threads()}, as many as Numba has")
    numbers = int(size) // 4 // threads // VECTOR * VECTOR
    if numbers < VECTOR:
        raise ValueError(f"size is {size}; wanted at least {4 * VECTOR * threads}, {4 * VECTOR} a thread")
    blocks, best = np.ones((threads, numbers), np.float32), 0.0
    for read in (read_by_loop, read_by_blas):
        read(blocks, 1)
        times, end = 1, time.perf_counter() + seconds / 2
        while (start := time.perf_counter()) < end:
            read(blocks, times)
            took = time.perf_counter() - start
            best = max(best, times * blocks.nbytes / took)
            times = min(2 * times, 10**6) if took < seconds / 20 else times
    return best


@njit(parallel=True, fastmath=True, cache=True)
def read_by_loop(blocks, times):
    """Reads each block (numbers,) so many times, on a thread of its own: in four places at once, since a sum
    that waits for the last one to be added is slower than the fastest cache.
    """
    totals, part = np.zeros(blocks.shape[0], np.float32), blocks.shape[1] // 4
    for n in prange(blocks.shape[0]):
        quarters, total = blocks[n].reshape(4, part), np.float32(0)
        a, b, c, d = quarters[0], quarters[1], quarters[2], quarters[3]
        for turn in range(times):
            a[turn % part] = 1  # so that a turn cannot be left out as the one before
            one = two = three = four = np.float32(0)
            for k in range(part):
                one += a[k]
                two += b[k]
                three += c[k]
                four += d[k]
            total += one + two + three + four
        totals[n] = total
    return totals


@njit(parallel=True, fastmath=True, cache=True)
def read_by_blas(blocks, times):
    """The same: the first half of a block times the second."""
    totals, half = np.zeros(blocks.shape[0], np.float32), blocks.shape[1] // 2
    for n in prange(blocks.shape[0]):
        for _ in range(times):
            totals[n] += np.dot(blocks[n, :half], blocks[n, half:])
    return totals
