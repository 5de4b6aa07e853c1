"""Tiny Shakespeare: where it is looked for, that it is the published one, and batches of it."""

import os

import pytest
import torch

from ed_lib import texts

pooch = pytest.importorskip("pooch")
CONTENT = "to be, or not to be"


@pytest.fixture
def published(monkeypatch, tmp_path):
    """A folder for ED_DATA with a text of its own, whose SHA-256 is the one that counts."""
    file = tmp_path / "tinyshakespeare" / "input.txt"
    file.parent.mkdir()
    file.write_text(CONTENT)
    name, url, _ = texts.TEXTS["tinyshakespeare"]
    monkeypatch.setitem(texts.TEXTS, "tinyshakespeare", (name, url, pooch.file_hash(str(file))))
    monkeypatch.setenv("ED_DATA", str(tmp_path))
    return file


def test_a_text_is_the_numbers_of_its_characters(published):
    text = texts.load()
    assert text.characters == " ,benort"
    assert "".join(text.characters[n] for n in torch.cat([text.train, text.held_out])) == CONTENT
    assert (len(text.train), len(text.held_out)) == (17, 2)


def test_another_file_is_an_error_that_names_it_and_both_hashes(published):
    published.write_text(CONTENT + "?")
    with pytest.raises(
        ValueError, match="input.txt is not the published file: SHA-256 .*; wanted "
    ) as caught:
        texts.load()
    assert texts.TEXTS["tinyshakespeare"][2] in str(caught.value)


def test_the_cache_comes_after_ed_data(published, monkeypatch, tmp_path):
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path)
    monkeypatch.delenv("ED_DATA")
    assert len(texts.load().train) == 17, "what is in the cache is not downloaded"


def test_bad_names(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="name is 'hamlet'; wanted .*tinyshakespeare"):
        texts.load("hamlet")
    monkeypatch.setenv("ED_DATA", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="ED_DATA is .*none.*; wanted a folder"):
        texts.load()


def test_batches_are_the_text_and_what_follows():
    numbers = torch.arange(20)
    for x, wanted in (next(texts.batches(numbers, 50, 19, seed=seed)) for seed in range(3)):
        assert x.shape == (19, 50) and torch.equal(wanted, x + 1) and torch.equal(x[1:], wanted[:-1])
    first, again = (next(texts.batches(numbers, 3, 5, seed=1))[0] for _ in range(2))
    assert torch.equal(first, again)
    starts = next(texts.batches(numbers, 500, 18, seed=0))[0][0]
    assert set(starts.tolist()) == {0, 1}, "every place that leaves room, and no other"
    with pytest.raises(ValueError, match="steps is 20; wanted fewer than the text's 20"):
        next(texts.batches(numbers, 1, 20, seed=0))


@pytest.mark.oracle
@pytest.mark.skipif(not os.environ.get("ED_DATA"), reason="no data")
def test_tiny_shakespeare_is_as_published():
    text = texts.load()
    assert len(text.characters) == 65 and len(text.train) + len(text.held_out) == 1_115_394
