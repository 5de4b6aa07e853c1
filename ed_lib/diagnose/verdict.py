"""What a step waits for: its time, divided into parts that add up to it."""

from collections import Counter
from dataclasses import dataclass, field

from ed_lib.diagnose.compilation import Compilation
from ed_lib.diagnose.operators import Operator, Prices
from ed_lib.diagnose.profiled import Profiled
from ed_lib.diagnose.watching import Call
from ed_lib.timing import Timing

DATA = "data"
SYNCHRONISATION = "synchronisation"
COPIES = "copies"
CALLS = "calls"
MEMORY = "memory traffic"
ARITHMETIC = "arithmetic"
FRESH = "fresh memory"
ABOVE = "kernels above their floors"
RANKS = "other ranks"
OUTSIDE = "outside PyTorch"
REST = "not explained"
PARTS = (
    *(DATA, SYNCHRONISATION, COPIES, CALLS, MEMORY, ARITHMETIC, FRESH),
    *(ABOVE, RANKS, OUTSIDE, REST),
)
MANY_TIMES = 10  # the cost of a call by itself: what a call in a step may cost, with its Python
ABOUT_EQUAL = 0.8  # of the largest part: the second is named as well


@dataclass
class Held:
    """Bytes of memory: ``peak`` of the step, and what explains it. ``reserved``: what PyTorch keeps
    of a GPU and no tensor uses.
    """

    peak: int = 0
    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    reserved: int = 0


@dataclass
class Measured:
    """All that was measured of a step. ``timing`` is that of the whole step, with ``waited``
    seconds for its batch and ``optimizing`` seconds in its optimizers. ``calling``: seconds
    that its calls cost at the least. ``steps``: how many were trained. ``tail``: seconds from the
    last operator to the end. ``processing``: seconds of a step in which the thread that calls it
    ran on a processor, and waited for nothing. ``waits``: how often it was seen at which line while
    it waited for a batch.
    """

    timing: Timing
    waited: float
    optimizing: float
    calls: list[Call]
    operators: list[Operator]
    price: Prices
    profile: Profiled
    held: Held
    steps: int
    compilation: Compilation | None = None
    calling: float = 0.0
    tail: float = 0.0
    processing: float = 0.0
    waits: Counter = field(default_factory=Counter)
    restored: bool = True  # whether anything was named that is put back
    can_fuse: bool = False  # an optimizer that has a fused kernel and does not use it
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The median time of a step."""
        return self.timing.median

    @property
    def most_of_calls(self) -> float:
        """Seconds that all calls can cost at the most, their work apart."""
        return len(self.calls) * MANY_TIMES * self.price.costs.differentiated

    @property
    def returning(self) -> float:
        """Seconds in which the system takes back pages that were handed out in this step."""
        return sum(call.pages for call in self.calls) * self.price.pages.taken_back

    @property
    def around_the_passes(self) -> float:
        """Seconds of the host for calls and Python, the optimizer's apart."""
        host = self.parts[CALLS] + self.parts[REST]
        own = sum(one.seconds for one in self.operators if one.phase == "optimizer")
        return max(0.0, host - max(0.0, self.optimizing - own))

    @property
    def outside(self) -> float:
        """Seconds between two operators in which the host did more than to call the next."""
        return self.tail + sum(call.outside for call in self.calls)


def divide(measured: Measured) -> dict[str, float]:
    """{part: seconds}, which add up to the time of the step."""
    parts = dict.fromkeys(PARTS, 0.0)
    parts[DATA] = measured.waited
    collectives = sum(one.seconds for one in measured.operators if one.sends)
    parts[RANKS] = max(measured.profile.messages, collectives)
    # The device was idle after the host had waited for it: the profiled step tells the share.
    if measured.profile.span:
        share = measured.profile.after_waits / measured.profile.span
        parts[SYNCHRONISATION] = share * measured.seconds
    for operator in measured.operators:
        if operator.sends:
            continue
        # An operator that was faster than its floor had its data nearer than we thought.
        share = min(1.0, operator.seconds / operator.floor) if operator.floor else 0.0
        parts[MEMORY] += share * operator.memory
        parts[ARITHMETIC] += share * operator.arithmetic
        parts[FRESH] += operator.fresh
        parts[COPIES if operator.copies else ABOVE] += operator.above
    # What is left is the host's: it calls operators, and does other things between them.
    left = max(0.0, measured.seconds - sum(parts.values()))
    # Gaps were seen under the watcher, which makes them longer: they leave the calls their least.
    gaps = min(measured.outside, max(0.0, left - measured.calling))
    returned = min(gaps, measured.returning)
    parts[FRESH] += returned
    left -= returned
    parts[OUTSIDE] = gaps - returned
    parts[CALLS] = min(left - parts[OUTSIDE], measured.most_of_calls)
    parts[REST] = left - parts[OUTSIDE] - parts[CALLS]
    shrink = measured.seconds / sum(parts.values())
    return {name: part * shrink for name, part in parts.items()}


def verdict(parts: dict[str, float]) -> str:
    """The name of the largest part, and of the second if it is about as large."""
    first, second = sorted(parts, key=lambda name: -parts[name])[:2]
    if parts[second] > ABOUT_EQUAL * parts[first]:
        return f"{first} and {second}"
    return first
