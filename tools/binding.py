"""Binds the printed pages of the book into one PDF, with bookmarks, and with links that stay within it."""

from typing import NamedTuple
from urllib.parse import unquote

from pypdf import PdfReader, PdfWriter
from pypdf.annotations import Link
from pypdf.constants import PageLabelStyle
from pypdf.generic import Fit


class Chapter(NamedTuple):
    """A printed page of the book; ``first`` is the number of its first sheet, counted from 1."""

    part: str
    url: str
    headings: list
    pdf: PdfReader
    first: int


def places(chapters):
    """{address: (number of its sheet, height on it)} for each page of the book and each id in it."""
    found = {chapter.url: (chapter.first, None) for chapter in chapters}
    for _, url, _, pdf, first in chapters:
        for name, target in pdf.named_destinations.items():
            found[f"{url}#{unquote(name[1:])}"] = first + pdf.get_destination_page_number(target), target.top
    return found


def place(address, where):
    """Where in the book an address leads; None if it leads out of it."""
    return where.get(address) or where.get(address.partition("#")[0])


def links(sheet, url):
    """(rectangle, address) of each link on a sheet that was printed from ``url``."""
    for annotation in (reference.get_object() for reference in sheet.get("/Annots", [])):
        if "/Dest" in annotation:
            yield annotation["/Rect"], f"{url}#{unquote(annotation['/Dest'][1:])}"
        elif "/URI" in annotation.get("/A", {}):
            yield annotation["/Rect"], annotation["/A"]["/URI"]


def join(front, chapters, where):
    """One PDF of the front matter and the chapters; links within the book become links within the PDF."""
    book, found, n_front = PdfWriter(), [], len(front.pages)
    for pdf, url in [(front, ""), *((chapter.pdf, chapter.url) for chapter in chapters)]:
        for sheet in pdf.pages:
            found += [(len(found), list(links(sheet, url)))]
            sheet.pop("/Annots", None)
            book.add_page(sheet)
    for n, rectangle, address in ((n, *link) for n, on_sheet in found for link in on_sheet):
        if goal := place(address, where):
            inside = {"target_page_index": n_front + goal[0] - 1, "fit": Fit.xyz(top=goal[1])}
            book.add_annotation(n, Link(rect=rectangle, **inside))
        elif not address.startswith("file:"):  # the site's other files are not in the PDF
            book.add_annotation(n, Link(rect=rectangle, url=address))
    book.set_page_label(0, n_front - 1, PageLabelStyle.LOWERCASE_ROMAN)
    book.set_page_label(n_front, len(found) - 1, PageLabelStyle.DECIMAL)
    add_bookmarks(book, n_front, chapters, where)
    return book


def add_bookmarks(book, n_front, chapters, where):
    """Parts, in them pages, in these sections and subsections."""
    last, above = "", {-1: None}  # the last part; the last bookmark of each level, a part's is 0
    for part, url, headings, _, _ in chapters:
        for level, text, anchor in [(0, part, "")] * (part != last) + headings:
            number, top = place(f"{url}#{anchor}", where)
            above = {upper: item for upper, item in above.items() if upper < level}
            target = {"page_number": n_front + number - 1, "fit": Fit.xyz(top=top), "is_open": False}
            above[level] = book.add_outline_item(title=text, parent=above[max(above)], **target)
        last = part
