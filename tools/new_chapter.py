"""`make chapter NAME=parallel/my_question`: a new chapter, made of template.ipynb and executed.

It is a draft until its line stands in _toc.yml: no page, and no test of the book, has it before.
"""

import re
import sys
import uuid
from pathlib import Path

from nbclient.exceptions import CellExecutionError, DeadKernelError

from tools import notebooks, repository
from tools.book import MOVED
from tools.pages import ROOT

TEMPLATE = ROOT / "tools" / "template.ipynb"
NAME = re.compile(r"[a-z][a-z0-9_]*/[a-z][a-z0-9_]*")


def path_of(name):
    """Where the chapter of that name is to stand. ValueError for a bad or a taken name."""
    if not NAME.fullmatch(name):
        wanted = "a part and a chapter like parallel/my_question, in small letters"
        raise ValueError(f"NAME is {name!r}; wanted {wanted}")
    part, stem = name.split("/")
    there = sorted(path.relative_to(ROOT) for path in (ROOT / "book").glob("*/*.ipynb"))
    parts = sorted(path.name for path in (ROOT / "book").glob("[a-z]*/") if path.name != "appendix")
    if part not in parts:
        told = f"the parts are {', '.join(parts)}; a new one is a folder in book/"
        raise ValueError(f"NAME is {name!r}; {told}")
    # `make colab` puts all chapters into one folder, so that no two of them can have one name.
    for path in [*there, *map(Path, MOVED)]:
        if path.stem == stem:
            raise ValueError(f"NAME is {name!r}; that name is taken by {path.as_posix()}")
    return Path("book", part, f"{stem}.ipynb")


def begun(path):
    """The template as that chapter: with a title, a set-up cell, a reading time, its own ids."""
    nb = notebooks.read(TEMPLATE)
    # The records of GPU cells are kept by these ids, in the whole book.
    for cell in nb.cells:
        cell.id = uuid.uuid4().hex[:8]
        if "setup" in notebooks.tags(cell):
            cell.source = repository.setup_cell()
    fill(nb, "{title}", path.stem.replace("_", " ").capitalize())
    fill(nb, "{minutes}", f"{notebooks.reading_minutes(nb):.0f}")
    nb.metadata["ed_lib"] = {"draft": True}
    return notebooks.canonical(nb)


def fill(nb, gap, text):
    """Puts a text where the template has a gap for it."""
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace(gap, text)


def main(name):
    try:
        path = path_of(name)
        notebooks.write(notebooks.execute(begun(path), path), ROOT / path)
    except (ValueError, CellExecutionError, DeadKernelError) as error:
        sys.exit(f"No new chapter. {notebooks.plain(error)}")
    place = path.with_suffix("").as_posix()
    print(f"{path} is there, a draft. Write it, in Jupyter or as text; then:")
    print(f"  make outputs CHAPTER={path}    # executes it")
    print(f"  make test CHAPTER={path}       # its manner, its exercises, its cells")
    print(f"  - file: {place}    # this line in _toc.yml puts it into the book")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
