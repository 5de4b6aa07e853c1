"""Waits for a quiet machine: outputs and records are made while nothing else is at work on it."""

import time
from collections.abc import Callable

from ed_lib import roofline
from ed_lib.gates import Busy

# What other programs may use, of one core.
OTHERS = 0.15
# What a quiet machine reaches at once, of its ceilings.
REACHED = 0.75


def wait(
    patience: float = 600.0, reached: float = REACHED, say: Callable[[str], None] = print
) -> None:
    """Returns when nothing else is at work on this machine and it reaches this share of its
    ceilings; :class:`Busy` after ``patience`` seconds.
    """
    start = time.monotonic()
    while reason := disturbance(reached):
        if (waited := time.monotonic() - start) > patience:
            raise Busy(f"{reason}. Waited {waited:.0f} s for a quiet machine")
        say(f"waiting for a quiet machine: {reason}")
        time.sleep(min(10.0, patience / 4))


def disturbance(reached: float = REACHED) -> str | None:
    """What keeps this machine from being timed, in words; None if nothing does."""
    if (others := load()) > OTHERS:
        return f"other programs use {others:.2f} of its cores"
    best = roofline.ceilings()
    now = roofline.probe(seconds=0.6)
    for what, found, most in (
        ("GB/s", now.bandwidth, best.bandwidth),
        ("GFLOP/s", now.rate, best.rate),
    ):
        if found < reached * most:
            reached = f"{found / 1e9:.0f} of the {most / 1e9:.0f} {what}"
            return f"it reaches {reached} that it has reached before"
    return None


def load(seconds: float = 1.0) -> float:
    """How many of the machine's cores are at work, on average, in the next ``seconds``, which this
    sleeps.
    """
    # A bare machine with a GPU may lack psutil.
    import psutil

    return psutil.cpu_count() * psutil.cpu_percent(seconds) / 100
