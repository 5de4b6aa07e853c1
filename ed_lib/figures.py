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

from ed_lib.timing import ROUNDED_UP, three_digits

if TYPE_CHECKING:  # Matplotlib is imported when the first figure is drawn
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# After Okabe and Ito (2008): told apart with any common colour vision. These five stand out from
# white and from near-black alike, which the yellow, the black and the dark blue of that palette do
# not.
BLUE = "#2f8fd0"
ORANGE = "#dd7a12"
GREEN = "#009e73"
PINK = "#cc79a7"
GREY = "#8a8f98"
COLOURS = (BLUE, ORANGE, GREEN, PINK, GREY)
# The two types of cell, in every figure of part I
EXCITATORY = BLUE
INHIBITORY = ORANGE

FOR_THE_PAGE = "text/vnd.ed_lib.figure"  # the kind of output that tools.book puts into the page
MOST_SAID = 12  # sentences on the data of a figure, for those who cannot see it
INK = "#010203"  # a colour that nothing else uses; ``to_html`` replaces it by the page's own
SMALL = 1e-4  # below, a number at an axis is written with an exponent
LARGE = 1e4  # from here on, with a letter
CSS_PIXELS = 96  # of an inch
PNG_DOTS = 144  # of an inch: one and a half for each of the page's pixels

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
    bars show is added, from their data. ``caption``: None for the first sentence of ``alt``.
    ValueError for an empty ``alt``.
    """
    import matplotlib.pyplot as plt
    from IPython.display import display

    plain_ticks(figure)
    drawing = to_html(figure, alt, caption)
    picture = io.BytesIO()
    # Without the name of the software, whose version would make each picture another file.
    made = {"Software": None}
    figure.savefig(picture, format="png", dpi=PNG_DOTS, facecolor="white", metadata=made)
    outputs = {
        FOR_THE_PAGE: drawing,
        "image/png": base64.b64encode(picture.getvalue()).decode(),
        "text/plain": _told(figure, alt),
    }
    display(outputs, raw=True)
    plt.close(figure)


def to_html(figure: Figure, alt: str, caption: str | None = None) -> str:
    """The figure as HTML: an SVG that scales with the page, ``alt`` as its accessible name, a
    caption.
    """
    if not alt or not alt.strip():
        raise ValueError("alt is empty; wanted a sentence that says what the figure shows")
    svg = _drawn(figure)
    svg = _with_ids_of_its_own(svg)
    svg = _that_scales(svg, figure)
    svg = _named(svg, _told(figure, alt))
    first_sentence = re.split(r"(?<=[.!?])\s", alt.strip())[0]
    below = html.escape(caption or first_sentence, quote=False)
    return f'<figure class="figure">\n{svg}<figcaption>{below}</figcaption>\n</figure>'


def _told(figure, alt):
    """The figure for those who cannot see it: the author's text, and what the data show."""
    return " ".join([alt.strip(), *in_words(figure)])


def _drawn(figure):
    """The element <svg> alone, in the page's ink, the same for the same drawing."""
    file = io.StringIO()
    made = {"Date": None, "Creator": None}
    figure.savefig(file, format="svg", transparent=True, metadata=made)
    # An XML declaration and a document type stand before it, which HTML has no place for.
    _, _, inside = file.getvalue().partition("<svg")
    svg = "<svg" + inside.replace(INK, "currentColor")
    return re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.S)


def _with_ids_of_its_own(svg):
    """No two drawings of a page may share an id: the names that something refers to begin with a
    hash of the drawing, and those that nothing refers to go.
    """
    own = hashlib.sha256(svg.encode()).hexdigest()[:8]
    refers = r'(href="#|url\(#)'
    used = {name for _, name in re.findall(refers + r'([^")]+)', svg)}

    def renamed(match):
        name = match[1]
        return f' id="{own}-{name}"' if name in used else ""

    svg = re.sub(r' id="([^"]*)"', renamed, svg)
    return re.sub(refers, rf"\g<1>{own}-", svg)


def _that_scales(svg, figure):
    """As wide as the column, and no wider than it was drawn; the viewBox keeps its proportions."""
    # The first two are those of the element <svg> itself.
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    width = f"{figure.get_figwidth() * CSS_PIXELS:.0f}px"
    style = f"display:block;width:100%;max-width:{width};height:auto;margin:auto"
    return svg.replace("<svg ", f'<svg style="{style}" ', 1)


def _named(svg, told):
    """A picture to a screen reader, which reads ``told`` and not the letters inside."""
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(told)}" ', 1)


def in_words(figure: Figure) -> list[str]:
    """A sentence on each labelled curve, its ends and extremes, and on each row of bars, their
    lengths.
    """
    from matplotlib.container import BarContainer

    said = []
    for axes in figure.axes:
        # Bars first: they are patches to Matplotlib, and stand among no lines.
        for bars in axes.containers:
            if isinstance(bars, BarContainer):
                said.append(_sentence(axes, bars, _bars(axes, bars)))
        for line in axes.lines:
            # What has no label is a help for the eye.
            if not str(line.get_label()).startswith("_"):
                said.append(_sentence(axes, line, _curve(axes, line)))
    return said[:MOST_SAID]


def _sentence(axes, drawn, words):
    """ "panel: label: words." """
    label = str(drawn.get_label())
    # Matplotlib gives what has no label one that begins so.
    if label.startswith("_"):
        label = ""
    parts = [part for part in (axes.get_title(), label, words) if part]
    return ": ".join(parts).replace("\n", " ") + "."


def _curve(axes, line):
    x, y = (np.asarray(values, float).ravel() for values in line.get_data(orig=False))
    if line.get_transform() != axes.transData:  # a line across the whole panel
        is_level = y[0] == y[-1]
        place = _place(axes.yaxis, y[0]) if is_level else _place(axes.xaxis, x[0])
        return f"a line at {place}"
    drawn = np.isfinite(y)
    x = x[drawn]
    y = y[drawn]
    if not len(y):
        return "nothing"
    first, last = (f"{three_digits(y[n])} at {_place(axes.xaxis, x[n])}" for n in (0, -1))
    words = first if len(y) == 1 else f"from {first} to {last}"
    for what, value in (("lowest", y.min()), ("highest", y.max())):
        # An end that is an extreme has been said.
        if value not in (y[0], y[-1]):
            words += f", {what} {three_digits(value)}"
    return words


def _bars(axes, bars):
    is_flat = bars.orientation == "horizontal"
    axis = axes.yaxis if is_flat else axes.xaxis
    # Where there are no ticks, names stand elsewhere in the figure.
    has_names = len(axis.get_ticklocs()) > 0
    said = []
    for bar in bars:
        length = bar.get_width() if is_flat else bar.get_height()
        words = three_digits(length)
        if has_names:
            x, y = bar.get_center()
            words = f"{_place(axis, y if is_flat else x, nearest=True)} {words}"
        said.append(words)
    return ", ".join(said)


def _place(axis, value, nearest=False):
    """A place on an axis as the tick there, or the nearest one, names it; or as a number."""
    from matplotlib.category import StrCategoryLocator
    from matplotlib.ticker import FixedLocator

    ticks = np.asarray(axis.get_ticklocs())
    # Ticks that somebody set may have names; those that Matplotlib chose are numbers.
    are_set = isinstance(axis.get_major_locator(), FixedLocator | StrCategoryLocator)
    if are_set and len(ticks) and (nearest or np.isclose(ticks, value).any()):
        names = axis.get_major_formatter().format_ticks(ticks)
        name = str(names[np.abs(ticks - value).argmin()])
        # What stands between dollars is TeX, which nobody wants to hear.
        if name and "$" not in name:
            return name
    return three_digits(value)


def plain_ticks(figure: Figure) -> None:
    """Writes the numbers at logarithmic axes without exponents, which are too small to read on a
    phone.
    """
    from matplotlib.ticker import Formatter, LogFormatter

    class Plain(Formatter):
        """Where Matplotlib's own writes a number, ours; where it leaves one out, none."""

        def __init__(self, old):
            self.old = old
            self.set_axis = old.set_axis
            self.set_locs = old.set_locs

        def __call__(self, x, pos=None):
            return _plain(x) if self.old(x, pos) else ""

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            major = axis.get_major_formatter()
            minor = axis.get_minor_formatter()
            if isinstance(major, LogFormatter):
                axis.set_major_formatter(Plain(major))
            if isinstance(minor, LogFormatter):
                axis.set_minor_formatter(Plain(minor))


def _plain(value):
    """0.001 to 1000 as they are, 10k, 1M, 1G, 1T above, 1e-6 below."""
    text = f"{value:g}"
    # As it is written: 9999.999 is 10000 on a page.
    size = abs(float(text))
    if size == 0 or SMALL <= size < LARGE or not np.isfinite(size):
        return text
    if size < SMALL:
        return f"{value:.3g}".replace("e-0", "e-")
    for scale, unit in ((1e3, "k"), (1e6, "M"), (1e9, "G")):
        # With three digits 999.5k is a thousand of them, and so 1M.
        if size / scale < ROUNDED_UP:
            return f"{value / scale:.3g}{unit}"
    return f"{three_digits(value / 1e12)}T"


def legend_above(figure: Figure, columns: int = 3, **options) -> Any:
    """One legend for all axes of a figure, above them: each label once."""
    handles: dict = {}
    for axes in figure.axes:
        drawn, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, drawn, strict=True))
    options = {"fontsize": 9, "loc": "outside upper center", "ncols": columns} | options
    return figure.legend(handles.values(), handles, **options)


def log_ticks(axis: Axis, values: Sequence[float], labels: Sequence[str] | None = None) -> None:
    """Ticks at these values and nowhere else, on a logarithmic ``ax.xaxis`` or ``ax.yaxis``."""
    if labels is None:
        labels = [_plain(value) for value in values]
    axis.set_ticks(values, labels)
    axis.set_ticks([], minor=True)
