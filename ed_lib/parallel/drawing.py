"""What Part II draws besides curves: which device computes when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ed_lib.figures import BLUE, GREEN, ORANGE, PINK
from ed_lib.parallel.simulator import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def timeline(ax: Axes, timeline: Timeline, numbers: bool = True) -> None:
    """What devices did when: a row for each, a box for each computation, with its micro-batch's number."""
    colours = {"forward": BLUE, "backward": ORANGE, "update": GREEN}
    colours |= {"backward_input": ORANGE, "backward_weight": PINK}
    for event in timeline.events:
        if not (width := event.end - event.start):
            continue
        ax.barh(event.stage, width, 0.86, event.start, color=colours[event.op], ec="white", lw=0.6)
        if numbers:
            place = (event.start + event.end) / 2, event.stage
            ax.text(*place, str(event.microbatch), ha="center", va="center", fontsize=8.5, color="white")
    ax.set(ylim=(timeline.stages - 0.4, -0.6), xlim=(0, timeline.seconds), ylabel="device")
    ax.set_yticks(range(timeline.stages))
    ax.grid(False)
