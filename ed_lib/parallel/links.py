"""What sending costs: the α–β–γ model of a link, and of the collectives that are built on it.

A message of n bytes takes α + nβ seconds: α is the *latency*, β the time for one byte, 1/β the *bandwidth*;
adding what arrived takes nγ (R. Thakur and others, as in :mod:`.collectives`, section 3). The term for
contention is this book's: it was needed for ranks that share one machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ed_lib import check
from ed_lib.parallel.collectives import ALGORITHMS


@dataclass(frozen=True)
class Link:
    """A link between two devices: ``alpha`` seconds for a message, ``beta`` for each byte in it, ``gamma``
    for each byte that is added once it is there.

    ``contention``: how many times as long a byte takes when a second message is on its way: 1 where links are
    apart; 2 where all messages pass through one thing, as between processes on one machine.
    """

    alpha: float
    beta: float
    gamma: float = 0.0
    contention: float = 1.0

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


def counts(algorithm: str, p: int) -> tuple[int, float, int]:
    """Of an all-reduce over p ranks: messages that follow one another, their bytes in units of the tensor's
    (what β is paid for), and the messages of all ranks together, if no part is empty. All ranks together send
    2(p − 1) times the tensor's bytes, by any algorithm.
    """
    check.choice("algorithm", algorithm, ALGORITHMS)
    q = 1 << (p.bit_length() - 1)  # the ranks among which halving-doubling swaps parts
    levels, up, fold = q.bit_length() - 1, (p - 1).bit_length(), 0 if q == p else 2
    return {
        "naive": (2 * (p - 1), 2 * (p - 1), 2 * (p - 1)),
        "tree": (2 * up, 2 * up, 2 * (p - 1)),  # ⌈log₂ p⌉ up the tree, and as many down
        "ring": (2 * (p - 1), 2 * (p - 1) / p, 2 * p * (p - 1)),
        "halving_doubling": (2 * levels + fold, 2 * (q - 1) / q + fold, 2 * q * levels + 2 * (p - q)),
    }[algorithm]


def all_reduce(algorithm: str, bytes: float, p: int, link: Link) -> float:
    """The seconds that an all-reduce of a tensor of so many bytes takes over p ranks, in the model."""
    rounds, share, _ = counts(algorithm, p)
    path = share * bytes
    beside = 2 * (p - 1) * bytes - path  # what all ranks send, less what is sent one after another
    contended = (link.contention - 1) * link.beta * beside
    return rounds * link.alpha + path * (link.beta + link.gamma / 2) + contended  # half is added


def two_levels(bytes: float, servers: int, each: int, inside: Link, between: Link) -> float:
    """The seconds of an all-reduce over servers of ``each`` devices, which have a link ``between`` servers
    each. Rings inside leave every device with 1/each of its server's sum; rings between add those up.
    """
    return all_reduce("ring", bytes, each, inside) + all_reduce("ring", bytes / each, servers, between)
