"""The limits of the code, as CONTRIBUTING has them; and that the README's tree is the tree.

Ruff holds columns, complexity and positional arguments; what is exempt says there why (noqa).
"""

import ast
import re
import subprocess

import pytest

from conftest import ROOT
from tools import readability

FILES = [
    path for folder in ("ed_lib", "benchmarks", "tools") for path in (ROOT / folder).rglob("*.py")
]
KERNEL = "compiled, and Numba takes arrays one by one"
EXEMPT = {  # of ruff's limits, by a noqa: {function: why}
    "ed_on_cpu.forward_layers": KERNEL,
    "ed_on_cpu.learn_layers": KERNEL,
    "ed_on_cpu.learn_layer": KERNEL,
    "lstm_on_cpu.forward": KERNEL,
    "lstm_on_cpu.part": KERNEL,
    "lstm_on_gpu.cell_kernel": "compiled, and Triton takes pointers one by one",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_is_short_and_has_nothing_to_take_apart(path):
    text = path.read_text()
    assert len(text.splitlines()) <= readability.LONGEST
    lines = text.splitlines()
    found = readability.faults(ast.parse(text))
    assert [f"{line}: {what}: {lines[line - 1].strip()}" for line, what in found] == []


def test_what_is_exempt_from_ruffs_limits_has_its_reason_here():
    found = set()
    for path in FILES:
        for line in path.read_text().splitlines():
            if name := re.search(r"def (\w+)\(.*# noqa: .*(C901|PLR0917)", line):
                found.add(f"{path.stem}.{name[1]}")
    assert found == EXEMPT.keys() and all(EXEMPT.values())


def test_each_name_of_a_file_occurs_once_in_the_package():
    """So that a line of a traceback says which file it is."""
    names = [path.name for path in (ROOT / "ed_lib").rglob("*.py") if path.name != "__init__.py"]
    assert len(set(names)) == len(names)


REFUSED = """
a = (x if y else z) if b else c
d = [[m for n in k for m in n] for k in f]
g, h, i = 1, 2, 3
call(j := 1)
{"k": (p := 2)}
"""
ALLOWED = """
a = x if y else z
d = [m for n in k for m in n]
a, b = 1, 2
a, b, c = b, c, a
if (p := f(1)) > 2: pass
"""


def test_each_limit_refuses_what_it_names():
    assert [line for line, _ in readability.faults(ast.parse(REFUSED))] == [2, 3, 4, 5, 6]
    assert readability.faults(ast.parse(ALLOWED)) == []


def test_the_densities_are_those_of_a_file_counted_by_hand(tmp_path):
    (tmp_path / "a.py").write_text(
        '"""A."""\n\n# why\nx, y = 1, 2\n\n\ndef f():\n    """F."""\n    return x\n'
    )
    found = readability.counts(tmp_path / "a.py")
    assert (found["lines"], found["code"], found["comments"]) == (9, 3, 1)
    assert (found["expressions"], found["tuples"]) == (9, 1)  # two docstrings among them


def test_the_tree_in_the_readme_is_the_tree():
    text = re.search(r"## What is where\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[
        1
    ]
    told = [
        (line[0] == " ", name)
        for line in text.splitlines()
        for name in re.split(" {3,}", line.strip())[0].split()
    ]
    asked = ["git", "ls-files", "-co", "--exclude-standard"]
    files = subprocess.run(
        asked, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    top = {file.partition("/")[0] + "/" * ("/" in file) for file in files if (ROOT / file).exists()}
    package = {path.stem for path in (ROOT / "ed_lib").glob("*.py")} - {"__init__"}
    package |= {f"{path.parent.name}/" for path in ROOT.glob("ed_lib/*/__init__.py")}
    assert sorted(told) == sorted(
        [(False, name) for name in top] + [(True, name) for name in package]
    )
