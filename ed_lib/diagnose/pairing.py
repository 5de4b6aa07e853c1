"""Several runs of one step: whether they did the same work, and one run made of them."""

from collections import defaultdict
from statistics import mean, median

from ed_lib.diagnose.watching import Call

SAME = 0.1  # of a step's FLOPs, by which two runs may differ


def check_same(first: list[Call], other: list[Call]) -> None:
    """ValueError for a step that multiplies clearly other matrices than the run before. A batch of
    texts that are cut to their lengths may differ a little.
    """
    flops = [
        sum(call.flops for call in calls if call.phase != "optimizer") for calls in (first, other)
    ]
    if abs(flops[0] - flops[1]) > SAME * max(flops):
        raise ValueError(
            f"step did {flops[0]:,} FLOPs in one run and {flops[1]:,} in another; wanted the same "
            "work each time, such as one batch again and again"
        )


def joined(runs: list[list[Call]], contents: list[Call]) -> list[Call]:
    """The calls of the last run, with the medians of all and with what stood in their tensors."""
    last = runs[-1]
    # A step may leave its optimizer out now and then: such a run's calls cannot be paired.
    alike = [run for run in runs if len(run) == len(last)]
    for same in zip(*alike, strict=True):
        same[-1].seconds = median(call.seconds for call in same)
        same[-1].outside = median(call.outside for call in same)
        # The C library gives memory back in some steps and not in others.
        same[-1].pages = mean(call.pages for call in same)
    # Every tenth step may log something, so that not all calls are the same.
    alike_calls = defaultdict(list)
    for call in reversed(contents):
        alike_calls[call.operator, call.shapes].append(call)
    for call in last:
        if found := alike_calls[call.operator, call.shapes]:
            looked_into = found.pop()
            call.subnormal = looked_into.subnormal
            call.ignored = looked_into.ignored
    return last
