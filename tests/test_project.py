"""The project's own files: requirements, the address that stands in several places, the
Makefile.
"""

import ast
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

import ed_lib
from conftest import ROOT
from tools import notebooks, repository

NAME = re.compile(r"^([A-Za-z0-9_.-]+)\s*([<>=!~][^;#\s]*)?")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirements(lines):
    """{package: bounds} of the lines of a requirements file."""
    found = [NAME.match(line.strip()).groups() for line in lines if line.strip() and line[0] != "#"]
    return {package.lower().replace("_", "-"): bounds for package, bounds in found}


BOOK, TESTED = (
    requirements((ROOT / f"{name}.txt").open()) for name in ("requirements", "constraints")
)
PACKAGE = requirements(PROJECT["project"]["dependencies"])
TESTS = requirements(PROJECT["project"]["optional-dependencies"]["test"])


def test_requirements_agree_have_lower_bounds_and_tested_versions_and_no_addresses():
    assert PACKAGE.items() <= BOOK.items(), "the book asks for at least what the package asks for"
    for name, bounds in (BOOK | TESTS).items():
        assert bounds.startswith(">=") and TESTED[name].startswith("=="), name
    for name in ("requirements.txt", "constraints.txt", "pyproject.toml"):
        assert "://" not in (ROOT / name).read_text(), name


PACKAGES = {"sklearn": "scikit-learn", "yaml": "pyyaml", "cupy": "cupy-cuda13x", "PIL": "pillow"}
COME_WITH = {
    "triton": "torch",
    "d2l": "a line of the Makefile",
    "PIL": "matplotlib",
    "IPython": "jupyterlab",
}


@pytest.mark.parametrize("folder", ["ed_lib", "benchmarks", "tools", "tests"])
def test_whatever_is_imported_is_declared(folder):
    declared = BOOK.keys() | (TESTS.keys() if folder != "ed_lib" else set())
    ours = {"ed_lib", "benchmarks", "tools", "tests", "conftest"}
    for path in (ROOT / folder).rglob("*.py"):
        for name in (
            set(top_level_imports(path)) - set(sys.stdlib_module_names) - ours - set(COME_WITH)
        ):
            assert PACKAGES.get(name, name.lower()).replace("_", "-") in declared, f"{path}: {name}"


def top_level_imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


def test_the_version_is_one_number_and_every_package_is_installed():
    version = ed_lib.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert f'VERSION = \\"v{version}\\"' in (ROOT / notebooks.chapters()[0]).read_text()
    folders = {p.parent.relative_to(ROOT).as_posix() for p in ROOT.glob("ed_lib/**/__init__.py")}
    packages = PROJECT["tool"]["setuptools"]["packages"]
    assert {package.replace(".", "/") for package in packages} == folders | {"ed_lib/recorded"}


ABSENT = """d2l torchvision cupy triton pooch requests tqdm IPython matplotlib keras sklearn
    jax nbformat nbclient jupytext yaml"""
BARE = """
import sys
for name in [*absent, "scipy", "threadpoolctl", "pandas"]: sys.modules[name] = None
from ed_lib import machine, roofline, timing
timing.measure(lambda: None, min_seconds=0.001), timing.apart(lambda: None, min_seconds=0.001)
assert machine.card()  # with NumPy and PyTorch alone
for name in ("scipy", "threadpoolctl", "pandas"): del sys.modules[name]
"""


def test_importing_needs_only_what_a_bare_machine_with_a_gpu_has():
    files = [*ROOT.glob("ed_lib/**/*.py"), *ROOT.glob("benchmarks/*.py")]
    modules = [
        ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for p in files
    ]
    code = f"absent = {ABSENT.split()}{BARE}import {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_one_command_changes_the_address_everywhere(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "book", tmp_path / "book")
    for name in ("_config.yml", "_toc.yml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    before = repository.addresses()
    assert before.keys() == {"_config.yml", "README.md", *map(str, notebooks.chapters())}
    assert len(set(before.values())) == 1
    monkeypatch.setattr(repository, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    repository.change("https://github.com/someone/a-book.git")
    assert set(repository.addresses().values()) == {"https://github.com/someone/a-book"}
    for path in notebooks.chapters():
        now, then = (notebooks.read(root / path).cells for root in (tmp_path, ROOT))
        changed = [old for new, old in zip(now, then, strict=True) if new != old]
        assert [notebooks.tags(cell)[0] for cell in changed] == ["setup"], (
            "the outputs became stale"
        )


def untyped(path):
    """The public functions and methods of a module without all their types; Triton and Numba have
    theirs.
    """
    text = path.read_text()
    body = ast.parse(text).body
    classes = [one for one in body if isinstance(one, ast.ClassDef) and one.name[0] != "_"]
    for function in (one for part in [body, *(one.body for one in classes)] for one in part):
        if isinstance(function, ast.FunctionDef) and function.name[0] != "_":
            how = " ".join(map(ast.unparse, function.decorator_list))
            given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            typed = all(one.annotation for one in given if one.arg not in ("self", "cls"))
            compiled = "jit" in how or "intrinsic" in how or f"overload({function.name})" in text
            if not compiled and not (typed and function.returns):
                yield function.name


def test_public_functions_say_their_types():
    found = {
        p.relative_to(ROOT).as_posix(): list(untyped(p)) for p in (ROOT / "ed_lib").rglob("*.py")
    }
    assert {path: names for path, names in found.items() if names} == {}
