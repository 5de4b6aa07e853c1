"""The front page and what goes with it: numbers as in the records, links, pictures, citation,
forms.
"""

import json
import re

import numpy as np
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


def misses():
    """{run: {model: by how many per cent it misses}}: the table that the chapter shows."""
    nb = notebooks.read(ROOT / "book/parallel/ten_thousand_devices.ipynb")
    shown = [
        output.get("data", {}).get("text/html", "")
        for c in nb.cells
        for output in c.get("outputs", ())
    ]
    (table,) = [text for text in shown if "<caption>Predicted less published" in text]
    _, *heads = re.findall(r"<th.*?>(.*?)</th>", table)
    rows = [
        re.findall(r"<td.*?>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)[1:]
    ]
    return {run: dict(zip(heads, map(float, numbers), strict=True)) for run, *numbers in rows}


def test_the_finding_without_a_record_says_what_its_chapter_shows():
    found = misses()
    runs = {run: by for run, by in found.items() if run not in ("rms", "worst")}
    said = re.search(
        r"by (\d+)% \(root mean square\) on (\w+) published A100 runs.* "
        r"Llama 3's (\w+) H100 runs it is off by (\d+)%, and a simpler rule by (\d+)%",
        front.TEXTS.read_text(),
    )

    llama = {run for run in runs if "Llama 3" in run}

    def rms(model, names):
        return round(float(np.sqrt(np.mean([runs[run][model] ** 2 for run in names]))))

    ours, simpler = "one on products", "simpler rule"
    assert (said[2], said[3], len(runs), len(llama)) == ("eleven", "three", 14, 3)
    assert int(said[1]) == rms(ours, runs.keys() - llama)
    assert [int(said[4]), int(said[5])] == [rms(ours, llama), rms(simpler, llama)]


def test_the_sentences_hold():
    """The words of front.md, where other numbers would make them wrong."""
    n = front.numbers()
    assert n.published_limit < 3000, "its clock missed most of it"
    assert 8 * n.returned < n.done, "and most of it here"
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
    assert sum(bold == "**" for bold, _ in listed) == len(front.CORE.split()) == 11
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
