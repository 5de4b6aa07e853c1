"""What sending costs: the α–β model of a link, and of the collectives that are built on it.

A message of n bytes takes α + nβ seconds: α is the *latency*, β the time for one byte, 1/β the *bandwidth*.
Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in
MPICH" (2005), section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from ed_lib import check, timing
from ed_lib.parallel.ranks.collectives import ALGORITHMS, Traffic, Wire
from ed_lib.parallel.ranks.launcher import device


@dataclass(frozen=True)
class Link:
    """A link between two devices: ``alpha`` seconds for a message, and ``beta`` seconds for each byte."""

    alpha: float
    beta: float

    def __str__(self):
        bandwidth = 1e-9 / self.beta if self.beta else float("inf")
        return f"α = {self.alpha * 1e6:.3g} µs, 1/β = {bandwidth:.3g} GB/s"

    def seconds(self, bytes: float) -> float:
        """The time of one message."""
        return self.alpha + bytes * self.beta


def fit(sizes: Sequence[float] | np.ndarray, seconds: Sequence[float] | np.ndarray) -> Link:
    """The :class:`Link` that explains the seconds, above 0, that messages of these sizes (bytes) took.

    Least squares of the relative errors, so that short messages count as much as long ones; α and β ≥ 0.
    """
    from scipy.optimize import nnls

    n, took = np.asarray(sizes, float), np.asarray(seconds, float)  # (N,) each
    check.shape("seconds", took.shape, n.shape)
    if len(np.unique(n)) < 2:
        raise ValueError(f"sizes is {n.tolist()}; wanted at least two different ones")
    matrix = np.stack([1 / took, n / took], axis=1)  # (N, 2)
    scale = matrix.max(axis=0)  # α and β differ by many orders of magnitude
    found, _ = nnls(matrix / scale, np.ones(len(n)))
    return Link(*(found / scale).tolist())


def rounds(algorithm: str, p: int) -> int:
    """How many messages follow one another in an all-reduce over p ranks."""
    check.choice("algorithm", algorithm, ALGORITHMS)
    q = power_of_two(p)
    return {
        "naive": 2 * (p - 1),
        "tree": 2 * (p - 1).bit_length(),  # ⌈log₂ p⌉ up the tree, and as many down
        "ring": 2 * (p - 1),
        "halving_doubling": 2 * (q.bit_length() - 1) + (0 if q == p else 2),
    }[algorithm]


def path_bytes(algorithm: str, bytes: float, p: int) -> float:
    """The bytes of those messages together, for a tensor of so many bytes; what β is paid for."""
    if algorithm in ("naive", "tree"):
        return rounds(algorithm, p) * bytes
    if algorithm == "ring":
        return 2 * (p - 1) / p * bytes
    q = power_of_two(p)
    return 2 * (q - 1) / q * bytes + (0 if q == p else 2 * bytes)


def all_reduce(algorithm: str, bytes: float, p: int, link: Link) -> float:
    """The seconds that an all-reduce of a tensor of so many bytes takes over p ranks, in the model."""
    return rounds(algorithm, p) * link.alpha + path_bytes(algorithm, bytes, p) * link.beta


def traffic(algorithm: str, bytes: int, p: int) -> Traffic:
    """What all ranks together send; exact, for a tensor of at least p elements.

    With fewer, the empty messages are left out.
    """
    q = power_of_two(p)
    messages = {
        "naive": 2 * (p - 1),
        "tree": 2 * (p - 1),
        "ring": 2 * p * (p - 1),
        "halving_doubling": 2 * q * (q.bit_length() - 1) + 2 * (p - q),
    }[algorithm]
    return Traffic(messages, 2 * (p - 1) * bytes)


def power_of_two(p: int) -> int:
    """The last power of two ≤ p: the ranks among which halving-doubling swaps parts."""
    return 1 << (p.bit_length() - 1)


def ping_pong(sizes: Sequence[int], repeats: int = 20) -> list[float]:
    """What ranks 0 and 1 measure: the seconds of a message, for each of the sizes (bytes).

    Half of the time that a message needs there and back. To be called by both ranks of a group of two.
    """
    wire, found = Wire(), []
    for size in sizes:
        tensor = torch.zeros(size, dtype=torch.uint8, device=device())

        def there_and_back(tensor=tensor):
            if wire.rank == 0:
                wire.send(tensor, 1)
                wire.receive(tensor, 1)
            else:
                wire.receive(tensor, 0)
                wire.send(tensor, 0)

        found.append(_quartiles({"": there_and_back}, repeats)[""] / 2)
    return found


def time_all_reduces(sizes: Sequence[int], repeats: int = 10) -> dict[str, list[float]]:
    """What the ranks of a group measure: {algorithm: the seconds for each of the sizes (bytes)}.

    The slowest rank counts. The comparison of the ranks' arguments that :func:`collectives.all_reduce`
    begins with is left out.
    """
    wire = Wire()
    found: dict[str, list[float]] = {name: [] for name in ALGORITHMS}

    def slowest(seconds):
        longest = torch.tensor([seconds], device=device())
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        return longest.item()

    for size in sizes:
        tensor = torch.zeros(size // 4, device=device())  # float32
        calls = {name: lambda run=run, tensor=tensor: run(tensor, wire) for name, run in ALGORITHMS.items()}
        for name, seconds in _quartiles(calls, repeats, slowest).items():
            found[name].append(seconds)
    return found


def _quartiles(calls, repeats, of_ranks=float):
    """{name: the lower quartile of the seconds}, since other programs can only make a call longer.

    The calls take turns, and all ranks begin each of them together. of_ranks: this rank's → what counts.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 2):  # the first two warm up
        for name, call in calls.items():
            dist.barrier()
            start = timing.now()
            call()
            times[name].append(of_ranks(timing.now() - start))
    return {name: float(np.quantile(some[2:], 0.25)) for name, some in times.items()}
