"""Fingerprints: what is reached by imports, what changes the hash, and what does not."""

from pathlib import Path

import pytest

from ed_lib import fingerprint

SOURCES = {
    "ed_lib/__init__.py": "",
    "ed_lib/a.py": "import numpy\nfrom ed_lib.inner import two\nraise SystemExit('imported')",
    "ed_lib/alone.py": "x = 1",
    "ed_lib/inner/__init__.py": "",
    "ed_lib/inner/two.py": "def load(name):\n    return importlib.import_module(f'ed_lib.late.{name}')",
    "ed_lib/late/three.py": "x = 3",
    "benchmarks/b.py": "def run():\n    import ed_lib.a\n\n\n# The page\nHEAD = 'time'",
    "tools/c.py": "from benchmarks import b",
}


@pytest.fixture
def root(tmp_path):
    for name, source in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    return tmp_path


def code(root, name):
    return fingerprint.digest(fingerprint.reached([name], root), root).hexdigest()


def test_all_of_ours_is_reached_that_is_imported_wherever_and_however(root):
    found = [path.as_posix() for path in fingerprint.reached(["benchmarks.b"], root)]
    assert found == sorted(set(SOURCES) - {"ed_lib/alone.py", "tools/c.py"})
    assert fingerprint.reached(["ed_lib.inner.two.name"], root) == fingerprint.reached(
        ["ed_lib.inner.two"], root
    )
    assert fingerprint.reached(["ed_lib.none"], root) == [Path("ed_lib/__init__.py")]
    assert fingerprint.module(Path("ed_lib/inner/__init__.py")) == "ed_lib.inner"


def test_the_hash_follows_what_is_reached_and_nothing_else(root):
    before = code(root, "benchmarks.b")
    for name, changes in (("ed_lib/late/three.py", True), ("ed_lib/alone.py", False)):
        (root / name).write_text("x = 4")
        assert (code(root, "benchmarks.b") != before) == changes
        (root / name).write_text(SOURCES[name])
    (root / "ed_lib/late/three.py").rename(root / "ed_lib/late/four.py")
    assert code(root, "benchmarks.b") != before


def test_line_ends_and_how_rows_are_shown_are_no_change(root):
    before = code(root, "benchmarks.b")
    (root / "benchmarks/b.py").write_bytes(SOURCES["benchmarks/b.py"].replace("\n", "\r\n").encode())
    assert code(root, "benchmarks.b") == before
    (root / "benchmarks/b.py").write_text(SOURCES["benchmarks/b.py"].replace("'time'", "'seconds'"))
    assert code(root, "benchmarks.b") == before
    (root / "benchmarks/b.py").write_text(SOURCES["benchmarks/b.py"].replace("run", "walk"))
    assert code(root, "benchmarks.b") != before
