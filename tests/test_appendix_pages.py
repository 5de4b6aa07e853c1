"""The pages that the build makes, of the records and of the package: all there, and fit for a
phone.
"""

import inspect
import re

import pytest

from ed_lib import records
from ed_lib.diagnose import cures, verdict
from tests import pages
from tests.pages import PAGES, PHONE, new_tab
from tools import api, gpu_cells, measurements
from tools.pages import ROOT

browser, site = pages.browser, pages.site
LISTS = [name for name in PAGES if re.match("book/appendix/(measurements|api)", name)]
SLOW = [
    name for name in LISTS if re.match("book/appendix/measurements/", name)
]  # one for each record
TALLEST = 20_000  # CSS pixels, as a page comes


@pytest.fixture(scope="module")
def phone(browser, site):
    tab = new_tab(browser, site)
    tab.set_viewport_size({"width": PHONE, "height": 844})
    yield tab
    tab.close()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in LISTS]
)
def test_a_list_is_not_too_tall_for_a_phone(phone, site, name):
    assert phone.goto(f"{site}{name}.html").ok, "not in _build/html: run make book first"
    assert phone.evaluate("document.documentElement.scrollHeight") <= TALLEST


def test_a_link_to_a_name_of_the_package_opens_its_fold(phone, site):
    phone.goto(f"{site}book/appendix/api/ed.html#ed_lib.ed.rules.weight_update")
    assert phone.locator("[id='ed_lib.ed.rules.weight_update']").is_visible()
    assert not phone.locator("[id='ed_lib.ed.network.EDNetwork']").is_visible()


def test_a_search_finds_chapters_first_and_names_of_the_package_last(phone, site):
    phone.goto(f"{site}search.html?q=roofline")
    phone.wait_for_selector("#search-results li a[href*='appendix/api']")
    found = phone.eval_on_selector_all(
        "#search-results li > a", "links => links.map(a => a.pathname)"
    )
    ranks = [2 if "/appendix/api" in path else "/appendix/" in path for path in found]
    assert ranks[0] == 0 and ranks == sorted(ranks)


def test_every_record_has_its_page_with_all_its_tables():
    made, names = measurements.pages(), {path.stem for path in (ROOT / "records").glob("*/*.csv")}
    overview = made.pop(measurements.OVERVIEW)
    found = {
        (where, name): record
        for name in names
        for where, record in records.by_machine(name).items()
    }
    assert {(path.parent.name, path.stem) for path in made} == found.keys() and found
    for (machine, name), record in found.items():
        page = made[measurements.OVERVIEW.with_suffix("") / machine / f"{name}.md"]
        assert (
            page.count("{csv-table}") == record["table"].nunique() and record.attrs["date"] in page
        )
        assert f"({measurements.OVERVIEW.stem}/{machine}/{name}.md)" in overview


def test_what_gpu_cells_printed_is_of_the_code_that_they_have():
    """A cell that was only renamed keeps its record by python -m tools.gpu_cells --keep."""
    assert [*gpu_cells.changed()] == []


def test_every_module_is_on_the_pages_of_the_package():
    shown = re.findall(r"automodule:: (\S+)", "".join(api.pages().values()))
    names = {
        ".".join(p.relative_to(ROOT).with_suffix("").parts) for p in (ROOT / "ed_lib").rglob("*.py")
    }
    assert sorted(shown) == sorted(name for name in names if not name.endswith("__init__"))


def test_each_verdict_has_its_first_cure():
    """Of the report: a cure's name stands where it is yielded."""
    page = (ROOT / "book/appendix/which_when.md").read_text()
    section = page.partition("## Why is my step slow?")[2].partition("\n## ")[0]
    first = re.findall(r"^\| (.*?): ", section, re.M)[1:]
    assert first == list(verdict.PARTS)
    names = re.findall(r'yield \(?\s*"(.*?)"', inspect.getsource(cures))
    assert set(re.findall(r"\*\*(.*?)\*\*", section)) <= set(names) and len(names) > 10
