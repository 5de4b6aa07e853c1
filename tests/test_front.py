"""The front page and what goes with it: numbers as in the records, links, pictures, citation, forms."""

import io
import re
import struct

import pytest

from conftest import ROOT
from tools import front

yaml, _ = pytest.importorskip("yaml"), pytest.importorskip("nbformat")
AGAIN = "run python -m tools.front"
PAGES = ["index.md", "README.md"]


def text_of(page):
    return (ROOT / page).read_text()


def description(name, data):
    """What a picture carries in its metadata."""
    if name.endswith(".svg"):
        return re.search(rb"<dc:description>(\w+)</dc:description>", data)[1].decode()
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(data))
    return image.text["Description"]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_says_what_the_records_give(page):
    findings = front.blocks()[page]["findings"].strip()
    assert findings in text_of(page), AGAIN
    values = [text for name, text in front.numbers().items() if f"{{{name}}}" in front.FINDINGS.read_text()]
    assert len(values) > 15 and all(text in findings for text in values)


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_what_the_command_writes(page):
    assert front.filled(text_of(page), front.blocks()[page]) == text_of(page), AGAIN


def test_the_sentences_hold():
    """The words of front.md, where other numbers would make them wrong."""
    r = front.ratios()
    assert r["published_ms"] < r["floor_ms"], "the clock did not see all of the work"
    assert 0.5 < r["at_once"] < 2, "update and forward pass take alike"
    assert r["step"] > 1.2, "what ED does save"
    assert r["wait_slow"] / r["wait"] < r["free_slow"] / r["free"], "all of them, or none"
    assert r["no_barrier"] <= r["no_barrier_limit"]
    assert r["small"] < 1 < r["bert"] < r["large"] <= r["bits_limit"], "small work gets slower"
    assert r["float16"] < 0.8 * r["large"], "float16 is not the same"
    assert 50 <= r["activations"] < 70, "the activations shrink"
    assert abs(r["adam"] - 16) < 0.1, "4 + 4 + 8 bytes of parameter, gradient and Adam"
    assert r["one_layer"] < r["climb"] <= r["climb_limit"], "one layer gained less"
    assert 1 < r["cpu_climb"] < 1.5 < r["cpu_torch"] <= r["cpu_limit"], "a CPU loses its time elsewhere"


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_lead_to_files(page):
    text = text_of(page)
    targets = re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    local = [target for target in targets if "://" not in target]
    assert len(local) > 5
    assert [target for target in local if not (ROOT / target).is_file()] == []


def test_every_chapter_is_on_the_front_page():
    listed = re.findall(
        r"^- \[\*\*.*?\]\((.*?)\) .*\? \*\d+ min, (easy|medium|hard)\*$", text_of("index.md"), re.M
    )
    assert [file for file, _ in listed] == [path.as_posix() for path in front.notebooks.chapters()]


@pytest.mark.parametrize("name", ["front.svg", "front.png", "front-dark.png", "card.png"])
def test_the_picture_is_that_of_the_records(name):
    assert description(name, (front.STATIC / name).read_bytes()) == front.digest(), AGAIN


def test_the_pictures_are_drawn():
    for name, data in front.draw().items():
        assert description(name, data) == front.digest()
        assert 10_000 < len(data) < 150_000


def test_the_card_has_the_size_that_is_asked_for():
    data = (front.STATIC / "card.png").read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1200, 630)  # of the PNG's header


def test_the_svg_has_no_colour_of_its_own_for_lines_and_letters():
    text = (front.STATIC / "front.svg").read_text()
    assert "currentColor" in text and front.figures.INK not in text
    assert all(ink in text for ink in front.INKS.values())


def test_pages_name_a_picture_only_where_there_is_an_address():
    describe = pytest.importorskip("tools.describe")
    without = describe.tags("A title", 'Says "so"?', "The book", page="index.html")
    assert "://" not in without and "og:image" not in without and "Says &quot;so&quot;?" in without
    for base in ("https://someone.github.io/a-book", "https://someone.github.io/a-book/"):
        tags = describe.tags("A title", "A question?", "The book", base, "book/ed/x.html")
        assert 'content="https://someone.github.io/a-book/_static/card.png"' in tags
        assert 'content="https://someone.github.io/a-book/book/ed/x.html"' in tags


def test_a_long_description_is_cut_after_a_word():
    describe = pytest.importorskip("tools.describe")
    assert describe.shortened("two\n words") == "two words"
    long = describe.shortened("word " * 100)
    assert len(long) <= describe.LONGEST + 2 and long.endswith("word …")


def test_the_citation_is_complete_and_bears_the_books_title():
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0" and citation["message"] and citation["authors"][0]["name"]
    assert citation["title"] == yaml.safe_load(text_of("_config.yml"))["title"]
    for page in PAGES:
        assert text_of(page).startswith(f"# {citation['title']}\n")


def test_the_forms_for_issues_are_forms():
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert [form.stem for form in forms] == ["bug", "mistake", "number"]
    for form in map(yaml.safe_load, map(text_of, forms)):
        assert form["name"] and form["description"]
        ids = [item["id"] for item in form["body"]]
        assert len(set(ids)) == len(ids) and all(item["attributes"]["label"] for item in form["body"])
