"""The front page and what goes with it: numbers as in the records, links, pictures, citation, forms."""

import json
import re

import pytest
import yaml
from PIL import Image

from conftest import ROOT
from tools import front, notebooks

PAGES = front.PAGES


def text_of(page):
    return (ROOT / page).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_what_the_records_give(page):
    assert front.filled(text_of(page)) == text_of(page), "run python -m tools.front"


def test_the_picture_is_that_of_the_records():
    drawn = Image.open(front.PICTURE).text["Description"]
    assert json.loads(drawn) == json.loads(json.dumps(front.drawn())), "run python -m tools.front"


def test_the_sentences_hold():
    """The words of front.md, where other numbers would make them wrong."""
    n = front.numbers()
    assert n.published_ms < n.floor_ms, "the clock did not see all of the work"
    assert 0.5 < n.at_once < 2, "update and forward pass take alike"
    assert n.step > 1.2, "what ED does save"
    assert n.wait_slow / n.wait < n.free_slow / n.free, "all of them, or none"
    assert n.no_barrier <= n.no_barrier_limit
    assert n.small < 1 < n.bert < n.large <= n.bits_limit, "small work gets slower"
    assert n.float16 < 0.8 * n.large, "float16 is not the same"
    assert 0.5 <= n.activations < 0.7, "the activations shrink"
    assert n.one_layer < n.climb <= n.climb_limit, "one layer gained less"
    assert 1 < n.cpu_climb < 1.5 < n.cpu_torch <= n.cpu_limit, "a CPU loses its time elsewhere"


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_lead_to_files(page):
    found = re.findall(r'\]\(([^)#]+)\)|(?:src|srcset)="([^"]+)"', text_of(page))
    local = [target for target in map("".join, found) if "://" not in target]
    assert len(local) > 5 and [target for target in local if not (ROOT / target).is_file()] == []


def test_every_chapter_is_on_the_front_page():
    listed = re.findall(r"^- \[\*\*.*?\]\((.*?)\) .*\? \*\d+ min\*$", text_of("index.md"), re.M)
    assert listed == [path.as_posix() for path in notebooks.chapters()]


def test_the_citation_and_the_forms_for_issues_are_complete():
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0" and citation["message"] and citation["authors"][0]["name"]
    assert citation["title"] == yaml.safe_load(text_of("_config.yml"))["title"]
    assert all(text_of(page).startswith(f"# {citation['title']}\n") for page in PAGES)
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        assert (
            form["name"] and form["description"] and all(item["attributes"]["label"] for item in form["body"])
        )
