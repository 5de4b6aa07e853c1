"""The slider: what it puts on a page."""

import re

import pytest

from ed_lib import controls


def test_a_slider_shows_its_first_frame_and_hides_the_others(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    frames = {"1 <GPU>": ("fast", {"work": 0.75, "waiting": 0.25}), "2": ("slow", {"work": 1.0})}
    controls.slider("GPUs", frames)
    page = shown[0].data
    assert re.findall("<div class='frame' (hidden)?>", page) == ["", "hidden"]
    assert "1 &lt;GPU&gt;" in page and 'max="1"' in page and 'aria-label="GPUs"' in page
    assert "width: 75.00%" in page and "waiting 25%" in page
    with pytest.raises(ValueError, match="frames is empty"):
        controls.slider("GPUs", {})
