"""The totals: how long the code may be, and that the README's tree is the tree."""

import re
import subprocess

import pytest

from conftest import ROOT

TOTALS = {  # lines of Python at most, or words
    "ed_lib/*.py": 1517,
    "ed_lib/ed/**/*.py": 1450,
    "ed_lib/parallel/**/*.py": 2150,
    "ed_lib/precision/**/*.py": 1300,
    "ed_lib/lstm/**/*.py": 1064,
    "benchmarks/**/*.py": 2400,
    "tools/**/*.py": 885,
    "tests/**/*.py": 10000,
    "book/_static/*.js": 500,
    "CONTRIBUTING.md": 700,
}
LONGEST = 300  # lines of a file of the package, of the benchmarks or of the tools


@pytest.mark.parametrize("pattern", TOTALS)
def test_totals_are_kept(pattern):
    texts = {path: path.read_text() for path in ROOT.glob(pattern)}
    lengths = {p: len(t.split() if p.suffix == ".md" else t.splitlines()) for p, t in texts.items()}
    assert 0 < sum(lengths.values()) <= TOTALS[pattern]
    if not pattern.startswith("tests") and pattern.endswith(".py"):
        assert max(lengths.values()) <= LONGEST, max(lengths, key=lengths.get)


def test_the_tree_in_the_readme_is_the_tree():
    text = re.search(r"## What is where\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    told = [
        (line[0] == " ", name)
        for line in text.splitlines()
        for name in re.split(" {3,}", line.strip())[0].split()
    ]
    asked = ["git", "ls-files", "-co", "--exclude-standard"]
    files = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    top = {file.partition("/")[0] + "/" * ("/" in file) for file in files if (ROOT / file).exists()}
    package = {path.stem for path in (ROOT / "ed_lib").glob("*.py")} - {"__init__"}
    package |= {f"{path.parent.name}/" for path in ROOT.glob("ed_lib/*/__init__.py")}
    assert sorted(told) == sorted([(False, name) for name in top] + [(True, name) for name in package])
