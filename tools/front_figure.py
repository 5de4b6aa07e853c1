"""The figure of the front page: what was published, and what we measured, of one baseline a row."""

import html
import io
import json
import re

import matplotlib.pyplot as plt
import numpy as np

from ed_lib import figures
from tools.front_numbers import numbers
from tools.pages import ROOT

# For the page, and for previews of links, which show no drawing.
DRAWING = ROOT / "book" / "_static" / "front.svg"
PICTURE = DRAWING.with_suffix(".png")
# The drawing's ink where no page gives it one: in a light and in a dark theme.
INK, PALE_INK = "#404040", "#d0d0d0"
ARROW = {"arrowstyle": "-|>", "color": figures.GREY, "shrinkA": 7, "shrinkB": 6, "lw": 1.4}


def drawn():
    """The figure's rows: (what, beside what, published, measured)."""
    n = numbers()
    return [
        ("ED's update", "its forward pass", 3000, n.at_once),
        ("Training step in 16 bits", "float32", 2, [n.beside_float32]),
        ("Training step in 16 bits", "TF32", 2, [n.beside_tf32]),
        ("LSTM step with three changes", "none", 5, [n.gpu_three]),
    ]


def times(values):
    """ "140–210×", "6.0×", "2×" of a whole number."""
    told = []
    for value in values:
        is_whole = isinstance(value, int) or value > 10
        told.append(f"{value:,.0f}" if is_whole else f"{value:.1f}")
    return "–".join(told) + "×"


def draw():
    """Draws the rows: as SVG in the ink of its page, and as PNG for previews of links. The files
    tell the rows, to a test.
    """
    with plt.rc_context(figures.STYLE | {"font.size": 10, "axes.grid": False}):
        fig = _figure((5.0, 3.4))
        file = io.StringIO()
        fig.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        svg = "<svg" + file.getvalue().partition("<svg")[2].replace(figures.INK, "currentColor")
        svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.S)
        style = f"<style>svg {{ color: {INK} }} @media (prefers-color-scheme: dark) "
        style += f"{{ svg {{ color: {PALE_INK} }} }}</style>"
        rows = html.escape(json.dumps(drawn()))
        svg = re.sub(r"(<svg [^>]*)>", rf'\1 data-rows="{rows}">\n{style}', svg, count=1)
        DRAWING.write_text(svg)
        # A picture that names no version of Matplotlib is the same from all of them.
        about = {"Software": None, "Description": json.dumps(drawn())}
        # As previews have it: 1200 × 630 pixels.
        _figure((6, 3.15)).savefig(PICTURE, dpi=200, facecolor="white", metadata=about)
        plt.close("all")


def _figure(size):
    fig, ax = plt.subplots(figsize=size)
    for y, (what, beside, published, measured) in enumerate(drawn()):
        place = {"y": y - 0.43, "transform": ax.get_yaxis_transform(), "va": "center"}
        ax.text(0, s=f"{what}, against {beside}", weight="bold", size=9.5, **place)
        ax.text(1, s=f"{times([published])} → {times(measured)}", ha="right", **place)
        if abs(np.log10(published / measured[-1])) > 0.15:  # else the two marks touch
            # Along the row, up to the nearest of what was measured.
            near = min(measured, key=lambda value: abs(np.log(value / published)))
            ax.annotate("", (near, y), (published, y), arrowprops=ARROW)
        ax.plot(measured, [y] * len(measured), "-", color=figures.BLUE, lw=3)
        ax.plot(measured, [y] * len(measured), "o", color=figures.BLUE, ms=6)
        ax.plot(published, y, "o", color=figures.ORANGE, mfc="none", ms=9, mew=1.8)
    for colour, face, size, label in (
        (figures.ORANGE, "none", 10, "published (orange ring)"),
        (figures.BLUE, figures.BLUE, 7, "measured on our H100 (blue dot)"),
    ):
        ax.plot([], [], "o", color=colour, mfc=face, ms=size, mew=1.8, label=label)
    figures.legend_above(fig, 2, fontsize=9.5, handletextpad=0.1, columnspacing=1)
    ax.set(
        xscale="log",
        xlim=(0.8, 4500),
        ylim=(len(drawn()) - 0.55, -0.75),
        yticks=[],
        facecolor="none",
    )
    ax.spines["left"].set_visible(False)
    figures.log_ticks(ax.xaxis, [1, 10, 100, 1000], ["1×", "10×", "100×", "1,000×"])
    ax.set_xlabel("times as fast")
    return fig
