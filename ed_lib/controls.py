"""What a reader of a page can turn with no kernel behind it."""

import html
import itertools
from collections.abc import Callable, Sequence

from ed_lib.figures import COLOURS

# In an input's own scope: which frame the sliders point at, counted as nested loops would, and no other.
TURN = """
const box = closest('.slider'); let place = 0;
for (const one of box.querySelectorAll('input')) place = place * (+one.max + 1) + +one.value;
for (const [i, frame] of [...box.querySelectorAll('.frame')].entries()) frame.hidden = i != place;
"""


def slider(axes: dict[str, Sequence], frame: Callable[..., tuple[str, dict[str, float]]]) -> None:
    """Shows one of several pictures, which a reader chooses with a slider for each axis; no kernel is needed.

    axes: {what the slider is called: its places}. frame(a place of each axis) → (a sentence, {part: its
    share, which add up to 1}); shares are drawn as a bar. ValueError for an axis without places.
    """
    from IPython.display import HTML, display

    for name, places in axes.items():
        if not places:
            raise ValueError(f"axes[{name!r}] is empty; wanted at least one place")
    inputs, frames = [], []
    for name, places in axes.items():
        label = html.escape(name, quote=True)
        inputs.append(
            f'<label style="display: flex; gap: 1em"><span style="width: 9em">{label}</span>'
            f'<input type="range" style="flex: 1" min="0" max="{len(places) - 1}" value="0" '
            f'aria-label="{label}" oninput="{" ".join(TURN.split())}"></label>'
        )
    for number, places in enumerate(itertools.product(*axes.values())):
        sentence, shares = frame(*places)
        shown = f"<p>{html.escape(sentence)}</p>{_bar(shares)}"
        frames.append(f"<div class='frame' {'hidden' if number else ''}>{shown}</div>")
    display(HTML(f'<div class="slider">{"".join(inputs + frames)}</div>'))


def _bar(shares):
    """A bar in parts, and what each of them is."""
    parts, names = [], []
    for (name, share), colour in zip(shares.items(), itertools.cycle(COLOURS), strict=False):
        style = f"background: {colour}"
        parts.append(f'<span style="width: {100 * share:.2f}%; {style}"></span>')
        square = f'<span style="display: inline-block; width: 0.8em; height: 0.8em; {style}"></span>'
        names.append(f'<span style="white-space: nowrap">{square} {html.escape(name)} {share:.0%}</span>')
    bar = f'<div style="display: flex; height: 1.6em">{"".join(parts)}</div>'
    return f'{bar}<div style="display: flex; flex-wrap: wrap; gap: 0 1em">{"".join(names)}</div>'
