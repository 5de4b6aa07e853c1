"""The pages of the book, by _toc.yml."""

import ast
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def pages(root=ROOT):
    """The names of all pages in reading order, sections included: ["index", "book/preface", …]."""
    return [name for _, name in by_part(root)]


def by_part(root=ROOT):
    """(the caption of its part, its name) for each page in reading order; the first ones have no
    part.
    """
    toc = yaml.safe_load((root / "_toc.yml").read_text())
    found = [("", toc["root"])]
    for part in toc["parts"]:
        caption = part.get("caption", "")
        found += [(caption, name) for name in _names(part["chapters"], root)]
    return found


def _names(entries, root):
    """The pages of some entries, each followed by its sections; a glob stands for all that it
    finds.
    """
    for entry in entries:
        if "glob" in entry:
            found = sorted(root.glob(f"{entry['glob']}.md"))
            yield from (path.relative_to(root).with_suffix("").as_posix() for path in found)
        else:
            yield entry["file"]
            yield from _names(entry.get("sections", []), root)


def first_sentence(module):
    """Of a module's docstring, without its point; ``module`` is a path."""
    said = ast.get_docstring(ast.parse(module.read_text())) or ""
    # A point that ends a sentence is followed by a space, or by nothing; one in a name is not.
    return re.split(r"\.(?:\s|$)", said.replace("\n", " "))[0]
