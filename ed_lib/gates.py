"""Whether a time can be believed: none is below its floor, and rungs are in order. If one is not, a
line says so; where outputs are made for others to read, with ED_GATES=strict, a :class:`Busy` is
raised.
"""

import os
from collections.abc import Mapping, Sequence

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
        seconds = median(took)
        if isinstance(took, Timing) and took.q3 > SPREAD * took.q1:
            problems.append(f"{name} took {took}, which is far from steady")
        if seconds < least:
            # Nothing beats a floor, so it is the floor that is wrong.
            problems.append(
                f"{name} took {tell(seconds)}, below its floor of {tell(least)}: "
                "this machine's ceilings were measured too low"
            )
    _judge(problems)


def order(times: Mapping[str, float | Timing], *names: str) -> None:
    """Of the times, in seconds, those named get shorter from first to last."""
    problems = []
    for slow, fast in zip(names, names[1:], strict=False):
        before = median(times[slow])
        after = median(times[fast])
        if after >= before:
            problems.append(f"{fast} took {tell(after)}, no less than {slow} with {tell(before)}")
    _judge(problems)


def median(time: float | Timing) -> float:
    """Seconds: a :class:`~ed_lib.timing.Timing`'s median, or the number itself."""
    return time.median if isinstance(time, Timing) else float(time)


def _judge(problems: Sequence[str]) -> None:
    if not problems:
        return
    told = "; ".join(problems)
    if os.environ.get("ED_GATES") == "strict":
        raise Busy(told)
    print(f"These times say little: {told}.")
