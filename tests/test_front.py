"""The front page and what goes with it: numbers as in the records, links, pictures, citation,
forms.
"""

import json
import re
from xml.etree import ElementTree

import pytest
import yaml
from PIL import Image

from conftest import ROOT
from ed_lib import records
from tools import front, front_figure, front_numbers, notebooks, page_cells

PAGES, text_of = front.PAGES, lambda page: (ROOT / page).read_text()


def test_the_pages_are_what_the_records_give():
    made = front.blocks()
    for page in PAGES:
        assert front.filled(text_of(page), made) == text_of(page), "run python -m tools.front"


def test_the_picture_and_the_drawing_are_those_of_the_records():
    rows = json.loads(json.dumps(front_figure.drawn()))
    picture = Image.open(front_figure.PICTURE)
    assert json.loads(picture.text["Description"]) == rows, "run python -m tools.front"
    assert picture.size == (1200, 630), "the size that previews of links have"
    svg = ElementTree.parse(front_figure.DRAWING).getroot()
    assert json.loads(svg.attrib["data-rows"]) == rows and "currentColor" in text_of(
        front_figure.DRAWING
    )


def test_the_drawing_stands_in_the_page_in_its_ink():
    page = page_cells.inline(text_of("index.md"), front_figure.DRAWING)
    told = re.search(r'<svg role="img" aria-label="Times as fast: (.*?)"', page)[1]
    assert "140–210× measured" in told and "<style>" not in page and ".svg" not in page
    assert "\n\n" not in page[page.index("<svg") : page.index("</svg>")], "HTML ends there"


def test_the_sentences_hold():
    """The words of front.md, where other numbers would make them wrong."""
    n = front_numbers.numbers()
    assert 1.1 < n.arithmetic and 8 * n.returned < n.done, "the clock stopped too early"
    assert round(2 * n.gflop, 1) == 4.3 and n.rtx == 317, "a step of ED, in the first page's words"
    assert 1 < n.beside_tf32 < n.beside_float32, "but only"
    steps = records.rows(records.of("precision", front_numbers.GPU), model="encoder")
    steps = steps[(steps["format"] == "bfloat16") & (steps["batch"] <= 4)]
    assert len(steps) == 2 and (steps["against float32"] < 1).all(), "slower with 4 or fewer"
    assert abs(n.int4 - 1) < 0.02 and abs(n.zeros - 1) < 0.02, "takes as long as before"
    rates = n.best_rate
    assert min(rates) == 2 and rates[2] < rates[16] < rates[128], "grew"
    assert {rate for batch, rate in rates.items() if 128 <= batch <= 8192} == {rates[128]}
    assert max(rates) == 8192 and abs(n.gpu_four / n.gpu_cudnn - 1) < 0.05, "level with cuDNN"
    assert n.one_layer < n.four_layers and n.gpu_layer < n.gpu_four, "four layers gain more"
    assert n.fused < n.gpu_fused < 5 and n.saved_xeon < n.saved_epyc < n.saved_gpu < 3
    assert n.barrier < n.dismissed < n.no_barrier < 1
    assert n.ed_right < n.ordinary_right and n.ed_seconds > n.ordinary_seconds, "no"


def shown(texts):
    """The rows of both tables of claims, without their heads."""
    heads = re.compile(r"\|---|\| (an article says|記事の主張) ")
    lines = front.claims(texts).splitlines()
    return [line for line in lines if line.startswith("|") and not heads.match(line)]


def test_each_claim_has_its_row_among_the_sources_that_were_checked():
    for texts in (front.TEXTS, front.TEXTS.with_stem("front_ja")):
        rows = shown(texts)
        assert len(rows) == 8 and all(row.count(" | ") == 2 for row in rows)
    keys = [row.split(" | ")[0] for row in text_of("tools/front.md").splitlines()[2:10]]
    keys_ja = [row.split(" | ")[0] for row in text_of("tools/front_ja.md").splitlines()[2:10]]
    assert keys == keys_ja


def test_a_claim_whose_chapter_does_not_test_it_is_refused(tmp_path):
    text = text_of("tools/front.md").replace("amp_in_practice.ipynb", "four_bits.ipynb")
    (tmp_path / "front.md").write_text(text)
    with pytest.raises(ValueError, match="does not say that precision/four_bits.ipynb tests"):
        front.claims(tmp_path / "front.md")


def test_what_is_counted_of_the_claims_adds_up():
    found = front.counted()
    assert found["hold"] > found["in_part"] > found["fail"] > 0
    assert found["untested"] and found["rest"] > 0, "others remain"
    assert sum(found.values()) == 2 * found["all"]


@pytest.mark.parametrize("steps", front.ROUTES)
def test_a_route_asks_for_nothing_that_it_has_not_told(steps):
    """The box "Know first" of each step names steps before it alone."""
    box = front.boxes()
    for n, step in enumerate(steps.split()):
        cells = notebooks.read(ROOT / box[step][0]).cells
        text = "\n".join(cell.source for cell in cells)
        asked = re.search(r"\*\*Know first:\*\*(.*)", text)[1]
        linked = set(re.findall(r"\]\((?:\.\./\w+/)?(\w+)\.ipynb", asked))
        assert linked <= set(steps.split()[:n]), step


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_lead_to_files(page):
    found = re.findall(r'\]\(([^)#]+)\)|(?:src|srcset)="([^"]+)"', text_of(page))
    local = [target for target in map("".join, found) if "://" not in target]
    assert len(local) > 5 and [target for target in local if not (ROOT / target).is_file()] == []


def test_a_cell_of_the_table_has_fifty_words_at_most():
    for row in shown(front.TEXTS):
        for cell in row.strip("| ").split(" | "):
            words = re.sub(r"\]\([^)]*\)|[*[]", " ", cell).split()
            assert 6 <= len(words) <= 50, cell


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
        and citation["authors"] == [{"name": "The contributors"}]
    )
    config = yaml.safe_load(text_of("_config.yml"))
    assert config["author"] == "The contributors" and "The contributors\n" in text_of("LICENSE")
    assert citation["title"] == config["title"]
    assert len(citation["abstract"]) < 200, "previews of links cut off what is longer"
    assert all(text_of(page).startswith(f"# {citation['title']}\n") for page in PAGES[:2])
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        labels = [item["attributes"]["label"] for item in form["body"]]
        assert form["name"] and form["description"] and all(labels)
