"""`make pdf`: the contents and the links of the joined pages; one page of the book, printed."""

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
    printed = [pdf.printed(tab, number, urls) for number in (0, 1)]
    made = pdf.contents("T & more", "Somebody", ("I", "II"), [found for _, found in printed],
                        {"0-a": 1, "0-é": 2, "1-b": 3, "1-s": 4})  # fmt: skip
    lines = re.findall(r'class="(h\d)" href="(.*?)" data-page="(\d)"><span>(.*?)<', made)
    assert lines == [("h1", "book:0-a", "1", "A &amp; $B"), ("h2", "book:0-é", "2", "End"),
                     ("h1", "book:1-b", "3", "B"), ("h2", "book:1-s", "4", "S")]  # fmt: skip
    tab.set_content(made)
    (tmp_path / "front.pdf").write_bytes(tab.pdf())
    pdf.joined([PdfReader(tmp_path / "front.pdf"), *(one for one, _ in printed)]).write(tmp_path / "book.pdf")
    book = PdfReader(tmp_path / "book.pdf")
    where = {name: book.get_destination_page_number(place) for name, place in book.named_destinations.items()}

    def targets(sheet):
        for link in (reference.get_object() for reference in book.pages[sheet].get("/Annots", ())):
            yield where[link["/Dest"]] if "/Dest" in link else link.get("/A", {}).get("/URI")

    start = len(book.pages) - 4
    assert [to for n in range(start) for to in targets(n)] == [start, start + 1, start + 2, start + 3]
    assert list(targets(start)) == [start + 1, start + 3, start + 2, "https://elsewhere.org/", None]
    assert list(targets(start + 2)) == [start]
    assert [item.title for item in book.outline if not isinstance(item, list)][-2:] == ["A & $B", "B"]


def test_a_printed_page_is_light_a4_with_its_folded_code_and_its_numbers(tab):
    made, headings = pdf.printed(tab, 0, [CHAPTER.as_uri()], first=7)
    texts = [sheet.extract_text() for sheet in made.pages]
    assert all(re.search(rf"(?m)^{n}$", text) for n, text in enumerate(texts, 7))
    text = "".join(texts)
    assert (
        "figures.show(" in text and "A solution" in text and "Show a" not in text and "previous" not in text
    )
    assert headings[0][0] == "h1" and headings[0][1].startswith("Error diffusion")
    assert {f"/{id}" for _, _, id in headings} <= made.named_destinations.keys()
    assert {tuple(round(float(x)) for x in sheet.mediabox[2:]) for sheet in made.pages} == {(595, 842)}
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"  # the reader's again
