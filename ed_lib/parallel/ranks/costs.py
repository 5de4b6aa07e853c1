"""What sending costs: the α–β model of a link, and of the collectives that are built on it.

A message of n bytes takes α + nβ seconds: α is the *latency*, β the time for one byte, 1/β the *bandwidth*.
Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in
MPICH" (2005), section 3.
"""

from dataclasses import dataclass

import numpy as np

from ed_lib import check
from ed_lib.parallel.ranks.collectives import ALGORITHMS, Traffic


@dataclass(frozen=True)
class Link:
    """A link between two devices: ``alpha`` seconds for a message, and ``beta`` seconds for each byte."""

    alpha: float
    beta: float

    def __str__(self):
        bandwidth = 1e-9 / self.beta if self.beta else float("inf")
        return f"α = {self.alpha * 1e6:.3g} µs, 1/β = {bandwidth:.3g} GB/s"

    def seconds(self, bytes):
        """The time of one message."""
        return self.alpha + bytes * self.beta


def fit(sizes, seconds):
    """The :class:`Link` that explains the seconds that messages of these sizes (bytes) took.

    Least squares of the relative errors, α and β ≥ 0. ValueError unless there are two different sizes, and
    times above 0.
    """
    from scipy.optimize import nnls

    sizes, seconds = np.asarray(sizes, float), np.asarray(seconds, float)
    check.shape("seconds", seconds.shape, sizes.shape)
    if len(np.unique(sizes)) < 2:
        raise ValueError(f"sizes is {sizes.tolist()}; wanted at least two different ones")
    if not (seconds > 0).all():
        raise ValueError(f"seconds is {seconds.tolist()}; wanted times above 0")
    matrix = np.stack([1 / seconds, sizes / seconds], axis=1)  # (N, 2); relative errors, so all sizes count
    scale = matrix.max(axis=0)  # α and β differ by many orders of magnitude
    found, _ = nnls(matrix / scale, np.ones(len(sizes)))
    return Link(*(found / scale).tolist())


def rounds(algorithm, p):
    """How many messages follow one another in an all-reduce over p ranks."""
    check.choice("algorithm", algorithm, ALGORITHMS)
    p = check.count("p", p)
    levels = (p - 1).bit_length()  # ⌈log₂ p⌉
    extra = 0 if p & (p - 1) == 0 else 2  # halving-doubling, for ranks above a power of two
    return {
        "naive": 2 * (p - 1),
        "tree": 2 * levels,
        "ring": 2 * (p - 1),
        "halving_doubling": 2 * (p.bit_length() - 1) + extra,
    }[algorithm]


def path_bytes(algorithm, bytes, p):
    """The bytes of those messages together, for a tensor of so many bytes; what β is paid for."""
    check.choice("algorithm", algorithm, ALGORITHMS)
    p = check.count("p", p)
    if algorithm in ("naive", "tree"):
        return rounds(algorithm, p) * bytes
    if algorithm == "ring":
        return 2 * (p - 1) / p * bytes
    q = 1 << (p.bit_length() - 1)  # the last power of two ≤ p
    return 2 * (q - 1) / q * bytes + (0 if q == p else 2 * bytes)


def all_reduce(algorithm, bytes, p, link):
    """The seconds that an all-reduce of a tensor of so many bytes takes over p ranks, in the model."""
    return rounds(algorithm, p) * link.alpha + path_bytes(algorithm, bytes, p) * link.beta


def traffic(algorithm, bytes, p):
    """What all ranks together send, as :class:`~ed_lib.parallel.ranks.collectives.Traffic`; exact.

    For a tensor of at least p elements; with fewer, the empty messages are left out.
    """
    check.choice("algorithm", algorithm, ALGORITHMS)
    p = check.count("p", p)
    q = 1 << (p.bit_length() - 1)
    messages = {
        "naive": 2 * (p - 1),
        "tree": 2 * (p - 1),
        "ring": 2 * p * (p - 1),
        "halving_doubling": 2 * q * (q.bit_length() - 1) + 2 * (p - q),
    }[algorithm]
    return Traffic(messages, 2 * (p - 1) * bytes)


def ping_pong(sizes, repeats=20):
    """What ranks 0 and 1 measure: the seconds of a message, for each of the sizes (bytes) → a list.

    Half of the time that a message needs there and back; the lower quartile, since other programs can only
    make it longer. To be called by both ranks of a group of two; rank 1 returns what it measured as well.
    """
    import torch
    import torch.distributed as dist

    from ed_lib import timing
    from ed_lib.parallel.ranks.collectives import Wire
    from ed_lib.parallel.ranks.launcher import device

    wire, found = Wire(), []
    for size in sizes:
        tensor = torch.zeros(size, dtype=torch.uint8, device=device())
        times = []
        for _ in range(repeats + 2):  # the first two warm up
            dist.barrier()
            start = timing.now()
            if wire.rank == 0:
                wire.send(tensor, 1)
                wire.receive(tensor, 1)
            else:
                wire.receive(tensor, 0)
                wire.send(tensor, 0)
            times.append((timing.now() - start) / 2)
        found.append(float(np.quantile(times[2:], 0.25)))
    return found


def time_all_reduces(sizes, repeats=10):
    """What the ranks of a group measure: {algorithm: the seconds for each of the sizes (bytes)}.

    The slowest rank counts; of the repeats, the lower quartile. The algorithms take turns; the comparison of
    the ranks' arguments that :func:`collectives.all_reduce` begins with is left out.
    """
    import torch
    import torch.distributed as dist

    from ed_lib import timing
    from ed_lib.parallel.ranks.collectives import Wire
    from ed_lib.parallel.ranks.launcher import device

    wire, found = Wire(), {name: [] for name in ALGORITHMS}
    for size in sizes:
        tensor = torch.zeros(size // 4, device=device())  # float32
        times = {name: [] for name in ALGORITHMS}
        for _ in range(repeats + 2):  # the first two warm up
            for name, algorithm in ALGORITHMS.items():
                dist.barrier()
                start = timing.now()
                algorithm(tensor, wire)
                seconds = torch.tensor([timing.now() - start], device=device())
                dist.all_reduce(seconds, dist.ReduceOp.MAX)
                times[name].append(seconds.item())
        for name in ALGORITHMS:
            found[name].append(float(np.quantile(times[name][2:], 0.25)))
    return found
