"""The sentences of a chapter's prose, and what they state: numbers, comparisons."""

import re
from dataclasses import dataclass, field

# What is no prose, or states nothing of its own: code, formulas, the box that begins a chapter,
# tables, headings, drawings.
DROPPED = (
    (re.compile(r"^```.*?^```", re.M | re.S), "\n\n"),
    (re.compile(r"<div[^>]*>\s*<p[^>]*>Before you start</p>.*?</div>", re.S), "\n\n"),
    (re.compile(r"^(?:<p[^>]*>.*?</p>|<summary>.*?</summary>|[|#].*)$", re.M), "\n\n"),
    (re.compile(r"\$\$.*?\$\$", re.S), " ∎ "),
    (re.compile(r"\$[^$]*=[^$]*\d[^$]*\$"), "∎="),
    (re.compile(r"\$[^$]*\$|`[^`]*`"), "∎"),
    # A link that leads out of the book, or to its list of references, is a source's.
    (re.compile(r"\[([^\]]+)\]\((?:http|#Ref)[^)]*\)"), r"⟦\1⟧"),
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),
)
LAST_SECTIONS = re.compile(r"^## (?:Exercises|References)$", re.M)
BOX = re.compile(r'(<div class="admonition source">|</?(?:div|details)[^>]*>)')
# A point that ends no sentence, and one that does.
ABBREVIATED = re.compile(r"\b(et al|e\.g|i\.e|n\.d|vs)\.")
ENDS = re.compile(r"(?<=[.?!])([*)”\"⟧’]*)\s+(?=[*(“\"⟦]*(?:[A-Z0-9∎√]|[a-z]+[A-Z]))")
BLOCKS = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )")


@dataclass
class Sentence:
    """One, as it is read; its cell; the code cells between its paragraph and the next prose."""

    text: str
    cell: str
    # Whether it stands in what a source says, in a box that reports one.
    reported: bool = False
    beside: list = field(default_factory=list)


def sentences(nb):
    """The sentences of a chapter, in order, up to its exercises."""
    found = []
    for place, cell in enumerate(nb.cells):
        if cell.cell_type != "markdown":
            continue
        text, *rest = LAST_SECTIONS.split(cell.source, maxsplit=1)
        paragraphs = list(_paragraphs(text))
        for number, (paragraph, reported) in enumerate(paragraphs):
            beside = []
            if number == 0:
                beside += _code(nb.cells[:place][::-1])
            if number == len(paragraphs) - 1:
                beside += _code(nb.cells[place + 1 :])
            for one in _split(paragraph):
                found.append(Sentence(one, cell.id, reported, beside))
        if rest:
            break
    return found


def _code(cells):
    """The code cells that come before any prose."""
    found = []
    for cell in cells:
        if cell.cell_type == "markdown":
            break
        found.append(cell)
    return found


def _paragraphs(text):
    """(paragraph, whether it reports a source), for each."""
    for pattern, instead in DROPPED[:2]:
        text = pattern.sub(instead, text)
    in_box = False
    for piece in BOX.split(text):
        if BOX.fullmatch(piece):
            in_box = "source" in piece
            continue
        for pattern, instead in DROPPED[2:]:
            piece = pattern.sub(instead, piece)
        for block in BLOCKS.split(piece):
            block = re.sub(r"^\s*(?:[-*]|\d+\.) ", "", " ".join(block.split()))
            if re.match(r"\**We ", block):
                in_box = False
            if re.search(r"\w", block):
                yield block, in_box


def _split(paragraph):
    text = ABBREVIATED.sub(lambda found: found[0].replace(".", "․"), paragraph)
    pieces = ENDS.sub(r"\1\n", text).split("\n")
    return [piece.replace("․", ".").strip() for piece in pieces]
