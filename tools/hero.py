"""The figure that a reader can run: the toy device of *Honest timing*, there and on the first page.

The notebook holds the picture, which Colab shows and a page without JavaScript. On the pages
book/_static/hero.js puts a button, a switch and two clocks in its place.
"""

import re
from pathlib import Path

from ed_lib import figures
from tools import notebooks
from tools.notebooks import ROOT

CHAPTER = Path("book/ed/honest_timing.ipynb")
FIGURE = "140bb615"  # the id of the cell that draws it
MARK = "<!-- hero -->"  # where it stands on the first page
# What stands above it there, with the words that it needs.
LEAD = """In this figure a program asks a toy GPU, the *device*, to run three functions, called
*kernels*."""
CAPTION = """The program's call returns at once, and the GPU goes on computing. A clock that stops
at the return misses most of the work. You build this toy GPU in
<a href="book/ed/honest_timing.html">Honest timing</a>."""


def runnable(drawing, root):
    """The figure ``drawing``, as HTML, with the script that lets it run; ``root`` leads to that of
    the site.
    """
    look = f"--host: {figures.BLUE}; --device: {figures.ORANGE}"
    figure = drawing.replace(
        '<figure class="figure">', f'<figure class="figure hero" style="{look}">'
    )
    return f'{figure}\n<script defer src="{root}_static/hero.js"></script>'


def on_first_page(text):
    """The first page with the figure at its mark. ValueError where the chapter has none."""
    if MARK not in text:
        return text
    cells = notebooks.read(ROOT / CHAPTER).cells
    outputs = (output for cell in cells if cell.id == FIGURE for output in cell.outputs)
    found = (output.get("data", {}).get(figures.FOR_THE_PAGE) for output in outputs)
    drawing = next(filter(None, found), None)
    if not drawing:
        raise ValueError(f"{CHAPTER}: cell {FIGURE} has no figure; the first page shows it")
    drawing = re.sub(
        "<figcaption>.*?</figcaption>", f"<figcaption>{CAPTION}</figcaption>", drawing, flags=re.S
    )
    return text.replace(MARK, f"{LEAD}\n\n```{{raw}} html\n{runnable(drawing, '')}\n```")
