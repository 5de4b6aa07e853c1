"""The rendered book in a real browser with the network cut: what a reader sees, on a phone and on a
desk, in both themes. The pages are those of _toc.yml, so that a new chapter is covered with no
change here; of pages that are alike each run looks at one, and the weekly run at all.
"""

import re
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from functools import cache
from io import BytesIO
from unicodedata import normalize

import pytest
from axe_playwright_python.sync_playwright import Axe
from pypdf import PdfReader

from conftest import ROOT
from tests import pages
from tests.pages import DESK, PHONE, new_tab, of_each_kind, on, show, written

axe = Axe()
browser, site, tab = pages.browser, pages.site, pages.tab
LOADED = 2.8e6  # bytes of a page and all that it loads, uncompressed, at most
CONTRAST = 4.5  # of text and what is behind it, at least (WCAG 2, level AA)

# What the tests ask of a page. Each function returns one line for each fault, so that [] is good.
FORMULAS = r"""() => {
    const cut = element => element.textContent.trim().slice(0, 60);
    const faults = [...document.querySelectorAll(".math")].filter(e => !e.querySelector("mjx-container"))
        .map(e => "not rendered: " + cut(e));
    faults.push(...[...document.querySelectorAll("mjx-merror")].map(e => "TeX error: " + cut(e)));
    const texts = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {  // $5 is a price and $HOME a variable; the $ that ends a formula is neither
        const text = texts.currentNode;
        if (/\$(?!\d|[A-Z]{2})|\\[(\[]/.test(text.data)
            && !text.parentElement.closest("code, pre, script, style, svg, .math, mjx-container"))
            faults.push("TeX in the prose: " + cut(text));
    }
    return faults;
}"""
WORDLESS = """() => [
    ...[...document.querySelectorAll("img")].filter(e => !e.alt.trim() && !e.closest("button, .btn")),
    ...[...document.querySelectorAll(".cell_output svg:not(svg svg, button svg)")].filter(
        e => e.getAttribute("role") != "img" || !e.getAttribute("aria-label")?.trim()),
    ...[...document.querySelectorAll("svg[role=img]:not([aria-hidden=true], button svg, .btn svg)")].filter(
        e => !e.getAttribute("aria-label")?.trim()),
].map(e => e.outerHTML.slice(0, 120))"""
TOO_WIDE = """() => {
    const { scrollWidth, clientWidth } = document.documentElement;
    if (scrollWidth <= clientWidth) return [];
    const culprits = [...document.querySelectorAll("article :not(svg *, pre *, mjx-container *)")]
        .filter(e => e.getBoundingClientRect().right > clientWidth);
    return [`${scrollWidth} > ${clientWidth}`, ...culprits.slice(0, 5).map(e => e.outerHTML.slice(0, 120))];
}"""
FIRST_SCREEN = """() => {
    const figure = [...document.querySelectorAll("article :is(svg[role=img], img)")]
        .find(figure => figure.checkVisibility())?.getBoundingClientRect();
    const start = document.querySelector("article").getBoundingClientRect().top;
    return figure ? [figure.top + scrollY, figure.bottom - start] : [Infinity, Infinity];
}"""
FLAT = """() => {
    document.querySelectorAll("figure svg[role=img]").forEach(figure => figure.replaceChildren());
    document.querySelectorAll("pre").forEach(code => { code.textContent = code.textContent; });
}"""
CUT_OFF = """() => [...document.querySelectorAll(".cell_output .output:not(:has(.k)) pre")]
    .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth).map(e => e.textContent.slice(0, 80))"""
PALE = """least => {
    const paper = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const seen = new Map();
    // The luminance of colours painted over each other, first to last, whatever their notation and opacity.
    const luminance = colours => {
        const key = colours.join();
        if (!seen.has(key)) {
            for (const colour of ["white", ...colours]) {
                paper.fillStyle = colour;
                paper.fillRect(0, 0, 1, 1);
            }
            const [r, g, b] = [...paper.getImageData(0, 0, 1, 1).data].map(
                v => v <= 10 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
            seen.set(key, 0.2126 * r + 0.7152 * g + 0.0722 * b);
        }
        return seen.get(key);
    };
    const faults = new Map(), page = document.body;
    const check = (element, what) => {
        const behind = [];
        for (let e = element; e; e = e.parentElement) behind.unshift(getComputedStyle(e).backgroundColor);
        const colour = getComputedStyle(element).color;
        const [dark, bright] = [luminance(behind), luminance([...behind, colour])].sort((a, b) => a - b);
        const contrast = (bright + 0.05) / (dark + 0.05);
        const place = `<${element.localName} class="${element.getAttribute("class") ?? ""}"> ${colour}`;
        if (contrast < least) faults.set(place, `${contrast.toFixed(2)}: ${place}: ${what.slice(0, 40)}`);
    };
    const texts = document.createTreeWalker(page, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const text = texts.currentNode, parent = text.parentElement;
        if (text.data.trim() && !parent.closest("svg, script, style, .headerlink")
            && parent.checkVisibility({ visibilityProperty: true, opacityProperty: true }))
            check(parent, text.data.trim());
    }
    for (const figure of page.querySelectorAll("article svg[role=img]:not([aria-hidden=true])"))
        check(figure, figure.getAttribute("aria-label") ?? "");
    return [...faults.values()];
}"""


@pytest.fixture(scope="module")
def reader(browser, site):
    """One tab for all pages, since it keeps MathJax compiled."""
    tab = new_tab(browser, site)
    yield tab
    tab.close()


@pytest.fixture(scope="module")
def page(request, reader, site):
    """A page of the book, loaded once, with its formulas set and all that is folded
    opened.
    """
    reader.name = request.param
    if not reader.goto(f"{site}{reader.name}.html").ok:
        pytest.fail(f"{reader.name}.html is not in _build/html: run make book first")
    reader.evaluate("window.MathJax?.startup?.promise")
    reader.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    yield reader
    assert reader.faults == [], reader.name


@cache
def status_and_ids(url):
    """The status of an address in the book, and the ids in what it answers."""
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status, set(re.findall(rb'\sid="([^"]+)"', answer.read()))
    except urllib.error.HTTPError as error:
        return error.code, set()


@on(written())
def test_formulas_are_rendered_images_have_words_and_ids_are_unique(page):
    assert (
        page.evaluate(FORMULAS) == [] and page.locator('mjx-container[tabindex="0"]').count() == 0
    )
    assert page.evaluate(WORDLESS) == []
    ids = page.eval_on_selector_all("[id]", "all => all.map(element => element.id)")
    assert sorted({one for one in ids if ids.count(one) > 1}) == []


SCREENS = [(PHONE, 844), pytest.param(DESK, 900, marks=pytest.mark.slow)]


@on(written())
@pytest.mark.parametrize("width, height", SCREENS)
def test_it_fits_the_screen_and_the_figure_is_seen_under_the_answer(page, width, height):
    show(page, "light", width)
    assert page.evaluate(TOO_WIDE) == [] and (width == DESK or page.evaluate(CUT_OFF) == [])
    top, bottom = page.evaluate(FIRST_SCREEN)
    if page.name in pages.CHAPTERS:
        assert top < height  # on a phone the figure begins there
    if page.name in ("index", *pages.CHAPTERS):
        assert bottom <= (height if width == DESK else 2 * height)


def test_a_chapter_loads_little(tab, site):
    """The longest page; the others differ from it by their own text and figures alone."""
    name = max(pages.CHAPTERS, key=lambda name: (pages.HTML / f"{name}.html").stat().st_size)
    asked = []
    tab.on("requestfinished", lambda request: asked.append(request))
    tab.goto(f"{site}{name}.html", wait_until="networkidle")
    sizes = {request.url: len(request.response().body()) for request in asked}
    assert sum(sizes.values()) <= LOADED, sorted(sizes.items(), key=lambda each: -each[1])[:9]
    assert any("tex-chtml" in url for url in sizes) and tab.faults == []


@on(of_each_kind())
def test_text_stands_out_in_the_dark_theme(page):
    show(page, "dark", DESK)
    assert page.evaluate(PALE, CONTRAST) == []


@on(of_each_kind())
def test_text_stands_out_in_the_light_theme(page):
    show(page, "light", DESK)
    assert page.evaluate(PALE, CONTRAST) == []


@on(written())
def test_links_inside_the_book_lead_somewhere(page, site):
    dead = []
    for link in set(page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)")):
        url, _, anchor = link.partition("#")
        if url.startswith(site):
            status, ids = status_and_ids(url)
            if status != 200 or (anchor and urllib.parse.unquote_to_bytes(anchor) not in ids):
                dead.append(f"{status}: {link}")
    assert dead == []


def axe_finds(page, **options):
    """The faults that axe-core names, of all rules or of those in ``options``."""
    page.evaluate(FLAT)
    rules = {
        "label-content-name-mismatch": {"enabled": True},  # off unless asked for
        "color-contrast": {"enabled": False},  # PALE measures all text, far faster
    }
    options = {"rules": rules, "preload": False, "resultTypes": ["violations"]} | options
    formulas = {
        "exclude": [["th:has(mjx-container)"]]
    }  # axe takes a formula in a header for nothing
    found = axe.run(page, context=formulas, options=options).response["violations"]
    return [f"{fault['id']}: {node['html'][:120]}" for fault in found for node in fault["nodes"]]


@on(of_each_kind())
def test_axe_finds_no_fault(page):
    """Figures and code are looked at above."""
    show(page, "light", DESK)
    page.wait_for_timeout(400)  # the theme lets Tab reach what scrolls 300 ms after a resize
    assert axe_finds(page) == []


@pytest.mark.parametrize("name", ["index", pages.CHAPTERS[0], "book/appendix/api/ed"])
def test_links_stand_out_in_the_dark_theme_too(tab, site, name):
    tab.goto(f"{site}{name}.html")
    show(tab, "dark", DESK)
    assert axe_finds(tab, runOnly=["link-in-text-block"]) == []


def test_search_finds_a_word_and_a_fold_opens(tab, site):
    tab.goto(f"{site}search.html?q=parity")
    tab.locator("#search-results a[href*='book/ed/error_diffusion.html']").first.click()
    fold = tab.locator("details.hide", has=tab.get_by_text(re.compile("^Show "))).first
    assert not fold.locator("pre").first.is_visible()
    fold.get_by_text(re.compile("^Show ")).click()
    assert fold.locator("pre").first.is_visible() and tab.faults == []


def test_search_finds_the_right_page_first(tab, site):
    terms = {"GEMV": "one_token", "KV cache": "one_token", "FSDP": "when_it", "ZeRO": "when_it",
             "bf16": "mixed_precision", "loss scale": "mixed_precision",
             "straggler": "asynchronous", "num_workers": "which_when", "recompile": "which_when",
             "graph break": "which_when", "slow": "your_own_step",
             "checkpoint": "when_a_device_dies"}  # fmt: skip
    of_users = tomllib.loads((ROOT / "tests" / "searches.toml").read_text())
    assert len(of_users) == 30
    found = {}
    for term in terms | of_users:
        tab.goto(f"{site}search.html?q={term}")
        found[term] = tab.locator("#search-results li > a").first.get_attribute("href")
    wanted = terms | of_users
    assert {term: page for term, page in found.items() if wanted[term] not in page} == {}


def test_previews_of_links_are_told_title_and_question(tab, site):
    tab.goto(f"{site}book/ed/error_diffusion.html")
    ask = "all => all.map(one => [one.getAttribute('property') ?? one.name, one.content])"
    said = dict(tab.eval_on_selector_all("meta", ask))
    assert (
        said["og:title"].startswith("Error diffusion")
        and "Why training code" in said["og:site_name"]
    )
    assert said["og:description"].startswith("Can a network learn when every weight in it is told")
    assert said["description"] and said.get("og:image", "https://").startswith("https://")


def test_the_front_page_is_told_its_promise_and_says_who_wrote_it(tab, site):
    tab.goto(f"{site}index.html")
    ask = "all => all.map(one => [one.getAttribute('property') ?? one.name, one.content])"
    said = dict(tab.eval_on_selector_all("meta", ask))
    assert said["description"] == said["og:description"]
    assert said["description"].startswith("Learn what your training step waits for")
    assert "The contributors" in tab.locator(".component-author").first.inner_text()


def test_which_when_is_one_sheet_of_paper_that_can_be_read(tab, site):
    tab.goto(f"{site}book/appendix/which_when.html")
    (sheet,) = PdfReader(BytesIO(tab.pdf(prefer_css_page_size=True))).pages
    assert [round(float(x)) for x in sheet.mediabox[2:]] == [595, 842]
    text = " ".join(normalize("NFKC", sheet.extract_text()).split())  # ligatures as letters
    tab.emulate_media(media="print")
    # Whatever stands on the sheet, to the last row of the last table.
    rows = tab.locator("#which-when tr:visible td:first-child")
    assert rows.count() > 40
    for row in rows.all_inner_texts():
        assert row.split(":")[0].split("\n")[0][:12] in text, row
    assert "error diffusion" in text.lower() and "num_workers" not in text
    sizes = rows.evaluate_all("all => all.map(one => parseFloat(getComputedStyle(one).fontSize))")
    assert min(sizes) >= 9, "CSS pixels, of which 96 are an inch"


def test_a_printed_page_is_light_a4_with_its_folded_code(tab, site):
    tab.emulate_media(color_scheme="dark")
    tab.goto(f"{site}book/precision/smaller_models.html")
    sheets = PdfReader(BytesIO(tab.pdf(prefer_css_page_size=True))).pages
    text = "".join(sheet.extract_text() for sheet in sheets)
    assert "figures.show(" in text and "A solution" in text
    assert "Show a" not in text and "previous" not in text
    assert {tuple(round(float(x)) for x in sheet.mediabox[2:]) for sheet in sheets} == {(595, 842)}
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"  # the reader's again
