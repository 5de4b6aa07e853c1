"""The figure that a reader can run, on both of its pages, by mouse, keyboard and screen reader."""

import pytest

from ed_lib import figures
from tests import pages
from tests.pages import HTML, PHONE, new_tab
from tests.test_pages import CONTRAST, PALE, TOO_WIDE, axe_finds
from tools import hero, notebooks

browser, site, tab = pages.browser, pages.site, pages.tab
JAPANESE = "index_ja"
PLACES = ["index", hero.CHAPTER.with_suffix("").as_posix()]
DAILY = [PLACES[0], pytest.param(PLACES[1], marks=pytest.mark.slow)]  # both are looked at weekly
RETURNED, DONE = "0.09 ms", "3.03 ms"  # three launches of 0.03 ms; the first, and three kernels


class Hero:
    """The figure of a page, as a reader finds its parts."""

    def __init__(self, tab):
        self.tab, self.figure = tab, tab.locator("figure.hero")
        self.run = self.figure.get_by_role("button", name="Run")
        self.switch = self.figure.get_by_role("switch", name="Wait for the device")
        self.status = self.figure.get_by_role("status")
        self.drawing = self.figure.locator(".live svg")

    def numbers(self):
        return self.figure.locator("dd").all_inner_texts()

    def wait_for(self, words):
        self.status.get_by_text(words).wait_for()


@pytest.fixture(params=DAILY)
def shown(request, tab, site):
    tab.goto(f"{site}{request.param}.html")
    yield Hero(tab)
    assert tab.faults == []


@pytest.mark.parametrize("shown", PLACES, indirect=True)
def test_it_shows_a_run_before_anything_is_touched(shown):
    assert shown.figure.count() == 1 and shown.numbers() == [RETURNED, DONE, "34 ×"]
    assert "Press Run" in shown.status.inner_text()
    assert shown.figure.locator("> svg").is_hidden()


def test_without_waiting_the_clock_misses_the_work_and_with_waiting_it_does_not(shown):
    shown.run.click()
    shown.wait_for(f"clock stopped at {RETURNED}. The device is done after {DONE}, 34 times")
    assert shown.numbers() == [RETURNED, DONE, "34 ×"]
    assert f"clock stops at {RETURNED}" in shown.drawing.get_attribute("aria-label")
    shown.switch.check()
    shown.wait_for(f"The device is done after {DONE}, and the clock shows {DONE}.")
    assert shown.numbers() == [DONE, DONE, "1.0 ×"]
    assert f"clock stops at {DONE}" in shown.drawing.get_attribute("aria-label")


def test_keys_do_what_a_mouse_does(shown):
    shown.run.focus()
    shown.tab.keyboard.press("Enter")
    shown.wait_for("34 times")
    shown.tab.keyboard.press("Tab")
    assert shown.switch.evaluate("field => field === document.activeElement")
    shown.tab.keyboard.press("Space")
    shown.wait_for(f"the clock shows {DONE}")
    shown.tab.keyboard.press("Shift+Tab")
    shown.tab.keyboard.press("Space")
    assert shown.numbers() == [DONE, DONE, "1.0 ×"]


def test_in_slow_motion_the_call_returns_and_the_kernels_go_on(tab, site):
    tab.emulate_media(reduced_motion="no-preference")
    tab.goto(f"{site}index.html")
    shown = Hero(tab)
    shown.run.click()
    shown.wait_for(f"clock stopped at {RETURNED}. The device still works.")
    clock, device, ratio = shown.numbers()
    assert clock == RETURNED and ratio == "…" and float(device.split()[0]) < 3
    shown.wait_for(f"The device is done after {DONE}, 34 times")
    assert shown.numbers() == [RETURNED, DONE, "34 ×"] and tab.faults == []


@pytest.mark.slow
def test_who_clicks_again_or_turns_the_switch_meanwhile_begins_anew(tab, site):
    tab.emulate_media(reduced_motion="no-preference")
    tab.goto(f"{site}index.html")
    shown = Hero(tab)
    for _ in range(5):
        shown.run.click()
    tab.wait_for_timeout(800)
    shown.switch.check()
    assert float(shown.numbers()[1].split()[0]) < 0.8  # from the start
    shown.wait_for("Python waits for the device")
    shown.switch.uncheck()
    shown.switch.check()
    shown.run.click(click_count=3)
    shown.wait_for(f"the clock shows {DONE}")
    assert shown.numbers() == [DONE, DONE, "1.0 ×"]
    tab.wait_for_timeout(300)  # no earlier run goes on
    assert shown.numbers() == [DONE, DONE, "1.0 ×"] and tab.faults == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_read_on_a_phone_and_axe_finds_no_fault(shown, theme):
    pages.show(shown.tab, theme, PHONE)
    shown.switch.check()
    assert shown.tab.evaluate(TOO_WIDE) == [] and shown.tab.evaluate(PALE, CONTRAST) == []
    letters = "all => all.map(e => parseFloat(getComputedStyle(e).fontSize))"
    assert min(shown.drawing.locator("text").evaluate_all(letters)) >= 12
    box = shown.drawing.bounding_box()
    for text in shown.drawing.locator("text").all():
        at = text.bounding_box()
        assert at["x"] >= box["x"] - 1 and at["x"] + at["width"] <= box["x"] + box["width"] + 1
    for control in (shown.run, shown.figure.locator("label")):
        assert control.bounding_box()["height"] >= 30
    shown.tab.wait_for_timeout(400)  # the theme lets Tab reach what scrolls 300 ms after a resize
    assert axe_finds(shown.tab) == []


@pytest.mark.parametrize("name", DAILY)
def test_without_javascript_and_on_paper_a_picture_stands_there(browser, site, name):
    plain = browser.new_context(java_script_enabled=False).new_page()
    plain.goto(f"{site}{name}.html")
    assert plain.locator("figure.hero > svg").is_visible()
    assert plain.locator("figure.hero button").count() == 0
    plain.context.close()
    paper = new_tab(browser, site)
    paper.goto(f"{site}{name}.html")
    paper.emulate_media(media="print")
    assert paper.locator("figure.hero > svg").is_visible()
    assert paper.locator("figure.hero .live").is_hidden()
    paper.close()


def test_colours_and_picture_are_those_of_the_notebook(shown):
    style = shown.figure.get_attribute("style")
    assert figures.BLUE in style and figures.ORANGE in style
    cells = notebooks.read(notebooks.ROOT / hero.CHAPTER).cells
    (cell,) = (cell for cell in cells if cell.id == hero.FIGURE)
    # The times are those of the run that made the page.
    said = shown.figure.locator("> svg").get_attribute("aria-label").partition(" device ")[0]
    assert said in [output.data["text/plain"].partition(" device ")[0] for output in cell.outputs]


def test_a_chapter_without_the_figure_is_told(monkeypatch):
    monkeypatch.setattr(hero, "FIGURE", "no such")
    with pytest.raises(ValueError, match="honest_timing.*no such has no figure"):
        hero.on_first_page(hero.MARKS["en"])
    assert hero.on_first_page("no mark") == "no mark"


def test_pages_without_it_do_not_load_its_script():
    loads = [path for path in HTML.rglob("*.html") if "hero.js" in path.read_text()]
    there = {path.relative_to(HTML).with_suffix("").as_posix() for path in loads}
    assert there == {*PLACES, JAPANESE}


def test_on_the_japanese_page_it_speaks_japanese(tab, site):
    tab.goto(f"{site}{JAPANESE}.html")
    figure = tab.locator("figure.hero")
    status = figure.get_by_role("status")
    assert status.inner_text().startswith("「実行」を押して")
    figure.get_by_role("button", name="実行").click()
    status.get_by_text(f"デバイスは {DONE} で終わりました。").wait_for()
    figure.get_by_role("switch", name="デバイスを待つ").check()
    status.get_by_text(f"時計は {DONE} を示します。").wait_for()
    assert figure.locator("dd").all_inner_texts() == [DONE, DONE, "1.0 ×"]
    assert tab.faults == []
