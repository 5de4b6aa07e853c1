"""The slider: what it puts on a page."""

import re

import pytest

from ed_lib import controls


def test_a_slider_shows_its_first_frame_and_hides_the_others(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)

    def frame(gpus, kind):
        return f"{gpus} <{kind}>", {"work": 0.75, "waiting": 0.25}

    controls.slider({"GPUs": [1, 2], "kind": ["a", "b", "c"]}, frame)
    page = shown[0].data
    assert re.findall("<div class='frame' (hidden)?>", page) == ["", *["hidden"] * 5]
    assert re.findall(r"<p>(.*?)</p>", page) == [f"{n} &lt;{k}&gt;" for n in (1, 2) for k in "abc"]
    assert re.findall(r'max="(\d)"', page) == ["1", "2"] and 'aria-label="kind"' in page
    assert "width: 75.00%" in page and "waiting 25%" in page
    with pytest.raises(ValueError, match=r"axes\['GPUs'\] is empty"):
        controls.slider({"GPUs": []}, frame)
