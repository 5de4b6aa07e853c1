"""Citations that read as text wherever a notebook is opened, and reach the bibliography in the book.

An author writes MyST's roles, {cite:t}`key` and {cite:p}`key`. Saved in canonical form, a notebook holds
links instead, which Colab and GitHub show: [Kaneko (1999)](https://... "cite:kaneko1999"). `make book` turns
them back into roles.
"""

import functools
import re

from tools.pages import ROOT

ROLE = re.compile(r"\{cite:([tp])\}`([^`]+)`")
LINK = re.compile(r'\[([^\]]+)\]\(\S+ "cite:(\w+)"\)')
GROUP = re.compile(rf"\(({LINK.pattern}(?:; {LINK.pattern})*)\)")


@functools.cache
def _entries():
    from pybtex.database import parse_file

    return parse_file(ROOT / "book" / "references.bib").entries


def as_links(markdown):
    """The roles as links. KeyError for a key that the bibliography does not have."""

    def link(match):
        how, keys = match[1], match[2].split(",")
        if how == "t":
            return _link(keys[0], "{} ({})")
        return "(" + "; ".join(_link(key, "{}, {}") for key in keys) + ")"

    return ROLE.sub(link, markdown)


def as_roles(markdown):
    """The links as roles: in parentheses {cite:p}, in the sentence {cite:t}."""
    keys = lambda text: ",".join(match[2] for match in LINK.finditer(text))  # noqa: E731
    markdown = GROUP.sub(lambda match: f"{{cite:p}}`{keys(match[0])}`", markdown)
    return LINK.sub(lambda match: f"{{cite:t}}`{match[2]}`", markdown)


def _link(key, shape):
    entry = _entries()[key]
    text = shape.format(_authors(entry), entry.fields.get("year", "n.d."))
    return f'[{text}]({_address(entry)} "cite:{key}")'


def _authors(entry):
    """Kaneko; Hinton and Dean; Appleyard et al."""
    from pybtex.richtext import Text

    last = (" ".join(p.prelast_names + p.last_names) for p in entry.persons["author"])
    names = [str(Text.from_latex(name)) for name in last]
    if len(names) > 2 or names[-1] == "others":
        return f"{names[0]} et al."
    return " and ".join(names)


def _address(entry):
    """Where the work can be read, or the place in the notebook where the references stand."""
    fields = entry.fields
    note = f"arXiv:{fields['eprint']}" if "eprint" in fields else fields.get("note", "")
    arxiv = re.search(r"(?<=arXiv:)[\d.]+\d", note)
    if "url" in fields:
        return fields["url"]
    if "doi" in fields:
        return f"https://doi.org/{fields['doi'].replace('(', '%28').replace(')', '%29')}"
    return f"https://arxiv.org/abs/{arxiv[0]}" if arxiv else "#References"
