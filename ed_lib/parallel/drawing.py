"""What part II draws besides curves: who computes when, and pictures behind a slider."""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ed_lib.figures import BLUE, COLOURS, GREEN, ORANGE, PINK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What an input of ``slider`` does: it shows the frame that all point at, counted as nested loops would.
TURN = """
const box = closest('.slider'); let place = 0;
for (const one of box.querySelectorAll('input')) place = place * (+one.max + 1) + +one.value;
for (const [i, frame] of [...box.querySelectorAll('.frame')].entries()) frame.hidden = i != place;
"""


def timeline(ax: Axes, timeline: Any, numbers: bool = True) -> None:
    """What devices did when, of :func:`ed_lib.parallel.simulator.simulate`: a row for each, a
    box for each computation, with its micro-batch's number.
    """
    colours = {"forward": BLUE, "backward": ORANGE, "update": GREEN}
    colours |= {"backward_input": ORANGE, "backward_weight": PINK}
    for event in timeline.events:
        if not (width := event.end - event.start):
            continue
        ax.barh(event.stage, width, 0.86, event.start, color=colours[event.op], ec="white", lw=0.6)
        if numbers:
            place = (event.start + event.end) / 2, event.stage
            ax.text(*place, event.microbatch, ha="center", va="center", fontsize=8.5, color="white")
    ax.set(ylim=(timeline.stages - 0.4, -0.6), xlim=(0, timeline.seconds), ylabel="device")
    ax.set_yticks(range(timeline.stages))
    ax.grid(False)


def slider(axes: dict[str, Sequence], frame: Callable[..., tuple[str, dict[str, float]]]) -> None:
    """Shows one of several pictures, which a reader chooses with a slider for each axis; no kernel is needed.

    axes: {what the slider is called: its places}. frame(a place of each axis) → (a sentence, {part: its
    share, which add up to 1}); shares are drawn as a bar. ValueError for an axis without places.
    """
    from IPython.display import HTML, display

    shown, turn = "", " ".join(TURN.split())
    for name, places in axes.items():
        if not places:
            raise ValueError(f"axes[{name!r}] is empty; wanted at least one place")
        name = html.escape(name)
        shown += (
            f'<label style="display: flex; gap: 1em"><span style="width: 9em">{name}</span>'
            f'<input type="range" style="flex: 1" min="0" max="{len(places) - 1}" value="0" '
            f'aria-label="{name}" oninput="{turn}"></label>'
        )
    for number, places in enumerate(itertools.product(*axes.values())):
        sentence, shares = frame(*places)
        parts = names = ""
        for (name, share), colour in zip(shares.items(), itertools.cycle(COLOURS), strict=False):
            parts += f'<span style="width: {100 * share:.2f}%; background: {colour}"></span>'
            names += (
                f'<span style="white-space: nowrap"><span style="display: inline-block; width: 0.8em; '
                f'height: 0.8em; background: {colour}"></span> {html.escape(name)} {share:.0%}</span>'
            )
        shown += (
            f"<div class='frame'{' hidden' * (number > 0)}><p>{html.escape(sentence)}</p>"
            f'<div style="display: flex; height: 1.6em">{parts}</div>'
            f'<div style="display: flex; flex-wrap: wrap; gap: 0 1em">{names}</div></div>'
        )
    display(HTML(f'<div class="slider">{shown}</div>'))
