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
# Where it stands on the first pages, by language; what stands above it, with the words that it
# needs, and below it.
MARKS = {"en": "<!-- hero -->", "ja": "<!-- hero_ja -->"}
LEADS = {
    "en": """In this figure a program asks a toy GPU, the *device*, to run three functions, called
*kernels*.""",
    "ja": """この図では、プログラムがおもちゃの GPU（*デバイス*）に、*カーネル*と呼ばれる関数を
3 つ実行させます。""",
}
CAPTIONS = {
    "en": """The program's call returns at once, and the GPU goes on computing. A clock that stops
at the return misses most of the work. You build this toy GPU in
<a href="book/ed/honest_timing.html">Honest timing</a>.""",
    "ja": """プログラムの呼び出しはすぐに戻り、GPU は計算を続けます。呼び出しが戻ったときに止まる
時計は、処理の大部分を見逃します。このおもちゃの GPU は、
<a href="book/ed/honest_timing.html">正しい時間の測り方</a>の章で作ります。""",
}


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
    """A first page with the figure at its mark. ValueError where the chapter has none."""
    language = next((each for each, mark in MARKS.items() if mark in text), None)
    if language is None:
        return text
    cells = notebooks.read(ROOT / CHAPTER).cells
    outputs = (output for cell in cells if cell.id == FIGURE for output in cell.outputs)
    found = (output.get("data", {}).get(figures.FOR_THE_PAGE) for output in outputs)
    drawing = next(filter(None, found), None)
    if not drawing:
        raise ValueError(f"{CHAPTER}: cell {FIGURE} has no figure; the first page shows it")
    caption = f"<figcaption>{CAPTIONS[language]}</figcaption>"
    drawing = re.sub("<figcaption>.*?</figcaption>", caption, drawing, flags=re.S)
    html = f"```{{raw}} html\n{runnable(drawing, '')}\n```"
    return text.replace(MARKS[language], f"{LEADS[language]}\n\n{html}")
