"""`make pdf`: the rendered book as one PDF, _build/book.pdf, to print or to read without a browser.

Chromium prints each page of _toc.yml with book/_static/print.css. The front page lists the chapters, and
bookmarks are Chromium's; links within the book stay in the PDF.
"""

import sys
from io import BytesIO
from urllib.parse import quote, unquote

from playwright.sync_api import sync_playwright
from pypdf import PdfReader, PdfWriter
from pypdf.generic import NameObject

from tools import browser
from tools.pages import ROOT, pages

HTML, PDF = ROOT / "_build" / "html", ROOT / "_build" / "book.pdf"
NUMBERS = "@page { @bottom-center { content: counter(page); } } @page:first { counter-set: page %d; }"
# Gives every id the number of its page, and a link, without which Chromium leaves it out of the PDF. Links
# to other pages of the book are "book:", which ``joined`` understands.
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
}"""


def printed(tab, number, urls, first=1):
    """The PDF of page ``number`` of these, its sheets counted from ``first`` on."""
    tab.goto(urls[number])
    tab.evaluate(PREPARE, [number, {url: n for n, url in enumerate(urls)}])
    tab.add_style_tag(content=NUMBERS % first)
    return PdfReader(BytesIO(tab.pdf(prefer_css_page_size=True, outline=True, tagged=True)))


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
    program = browser.find()
    if not program or not (HTML / "index.html").exists():
        sys.exit("Printing needs Chromium or Chrome, and the book in _build/html: run make book.")
    names, made, first = pages(ROOT / "_build" / "source"), [], 1
    urls = [(HTML / f"{name}.html").as_uri() for name in names]
    with sync_playwright() as playwright:
        tab = playwright.chromium.launch(executable_path=program, args=browser.flags()).new_page()
        for number, name in enumerate(names):
            print(f"{name}: from page {first}", flush=True)
            made.append(printed(tab, number, urls, first))
            first += len(made[-1].pages)
    book = joined(made)
    book.write(PDF)
    print(f"The book is printed ({len(book.pages)} pages): {PDF.as_uri()}")


if __name__ == "__main__":
    main()
