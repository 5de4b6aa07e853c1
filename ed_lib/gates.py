"""Whether a time can be believed: none is below its floor, and rungs are in order. If one is not, a
line says so; where outputs are made for others to read, with ED_GATES=strict, a :class:`Busy` is
raised.
"""

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ed_lib import check
from ed_lib.timing import Timing, tell

SPREAD = 1.6  # how far apart the quartiles of a time may be


class Busy(RuntimeError):
    """Times that no quiet machine shows."""


def floors(times: Mapping[str, float | Timing], floor: float | Mapping[str, float]) -> None:
    """None of these times, in seconds, is below its floor, one for all or one by each name; and
    each :class:`~ed_lib.timing.Timing` varies little. A time or a floor that is NaN, infinite or
    below 0 can be no more believed. ValueError for a time without a floor.
    """
    if isinstance(floor, Mapping) and not floor.keys() >= times.keys():
        without = [name for name in times if name not in floor]
        raise ValueError(f"floor has {list(floor)}; wanted one for {without} as well")
    problems = []
    for name, took in times.items():
        least = floor[name] if isinstance(floor, Mapping) else floor
        seconds = median(took)
        if not _is_time(seconds):
            problems.append(f"{name} took {tell(seconds)}, which is no time")
        elif not _is_time(least):
            problems.append(f"{name} has a floor of {tell(least)}, which is no time")
        elif seconds < least:
            # Nothing beats a floor, so it is the floor that is wrong.
            problems.append(
                f"{name} took {tell(seconds)}, below its floor of {tell(least)}: "
                "this machine's ceilings were measured too low"
            )
        # Said this way round, NaN does not pass.
        if isinstance(took, Timing) and not took.q3 <= SPREAD * took.q1:
            problems.append(f"{name} took {took}, which is far from steady")
    _judge(problems)


def order(times: Mapping[str, float | Timing], *names: str) -> None:
    """Of the times, in seconds, those named get shorter from first to last; none is NaN, infinite
    or below 0. ValueError for a name that has no time.
    """
    for name in names:
        check.choice("names", name, times)
    problems = []
    for name in names:
        seconds = median(times[name])
        if not _is_time(seconds):
            problems.append(f"{name} took {tell(seconds)}, which is no time")
    for slow, fast in pairwise(names):
        before = median(times[slow])
        after = median(times[fast])
        if after >= before:
            problems.append(f"{fast} took {tell(after)}, no less than {slow} with {tell(before)}")
    _judge(problems)


def median(time: float | Timing) -> float:
    """Seconds: a :class:`~ed_lib.timing.Timing`'s median, or the number itself."""
    return time.median if isinstance(time, Timing) else float(time)


def _is_time(seconds):
    return 0 <= seconds < float("inf")


def _judge(problems: Sequence[str]) -> None:
    if not problems:
        return
    told = "; ".join(problems)
    if os.environ.get("ED_GATES") == "strict":
        raise Busy(told)
    print(f"These times say little: {told}.")
