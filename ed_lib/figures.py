"""The house style, and ``show``, which puts a figure on the page with a text for those who cannot
see it.

In the book figures are inline SVG, sharp at any size, whose ink is the page's own in a light and in
a dark theme; in Jupyter, in Colab and on GitHub, which shows no drawings, they are PNG.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # Matplotlib is imported when the first figure is drawn
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# After Okabe and Ito (2008): told apart with any common colour vision. These five stand out from
# white and from near-black alike, which the yellow, the black and the dark blue of that palette do
# not.
BLUE, ORANGE, GREEN, PINK, GREY = "#2f8fd0", "#dd7a12", "#009e73", "#cc79a7", "#8a8f98"
COLOURS = (BLUE, ORANGE, GREEN, PINK, GREY)
EXCITATORY, INHIBITORY = BLUE, ORANGE  # the two types of cell, in every figure of part I

FOR_THE_PAGE = "text/vnd.ed_lib.figure"  # the kind of output that tools.book puts into the page
MOST_SAID = 12  # sentences on the data of a figure, for those who cannot see it
INK = "#010203"  # a colour that nothing else uses; ``show`` replaces it by the page's own

STYLE: dict[str, Any] = {
    "figure.figsize": (5.2, 3.1),
    "figure.constrained_layout.use": True,
    "font.size": 10.5,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.18,
    "lines.linewidth": 2.0,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "ed_lib",  # the same drawing gives the same file
    "image.cmap": "Greys_r",
}
STYLE |= dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "grid.color"), INK)
STYLE |= dict.fromkeys(("xtick.color", "ytick.color"), INK)


def use_style() -> None:
    """Sets the house style for the figures that follow, and leaves showing them to ``show``."""
    import matplotlib.pyplot as plt

    plt.rcParams.update(STYLE | {"axes.prop_cycle": plt.cycler(color=COLOURS)})
    plt.ioff()


def show(figure: Figure, alt: str, caption: str | None = None) -> None:
    """Shows a Matplotlib figure and closes it. ``alt`` says in words what is drawn; what curves and
    bars show is added, from their data. ``caption``: None for the first sentence of ``alt``, which
    may not be empty.
    """
    import matplotlib.pyplot as plt
    from IPython.display import display

    plain_ticks(figure)
    shown, drawn = {FOR_THE_PAGE: to_html(figure, alt, caption)}, io.BytesIO()
    figure.savefig(drawn, format="png", dpi=144, facecolor="white", metadata={"Software": None})
    shown["image/png"] = base64.b64encode(drawn.getvalue()).decode()
    display(shown | {"text/plain": " ".join([alt.strip(), *in_words(figure)])}, raw=True)
    plt.close(figure)


def to_html(figure: Figure, alt: str, caption: str | None = None) -> str:
    """The figure as HTML: an SVG that scales with the page, ``alt`` as its accessible name, a
    caption.
    """
    if not alt or not alt.strip():
        raise ValueError("alt is empty; wanted a sentence that says what the figure shows")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = "<svg" + buffer.getvalue().partition("<svg")[2].replace(INK, "currentColor")
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.S)
    own = hashlib.sha256(svg.encode()).hexdigest()[:8]
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda m: f' id="{own}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(
        r'(href="#|url\(#)', rf"\g<1>{own}-", svg
    )  # so that no two drawings of a page share an id
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    width = f"{figure.get_figwidth() * 96:.0f}px"
    style = f"display:block;width:100%;max-width:{width};height:auto;margin:auto"
    label = html.escape(" ".join([alt.strip(), *in_words(figure)]))
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" style="{style}" ', 1)
    below = html.escape(caption or re.split(r"(?<=[.!?])\s", alt.strip())[0], quote=False)
    return f'<figure class="figure">\n{svg}<figcaption>{below}</figcaption>\n</figure>'


def in_words(figure: Figure) -> list[str]:
    """A sentence on each labelled curve, its ends and extremes, and on each row of bars, their
    lengths.
    """
    from matplotlib.container import BarContainer

    said = []
    for axes in figure.axes:
        bars: list[Any] = [one for one in axes.containers if isinstance(one, BarContainer)]
        curves = [one for one in axes.lines if not str(one.get_label()).startswith("_")]
        for one in (*bars, *curves):
            label = re.sub("^_.*", "", str(one.get_label()))
            words = _bars(axes, one) if one in bars else _curve(axes, one)
            said.append(
                ": ".join(filter(None, (axes.get_title(), label, words))).replace("\n", " ") + "."
            )
    return said[:MOST_SAID]


def _curve(axes, line):
    x, y = (np.asarray(values, float).ravel() for values in line.get_data(orig=False))
    if line.get_transform() != axes.transData:  # a line across the whole panel
        return (
            f"a line at {_place(axes.yaxis, y[0]) if y[0] == y[-1] else _place(axes.xaxis, x[0])}"
        )
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if not len(y):
        return "nothing"
    first, last = (f"{y[n]:.3g} at {_place(axes.xaxis, x[n])}" for n in (0, -1))
    between = {"lowest": y.min(), "highest": y.max()}.items()
    extremes = [f", {what} {value:.3g}" for what, value in between if value not in (y[0], y[-1])]
    return (first if len(y) == 1 else f"from {first} to {last}") + "".join(extremes)


def _bars(axes, bars):
    flat = bars.orientation == "horizontal"
    axis = axes.yaxis if flat else axes.xaxis
    lengths = [f"{bar.get_width() if flat else bar.get_height():.3g}" for bar in bars]
    if len(axis.get_ticklocs()):  # else names stand elsewhere in the figure
        places = [_place(axis, bar.get_center()[int(flat)], nearest=True) for bar in bars]
        lengths = [f"{place} {length}" for place, length in zip(places, lengths, strict=True)]
    return ", ".join(lengths)


def _place(axis, value, nearest=False):
    """A place on an axis as the tick there, or the nearest one, names it; or as a number."""
    from matplotlib.category import StrCategoryLocator
    from matplotlib.ticker import FixedLocator

    ticks = np.asarray(axis.get_ticklocs())
    named = isinstance(axis.get_major_locator(), FixedLocator | StrCategoryLocator) and len(ticks)
    if named and (nearest or np.isclose(ticks, value).any()):
        name = str(axis.get_major_formatter().format_ticks(ticks)[np.abs(ticks - value).argmin()])
        if name and "$" not in name:
            return name
    return f"{value:.3g}"


def plain_ticks(figure: Figure) -> None:
    """Writes the numbers at logarithmic axes without exponents, which are too small to read on a
    phone.
    """
    from matplotlib.ticker import Formatter, LogFormatter

    class Plain(
        Formatter
    ):  # where Matplotlib's own writes a number, ours; where it leaves one out, none
        def __init__(self, old):
            self.old, self.set_axis, self.set_locs = old, old.set_axis, old.set_locs

        def __call__(self, x, pos=None):
            return _plain(x) if self.old(x, pos) else ""

    for axis in (one for ax in figure.axes for one in (ax.xaxis, ax.yaxis)):
        if isinstance(old := axis.get_major_formatter(), LogFormatter):
            axis.set_major_formatter(Plain(old))
        if isinstance(old := axis.get_minor_formatter(), LogFormatter):
            axis.set_minor_formatter(Plain(old))


def _plain(value):
    """0.001 to 1000 as they are, 10k, 1M, 1G above, 1e-6 below."""
    for size, least, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e3, 1e4, "k")):
        if abs(value) >= least:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.0e}".replace("e-0", "e-")


def legend_above(figure: Figure, columns: int = 3, **options) -> Any:
    """One legend for all axes of a figure, above them: each label once."""
    labels: dict = {}
    for ax in figure.axes:
        labels |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    options = {"fontsize": 9, "loc": "outside upper center", "ncols": columns} | options
    return figure.legend(labels.values(), labels, **options)


def log_ticks(axis: Axis, values: Sequence[float], labels: Sequence[str] | None = None) -> None:
    """Ticks at these values and nowhere else, on a logarithmic ``ax.xaxis`` or ``ax.yaxis``."""
    axis.set_ticks(values, [_plain(value) for value in values] if labels is None else labels)
    axis.set_ticks([], minor=True)
