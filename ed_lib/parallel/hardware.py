"""The machines of :mod:`.step_model`: devices in servers, links inside and between them.

The devices of a run are numbered from 0, server after server.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

from ed_lib.parallel.links import Link, two_levels


@dataclass(frozen=True)
class Machine:
    """Devices whose large products reach ``rate`` FLOP/s, with ``capacity`` bytes of memory at
    ``memory`` bytes/s; ``server`` of them to a server, a link each ``inside`` one, and ``between``
    servers.
    """

    rate: float
    memory: float
    capacity: float
    inside: Link
    between: Link
    server: int = 8

    def slower(self, products: float = 1.0, memory: float = 1.0, links: float = 1.0) -> "Machine":
        """One that reaches only these shares of its rate, of its memory's and of its links'
        bandwidth.
        """
        return replace(
            self,
            rate=self.rate * products,
            memory=self.memory * memory,
            inside=replace(self.inside, beta=self.inside.beta / links),
            between=replace(self.between, beta=self.between.beta / links),
        )

    def together(self, ranks: int, stride: int, devices: int) -> int:
        """How many of so many ranks, whose numbers are ``stride`` apart, stand in one server: the
        fewest, where it is not the same in all servers and for all such groups among ``devices``.

        So many links between servers serve a group at once.
        """
        return _fewest(ranks, stride, devices, self.server)

    def all_reduce(self, bytes: float, ranks: int, each: int) -> float:
        """Seconds, ``each`` of the ranks in one server: rings inside servers, then between them."""
        servers = -(-ranks // each)
        return two_levels(bytes, servers, each, self.inside, self.between)

    def link(self, span: int, devices: int) -> Link:
        """The slowest that a ring crosses which spans so many neighbouring devices, of all such
        rings among ``devices``: of groups of three neighbours, the third lies in two servers of
        eight.
        """
        inside = self.together(span, 1, devices) == span
        return self.inside if inside else self.between


@cache
def _fewest(ranks, stride, devices, server):
    """Of each group of ranks, those that stand in each server it is in: the fewest."""
    # Groups that begin with the same block of ranks × stride devices lie in one another.
    block = ranks * stride
    counts = Counter(
        (device // block, device % stride, device // server) for device in range(devices)
    )
    return min(counts.values())


# Rates: what a large 16-bit product reaches, by S. Bekman, "Machine learning engineering"
# (stas00/ml-engineering, compute/accelerator). Memory's bandwidth, NVLink (one direction) and
# network: data sheets. Latencies: a guess, of little effect.
# Capacity: 79.1 GiB, what CUDA offers of the 81,559 MiB (H100) or 81,920 (A100) of a card, before
# its own context's and NCCL's buffers.
A100 = Machine(271.2e12, 2.039e12, 84.9e9, Link(5e-6, 1 / 300e9), Link(10e-6, 1 / 25e9))
H100 = Machine(794.5e12, 3.35e12, 84.9e9, Link(5e-6, 1 / 450e9), Link(10e-6, 1 / 50e9))
# The share of ``rate`` that products reach in training: fitted in "To ten thousand devices", to
# five published runs.
REACHED = 0.761
