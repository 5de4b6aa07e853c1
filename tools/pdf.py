"""`make pdf`: the rendered book as one PDF, _build/book.pdf, to print or to read without a browser.

Chromium prints each page of _toc.yml with book/_static/print.css, and last the contents, when the page
numbers are known. Bookmarks are Chromium's; links within the book stay in the PDF.
"""

import sys
from html import escape
from io import BytesIO
from pathlib import Path
from string import Template
from urllib.parse import quote, unquote

import yaml
from playwright.sync_api import sync_playwright
from pypdf import PdfReader, PdfWriter
from pypdf.generic import NameObject

from tools import browser
from tools.pages import ROOT, by_part

HTML, PDF = ROOT / "_build" / "html", ROOT / "_build" / "book.pdf"
NUMBERS = "@page { @bottom-center { content: counter(page); } } @page:first { counter-set: page %d; }"
# Gives every id the number of its page, and a link, without which Chromium leaves it out of the PDF. Links
# to other pages of the book are "book:", which ``joined`` understands. Returns the headings.
PREPARE = """async ([number, pages]) => {
    await window.MathJax?.startup?.promise;
    await document.fonts.ready;
    const article = document.querySelector("article");
    article.id = "top";
    for (const link of article.querySelectorAll("a[href]")) {
        const [page, id] = link.href.split("#");
        if (page in pages) link.href = `book:${pages[page]}-${id || "top"}`;
    }
    for (const element of [article, ...article.querySelectorAll("[id]:not(svg *)")]) {
        element.id = `${number}-${element.id}`;
        const link = Object.assign(document.createElement("a"), { href: "#" + element.id, hidden: true });
        document.body.append(link);
    }
    return [...article.querySelectorAll("h1, h2")].map(
        heading => [heading.localName, heading.firstChild.textContent.trim(), heading.closest("[id]").id]);
}"""


def printed(tab, number, urls, first=1):
    """Page ``number`` of these, its sheets counted from ``first`` on → (PDF, [heading: name, text, id])."""
    tab.goto(urls[number])
    headings = tab.evaluate(PREPARE, [number, {url: n for n, url in enumerate(urls)}])
    tab.add_style_tag(content=NUMBERS % first)
    options = {"prefer_css_page_size": True, "outline": True, "tagged": True}
    return PdfReader(BytesIO(tab.pdf(**options))), headings


def contents(title, author, parts, headings, sheets):
    """The HTML of the title page and of the contents, with the number of the sheet of each heading."""
    lines = []
    for part, before, of_page in zip(parts, ["", *parts], headings, strict=False):
        lines += [f"<h3>{escape(part)}</h3>"] * (part != before)
        for level, text, id in of_page:
            link = f'class="{level}" href="book:{escape(id)}" data-page="{sheets[id]}"'
            lines.append(f"<a {link}><span>{escape(text)}</span></a>")
    template = Template(Path(__file__).with_name("contents.html").read_text())
    return template.substitute(title=escape(title), author=escape(author), lines="\n".join(lines))


def joined(pdfs):
    """One PDF, in which links that are written "book:" lead to what has that name; to a file none."""
    book = PdfWriter()
    for pdf in pdfs:
        book.append(pdf)
    names = set(book.named_destinations)
    for sheet in book.pages:
        for link in [reference.get_object() for reference in sheet.get("/Annots", [])]:
            address = link.get("/A", {}).get("/URI", "")
            if address.startswith(("book:", "file:")):
                del link["/A"]
            if address.startswith("book:"):
                name = f"/{quote(unquote(address.removeprefix('book:')))}"
                link[NameObject("/Dest")] = NameObject(name if name in names else f"{name.split('-')[0]}-top")
    return book


def main():
    program, config = browser.find(), yaml.safe_load((ROOT / "_config.yml").read_text())
    if not program or not (HTML / "index.html").exists():
        sys.exit("Printing needs Chromium or Chrome, and the book in _build/html: run make book.")
    parts, names = zip(*by_part(ROOT / "_build" / "source"), strict=True)
    urls, pdfs, headings, sheets, first = [(HTML / f"{name}.html").as_uri() for name in names], [], [], {}, 1
    with sync_playwright() as playwright:
        tab = playwright.chromium.launch(executable_path=program, args=browser.flags()).new_page()
        for number, name in enumerate(names):
            pdf, found = printed(tab, number, urls, first)
            for key, place in pdf.named_destinations.items():
                sheets[unquote(key[1:])] = first + pdf.get_destination_page_number(place)
            print(f"{name}: from page {first}", flush=True)
            first, pdfs, headings = first + len(pdf.pages), [*pdfs, pdf], [*headings, found]
        tab.goto("about:blank")
        tab.set_content(contents(config["title"], config["author"], parts, headings, sheets))
        book = joined([PdfReader(BytesIO(tab.pdf(prefer_css_page_size=True))), *pdfs])
    book.write(PDF)
    print(f"The book is printed ({len(book.pages)} pages): {PDF.as_uri()}")


if __name__ == "__main__":
    main()
