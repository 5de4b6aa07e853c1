"""What a record says of itself, which code it stands for, and that it is made on a quiet
machine.
"""

import ast
import platform
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import psutil
import pytest
import torch

from benchmarks.shared import provenance, quiet
from conftest import ROOT
from ed_lib import gates, machine, records, roofline
from tools import notebooks, status


def test_facts_name_libraries_and_kernels_and_what_is_forced_but_no_host_user_or_folder(
    monkeypatch,
):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    words = [
        "/opt/x/python",
        "-m",
        "benchmarks",
        "--out",
        "/home/me 2/deep/records",
        f"--b={ROOT}/c",
        "a/b",
    ]
    monkeypatch.setattr(sys, "orig_argv", words)
    made = provenance.facts()
    assert made["command"] == "python -m benchmarks --out records c b"
    assert made["forced"]["OPENBLAS_CORETYPE"] == "Haswell" and made["gpu"] is None
    assert made["versions"]["PyTorch"] == torch.__version__.partition("+")[0]
    assert made["versions"]["Python"] in sys.version
    assert made["machine"] == machine.slug() and made["threads"] == torch.get_num_threads()
    assert any(library == "openblas" and kernels for library, _, kernels, _ in made["blas"])
    assert platform.node() not in str(made) and str(ROOT) not in str(made)


@pytest.fixture
def machines(monkeypatch):
    """set(load, share): what others use, and how much of the ceilings a probe reaches."""
    best = roofline.Ceilings("x", "float32", 10e9, 100e9)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)

    def set(load, share):
        probe = replace(best, rate=share * best.rate)
        monkeypatch.setattr(psutil, "cpu_percent", lambda seconds: 100 * load / 4)  # of all cores
        monkeypatch.setattr(roofline, "ceilings", lambda: best)
        monkeypatch.setattr(roofline, "probe", lambda seconds: probe)

    return set


@pytest.mark.parametrize(
    "load, share, words", [(0.9, 1.0, "0.90 of its"), (0.0, 0.5, "50 of the 100 GFL")]
)
def test_a_busy_machine_is_waited_for_and_then_refused(machines, load, share, words):
    said = []
    machines(load, share)
    with pytest.raises(gates.Busy, match=f"{words}.*Waited"):
        quiet.wait(0.05, say=said.append)
    assert said and words in said[0]
    said.clear()
    quiet.wait(0.4, say=lambda reason: said.append(machines(0.0, 0.9)))  # meanwhile it gets quiet
    assert len(said) == 1


SOURCES = {
    "ed_lib/__init__.py": "__version__ = '0.2.0'\nx = f'{1!r:>{2}}'",
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
    same = '"""A."""\r\n\r\ndef run():  # more\r\n    """B."""\r\n    import ed_lib.a'
    for name, source, changes in [
        ("ed_lib/__init__.py", "__version__ = '1.2.3'\nx = f\"{1!r:>{2}}\"", False),
        ("ed_lib/late/three.py", "x = 4", True), ("ed_lib/alone.py", "x = 4", False),
        ("benchmarks/b.py", same, False), ("benchmarks/b.py", same.replace("run", "walk"), True),
    ]:  # fmt: skip
        (tmp_path / name).write_text(source, newline="")
        assert (provenance.code_hash(["benchmarks.b"], tmp_path) != before) == changes, name
        (tmp_path / name).write_text(SOURCES[name])
    assert provenance.code_hash(["benchmarks.b"], tmp_path, "a cell") != before
    # the same in every version of Python
    assert before == "9f31fe3391a441e1f58427a35433d81082035d90425731268421e16e9fd5e0f8"


def test_a_record_of_ed_stands_for_the_kernel_that_it_ran():
    """Its networks of dense layers run it, at depths 16 and 32."""
    found = {path.as_posix() for path in provenance.reached(["benchmarks.deep"])}
    assert {"ed_lib/ed/ed_on_cpu.py", "ed_lib/registers.py"} <= found


BY_NAME = {  # files that import a module by its name, which the hash of a record does not see
    "ed_lib/arrays.py": "a library of arrays",
    "ed_lib/ed/space.py": "a library of arrays",
    "benchmarks/__main__.py": "a benchmark, whose record is of the module itself",
}


def test_no_import_of_ours_is_hidden_from_the_hash():
    found = set()
    folders = (ROOT / folder for folder in ("ed_lib", "benchmarks", "tools"))
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text()))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        names = {ast.unparse(call.func).rpartition(".")[2] for call in calls}
        if names & {"import_module", "__import__", "run_module", "run_path"}:
            found.add(path.relative_to(ROOT).as_posix())
    assert found == BY_NAME.keys()


def test_status_lists_what_a_file_reaches_and_refuses_what_is_no_file():
    found = set(status.reaching(Path("ed_lib/lstm/lstm_on_cpu.py")))
    assert {"book/lstm/on_a_cpu.ipynb", "benchmarks/lstm_cpu.py"} <= found
    assert "book/ed/relatives.ipynb" not in found
    with pytest.raises(SystemExit, match="FILE is ed_lib/none.py; wanted a file"):
        list(status.reaching(Path("ed_lib/none.py")))


def test_status_lists_what_other_code_has_made(monkeypatch):
    record = pd.DataFrame({"table": ["a", "b", "b"]})
    record.attrs = {"code": {"a": "now", "b": "old"}, "date": "2026-11-26"}
    monkeypatch.setattr(provenance, "code_hash", lambda names: "now")
    monkeypatch.setattr(records, "by_machine", lambda name: {"m": record} if name == "ed" else {})
    assert [*status.tables()] == [("ed (m): b", "2026-11-26")]
    monkeypatch.setattr(notebooks, "fingerprint", lambda nb: nb.metadata.ed_lib.code)
    assert [*status.chapters()] == []
    monkeypatch.setattr(notebooks, "fingerprint", lambda nb: "other")
    assert [name for name, _ in status.chapters()] == [
        path.as_posix() for path in notebooks.chapters()
    ]
