"""Whether a time can be believed: none is below its floor, rungs are in order, parts add up to the whole.

A chapter says of the times that it prints what must hold. Where outputs are made for others to read, with
ED_GATES=strict, a :class:`Busy` is raised if it does not. On a reader's own machine a line says so.
"""

import os
import time
from collections.abc import Callable, Mapping

from ed_lib import machine, roofline
from ed_lib.timing import Timing, tell

ADD_UP = 0.15  # relative: how far the sum of the parts may be from the whole
SPREAD = 1.6  # how far apart the quartiles of a time may be
OTHERS = 0.15  # of one core: what other programs may use
REACHED = 0.75  # of the ceilings: what a quiet machine reaches at once


class Busy(RuntimeError):
    """Times that no quiet machine shows."""


def floors(times: Mapping[str, float | Timing], floor: float | Mapping[str, float]) -> None:
    """None of these times, in seconds, is below its floor: one for all, or one by each name. Those that are a
    :class:`~ed_lib.timing.Timing` vary little.
    """
    least = floor if isinstance(floor, Mapping) else dict.fromkeys(times, floor)
    varies = [name for name, time in times.items() if isinstance(time, Timing) and time.q3 > SPREAD * time.q1]
    below = [name for name, time in times.items() if median(time) < least[name]]
    words = "below its floor of {}: this machine's ceilings were measured too low"
    _judge(
        [f"{name} took {times[name]}, which is far from steady" for name in varies]
        + [f"{name} took {tell(median(times[name]))}, {words.format(tell(least[name]))}" for name in below]
    )


def order(times: Mapping[str, float | Timing], *names: str) -> None:
    """Of the times, in seconds, those named get shorter from first to last."""
    seconds = [(name, median(times[name])) for name in names]
    _judge(
        f"{fast} took {tell(after)}, no less than {slow} with {tell(before)}"
        for (slow, before), (fast, after) in zip(seconds, seconds[1:], strict=False)
        if after >= before
    )


def parts(whole: float | Timing, *times: float | Timing) -> None:
    """The parts' times add up to the whole's, in seconds, within 15 %."""
    total, of = sum(map(median, times)), median(whole)
    _judge([f"parts of {tell(total)} make a whole of {tell(of)}"] if abs(total / of - 1) > ADD_UP else [])


def median(time: float | Timing) -> float:
    return time.median if isinstance(time, Timing) else float(time)


def _judge(problems):
    if problems := "; ".join(problems):
        if os.environ.get("ED_GATES") == "strict":
            raise Busy(problems)
        print(f"These times say little: {problems}.")


def wait_for_quiet(patience: float = 600.0, say: Callable[[str], None] = print) -> None:
    """Returns when nothing else is at work on this machine; :class:`Busy` after ``patience`` seconds."""
    start = time.monotonic()
    while reason := disturbance():
        if (waited := time.monotonic() - start) > patience:
            raise Busy(f"{reason}. Waited {waited:.0f} s for a quiet machine")
        say(f"waiting for a quiet machine: {reason}")
        time.sleep(min(10.0, patience / 4))


def disturbance() -> str | None:
    """What keeps this machine from being timed, in words; None if nothing does."""
    if (others := machine.load()) > OTHERS:
        return f"other programs use {others:.2f} of its cores"
    best, now = roofline.ceilings(), roofline.probe(seconds=0.6)
    for what, found, most in (("GB/s", now.bandwidth, best.bandwidth), ("GFLOP/s", now.rate, best.rate)):
        if found < REACHED * most:
            return f"it reaches {found / 1e9:.0f} of the {most / 1e9:.0f} {what} that it has reached before"
    return None
