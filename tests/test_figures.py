"""Figures as inline SVG: a text, the page's colour, the same file for the same drawing, room to shrink."""

import re
import xml.etree.ElementTree as ElementTree

import matplotlib.pyplot as plt
import pytest

from ed_lib import figures


@pytest.fixture(autouse=True)
def style():
    with plt.rc_context():
        figures.use_style()
        yield
    plt.close("all")


def draw():
    figure, ax = plt.subplots()
    ax.plot([0, 1], [0, 1], label="a < b & c")
    ax.set(xlabel="time (s)")
    return figure


def test_it_is_a_well_formed_svg_with_the_text_as_its_name():
    root = ElementTree.fromstring(figures.to_html(draw(), 'Rises from "0" to 1 & stays < 2.'))
    assert root.tag.endswith("svg") and root.get("role") == "img"
    assert root.get("aria-label") == 'Rises from "0" to 1 & stays < 2.'


def test_its_ink_is_the_colour_of_the_page():
    html = figures.to_html(draw(), "a line")
    assert "currentColor" in html and figures.INK not in html
    assert not re.search(r"(fill|stroke): ?#(000000|ffffff)", html)


def test_it_shrinks_with_the_page():
    head = re.match(r"<svg [^>]*>", figures.to_html(draw(), "a line")).group()
    assert "width:100%" in head and "viewBox=" in head and not re.search(r' (width|height)="', head)


def test_the_same_drawing_gives_the_same_file():
    assert figures.to_html(draw(), "a line") == figures.to_html(draw(), "a line")


@pytest.mark.parametrize("alt", ["", "  ", None])
def test_a_figure_without_a_text_is_refused(alt):
    with pytest.raises(ValueError, match="alt is empty"):
        figures.to_html(draw(), alt)


def contrast(a, b):
    """WCAG's contrast ratio of two colours #rrggbb."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    low, high = sorted([luminance(a), luminance(b)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", "#121212"])
def test_every_colour_stands_out_in_both_themes(page):
    assert all(contrast(colour, page) >= 2.9 for colour in figures.COLOURS)  # WCAG asks 3 of graphics


def test_the_cell_pair_can_be_drawn():
    assert figures.to_html(figures.cell_pair(), "two pairs of cells").count("<path") > 20
