"""The project's own files: requirements that agree, the address that stands in several places, file sizes."""

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

import ed_lib
from conftest import ROOT
from tools import measurements, notebooks, repository

needs_the_books_tools = pytest.mark.skipif(
    importlib.util.find_spec("nbformat") is None, reason="needs what requirements.txt lists, to read chapters"
)
NAME = re.compile(r"^([A-Za-z0-9_.-]+)\s*([<>=!~][^;#\s]*)?")


def requirements(name):
    """{package: bounds} of a requirements file."""
    lines = [line.strip() for line in (ROOT / name).read_text().splitlines()]
    found = [NAME.match(line).groups() for line in lines if line and not line.startswith("#")]
    return {package.lower().replace("_", "-"): bounds for package, bounds in found}


def test_the_book_asks_for_at_least_what_the_package_asks_for():
    book, package = requirements("requirements.txt"), tomllib.loads((ROOT / "pyproject.toml").read_text())
    for line in package["project"]["dependencies"]:
        name, bounds = NAME.match(line).groups()
        assert book[name.lower().replace("_", "-")] == bounds, line


def test_every_requirement_has_a_lower_bound_and_a_tested_version():
    tested = requirements("constraints.txt")
    for name, bounds in requirements("requirements.txt").items():
        assert bounds and bounds.startswith(">="), name
        assert tested[name].startswith("=="), name


@pytest.mark.parametrize("name", ["requirements.txt", "constraints.txt", "pyproject.toml"])
def test_no_download_address_stands_in_what_is_installed(name):
    assert "://" not in (ROOT / name).read_text()


def test_files_of_the_package_are_small_and_so_is_each_part():
    lengths = {p: len(p.read_text().splitlines()) for p in (ROOT / "ed_lib").rglob("*.py")}
    assert lengths and max(lengths.values()) <= 300
    folders = {p.parent for p in lengths}
    parts = {folder: sum(n for p, n in lengths.items() if p.parent == folder) for folder in folders}
    assert max(parts.values()) <= 3500, parts  # a reader reads one part at a time


PACKAGES = {
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "cupy": "cupy-cuda13x",
    "axe_playwright_python": "axe-playwright-python",
}
COME_WITH = {"triton": "torch", "d2l": "a line of its own in requirements.txt"}


@pytest.mark.parametrize("folder", ["ed_lib", "benchmarks", "tools", "tests"])
def test_whatever_is_imported_is_declared(folder):
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = package["optional-dependencies"]
    lines = package["dependencies"] + extras["jax"] + (folder != "ed_lib") * extras["test"]
    declared = {NAME.match(line).group(1).lower().replace("_", "-") for line in lines}
    declared |= set(requirements("requirements.txt")) | {"ipython"}  # which comes with jupyterlab
    ours = {"ed_lib", "benchmarks", "tools", "tests", "conftest"}
    for path in (ROOT / folder).rglob("*.py"):
        for name in top_level_imports(path) - set(sys.stdlib_module_names) - ours - set(COME_WITH):
            assert PACKAGES.get(name, name.lower()).replace("_", "-") in declared, f"{path}: {name}"


def top_level_imports(path):
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_the_version_is_one_number():
    version = ed_lib.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()
    for path in notebooks.chapters():
        setup = next(c for c in notebooks.read(ROOT / path).cells if "setup" in notebooks.tags(c))
        assert f'VERSION = "v{version}"' in setup.source, path


def test_every_package_and_the_records_are_installed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {
        p.parent.relative_to(ROOT).as_posix().replace("/", ".") for p in ROOT.glob("ed_lib/**/__init__.py")
    }
    assert set(listed) == folders | {"ed_lib.recorded"}


def test_the_pages_of_measurements_are_those_of_the_records():
    wanted = measurements.written(measurements.recorded())
    there = [measurements.OVERVIEW, *measurements.PAGES.rglob("*.md")]
    assert {path: path.read_text() for path in there} == wanted, "run python -m tools.measurements"


ABSENT = "d2l torchvision cupy triton pooch requests array_api_compat tqdm IPython matplotlib keras sklearn"
NOTEBOOKS = "nbformat nbclient jupytext yaml"  # of the tools only


@pytest.mark.parametrize(
    "folder, absent",
    [("ed_lib", ABSENT), ("benchmarks", f"{ABSENT} {NOTEBOOKS}"), ("tools/measurements.py", NOTEBOOKS)],
)
def test_importing_needs_only_what_a_bare_machine_with_a_gpu_has(folder, absent):
    files = (ROOT / folder).rglob("*.py") if (ROOT / folder).is_dir() else [ROOT / folder]
    modules = [".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for p in files]
    code = f"import sys\nfor name in {absent.split()}: sys.modules[name] = None\nimport {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@needs_the_books_tools
def test_the_address_is_the_same_everywhere():
    addresses = repository.addresses()
    assert set(addresses) == {"_config.yml", "README.md"} | {str(path) for path in notebooks.chapters()}
    assert len(set(addresses.values())) == 1


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the files in which the address stands, as the root."""
    shutil.copytree(ROOT / "book", tmp_path / "book")
    for name in ("_config.yml", "_toc.yml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "ed_lib", tmp_path / "ed_lib")
    monkeypatch.setattr(repository, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    return tmp_path


@needs_the_books_tools
def test_one_command_changes_the_address_everywhere_and_spoils_nothing(copy):
    before = {path: notebooks.fingerprint(notebooks.read(copy / path)) for path in notebooks.chapters()}
    repository.change("https://github.com/someone/a-book.git")
    assert set(repository.addresses().values()) == {"https://github.com/someone/a-book"}
    for path in notebooks.chapters():
        nb = notebooks.read(copy / path)
        assert notebooks.fingerprint(nb) == before[path], "the outputs became stale"
        assert (copy / path).read_text().count("a-book") == 1


@needs_the_books_tools
@pytest.mark.parametrize(
    "url", ["", "github.com/a/b", "https://github.com", 'https://github.com/a/b" # x', "git@host:a/b"]
)
def test_a_bad_address_is_named_and_changes_nothing(copy, url):
    before = repository.addresses()
    with pytest.raises(ValueError, match="URL is .*; wanted an address like https://"):
        repository.change(url)
    assert repository.addresses() == before


@needs_the_books_tools
@pytest.mark.parametrize(
    "remote, url",
    [
        ("git@github.com:somebody/a-book.git", "https://github.com/somebody/a-book"),
        ("https://gitlab.com/group/a-book", "https://gitlab.com/group/a-book"),
        ("/a/folder", "https://github.com/name/repository"),
        (None, "https://github.com/name/repository"),
    ],
)
def test_without_an_address_the_remote_is_proposed(tmp_path, monkeypatch, remote, url):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    if remote:
        subprocess.run(["git", "remote", "add", "origin", remote], cwd=tmp_path, check=True)
    monkeypatch.setattr(repository, "ROOT", tmp_path)
    assert repository.proposal().endswith(f"make repository URL={url}")


def test_make_help_lists_every_target():
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M).group(1).split()
    assert all(f"make {target} " in shown for target in targets if target not in ("help", "setup"))


def test_an_environment_behind_a_link_is_not_emptied(tmp_path):
    for name in ("Makefile", "requirements.txt", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".venv").symlink_to("elsewhere")
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" != -m ] || { touch called; exit 1; }')  # no venv is made here
    python.chmod(0o755)
    done = subprocess.run(["make", "setup", f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode and not (tmp_path / "called").exists()
    assert "it is a link to, elsewhere. Remove the link" in done.stdout


@needs_the_books_tools
@pytest.mark.filterwarnings("ignore")
def test_the_libraries_that_later_parts_stand_on_are_really_there():
    from d2l import torch as d2l

    torch, torchvision = pytest.importorskip("torch"), pytest.importorskip("torchvision")
    assert torchvision.__version__
    assert d2l.accuracy(torch.eye(3), torch.tensor([0, 1, 0])) == 2
    if sys.platform == "linux":
        import cupy

        assert issubclass(cupy.ndarray, object) and cupy.__version__


LIBRARIES = {
    "_execution_engine",
    "_reorder_mkldnn_rnn_layer_weight",  # private names of others, which nothing public replaces
    *("_replace", "_asdict", "_fields", "_exit"),  # Python's, public in all but name
    *("_C", "_scaled_mm", "_to_copy", "_foreach_add_", "_profiler_enabled", "_python_dispatch", "_schema"),
    "_cuda_hasPrimaryContext",
    *("_version", "_modules", "_buffers", "_parameters", "_conv_forward", "_get_current_dispatch_mode"),
    "_patch_lang_tensor",
    *("_linear_pointwise", "_reorder_linear_weight"),
    *("_convert_weight_to_int4pack_for_cpu", "_weight_int4pack_mm_for_cpu", "_weight_int8pack_mm"),
    *("_resolve_process_group", "_type"),
}


def private_names_of_others(code):
    """The names with one leading underscore that this code takes from another module, class or object."""
    tree = ast.parse(code)
    own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_own(node.value)}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        imported = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        used = [node.attr] if isinstance(node, ast.Attribute) and node.attr not in own else []
        yield from (n for n in imported + used if re.match("_[^_]", n) and n not in LIBRARIES)


def is_own(value):
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def test_private_names_are_seen():
    found = private_names_of_others("from a import _b\nself._c = 1\nx._c = 2\nx._d = x.__e__ = y._replace()")
    assert sorted(found) == ["_b", "_d"]


@pytest.mark.parametrize("folder", ["ed_lib", "benchmarks", "tools"])
def test_no_module_uses_what_is_private_to_another(folder):
    found = {p.name: list(private_names_of_others(p.read_text())) for p in (ROOT / folder).rglob("*.py")}
    assert {name: names for name, names in found.items() if names} == {}


@needs_the_books_tools
def test_what_chapters_show_is_public():
    from IPython.core.inputtransformer2 import TransformerManager

    for path in notebooks.chapters():
        for cell in notebooks.code_cells(notebooks.read(ROOT / path)):
            code = TransformerManager().transform_cell(cell.source.removeprefix("%%gpu\n"))
            assert list(private_names_of_others(code)) == [], f"{path}: {cell.source[:60]}"


def test_no_module_and_function_share_a_name():
    for path in (ROOT / "ed_lib").rglob("*.py"):
        defined = {node.name for node in ast.parse(path.read_text()).body if hasattr(node, "name")}
        beside = {p.stem for p in path.parent.iterdir()} if path.name == "__init__.py" else {path.stem}
        exported = re.findall(r"__all__ = \[(.*?)\]", path.read_text(), re.S)
        defined |= set(re.findall(r'"(\w+)"', exported[0])) if exported else set()
        assert not defined & beside, path


def unannotated(path):
    """The public functions and methods of a module of which an argument, or what they return, has no type."""
    body = ast.parse(path.read_text()).body
    decorators = [ast.unparse(one) for node in body for one in getattr(node, "decorator_list", ())]
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from (f"{node.name}.{f.name}" for f in node.body if is_bare(f, skip=1))
        elif is_bare(node) and f"overload({node.name})" not in decorators:  # which Numba fills in by type
            yield node.name


def is_bare(node, skip=0):
    if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
        return False
    if any("jit" in ast.unparse(decorator) for decorator in node.decorator_list):
        return False  # a kernel's arguments are what Triton or Numba makes of them
    static = any("staticmethod" in ast.unparse(decorator) for decorator in node.decorator_list)
    given = [*node.args.posonlyargs, *node.args.args][0 if static else skip :] + node.args.kwonlyargs
    return node.returns is None or any(argument.annotation is None for argument in given)


def test_public_functions_say_their_types():
    found = {p.relative_to(ROOT).as_posix(): list(unannotated(p)) for p in (ROOT / "ed_lib").rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}
