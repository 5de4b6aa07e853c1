"""Figures as inline SVG: a text, the page's colour, the same file for the same drawing, room to
shrink.
"""

import base64
import re
import xml.etree.ElementTree as ElementTree

import matplotlib.pyplot as plt
import pytest

from ed_lib import figures

TEXT = 'Rises from "0" to 1 & stays < 2. Then not.'


@pytest.fixture(autouse=True)
def style():
    with plt.rc_context():
        figures.use_style()
        yield
    plt.close("all")


def draw():
    figure, ax = plt.subplots()
    ax.plot([0, 1], [0, 1])
    ax.set(xlabel="time (s)")
    return figure


def diagram():
    """A figure without data."""
    figure, ax = plt.subplots()
    ax.annotate("", (0, 0), (1, 1), arrowprops={"arrowstyle": "->"})
    return figure


def test_a_drawing_has_its_text_as_its_name_the_pages_ink_and_room_to_shrink():
    drawn = figures.to_html(draw(), TEXT)
    svg, caption = ElementTree.fromstring(drawn)
    assert svg.tag.endswith("svg") and svg.get("role") == "img" and svg.get("aria-label") == TEXT
    assert caption.tag == "figcaption" and caption.text == 'Rises from "0" to 1 & stays < 2.'
    assert "<figcaption>What a &lt; b costs.<" in figures.to_html(draw(), TEXT, "What a < b costs.")
    assert "currentColor" in drawn and figures.INK not in drawn
    assert not re.search(r"(fill|stroke): ?#(000000|ffffff)", drawn)
    assert (
        "width:100%" in svg.get("style")
        and svg.get("viewBox")
        and not {"width", "height"} & {*svg.keys()}
    )
    assert drawn == figures.to_html(draw(), TEXT), "the same each time"


def test_a_notebook_gets_a_picture_and_the_book_a_drawing(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    figures.show(draw(), "a line")
    (bundle,) = shown
    assert (
        bundle.keys() == {figures.FOR_THE_PAGE, "image/png", "text/plain"}
        and "text/html" not in bundle
    )
    assert (
        base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
        and bundle["text/plain"] == "a line"
    )


def test_two_drawings_on_a_page_share_no_id():
    two = [figures.to_html(draw(), "a line"), figures.to_html(diagram(), "an arrow")]
    ids = [set(re.findall(r'\sid="([^"]*)"', html)) for html in two]
    assert ids[0] and ids[1] and not ids[0] & ids[1]
    for own, html in zip(ids, two, strict=True):
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', html)) == own


def contrast(a, b):
    """WCAG's contrast ratio of two colours #rrggbb."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    low, high = sorted([luminance(a), luminance(b)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.oracle
@pytest.mark.parametrize("page", ["#ffffff", "#121212"])
def test_every_colour_stands_out_in_both_themes(page):
    assert all(
        contrast(colour, page) >= 2.9 for colour in figures.COLOURS
    )  # WCAG asks 3 of graphics


def test_what_the_data_show_is_said_with_the_text():
    """Curves by their ends and extremes, lines across a panel, bars by the names of their ticks."""
    figure, (left, right) = plt.subplots(1, 2)
    left.plot([1, 2, 4, 5], [3, 9, float("nan"), 1.5], label="one")
    left.plot([1, 2], [1, 1])  # no label: a help for the eye
    left.axhline(2, label="floor")
    left.set_title("time")
    right.barh(["slow", "fast"], [3, 0.125])
    found = figures.in_words(figure)
    assert found == ["time: one: from 3 at 1 to 1.5 at 5, highest 9.", "time: floor: a line at 2.",
                     "slow 3, fast 0.125."]  # fmt: skip
    assert 'aria-label="Two panels. time: one: from 3' in figures.to_html(figure, "Two panels.")
    assert figures.in_words(diagram()) == [], "without data the text stands alone"


@pytest.mark.parametrize("value, written", [
    (0, "0"), (1e-6, "1e-6"), (2.5e-5, "2.5e-5"), (0.001, "0.001"), (1000, "1000"), (9999.999, "10k"), (1e4, "10k"),
    (999_400, "999k"), (999_600, "1M"), (2.5e6, "2.5M"), (999.6e6, "1G"), (1e12, "1T"), (-2e5, "-200k"),
])  # fmt: skip
def test_a_number_at_an_axis_is_written_with_the_letter_in_which_it_is_short(value, written):
    figure, axes = plt.subplots()
    axes.set_yscale("log")
    figures.log_ticks(axes.yaxis, [value])
    assert [label.get_text() for label in axes.yaxis.get_ticklabels()] == [written]


def test_large_numbers_are_said_without_exponents():
    figure, (curve, bars) = plt.subplots(1, 2)
    curve.plot([1, 4096], [999.6, 1_048_576], label="one")
    bars.bar([0, 1], [2048, 1e38])
    bars.set_xticks([])
    assert figures.in_words(figure) == [
        "one: from 1,000 at 1 to 1,048,576 at 4,096.", "2,048, 1e+38."]  # fmt: skip


@pytest.mark.parametrize("ticks, said", [
    (([0, 1], ["first", "last\none"]), "first 1, last one 2"), (([0, 1], [8, 16]), "8 1, 16 2"),
    (([],), "1, 2"),
])  # fmt: skip
def test_bars_are_said_by_the_names_of_their_ticks(ticks, said):
    figure, axes = plt.subplots()
    axes.bar([0, 1], [1, 2], label="live")
    axes.set_xticks(*ticks)
    assert figures.in_words(figure) == [f"live: {said}."]
