"""The pages of the measurements and of the package: all there, and short enough for a phone."""

import re

import pytest

from tools import measurements
from tools.pages import ROOT, pages

yaml = pytest.importorskip("yaml")
from tests.pages import PHONE, browser, new_tab, site  # noqa: E402, F401

LISTS = [name for name in pages() if re.match("book/appendix/(measurements|api)", name)]
TALLEST = 20_000  # CSS pixels, as a page comes
# Not by their own names: EDNetwork is shown in place of its module, and the Triton source is nothing to call.
ELSEWHERE = {"ed_lib.ed.network", "ed_lib.ed.gpu_kernels"}
CUT = """() => [...document.querySelectorAll("article table")]
    .map(table => table.closest(".pst-scrollable-table-container") ?? table)
    .filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.innerText.slice(0, 60))"""


@pytest.fixture(scope="module")
def phone(browser, site):  # noqa: F811
    tab = new_tab(browser, site)
    tab.set_viewport_size({"width": PHONE, "height": 844})
    yield tab
    tab.close()


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_not_too_tall_for_a_phone_and_its_numbers_are_on_the_screen(phone, site, name):  # noqa: F811
    assert phone.goto(f"{site}{name}.html").ok, "not in _build/html: run make book first"
    assert phone.evaluate("document.documentElement.scrollHeight") <= TALLEST
    phone.evaluate("document.querySelectorAll('article details').forEach(fold => fold.open = true)")
    assert phone.evaluate("document.documentElement.scrollWidth") == PHONE and phone.evaluate(CUT) == []


def test_a_link_to_a_name_of_the_package_opens_its_fold(phone, site):  # noqa: F811
    phone.goto(f"{site}book/appendix/api/ed.html#ed_lib.ed.rules.weight_update")
    assert phone.locator("[id='ed_lib.ed.rules.weight_update']").is_visible()
    assert not phone.locator("[id='ed_lib.ed.EDNetwork']").is_visible()


@pytest.mark.parametrize("word", ["roofline", "ring", "EDNetwork"])
def test_a_search_finds_chapters_first_and_names_of_the_package_last(phone, site, word):  # noqa: F811
    phone.goto(f"{site}search.html?q={word}")
    phone.wait_for_selector("#search-results li a[href*='appendix/api']")
    found = phone.eval_on_selector_all("#search-results li > a", "links => links.map(a => a.pathname)")
    ranks = [2 if "/appendix/api" in path else "/appendix/" in path for path in found]
    assert ranks[0] == 0 and ranks == sorted(ranks)


def test_every_page_of_the_lists_is_in_the_table_of_contents():
    folder = ROOT / "book" / "appendix"
    files = [path for name in ("measurements", "api") for path in folder.glob(f"{name}/**/*.md")]
    there = {path.relative_to(ROOT).with_suffix("").as_posix() for path in files}
    assert there and there <= set(LISTS) and len(LISTS) == len(set(LISTS))


def test_every_module_is_on_the_pages_of_the_package():
    text = "".join(path.read_text() for path in (ROOT / "book" / "appendix" / "api").glob("*.md"))
    shown = re.findall(r"automodule:: (\S+)", text)
    names = {".".join(p.relative_to(ROOT).with_suffix("").parts) for p in (ROOT / "ed_lib").rglob("*.py")}
    assert set(shown) == {name for name in names if not name.endswith("__init__")} - ELSEWHERE
    assert len(shown) == len(set(shown))


def test_sections_and_globs_of_the_table_of_contents_follow_their_page(tmp_path):
    chapters = [{"file": "a", "sections": [{"glob": "a/*"}, {"file": "b"}]}, {"file": "c"}]
    (tmp_path / "_toc.yml").write_text(yaml.safe_dump({"root": "r", "parts": [{"chapters": chapters}]}))
    (tmp_path / "a").mkdir()
    for name in ("2.5_y", "1_x"):
        (tmp_path / "a" / f"{name}.md").touch()
    assert pages(tmp_path) == ["r", "a", "a/1_x", "a/2.5_y", "b", "c"]


def test_every_record_has_its_page():
    made = {path.stem for path in (ROOT / "records").glob("*/*.json")} - {"gpu"}
    assert made <= set(measurements.BENCHMARKS), "tools/measurements.py shows no others"
