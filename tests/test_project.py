"""The project's own files: requirements, the address that stands in several places, the
Makefile.
"""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import ed_lib
from conftest import ROOT
from tools import notebooks, repository

NAME = re.compile(r"^([A-Za-z0-9_.-]+)\s*([<>=!~][^;#\s]*)?")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirements(lines):
    """{package: bounds} of the lines of a requirements file."""
    found = [NAME.match(line.strip()).groups() for line in lines if line.strip() and line[0] != "#"]
    return {package.lower().replace("_", "-"): bounds for package, bounds in found}


TESTED = requirements((ROOT / "constraints.txt").open())
EXTRAS = PROJECT["project"]["optional-dependencies"]
PACKAGE = requirements(PROJECT["project"]["dependencies"])
BOOK, TESTS = requirements(EXTRAS["book"]), requirements(EXTRAS["test"])


def test_each_requirement_stands_once_has_a_lower_bound_and_a_tested_version_and_no_address():
    for name, bounds in (declared := PACKAGE | BOOK | TESTS).items():
        assert bounds.startswith(">="), name
        if TESTED:  # the weekly job empties it, to have the newest versions
            assert Version(TESTED[name].removeprefix("==")) in SpecifierSet(bounds), name
    assert len(declared) == len(PACKAGE) + len(BOOK) + len(TESTS), "one stands twice"
    for name in ("requirements.txt", "constraints.txt", "pyproject.toml"):
        assert "://" not in (ROOT / name).read_text(), name


def test_the_requirements_name_the_extras_and_what_the_book_was_asked_for():
    text = (ROOT / "requirements.txt").read_text()
    (line,) = [line for line in text.splitlines() if line[0] != "#"]
    assert line == f"-e .[{','.join(EXTRAS)}]"
    assert "pip install --no-deps --group d2l" in text and PROJECT["dependency-groups"]["d2l"]
    for name in ("jupyter-book", "cupy", "numpy", "torch", "matplotlib", "d2l"):
        assert re.search(rf"^#.*\b{name}\b", text, re.M), name


def test_colab_has_what_the_package_needs():
    """So that installing ed_lib there moves nothing."""
    colab = requirements((ROOT / "constraints-colab.txt").open())
    for name, bounds in PACKAGE.items():
        version = (colab[name] or "").removeprefix("==")
        assert not version or Version(version) in SpecifierSet(bounds), name


PACKAGES = {"sklearn": "scikit-learn", "yaml": "pyyaml", "PIL": "pillow"}
COME_WITH = {"triton": "torch", "PIL": "matplotlib", "IPython": "jupyterlab"}


@pytest.mark.parametrize("folder", ["ed_lib", "benchmarks", "tools", "tests"])
def test_whatever_is_imported_is_declared(folder):
    declared = PACKAGE.keys() | (set() if folder == "ed_lib" else BOOK.keys() | TESTS.keys())
    ours = {"ed_lib", "benchmarks", "tools", "tests", "conftest"}
    known = {*sys.stdlib_module_names, *ours, *COME_WITH}
    for path in (ROOT / folder).rglob("*.py"):
        for name in set(top_level_imports(path)) - known:
            assert PACKAGES.get(name, name.lower()).replace("_", "-") in declared, f"{path}: {name}"


def top_level_imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


def test_the_version_is_one_number():
    version = ed_lib.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert f'VERSION = "v{version}"' in repository.setup_cell().splitlines()
    assert f"`git tag v{version}`" in (ROOT / "README.md").read_text()


def test_every_package_and_every_record_is_installed(tmp_path):
    for name in ("ed_lib", "records"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", "built"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    built = {path.relative_to(tmp_path / "built") for path in tmp_path.glob("built/**/*.*")}
    files = [*ROOT.glob("ed_lib/**/*.py"), *ROOT.glob("ed_lib/samples/*")]
    there = {path.relative_to(ROOT) for path in files}
    kept = {path.relative_to(ROOT / "records") for path in ROOT.glob("records/*/*.csv")}
    assert built == there | {"ed_lib" / Path("recorded") / path for path in kept}


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
    assert repository.address() == repository.address("README.md")
    draft = Path("book/ed/a_draft.ipynb")
    nb = notebooks.read(ROOT / notebooks.chapters()[0])
    nb.metadata["ed_lib"]["draft"] = True
    notebooks.write(nb, tmp_path / draft)
    monkeypatch.setattr(repository, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    assert notebooks.drafts() == [draft]
    address = "https://github.com/someone/a-book"
    repository.change(f"{address}.git")
    assert [repository.address(file) for file in repository.LINES] == [address] * 2
    for path in [*notebooks.chapters(), draft]:
        before = nb if path == draft else notebooks.read(ROOT / path)
        now = notebooks.read(tmp_path / path)
        changed = [new for new, old in zip(now.cells, before.cells, strict=True) if new != old]
        assert [notebooks.tags(cell)[0] for cell in changed] == ["setup"], "stale outputs"
        lines = changed[0].source.splitlines()
        assert (
            f'REPOSITORY = "{address}"' in lines and f'VERSION = "v{ed_lib.__version__}"' in lines
        )
        if path != draft:
            assert (tmp_path / path).read_text().count(address) == 1
    with pytest.raises(ValueError, match="^URL is 'github.com/x'; wanted an address like https://"):
        repository.change("github.com/x")


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
            compiled = re.search("jit|cached|intrinsic|overload", how)
            compiled = compiled or f"overload({function.name})" in text
            if not compiled and not (typed and function.returns):
                yield function.name


def test_public_functions_say_their_types():
    found = {
        p.relative_to(ROOT).as_posix(): list(untyped(p)) for p in (ROOT / "ed_lib").rglob("*.py")
    }
    assert {path: names for path, names in found.items() if names} == {}
