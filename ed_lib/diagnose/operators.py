"""The operators of a step, each with its floor: what moving its bytes and doing its FLOPs take at
the least on this machine, in its own format.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ed_lib import roofline
from ed_lib.diagnose import machine_costs
from ed_lib.diagnose.watching import MESSAGES, Call


@dataclass
class Operator:
    """All calls of one operator in one phase of a step ("forward", "backward", "optimizer").

    ``memory`` and ``arithmetic``: seconds of the floors of those calls that wait for bytes, and of
    those that wait for FLOPs. ``paging``: seconds that the system needs for the pages that it
    handed out meanwhile. ``seconds``: what the calls took, without what a call costs by itself.
    """

    phase: str
    name: str
    dtype: str = "float32"
    calls: int = 0
    bytes: int = 0
    flops: int = 0
    memory: float = 0.0
    arithmetic: float = 0.0
    paging: float = 0.0
    seconds: float = 0.0
    copies: bool = False  # between host and device
    place: str = ""  # the line that led to most of its time

    @property
    def sends(self) -> bool:
        """Whether it is a collective, which waits for other ranks."""
        return self.name.startswith(MESSAGES)

    @property
    def floor(self) -> float:
        """Seconds, at the least, of all its calls."""
        return self.memory + self.arithmetic

    @property
    def fresh(self) -> float:
        """Seconds above the floor in which it waited for fresh memory."""
        return min(self.paging, max(0.0, self.seconds - self.floor))

    @property
    def above(self) -> float:
        """Seconds above the floor, the wait for fresh memory left out."""
        return max(0.0, self.seconds - self.floor - self.fresh)


@dataclass(frozen=True)
class Prices:
    """What a machine takes at the least: for a call, and for a call's work."""

    device: str
    threads: int

    @property
    def costs(self) -> machine_costs.CallCosts:
        """What a call costs here."""
        return machine_costs.call_costs(self.device, self.threads)

    @property
    def pages(self) -> machine_costs.PageCosts:
        """What a page of memory costs here. A GPU's memory is PyTorch's, which keeps it."""
        if self.device != "cpu":
            return machine_costs.PageCosts(0.0, 0.0)
        return machine_costs.page_costs(self.threads)

    def rate(self, dtype: str) -> float:
        """FLOP/s in a format; in one that was not measured, float32's. A processor that has no
        16-bit products converts them, and comes no nearer than float32's rate.
        """
        formats = {"float32", dtype if dtype in roofline.DTYPES else "float32"}
        if dtype == "float64":
            formats = {dtype}
        return max(
            roofline.ceilings(self.device, each, threads=self.threads).rate for each in formats
        )

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

    def set_own(self, calls: list[Call]) -> None:
        """Sets each call's ``own`` seconds: without what any call takes."""
        for call in calls:
            call.own = max(0.0, call.seconds - self.costs.watched)


def shorten(operators: list[Operator], calls: list[Call], at_most: float) -> None:
    """Makes all times shorter alike, where they are together longer than the step, ``at_most``:
    who watches slows down.
    """
    together = sum(one.seconds for one in operators)
    if together > at_most:
        share = at_most / together
        for operator in operators:
            operator.seconds *= share
        for call in calls:
            call.own *= share


def prices(device: str) -> Prices:
    """The :class:`Prices` of a device, with the threads that this process uses."""
    return Prices(device, torch.get_num_threads())


def grouped(calls: Iterable[Call], price: Prices) -> list[Operator]:
    """The calls as :class:`Operator` s, those that took longest first."""
    found: dict[tuple[str, str, str], Operator] = {}
    places: dict[tuple[str, str, str], dict[str, float]] = {}
    for call in calls:
        key = (call.phase, call.operator, call.dtype)
        operator = found.setdefault(key, Operator(*key))
        operator.calls += 1
        operator.bytes += call.bytes
        operator.flops += call.flops
        operator.copies |= call.moves_between
        operator.paging += call.pages * price.pages.given
        moving = price.memory(call)
        computing = price.arithmetic(call)
        if computing > moving:
            operator.arithmetic += computing
        else:
            operator.memory += moving
        operator.seconds += call.own
        lines = places.setdefault(key, {})
        lines[call.place] = lines.get(call.place, 0.0) + call.own
    for key, operator in found.items():
        operator.place = max(places[key], key=places[key].__getitem__)
    return sorted(found.values(), key=lambda one: -one.seconds)
