"""`make pdf`: the rendered book as one PDF, _build/book.pdf, to print or to read without a browser.

Chromium prints each page of _toc.yml with the print style sheet, book/_static/print.css. The contents are
printed last, when the page numbers are known. Then all are joined, with bookmarks, and with links that stay
within the PDF.
"""

import os
import sys
from html import escape
from io import BytesIO
from json import dumps
from pathlib import Path
from string import Template
from typing import NamedTuple
from urllib.parse import unquote

import yaml
from playwright.sync_api import sync_playwright
from pypdf import PdfReader, PdfWriter
from pypdf.annotations import Link
from pypdf.constants import PageLabelStyle
from pypdf.generic import Fit

from tools import browser
from tools.pages import ROOT, by_part

HTML, PDF = ROOT / "_build" / "html", ROOT / "_build" / "book.pdf"
OLDEST = 131  # the Chromium since which style sheets reach a page's margins and the inside of a fold
MARGINS = Template("""
@page { @bottom-center { content: counter(page); font: 9pt sans-serif; }
        @top-left { content: $part; font: 8pt sans-serif; color: #555; }
        @top-right { content: $title; font: 8pt sans-serif; color: #555; } }
@page:first { counter-set: page $first; @top-left { content: none; } @top-right { content: none; } }""")
# Chromium gives a name in the PDF to what a link of the same page leads to, so each id gets one.
# Returns the headings: level, text, id.
PREPARE = """async () => {
    await window.MathJax?.startup?.promise;
    await document.fonts.ready;
    for (const { id } of document.querySelectorAll("article [id]:not(svg *)"))
        document.body.append(Object.assign(document.createElement("a"), { href: "#" + id, hidden: true }));
    return [...document.querySelectorAll("article :is(h1, h2, h3)")].map(heading => {
        const words = heading.cloneNode(true);
        words.querySelectorAll(".headerlink").forEach(link => link.remove());
        return [+heading.localName[1], words.textContent.trim(), heading.closest("[id]").id];
    });
}"""


class Chapter(NamedTuple):
    """A printed page of the book; ``first`` is the number of its first sheet, counted from 1."""

    part: str
    url: str
    headings: list
    pdf: PdfReader
    first: int


def print_page(tab, url, part, first):
    """Prints one page of the book, its sheets numbered from ``first`` on."""
    tab.goto(url)
    headings = tab.evaluate(PREPARE)
    part_and_title = {"part": dumps(part), "title": dumps(headings[0][1])}
    tab.add_style_tag(content=MARGINS.substitute(part_and_title, first=first))
    return Chapter(part, url, headings, PdfReader(BytesIO(tab.pdf(prefer_css_page_size=True))), first)


def contents(title, author, chapters, where):
    """The HTML of the title page and of the contents: parts, pages and sections, with their numbers."""
    lines, last = [], ""
    for part, url, headings, _, _ in chapters:
        lines += [f"<h3>{escape(part)}</h3>"] * (part != last)
        last = part
        for level, text, anchor in headings:
            number = place(f"{url}#{anchor}", where)[0]
            link = f'class="level{level}" href="{escape(url)}#{escape(anchor)}" data-page="{number}"'
            lines += [f"<a {link}><span>{escape(text)}</span></a>"] * (level < 3)
    template = Template(Path(__file__).with_name("contents.html").read_text())
    return template.substitute(title=escape(title), author=escape(author), lines="\n".join(lines))


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


def make(names, title, author, tab):
    """The PDF of the book of these (part, page); prints a line for each."""
    chapters, first = [], 1
    for part, name in names:
        chapters.append(print_page(tab, f"{(HTML / name).as_uri()}.html", part, first))
        print(f"{chapters[-1].headings[0][1]}: from page {first}", flush=True)
        first += len(chapters[-1].pdf.pages)
    where = places(chapters)
    tab.goto("about:blank")
    tab.set_content(contents(title, author, chapters, where))
    front = PdfReader(BytesIO(tab.pdf(prefer_css_page_size=True)))
    return join(front, chapters, where)


def main():
    program = browser.find()
    if not program:
        sys.exit("There is no Chromium on this machine to print the book with. Install Chromium or Chrome.")
    if not (HTML / "index.html").exists():
        sys.exit("There is no book in _build/html yet: run make book first.")
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    flags = ["--no-sandbox"] * (hasattr(os, "geteuid") and os.geteuid() == 0)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=flags)
        if int(chromium.version.split(".")[0]) < OLDEST:
            sys.exit(f"{program} is version {chromium.version}; printing the book takes {OLDEST} or newer.")
        book = make(by_part(), config["title"], config["author"], chromium.new_page())
    book.add_metadata({"/Title": config["title"], "/Author": config["author"]})
    book.write(PDF)
    print(f"The book is printed ({len(book.pages)} pages, {PDF.stat().st_size / 1e6:.0f} MB): {PDF.as_uri()}")


if __name__ == "__main__":
    main()
