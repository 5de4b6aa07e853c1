"""What a record says of itself, which code it stands for, and that it is made on a quiet machine."""

import platform
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from benchmarks import provenance, quiet
from conftest import ROOT
from ed_lib import gates, machine, roofline


def test_facts_name_libraries_and_kernels_and_what_is_forced_but_no_host_user_or_folder(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    words = ["/opt/x/python", "-m", "benchmarks", "--out", "/home/me/deep/records", f"--b={ROOT}/c", "a/b"]
    monkeypatch.setattr(sys, "orig_argv", words)
    made = provenance.facts()
    assert made["command"] == "python -m benchmarks --out records c b"
    assert made["forced"]["OPENBLAS_CORETYPE"] == "Haswell" and made["gpu"] is None
    assert made["versions"]["PyTorch"] == torch.__version__.partition("+")[0]
    assert made["versions"]["Python"] in sys.version
    assert made["machine"] == machine.slug() and made["threads"] == torch.get_num_threads()
    assert any(library == "openblas" and kernels for library, _, kernels, _ in made["blas"])
    assert platform.node() not in str(made) and str(ROOT) not in str(made)


def test_the_load_counts_cores(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds: 25.0)
    assert quiet.load() == 1.0


@pytest.fixture
def machines(monkeypatch):
    """set(load, share): what others use, and how much of the ceilings a probe reaches."""
    best = roofline.Ceilings("x", "float32", 10e9, 100e9)

    def set(load, share):
        probe = roofline.Ceilings("x", "float32", 10e9, share * 100e9)
        measured = SimpleNamespace(ceilings=lambda: best, probe=lambda seconds: probe)
        monkeypatch.setattr(quiet, "load", lambda: load)
        monkeypatch.setattr(quiet, "roofline", measured)

    return set


@pytest.mark.parametrize("load, share, words", [(0.9, 1.0, "0.90 of its"), (0.0, 0.5, "50 of the 100 GFL")])
def test_a_busy_machine_is_waited_for_and_then_refused(machines, load, share, words):
    said = []
    machines(load, share)
    with pytest.raises(gates.Busy, match=f"{words}.*Waited"):
        quiet.wait(0.05, say=said.append)
    assert said and words in said[0]
    times = []
    quiet.wait(0.4, say=lambda reason: times.append(machines(0.0, 0.9)))  # meanwhile it gets quiet
    assert len(times) == 1


SOURCES = {
    "ed_lib/__init__.py": "",
    "ed_lib/a.py": "import numpy\nfrom ed_lib.inner import two\nraise SystemExit('imported')",
    "ed_lib/alone.py": "x = 1",
    "ed_lib/inner/__init__.py": "",
    "ed_lib/inner/two.py": "from ed_lib.late import three",
    "ed_lib/late/three.py": "x = 3",
    "benchmarks/b.py": "def run():\n    import ed_lib.a",
    "tools/c.py": "from benchmarks import b",
}


def test_the_hash_is_of_all_code_that_is_reached_and_of_no_words_about_it(tmp_path):
    for name, source in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    found = [path.as_posix() for path in provenance.reached(["benchmarks.b"], tmp_path)]
    assert found == sorted(set(SOURCES) - {"ed_lib/alone.py", "tools/c.py"})
    assert provenance.reached(["ed_lib.none"], tmp_path) == [Path("ed_lib/__init__.py")]
    before = provenance.code_hash(["benchmarks.b"], tmp_path)
    for name, source, changes in [
        ("ed_lib/late/three.py", "x = 4", True),
        ("ed_lib/alone.py", "x = 4", False),
        (
            "benchmarks/b.py",
            '"""A."""\r\n\r\ndef run():  # more\r\n    """B."""\r\n    import ed_lib.a',
            False,
        ),
        ("benchmarks/b.py", "def walk():\n    import ed_lib.a", True),
    ]:
        (tmp_path / name).write_text(source, newline="")
        assert (provenance.code_hash(["benchmarks.b"], tmp_path) != before) == changes, name
        (tmp_path / name).write_text(SOURCES.get(name, ""))
    assert provenance.code_hash(["benchmarks.b"], tmp_path, "a cell") != before
