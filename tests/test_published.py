"""Published files: where they are looked for, and that they are the published ones."""

import pytest

from ed_lib import published

pooch = pytest.importorskip("pooch")


@pytest.fixture
def there(tmp_path):
    """A file, and its SHA-256."""
    path = tmp_path / "letters" / "a.txt"
    path.parent.mkdir()
    path.write_text("a")
    return path, pooch.file_hash(str(path))


def test_ed_data_comes_first(there, monkeypatch, tmp_path):
    path, sha256 = there
    monkeypatch.setenv("ED_DATA", str(tmp_path))
    assert published.file("letters", "a.txt", "https://example.org/a.txt", sha256) == path
    path.write_text("b")
    with pytest.raises(ValueError, match="a.txt is not the published file: SHA-256 .*; wanted " + sha256):
        published.file("letters", "a.txt", "https://example.org/a.txt", sha256)
    monkeypatch.setenv("ED_DATA", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="ED_DATA is .*none.*; wanted a folder that holds letters/"):
        published.file("letters", "a.txt", "https://example.org/a.txt", sha256)


def test_then_the_cache_then_the_address(there, monkeypatch, tmp_path):
    path, sha256 = there
    monkeypatch.setenv("ED_DATA", "")
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path)
    assert published.file("letters", "a.txt", "https://example.org/a.txt", sha256) == path
    asked = []
    monkeypatch.setattr(pooch, "retrieve", lambda url, known, **where: asked.append((url, known)) or path)
    published.file("letters", "b.txt", "https://example.org/b.txt", sha256)
    assert asked == [("https://example.org/b.txt", "sha256:" + sha256)]
