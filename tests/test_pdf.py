"""`make pdf`: the order of the pages, the contents, the links; and one page of the book, printed."""

import os
import re

import pytest

pytest.importorskip("pypdf")
sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
from pypdf import PdfReader, PdfWriter  # noqa: E402
from pypdf.annotations import Link  # noqa: E402
from pypdf.generic import NameObject  # noqa: E402

from tools import browser, pdf  # noqa: E402
from tools.pages import by_part  # noqa: E402

CHAPTER = pdf.HTML / "book" / "ed" / "error_diffusion.html"
A, B = "file:///a.html", "file:///b.html"


def sheets(n, *addresses):
    """A PDF of n empty sheets, with links to these addresses on the first."""
    made = PdfWriter()
    for _ in range(n):
        made.add_blank_page(width=595, height=842)
    for address in addresses:
        made.add_annotation(0, Link(rect=(0, 0, 9, 9), url=address))
    return made


@pytest.fixture
def chapters():
    """One of two sheets, whose first has five links, and one of one sheet in another part."""
    first = sheets(2, B, f"{B}#gone", "https://elsewhere.org/", "file:///search.html")
    first.add_annotation(0, Link(rect=(0, 0, 9, 9), target_page_index=1))
    first.pages[0]["/Annots"][-1].get_object()[NameObject("/Dest")] = NameObject("/end%C3%A9")
    first.add_named_destination("/end%C3%A9", 1)
    return [
        pdf.Chapter("I. <One>", A, [[1, "A & $B", "a"], [2, "End", "endé"]], first, 1),
        pdf.Chapter("II. Two", B, [[1, "B", "b"], [3, "Below", "c"]], sheets(1), 3),
    ]


WHERE = {A: (1, None), f"{A}#endé": (2, 500.0), B: (3, None)}


def test_order_is_that_of_the_table_of_contents(tmp_path):
    (tmp_path / "more").mkdir()
    for name in ("f", "e"):
        (tmp_path / "more" / f"{name}.md").write_text("")
    (tmp_path / "_toc.yml").write_text("""
root: index
parts:
  - chapters: [{file: preface}]
  - caption: I
    chapters: [{file: a}, {file: b, sections: [{file: b/c}]}]
  - caption: II
    chapters: [{file: d, sections: [{glob: more/*}]}]
""")
    wanted = [("", "index"), ("", "preface"), ("I", "a"), ("I", "b"), ("I", "b/c")]
    assert by_part(tmp_path) == wanted + [("II", "d"), ("II", "more/e"), ("II", "more/f")]


def test_an_address_leads_to_its_heading_or_else_to_its_page_or_out_of_the_book():
    assert pdf.place(f"{A}#endé", WHERE) == (2, 500.0)
    assert pdf.place(f"{B}#gone", WHERE) == (3, None)
    assert pdf.place("https://elsewhere.org/", WHERE) is None


def test_contents_name_parts_pages_and_sections_with_their_numbers(chapters):
    made = pdf.contents("Title & more", "Somebody", chapters, WHERE)
    assert re.findall("<h3>(.*)</h3>", made) == ["I. &lt;One&gt;", "II. Two"]
    lines = re.findall(r'class="level(\d)" href="([^"]*)" data-page="(\d+)"><span>(.*)</span>', made)
    assert lines == [
        ("1", f"{A}#a", "1", "A &amp; $B"),
        ("2", f"{A}#endé", "2", "End"),
        ("1", f"{B}#b", "3", "B"),
    ]
    assert "<h1>Title &amp; more</h1>" in made


def test_joined_links_stay_in_the_book_or_lead_out_and_none_is_of_this_machine(chapters):
    book = pdf.join(sheets(2, f"{A}#endé"), chapters, WHERE)
    assert len(book.pages) == 5

    def targets(sheet):
        for link in (reference.get_object() for reference in sheet["/Annots"]):
            inside = "/Dest" in link
            yield book.get_page_number(link["/Dest"][0].get_object()) if inside else link["/A"]["/URI"]

    assert list(targets(book.pages[0])) == [3]
    assert list(targets(book.pages[2])) == [4, 4, "https://elsewhere.org/", 3]


def test_bookmarks_and_page_labels(chapters, tmp_path):
    pdf.join(sheets(2), chapters, WHERE).write(tmp_path / "book.pdf")
    book = PdfReader(tmp_path / "book.pdf")

    def tree(items):
        return [
            tree(item) if isinstance(item, list) else (item.title, book.get_destination_page_number(item))
            for item in items
        ]

    part1 = [("I. <One>", 2), [("A & $B", 2), [("End", 3)]]]
    assert tree(book.outline) == part1 + [("II. Two", 4), [("B", 4), [("Below", 4)]]]
    assert book.page_labels == ["i", "ii", "1", "2", "3"]


def test_what_is_missing_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(pdf, "HTML", tmp_path)
    monkeypatch.setattr(browser, "find", lambda: "chromium")
    with pytest.raises(SystemExit, match="run make book first"):
        pdf.main()
    monkeypatch.setattr(browser, "find", lambda: None)
    with pytest.raises(SystemExit, match="no Chromium"):
        pdf.main()


@pytest.fixture(scope="module")
def tab():
    """An empty tab of a reader who likes it dark."""
    program = browser.find()
    if not program or not CHAPTER.exists():
        pytest.skip("needs a Chromium, and the book in _build/html")
    flags = ["--no-sandbox"] * (hasattr(os, "geteuid") and os.geteuid() == 0)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=flags)
        yield running.new_page(color_scheme="dark")
        running.close()


@pytest.fixture(scope="module")
def printed(tab):
    """A chapter of the book as it is printed, from page 7 on."""
    return pdf.print_page(tab, CHAPTER.as_uri(), "A part", 7)


def test_a_printed_page_has_its_folded_code_its_numbers_and_its_headings(printed):
    sheets = [sheet.extract_text() for sheet in printed.pdf.pages]
    assert all(re.search(rf"(?m)^{n}$", sheet) for n, sheet in enumerate(sheets, 7))
    assert all("A part" in sheet for sheet in sheets[1:])
    text = "".join(sheets)
    assert (
        "figures.show(" in text and "A solution" in text and "Show a" not in text and "previous" not in text
    )
    assert [printed.headings[0][0], printed.headings[0][2]] == [1, "error-diffusion-learning-from-one-number"]
    where = pdf.places([printed])
    assert {f"{printed.url}#{anchor}" for _, _, anchor in printed.headings} <= where.keys()
    assert [where[f"{printed.url}#{anchor}"][0] for _, _, anchor in printed.headings][0] == 7


def test_a_printed_page_is_a4(printed):
    assert {tuple(round(float(x)) for x in sheet.mediabox[2:]) for sheet in printed.pdf.pages} == {(595, 842)}


def test_paper_has_the_light_theme_and_the_reader_keeps_the_dark_one(tab):
    tab.goto((pdf.HTML / "index.html").as_uri())
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    tab.evaluate("""() => addEventListener("beforeprint", () => {
        window.onPaper = document.documentElement.dataset.theme + getComputedStyle(document.body).color;
    })""")
    tab.pdf()
    assert tab.evaluate("window.onPaper").startswith("lightrgb(3")
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
