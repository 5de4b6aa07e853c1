"""The house style, and ``show``, which puts a figure on the page as drawing, with a text for those who cannot
see it.

In the book figures are inline SVG: sharp at any size, and their lines and letters take the colour of the
page's own text, so that the same figure holds in a light and in a dark theme. In Jupyter, in Colab and on
GitHub, which takes drawings out of what it shows, they are PNG.
"""

import base64
import hashlib
import html
import io
import re

# After Okabe and Ito (2008): told apart with any common colour vision. These five stand out from white and
# from near-black alike, which the yellow, the black and the dark blue of that palette do not.
BLUE, ORANGE, GREEN, PINK, GREY = "#2f8fd0", "#dd7a12", "#009e73", "#cc79a7", "#8a8f98"
COLOURS = (BLUE, ORANGE, GREEN, PINK, GREY)
EXCITATORY, INHIBITORY = BLUE, ORANGE  # the two types of cell, in every figure of part I

FOR_THE_PAGE = "text/vnd.ed_lib.figure"  # the kind of output that tools.book puts into the page
INK = "#010203"  # a colour that nothing else uses; ``show`` replaces it by the page's own

STYLE = {
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
} | {
    key: INK
    for key in ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
}


def use_style():
    """Sets the house style for the figures that follow, and leaves showing them to ``show``."""
    import matplotlib.pyplot as plt

    plt.rcParams.update(STYLE | {"axes.prop_cycle": plt.cycler(color=COLOURS)})
    plt.ioff()


def show(figure, alt, caption=None):
    """Shows a Matplotlib figure and closes it: a drawing for the book's page, a picture everywhere else.

    ``alt`` says in words what one sees in it; ``caption`` is what stands below it, without: the first
    sentence of ``alt``. ValueError when ``alt`` is empty.
    """
    import matplotlib.pyplot as plt
    from IPython.display import display

    picture = io.BytesIO()
    plain_ticks(figure)
    html = to_html(figure, alt, caption)
    figure.savefig(picture, format="png", dpi=144, facecolor="white", metadata={"Software": None})
    picture = base64.b64encode(picture.getvalue()).decode()
    display({FOR_THE_PAGE: html, "image/png": picture, "text/plain": alt}, raw=True)
    plt.close(figure)


def to_html(figure, alt, caption=None):
    """The figure as HTML: an SVG that scales with the page, ``alt`` as its accessible name, and a caption."""
    if not alt or not alt.strip():
        raise ValueError("alt is empty; wanted a sentence that says what the figure shows")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = _own_ids(svg)
    width = float(re.search(r'width="([\d.]+)pt"', svg).group(1)) * 4 / 3  # points to CSS pixels
    svg = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", svg, count=1)
    label = html.escape(alt)
    style = f"display:block;width:100%;max-width:{width:.0f}px;height:auto;margin:auto"
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" style="{style}" ', 1)
    below = html.escape(caption or re.split(r"(?<=[.!?])\s", alt.strip())[0], quote=False)
    return f'<figure class="figure">\n{svg}<figcaption>{below}</figcaption>\n</figure>'


def _own_ids(svg):
    """Leaves out the ids that nothing refers to, and makes the others this drawing's own."""
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    own = hashlib.sha256(svg.encode()).hexdigest()[:8]
    svg = re.sub(r' id="([^"]*)"', lambda m: f' id="{own}-{m[1]}"' if m[1] in used else "", svg)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{own}-", svg)


def plain_ticks(figure):
    """Writes the numbers at logarithmic axes without exponents, which are too small to read on a phone."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x, pos=None):
            return _plain(x) if super().__call__(x, pos) else ""

    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
        for old, change in (
            (axis.get_major_formatter(), axis.set_major_formatter),
            (axis.get_minor_formatter(), axis.set_minor_formatter),
        ):
            if isinstance(old, LogFormatter):
                change(Plain(old._base, old.labelOnlyBase, old.minor_thresholds, old._linthresh))


def _plain(value):
    """0.001 to 1000 as they are, 10k, 1M, 1G above, 1e-6 below."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.0e}".replace("e-0", "e-")


def cell_pair():
    """The two types of cell, the signs of the connections between them, and the error at each weight."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(5.2, 3.1))
    ax.set(xlim=(-0.5, 3.5), ylim=(-0.6, 2.0), aspect="equal")
    ax.axis("off")
    centre = {"ha": "center", "va": "center"}
    colours, heights = (EXCITATORY, INHIBITORY), (1.6, 0.0)
    places = {  # (receiver, sender): where the sign of the connection and the weight's name go
        (0, 0): ((0.98, 1.74), (1.6, 1.75)),
        (1, 0): ((0.98, 1.34), (2.3, 0.6)),
        (0, 1): ((0.98, 0.27), (2.3, 0.99)),
        (1, 1): ((0.98, -0.13), (1.6, -0.16)),
    }
    for (p, q), (sign, name) in places.items():
        style = {"arrowstyle": "-|>", "mutation_scale": 13, "lw": 2, "color": colours[q]}
        style |= {"ls": "-" if p == q else (0, (4, 2)), "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", (2.65, heights[p]), (0.35, heights[q]), arrowprops=style)
        ax.text(*sign, "+" if p == q else "−", **centre, fontsize=14)
        ax.text(*name, rf"$W[{p},{q}]\leftarrow d$", **centre, fontsize=9.5)
    for x, side in ((0, "x"), (3, "y")):
        for kind, name in enumerate(("excitatory", "inhibitory")):
            ax.add_patch(plt.Circle((x, heights[kind]), 0.32, fc="none", ec=colours[kind], lw=2.2))
            ax.text(x, heights[kind], f"${side}_{kind}$", **centre, fontsize=12)
            ax.text(x, heights[kind] - 0.46, name, **centre, fontsize=9)
    return figure
