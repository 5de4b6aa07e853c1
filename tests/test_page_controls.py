"""What a reader does with a page, by mouse and by keyboard: its buttons, folds, and what
scrolls.
"""

import pytest

from tests import pages
from tests.pages import HTML, PHONE, new_tab

browser, site, tab = pages.browser, pages.site, pages.tab
CHAPTER = "book/ed/error_diffusion.html"
BOOK, PAGE = "#pst-primary-sidebar", "#pst-secondary-sidebar"  # the side bars; each has a dialog
BUTTON = {BOOK: ".bd-header-article .primary-toggle", PAGE: ".bd-header-article .secondary-toggle"}

FOCUS = """() => {
    const element = document.activeElement, style = getComputedStyle(element);
    const drawn = style.outlineStyle != "none" && parseFloat(style.outlineWidth) >= 2
        && !["transparent", "rgba(0, 0, 0, 0)"].includes(style.outlineColor);
    return [element.outerHTML.slice(0, 160), drawn, element === document.body];
}"""


@pytest.fixture(scope="module", params=["http", pytest.param("file", marks=pytest.mark.slow)])
def reader(request, browser, site):
    """A chapter, from a server and from the disk, loaded once."""
    book = site if request.param == "http" else f"{HTML.as_uri()}/"
    reader = new_tab(browser, book)
    reader.goto(book + CHAPTER)
    reader.evaluate("window.MathJax.startup.promise")
    yield reader
    assert reader.faults == []
    reader.close()


def widen(page, width):
    page.set_viewport_size({"width": width, "height": 900})


def press(page, button, how):
    if how == "click":
        page.locator(button).click()
    else:
        page.locator(button).focus()
        page.keyboard.press(how)


@pytest.mark.parametrize(
    "bar, width", [(BOOK, PHONE), (BOOK, 768), (PAGE, PHONE), (PAGE, 768), (PAGE, 1024)]
)
def test_side_bar_opens_as_a_dialog(reader, bar, width):
    widen(reader, width)
    dialog, button = reader.locator(f"{bar}-modal"), BUTTON[bar]
    for how, leave in [("click", "Escape"), ("Enter", "Escape"), ("click", "Close")]:
        press(reader, button, how)
        dialog.get_by_role("link", name="Fast forward" if bar == BOOK else "Summary").wait_for()
        if leave == "Close":
            dialog.get_by_role("button", name="Close").click()
        else:
            reader.keyboard.press(leave)
        dialog.wait_for(state="hidden")
        reader.wait_for_function("button => document.activeElement.matches(button)", arg=button)


def test_dialog_leads_to_a_section(reader):
    widen(reader, PHONE)
    press(reader, BUTTON[PAGE], "click")
    reader.locator(f"{PAGE}-modal").get_by_role("link", name="Summary").press("Enter")
    reader.wait_for_function("document.activeElement.id == 'summary'")
    assert 0 <= reader.evaluate("document.activeElement.getBoundingClientRect().top") < 120


@pytest.mark.parametrize("width, how", [(960, "click"), (1440, "Enter")])
def test_side_bar_hides_on_a_desk(reader, width, how):
    widen(reader, width)
    for state in ("visible", "hidden", "visible"):
        reader.locator(BOOK).wait_for(state=state)
        press(reader, BUTTON[BOOK], how)
    press(reader, BUTTON[BOOK], how)


def test_focus_is_seen(tab, site):
    tab.goto(site + CHAPTER)
    seen, unseen = set(), []
    for width in (PHONE, 1440):
        widen(tab, width)
        tab.evaluate("document.activeElement.blur()")
        for _ in range(60):
            tab.keyboard.press("Tab")
            what, drawn, left = tab.evaluate(FOCUS)
            seen.add(what)
            unseen += [what] * (not drawn and not left)
    assert unseen == [] and len(seen) > 40
    controls = "primary-toggle secondary-toggle dropdown-toggle theme-switch search-button summary"
    assert [kind for kind in controls.split() if kind not in str(seen)] == []


def test_copy_buttons_have_names_and_tab_passes_them_by(tab, site):
    tab.goto(site + CHAPTER)
    buttons = tab.get_by_role("button", name="Copy this code", include_hidden=True)
    assert buttons.count() == tab.locator(".copybtn").count() > 10
    assert tab.locator('.copybtn:not([tabindex="-1"])').count() == 0
    fold = tab.locator("details.hide:has(.copybtn)").first
    fold.locator("summary").press("Enter")  # whoever is in a fold reaches its button
    own = fold.locator(".copybtn").first
    for _ in range(5):
        tab.keyboard.press("Tab")
        if own.evaluate("button => button === document.activeElement"):
            break
    else:
        pytest.fail("Tab does not reach the button of an open fold")
    tab.locator("article a").last.focus()
    assert own.get_attribute("tabindex") == "-1"


def test_icons_are_drawn_without_the_theme_s_script(tab, site):
    tab.goto(site + CHAPTER, wait_until="networkidle")
    assert tab.evaluate("""document.fonts.check('900 16px "Font Awesome 6 Free"')""")
    letters = tab.eval_on_selector_all(
        "[class*=fa-]", "icons => icons.map(icon => getComputedStyle(icon, '::before').content)"
    )
    assert len(letters) > 10 and "none" not in letters
    assert tab.locator("[class*=fa-]:not([aria-hidden=true])").count() == 0


def test_the_search_box_of_a_chapter_leads_to_results(tab, site):
    tab.goto(site + CHAPTER)
    tab.keyboard.press("Control+k")
    tab.keyboard.type("parity")
    tab.keyboard.press("Enter")
    tab.locator("#search-results a[href*='error_diffusion']").first.wait_for()
    assert tab.faults == []


def test_a_phone_goes_from_the_front_page_to_a_chapter_and_back_by_the_menu(browser, site):
    phone = browser.new_context(
        viewport={"width": PHONE, "height": 844}, has_touch=True, is_mobile=True
    )
    page = phone.new_page()
    page.goto(f"{site}index.html")
    page.locator("article").get_by_role("link", name="Mixed precision", exact=True).first.tap()
    page.wait_for_url(f"{site}book/precision/mixed_precision.html")
    page.locator(BUTTON[BOOK]).tap()
    menu = page.locator(f"{BOOK}-modal")
    menu.get_by_role("link", name="Why training code is as fast as it is").last.tap()
    page.wait_for_url(f"{site}index.html")
    phone.close()
