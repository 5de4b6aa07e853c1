"""The front page and what goes with it: numbers as in the records, links, pictures, citation,
forms.
"""

import json
import re

import pytest
import yaml
from PIL import Image

from conftest import ROOT
from ed_lib import records
from tools import front, notebooks

PAGES, text_of = front.PAGES, lambda page: (ROOT / page).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_what_the_records_give(page):
    assert front.filled(text_of(page)) == text_of(page), "run python -m tools.front"


def test_the_picture_is_that_of_the_records():
    drawn = Image.open(front.PICTURE).text["Description"]
    assert json.loads(drawn) == json.loads(json.dumps(front.drawn())), "run python -m tools.front"


def test_the_sentences_hold():
    """The words of front.md, where other numbers would make them wrong."""
    n = front.numbers()
    assert n.published_limit < 3000, "its clock missed most of it"
    assert 8 * n.returned < n.done, "and most of it here"
    first = notebooks.read(ROOT / "book/parallel/ten_thousand_devices.ipynb").cells[0].source
    assert "fourteen published runs" in first and "misses by 6 %" in first, (
        "a model with one constant"
    )
    assert "(*one utilisation*), misses by 8, and is nearer on this" in first, "the simplest rival"
    assert 1 < n.beside_tf32 < n.beside_float32, "but"
    steps = records.rows(records.of("precision", front.GPU), format="bfloat16")
    assert (steps[steps["batch"] <= 4]["against float32"] < 1).all(), "small batches lose"
    assert abs(n.gpu_climb / n.gpu_cudnn - 1) < 0.05, "level with cuDNN"
    assert n.one_layer < n.climb, "layer for layer it gained less"
    assert all(max(done) <= its for *_, done, limit in front.drawn() for its in limit), "the limit"


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_lead_to_files(page):
    found = re.findall(r'\]\(([^)#]+)\)|(?:src|srcset)="([^"]+)"', text_of(page))
    local = [target for target in map("".join, found) if "://" not in target]
    assert len(local) > 5 and [target for target in local if not (ROOT / target).is_file()] == []


def test_a_finding_has_forty_words_at_most():
    for finding in front.blocks()["findings"].strip().splitlines():
        words = re.sub(r"^\d\. |\]\([^)]*\)|\*\([^()]*\)\*$", " ", finding).split()
        assert 20 < len(words) <= 40, finding


def test_every_chapter_is_on_the_front_page():
    listed = re.findall(r"^- \[(\**).*?\]\((.*?)\) .*\? \*\d+ min\*$", text_of("index.md"), re.M)
    assert [path for _, path in listed] == [path.as_posix() for path in notebooks.chapters()]
    assert sum(bold == "**" for bold, _ in listed) == len(front.CORE.split()) == 10
    assert (
        re.findall(r"[：、]\[[^]]+\]\(book/\w+/(\w+)\.i", text_of("index_ja.md"))
        == front.CORE.split()
    )
    assert all(
        f"({twin})" in text_of(page)
        for page, twin in zip(PAGES, PAGES[2:] + PAGES[:2], strict=True)
    )


def test_the_citation_and_the_forms_for_issues_are_complete():
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert (
        citation["cff-version"] == "1.2.0"
        and citation["message"]
        and citation["authors"][0]["name"]
    )
    assert citation["title"] == yaml.safe_load(text_of("_config.yml"))["title"]
    assert all(text_of(page).startswith(f"# {citation['title']}\n") for page in PAGES[:2])
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        labels = [item["attributes"]["label"] for item in form["body"]]
        assert form["name"] and form["description"] and all(labels)
