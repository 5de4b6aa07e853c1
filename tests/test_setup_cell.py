"""The set-up cell as Colab runs it: a fresh environment with torch, numpy, matplotlib, and no
ed_lib.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from packaging.version import Version

import ed_lib
from conftest import ROOT
from ed_lib import records
from tools import notebooks


@pytest.fixture(scope="module")
def cell():
    nb = notebooks.read(ROOT / notebooks.chapters()[0])
    return next(c.source for c in nb.cells if "setup" in notebooks.tags(c))


@pytest.fixture
def repository(tmp_path):
    """A git repository with the files as they are now: its folder."""
    folder = tmp_path / "repository"  # not where the cell runs
    for name in ("ed_lib", "records"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, folder)
    for command in ("init -q", "add -A", "commit -qm all", f"tag v{ed_lib.__version__}"):
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        subprocess.run(["git", *identity, *command.split()], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def colab(tmp_path_factory):
    """The Python of a fresh environment that sees, by links, what this one holds but ed_lib and
    pooch.
    """
    folder = tmp_path_factory.mktemp("colab")
    (folder / "held").mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match("ed_lib|__editable__|pooch|_pytest|.*\\.pth", entry.name):
            (folder / "held" / entry.name).symlink_to(entry)
    venv.create(folder / "env")
    python = folder / "env" / "bin" / "python"
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    Path(packages, "held.pth").write_text(f"{folder / 'held'}\n")
    return python, packages


def run(colab, source, folder):
    """What a cell with its magics says, run as a notebook would."""
    script = folder / "cell.ipy"
    script.write_text(source)
    command = [colab[0], "-m", "IPython", "--colors=NoColor", "--quick", str(script)]
    alone = os.environ | {"PYTHONPATH": ""}  # or it would find the package in this folder,
    alone.pop("VIRTUAL_ENV", None)  # or in an environment that is activated
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=alone)
    return done.stdout + done.stderr


REPOSITORY = re.compile(r'(?m)^REPOSITORY = ".*"')


@pytest.mark.slow
def test_it_installs_the_package_and_moves_nothing_that_colab_holds(
    colab, cell, repository, tmp_path
):
    asked = [colab[0], "-m", "pip", "download", "--no-deps", "-q", "-d", str(tmp_path), "pooch"]
    if subprocess.run(asked, capture_output=True).returncode:
        pytest.skip("no package registry can be reached")
    # What the caches of an earlier one, uninstalled, leave behind.
    (Path(colab[1]) / "ed_lib" / "__pycache__").mkdir(parents=True)
    code = REPOSITORY.sub(f'REPOSITORY = "{repository.as_uri()}"', cell)
    code += "\nfrom ed_lib import records\nprint(len(records.by_machine('ed')), 'records', ed_lib.__file__)"
    said = run(colab, code, tmp_path)
    assert "CPU: " in said and f"{len(records.by_machine('ed'))} records" in said, said
    assert "restart" not in said
    assert colab[1] in said, "ed_lib was not imported from the fresh environment"
    installed = {
        dist.metadata["Name"].lower() for dist in importlib.metadata.distributions(path=[colab[1]])
    }
    assert installed - {"pip", "setuptools"} == {"ed_lib", "pooch"}, (
        "it would restart Colab's kernel"
    )
    left = subprocess.check_output(["git", "status", "-s", "--ignored"], cwd=repository)
    assert left == b"", "left in the clone"


@pytest.mark.parametrize("address, said", [
    ("https://github.com/OWNER/REPOSITORY", "RuntimeError: ed_lib is missing"),
    ("file://{}", "pathspec 'v9' did not match"),
])  # fmt: skip
def test_with_no_address_or_no_such_tag_it_says_what_to_do(
    address, said, colab, cell, repository, tmp_path
):
    code = REPOSITORY.sub(f'REPOSITORY = "{address.format(repository)}"', cell)
    code = re.sub(r'(?m)^VERSION = ".*"', 'VERSION = "v9"', code)
    hidden = "import sys; sys.modules['ed_lib'] = None\n"  # whatever the test before has installed
    told = " ".join(run(colab, hidden + code, tmp_path).split())
    assert said in told and "a tag or branch that is there (main) into VERSION" in told
    assert ("git checkout" in told) == ("OWNER" not in address), "whether pip was asked"


@pytest.mark.parametrize("version", ["2.8.0+cu126", "2.9.0+cpu", "2.10.0"])
def test_a_runtime_that_is_too_old_is_told_which_to_choose_before_anything_is_installed(
    version, cell, tmp_path
):
    """Of Colab's past runtimes 2025.10 has PyTorch 2.8, and 2026.01 has 2.9."""
    (tmp_path / "torch.dist-info").mkdir()
    about = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
    (tmp_path / "torch.dist-info" / "METADATA").write_text(about)
    first = f"import sys; sys.modules['ed_lib'] = None; sys.path.insert(0, {str(tmp_path)!r})\n"
    told = run(
        (sys.executable,), first + REPOSITORY.sub('REPOSITORY = "file:///none"', cell), tmp_path
    )
    (bound,) = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    old = Version(version) < Version(bound)
    assert ("PyTorch is too old. In Colab: Runtime, Change runtime type, 2026.01" in told) == old
    assert ("git clone" in told) != old, "whether pip was asked"


def test_this_environment_needs_nothing_installed(cell, tmp_path):
    said = run((sys.executable,), cell, tmp_path)
    assert said.startswith("CPU: ") and "Traceback" not in said
