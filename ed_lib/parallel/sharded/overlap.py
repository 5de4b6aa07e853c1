"""Computing and sending side by side, on a clock of their own: a queue for each, and what waits for what."""

from typing import NamedTuple


class Span(NamedTuple):
    """What a queue does from ``start`` to ``end``, in seconds."""

    queue: str
    name: str
    start: float
    end: float


class Clock:
    """Queues that each do one thing after another; a thing also waits for others, by name."""

    def __init__(self) -> None:
        self.spans: dict[str, Span] = {}
        self.free: dict[str, float] = {}

    def add(self, queue: str, name: str, seconds: float, *after: str) -> None:
        """Next in a queue, once what it waits ``after`` has ended."""
        start = max([self.free.get(queue, 0.0), *(self.spans[other].end for other in after)])
        self.free[queue] = start + seconds
        self.spans[name] = Span(queue, name, start, start + seconds)

    @property
    def seconds(self) -> float:
        return max(self.free.values())


def sharded_step(units: int, forward: float, message: float, prefetch: bool) -> Clock:
    """A step of ZeRO's stage 3 on a :class:`Clock`: a unit's forward pass takes ``forward`` seconds and its
    backward pass twice that; to gather its weights, or to sum its gradients, takes ``message``.

    Without ``prefetch`` one after another. With it a unit's weights are gathered while the unit before
    computes, and its gradients summed while the next one does; at the turn the last is gathered again.
    """
    clock, order = Clock(), [f"F {n}" for n in range(units)] + [f"B {n}" for n in reversed(range(units))]
    for n, name in enumerate(order):
        before, earlier = order[max(n - 1, 0) : n], order[max(n - 2, 0) : max(n - 1, 0)]
        earlier = before if n == units else earlier
        sums = [f"sum {last}" for last in before if last.startswith("B")]
        if prefetch:
            clock.add("messages", f"gather {name}", message, *earlier)
        for total in sums:
            clock.add("messages", total, message, *before)
        if not prefetch:
            clock.add("messages", f"gather {name}", message, *before)
        clock.add("computing", name, forward * (1 if name.startswith("F") else 2), f"gather {name}")
    clock.add("messages", f"sum {order[-1]}", message, order[-1])
    return clock
