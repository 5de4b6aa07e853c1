"""The page of calculators: what is typed is read, or answered in words that move nothing, and it
stands in the address, where another reader finds it.
"""

from urllib.parse import parse_qs, urlsplit

import pytest

from tests import pages

browser, site, tab = pages.browser, pages.site, pages.tab
PAGE = "book/appendix/calculators.html"
# What a screen reader says of a field beside its name.
DESCRIBED = "box => document.getElementById(box.getAttribute('aria-describedby')).textContent"
# Where the fields, and the forms, stand.
PLACES = """() => [...document.querySelectorAll("form.calculator, form.calculator [name]")].map(one => {
    const { x, y, width, height } = one.getBoundingClientRect();
    return [x + scrollX, y + scrollY, width, height].map(Math.round);
})"""
# The contrast of an element's words with what lies behind them, as WCAG counts it.
CONTRAST = """one => {
    const light = colour => {
        const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255)
            .map(part => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    let behind = one;
    while (/, 0\\)$|transparent/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
    const [a, b] = [getComputedStyle(one).color, getComputedStyle(behind).backgroundColor].map(light);
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""
TOO_LONG = """() => [...document.querySelectorAll("form.calculator small")]
    .filter(one => one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight).map(one => one.textContent)"""


@pytest.fixture(scope="module")
def reader(browser, site):
    """The page, loaded once, for tests that leave it as they found it."""
    reader = pages.new_tab(browser, site)
    reader.goto(f"{site}{PAGE}")
    yield reader
    assert reader.faults == []
    reader.close()


@pytest.fixture
def page(tab, site):
    tab.goto(f"{site}{PAGE}")
    yield tab
    assert tab.faults == []


@pytest.mark.parametrize(
    "formula, field, typed, said",
    [("memory", "parameters", "many", "Wanted a number"), ("memory", "devices", "0", "Wanted 1 or more"),
     ("memory", "layers", "2.5", "whole number"), ("memory", "heads", "7", "divisor of 4096"),
     ("memory", "parameters", "1e300", "at most"), ("pipeline", "devices", "-4", "Wanted 1 or more"),
     ("pipeline", "microbatches", "1e18", "256 at most"), ("roofline", "rate", "", "Wanted a number"),
     ("traffic", "server", "9", "divisor of 64"), ("step", "calls", "0", "Wanted 1 or more"),
     ("step", "each", "-1", "Wanted 1e-9 or more"), ("step", "measured", "fast", "Wanted a number"),
     ("memory", "parameters", "7,5B", "write 7.5B"), ("memory", "parameters", "8 billion", "write 8B"),
     ("memory", "parameters", "", "like 8B"), ("memory", "parameters", "1e400", "1e18 at most"),
     ("traffic", "parameters", "1,23", "write 1.23"), ("roofline", "bytes", "1,234,5", "like 16G")],
)  # fmt: skip
def test_what_makes_no_sense_is_said_beside_the_field(reader, formula, field, typed, said):
    form = reader.locator(f"form[data-formula={formula}]")
    assert form.locator("output").inner_text()
    box = form.locator(f"[name={field}]")
    box.fill(typed)
    words = reader.locator(f"#{formula}-{field}-wrong")
    assert said in words.inner_text() and box.get_attribute("aria-invalid") == "true"
    name = box.evaluate("nameOf")
    assert form.locator("output").inner_text() == f"No answer: see {name}."
    assert name in form.aria_snapshot() and said in box.evaluate(DESCRIBED)
    box.fill(box.evaluate("box => box.defaultValue"))
    assert words.inner_text() == "" and form.locator("output").inner_text()


def test_by_keyboard_alone_and_with_the_largest_numbers(page):
    page.locator("form[data-formula=memory] [name=parameters]").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("1e18")
    assert "2 EB a device" in page.locator("form[data-formula=memory] output").inner_text()
    machine = page.locator("form[data-formula=roofline] [name=machine]")
    machine.select_option(label="RTX 3070, float32 (data sheet)")
    assert (
        "35.7 ms at the least, bound by its bytes"
        in page.locator("form[data-formula=roofline] output").inner_text()
    )
    assert "NaN" not in page.locator("article").inner_text()


@pytest.mark.parametrize("text, value", [
    ("7.5B", 7.5e9), ("16,384", 16384), ("16 384", 16384), ("1e5K", 1e8), ("８Ｂ", 8e9), (" 8 b ", 8e9),
])  # fmt: skip
def test_numbers_may_be_written_in_several_ways(reader, text, value):
    box = reader.locator("form[data-formula=memory] [name=parameters]")
    box.fill(text)
    assert box.evaluate("read") == value and box.get_attribute("aria-invalid") == "false"
    box.fill("8B")


@pytest.mark.parametrize("width", [pages.PHONE, pytest.param(pages.DESK, marks=pytest.mark.slow)])
def test_what_is_wrong_moves_nothing(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    before = page.evaluate(PLACES)
    for typed in ("many", "7,5B", "8 billion", "", "-5", "1e400", "9" * 400):
        for box in page.locator("form.calculator input").all():
            box.fill(typed)
        assert page.locator("form.calculator [aria-invalid=true]").count() >= 20, typed
        assert page.evaluate(PLACES) == before and page.evaluate(TOO_LONG) == [], typed
        assert page.evaluate("document.documentElement.scrollWidth") <= width, typed


def test_fields_of_a_row_stand_in_line(reader):
    for form in reader.locator("form.calculator").all():
        boxes = [box.bounding_box() for box in form.locator("[name]").all()]
        assert len({round(box["height"]) for box in boxes}) == 1
        assert len({round(box["y"]) for box in boxes}) <= -(-len(boxes) // 2)


def test_the_address_holds_what_was_typed_and_another_reader_finds_it(page, browser, site):
    memory, pipeline = (
        page.locator(f"form[data-formula={name}]") for name in ("memory", "pipeline")
    )
    assert urlsplit(page.url).query == ""
    memory.locator("[name=parameters]").fill("70B")
    memory.locator("[name=stage]").select_option("1")
    pipeline.locator("[name=devices]").fill("6")
    page.keyboard.press("Tab")
    asked = parse_qs(urlsplit(page.url).query)
    assert asked["memory.parameters"] == ["70B"] and asked["memory.stage"] == ["1"]
    assert asked["pipeline.devices"] == ["6"] and len(asked) == 10 + 4
    other = pages.new_tab(browser, site)
    other.goto(page.url)
    for form in ("memory", "pipeline"):
        words = f"form[data-formula={form}] output"
        assert other.locator(words).inner_html() == page.locator(words).inner_html()
    assert other.locator(".address").count() == 0 and other.faults == []
    assert other.locator("#how-large-is-the-bubble").evaluate(
        "one => one.getBoundingClientRect().top < 900"
    )
    other.close()
    # What has no answer is not kept, and what is as it was at first needs no address.
    memory.locator("[name=parameters]").fill("7,5B")
    page.keyboard.press("Tab")
    assert parse_qs(urlsplit(page.url).query) == asked
    memory.locator("[name=parameters]").fill("8B")
    memory.locator("[name=stage]").select_option("3")
    pipeline.locator("[name=devices]").fill("4")
    page.keyboard.press("Tab")
    assert urlsplit(page.url).query == ""


def test_a_card_shows_whose_numbers_stand_in_the_fields(page):
    form = page.locator("form[data-formula=step]")
    shown = form.locator("[name=machine] option:checked")
    assert shown.inner_text() == "H100 SXM, bfloat16 (measured)"
    form.locator("[name=rate]").fill("1e12")
    assert shown.inner_text() == "numbers of your own"
    form.locator("[name=machine]").select_option(label="T4, float32 (data sheet)")
    assert shown.inner_text() == "T4, float32 (data sheet)"
    assert form.locator("[name=rate]").evaluate("read") == 8.1e12
    assert "step.rate=8.1e12" in page.url and "machine" not in page.url


@pytest.mark.parametrize(
    "query, said",
    [("memory.colour=red", "names a field “colour”"), ("cake.size=1", "a calculator “cake”"),
     ("memory.format=float8", "“float8” for the field “format”"),
     ("memory.parameters=" + "9" * 9000, "which cannot hold it"), ("%E0%A4%A.%%=<b>", "There is none"),
     *(pytest.param(*each, marks=pytest.mark.slow) for each in (
         ("step.machine=x", "names a field “machine”"), ("memory.__proto__=1", "names a field “__proto__”"),
         ("a" * 5000 + ".b=1", "a calculator “aaa")))],
)  # fmt: skip
def test_an_address_with_another_state_is_a_line(tab, site, query, said):
    tab.goto(f"{site}{PAGE}?{query}")
    (line,) = tab.locator(".address").all()
    assert said in line.inner_text() and len(line.inner_text()) < 120
    assert line.get_attribute("role") == "alert"
    assert all(box.inner_text() for box in tab.locator("form.calculator output").all())
    for width in (pages.PHONE, pages.DESK):
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.faults == []


def test_an_address_with_a_number_that_is_none_marks_its_field(page, site):
    page.goto(f"{site}{PAGE}?memory.parameters=7,5B&memory.devices=-1&utm_source=x&highlight=y")
    form = page.locator("form[data-formula=memory]")
    assert "write 7.5B" in page.locator("#memory-parameters-wrong").inner_text()
    assert "1 or more" in page.locator("#memory-devices-wrong").inner_text()
    assert form.locator("output").inner_text() == "No answer: see parameters and 1 more."
    assert page.locator(".address").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_is_wrong_can_be_read_in_both_themes(page, theme):
    pages.show(page, theme, pages.PHONE)
    page.locator("form[data-formula=memory] [name=parameters]").fill("many")
    assert page.locator("#memory-parameters-wrong").evaluate(CONTRAST) >= 4.5


def test_every_field_is_reached_by_tab_and_has_its_name(reader):
    for form in reader.locator("form.calculator").all():
        form.locator("[name]").first.focus()
        for box in form.locator("[name]").all():
            assert box.evaluate("box => box === document.activeElement")
            role = "combobox" if box.evaluate("box => box.localName") == "select" else "textbox"
            assert form.get_by_role(role, name=box.evaluate("nameOf"), exact=True).count() == 1
            reader.keyboard.press("Tab")
