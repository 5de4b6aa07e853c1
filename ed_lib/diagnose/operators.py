"""The operators of a step, each with its floor: what moving its bytes and doing its FLOPs take at
the least on this machine, in its own format.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ed_lib import roofline
from ed_lib.diagnose import machine_costs
from ed_lib.diagnose.watching import Call


@dataclass
class Operator:
    """All calls of one operator in one phase of a step ("forward", "backward", "optimizer").

    ``memory`` and ``arithmetic``: seconds of the floors of those calls that wait for bytes, and of
    those that wait for FLOPs. ``seconds``: what the calls took, without what a call costs by
    itself.
    """

    phase: str
    name: str
    dtype: str = "float32"
    calls: int = 0
    bytes: int = 0
    flops: int = 0
    memory: float = 0.0
    arithmetic: float = 0.0
    seconds: float = 0.0
    copies: bool = False  # between host and device

    @property
    def floor(self) -> float:
        """Seconds, at the least, of all its calls."""
        return self.memory + self.arithmetic

    @property
    def above(self) -> float:
        """Seconds above the floor."""
        return max(0.0, self.seconds - self.floor)


@dataclass(frozen=True)
class Prices:
    """What a machine takes at the least: for a call, and for a call's work."""

    device: str
    threads: int

    @property
    def costs(self) -> machine_costs.CallCosts:
        """What a call costs here."""
        return machine_costs.call_costs(self.device, self.threads)

    def rate(self, dtype: str) -> float:
        """FLOP/s in a format; in one that was not measured, float32's."""
        known = dtype if dtype in roofline.DTYPES else "float32"
        return roofline.ceilings(self.device, known, threads=self.threads).rate

    def memory(self, call: Call) -> float:
        """Seconds for the bytes of a call, from memory or from a cache."""
        return machine_costs.memory(self.device, self.threads).seconds(call)

    @property
    def bandwidth(self) -> float:
        """Bytes/s of memory."""
        return machine_costs.memory(self.device, self.threads).bandwidth

    def speed(self, bytes: int) -> float:
        """Bytes/s of a set of so many bytes that is used again and again."""
        return machine_costs.memory(self.device, self.threads).speed(bytes)

    def arithmetic(self, call: Call) -> float:
        """Seconds for the FLOPs of a call."""
        return call.flops / self.rate(call.dtype) if call.flops else 0.0

    def set_own(self, calls: list[Call], at_most: float) -> None:
        """Sets each call's ``own`` seconds: without what any call takes. The watcher may slow a
        step down, so that all are shortened alike if they take longer than the step, ``at_most``.
        """
        for call in calls:
            call.own = max(0.0, call.seconds - self.costs.watched)
        together = sum(call.own for call in calls)
        if together > at_most:
            for call in calls:
                call.own *= at_most / together


def prices(device: str) -> Prices:
    """The :class:`Prices` of a device, with the threads that this process uses."""
    return Prices(device, torch.get_num_threads())


def grouped(calls: Iterable[Call], price: Prices) -> list[Operator]:
    """The calls as :class:`Operator` s, those that took longest first."""
    found: dict[tuple[str, str, str], Operator] = {}
    for call in calls:
        key = (call.phase, call.operator, call.dtype)
        operator = found.setdefault(key, Operator(*key))
        operator.calls += 1
        operator.bytes += call.bytes
        operator.flops += call.flops
        operator.copies |= call.moves_between
        moving = price.memory(call)
        computing = price.arithmetic(call)
        if computing > moving:
            operator.arithmetic += computing
        else:
            operator.memory += moving
        operator.seconds += call.own
    return sorted(found.values(), key=lambda one: -one.seconds)
