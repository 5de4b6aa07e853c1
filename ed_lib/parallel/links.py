"""What sending costs: the α–β model of a link, and of the sums that are built on it.

A message of n bytes takes α + nβ seconds: α is the *latency*, β the time for one byte, 1/β the
*bandwidth* (R. Thakur and others, as in :mod:`.collectives`, section 3).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ed_lib import check


@dataclass(frozen=True)
class Link:
    """A link between two devices: ``alpha`` seconds for a message, ``beta`` for each byte in it."""

    alpha: float
    beta: float

    def __str__(self):
        bandwidth = 1e-9 / self.beta if self.beta else float("inf")
        return f"α = {self.alpha * 1e6:.3g} µs, 1/β = {bandwidth:.3g} GB/s"

    def seconds(self, bytes: float) -> float:
        """The time of one message."""
        return self.alpha + bytes * self.beta


def fit_link(sizes: Sequence[float] | np.ndarray, seconds: Sequence[float] | np.ndarray) -> Link:
    """The :class:`Link` that explains the seconds, above 0, that messages of these sizes (bytes)
    took.

    sizes, seconds: (N,) each, with two different sizes at least; otherwise ValueError. Least
    squares of the relative errors, so that short messages count as much as long ones; α and β ≥ 0.
    """
    from scipy.optimize import nnls

    # (N,) each
    n = np.asarray(sizes, float)
    took = np.asarray(seconds, float)
    check.shape("sizes", n.shape, ("N",))
    check.shape("seconds", took.shape, n.shape)
    for each in took:
        check.positive("seconds", each)
    if not (np.isfinite(n) & (n >= 0)).all():
        raise ValueError(f"sizes is {n.tolist()}; wanted finite numbers of bytes, at least 0")
    if len(np.unique(n)) < 2:
        raise ValueError(f"sizes is {n.tolist()}; wanted at least two different ones")
    # (α + nβ) / took should be 1 for each message: rows (1, n) / took, times (α, β).
    matrix = np.stack([1 / took, n / took], axis=1)
    # α and β differ by many orders of magnitude.
    scale = matrix.max(axis=0)
    found, _ = nnls(matrix / scale, np.ones(len(n)))
    alpha, beta = (found / scale).tolist()
    return Link(alpha, beta)


def all_reduce_seconds(bytes: float, p: int, link: Link) -> float:
    """The seconds that a ring takes to sum a tensor of so many bytes over p ranks, in the model."""
    # Twice around, less one step each: first parts are added up, then copied.
    messages = 2 * (p - 1)
    return messages * link.alpha + messages / p * bytes * link.beta


def two_levels(bytes: float, servers: int, each: int, inside: Link, between: Link) -> float:
    """The seconds of an all-reduce over servers of ``each`` devices, which have a link ``between``
    servers each. Rings inside leave every device with 1/each of its server's sum; rings between add
    those up.
    """
    within = all_reduce_seconds(bytes, each, inside)
    return within + all_reduce_seconds(bytes / each, servers, between)
