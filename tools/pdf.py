"""`make pdf`: the rendered book as one PDF, _build/book.pdf, to print or to read without a browser.

Chromium prints each page of _toc.yml with the print style sheet, book/_static/print.css. The contents are
printed last, when the page numbers are known, and tools/binding.py joins them all.
"""

import os
import sys
from html import escape
from io import BytesIO
from json import dumps
from pathlib import Path
from string import Template

import yaml
from playwright.sync_api import sync_playwright
from pypdf import PdfReader

from tools import browser
from tools.binding import Chapter, join, place, places
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
