"""`make pdf`: the links and the bookmarks of the joined pages; one page of the book, printed."""

import re

import pytest
from playwright.sync_api import sync_playwright
from pypdf import PdfReader

from tests.pages import HTML
from tools import browser, pdf

NEW = "<style>.new { break-before: page }</style>"
CHAPTER = HTML / "book" / "ed" / "error_diffusion.html"
A = """<article><h1 id="a">A &amp; $B</h1><a href="#é">1</a><a href="b.html#s">2</a><a href="b.html">3</a>
<a href="https://elsewhere.org/">4</a><a href="search.html">5</a>
<h2 id="é" class="new">End</h2></article>"""
B = '<article><h1 id="b">B</h1><a href="a.html#gone">6</a><h2 id="s" class="new">S</h2></article>'


@pytest.fixture(scope="module")
def tab():
    """An empty tab of a reader who likes it dark."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser.find(), args=browser.flags())
        yield running.new_page(color_scheme="dark")
        running.close()


def test_links_stay_in_the_book_or_lead_out_and_bookmarks_are_the_headings(tab, tmp_path):
    for name, text in (("a", A), ("b", B)):
        (tmp_path / f"{name}.html").write_text(f"<!doctype html><meta charset=utf-8>{NEW}{text}")
    urls = [(tmp_path / f"{name}.html").as_uri() for name in "ab"]
    pdf.joined([pdf.printed(tab, number, urls) for number in (0, 1)]).write(tmp_path / "book.pdf")
    book = PdfReader(tmp_path / "book.pdf")
    where = {name: book.get_destination_page_number(place) for name, place in book.named_destinations.items()}

    def targets(sheet):
        for link in (reference.get_object() for reference in book.pages[sheet].get("/Annots", ())):
            yield where[link["/Dest"]] if "/Dest" in link else link.get("/A", {}).get("/URI")

    assert list(targets(0)) == [1, 3, 2, "https://elsewhere.org/", None] and list(targets(2)) == [0]
    assert [item.title for item in book.outline if not isinstance(item, list)] == ["A & $B", "B"]


def test_a_printed_page_is_light_a4_with_its_folded_code_and_its_numbers(tab):
    made = pdf.printed(tab, 0, [CHAPTER.as_uri()], first=7)
    texts = [sheet.extract_text() for sheet in made.pages]
    assert all(re.search(rf"(?m)^{n}$", text) for n, text in enumerate(texts, 7))
    text = "".join(texts)
    assert (
        "figures.show(" in text and "A solution" in text and "Show a" not in text and "previous" not in text
    )
    assert {"/0-top", "/0-summary"} <= made.named_destinations.keys()
    assert {tuple(round(float(x)) for x in sheet.mediabox[2:]) for sheet in made.pages} == {(595, 842)}
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"  # the reader's again
