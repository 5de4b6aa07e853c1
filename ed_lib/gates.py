"""Whether a time can be believed: none is below its floor, and rungs are in order. If one is not, a
line says so; where outputs are made for others to read, with ED_GATES=strict, a :class:`Busy` is
raised.
"""

import os
from collections.abc import Mapping

from ed_lib.timing import Timing, tell

SPREAD = 1.6  # how far apart the quartiles of a time may be


class Busy(RuntimeError):
    """Times that no quiet machine shows."""


def floors(times: Mapping[str, float | Timing], floor: float | Mapping[str, float]) -> None:
    """None of these times, in seconds, is below its floor, one for all or one by each name; and
    each :class:`~ed_lib.timing.Timing` varies little.
    """
    problems = []
    for name, took in times.items():
        least = floor[name] if isinstance(floor, Mapping) else floor
        if isinstance(took, Timing) and took.q3 > SPREAD * took.q1:
            problems.append(f"{name} took {took}, which is far from steady")
        if median(took) < least:
            words = (
                f"below its floor of {tell(least)}: this machine's ceilings were measured too low"
            )
            problems.append(f"{name} took {tell(median(took))}, {words}")
    _judge(problems)


def order(times: Mapping[str, float | Timing], *names: str) -> None:
    """Of the times, in seconds, those named get shorter from first to last."""
    seconds = [(name, median(times[name])) for name in names]
    _judge(
        f"{fast} took {tell(after)}, no less than {slow} with {tell(before)}"
        for (slow, before), (fast, after) in zip(seconds, seconds[1:], strict=False)
        if after >= before
    )


def median(time: float | Timing) -> float:
    return time.median if isinstance(time, Timing) else float(time)


def _judge(problems):
    if problems := "; ".join(problems):
        if os.environ.get("ED_GATES") == "strict":
            raise Busy(problems)
        print(f"These times say little: {problems}.")
