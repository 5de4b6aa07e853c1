"""`make elsewhere`: the libraries obey, and claims that fail are listed."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from ed_lib import machine
from tools import elsewhere

# Not written: a chapter is executed beside its neighbours, whether or not its file is there.
MADE_UP = Path("book/ed/made_up.ipynb")
ASKED = """
import json, os, numba, numpy, scipy.linalg, torch
from threadpoolctl import threadpool_info
from ed_lib import machine, registers
dispatched = numpy._core._multiarray_umath.__cpu_features__
blas = {pool["architecture"] for pool in threadpool_info() if pool["internal_api"] == "openblas"}
print(json.dumps({
    "torch": torch.backends.cpu.get_cpu_capability(), "blas": sorted(blas), "flags": machine.flags(),
    "numba": registers.cpu_target.target_context.codegen().magic_tuple()[1], "lanes": registers.LANES,
    "numpy": [name for name in ("X86_V3", "X86_V4") if dispatched.get(name)],
    "threads": [torch.get_num_threads(), numba.get_num_threads(), machine.threads()]}))
"""


def chapter(*cells):
    """A notebook of (code, is it a claim?)."""
    made = [nbformat.v4.new_code_cell(source, id=f"cell{n}") for n, (source, _) in enumerate(cells)]
    for cell, (_, claim) in zip(made, cells, strict=True):
        cell.metadata["tags"] = ["claim"] if claim else []
    return nbformat.v4.new_notebook(cells=made)


def test_each_claim_that_fails_is_listed_and_the_cells_after_it_run():
    nb = chapter(
        ("import os\ncapability = os.environ.get('ATEN_CPU_CAPABILITY', 'all')", False),
        ("assert capability == 'all', 'it has all instructions'", True),
        ("print('These times say little: a took 2 s.')", True),
        ("later = len(capability)", False),
        ("assert later == 4, 'its name is that of AVX2\\nin letters'", True),
        ("if capability == 'all': raise TypeError", True),
    )
    doubt = "cell cell2: These times say little: a took 2 s."
    here = elsewhere.failed(nb, MADE_UP, "here")
    assert here == (["cell cell4: its name is that of AVX2", "cell cell5: TypeError"], [doubt])
    avx2 = elsewhere.failed(nb, MADE_UP, "avx2")
    assert avx2 == (["cell cell1: it has all instructions"], [doubt])
    assert all("raises-exception" not in cell.metadata.tags for cell in nb.cells), "a copy"


def test_a_chapter_that_ends_early_says_why():
    claims, doubts = elsewhere.failed(chapter(("1 / 0", False)), MADE_UP, "here")
    assert claims == ["it ends early: ZeroDivisionError: division by zero"] and not doubts


def test_a_failure_ends_in_an_error_that_counts(monkeypatch, capsys):
    said = iter([(["cell a: twice as fast"], ["cell a: noise"]), ([], [])])
    monkeypatch.setattr(elsewhere, "failed", lambda nb, path, way: next(said))
    chapter_ = str(elsewhere.ROOT / "book/lstm/one_step.ipynb")
    with pytest.raises(SystemExit, match="^1 claims fail elsewhere"):
        elsewhere.main([chapter_, "--way", "here", "avx2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["one_step, here: cell a: twice as fast", "  cell a: noise",
                     "one_step, avx2: all claims hold"]  # fmt: skip


@pytest.mark.parametrize("argument", [["--way", "neon"], ["book/ed/no_such.ipynb"]])
def test_what_is_not_there_is_refused(argument):
    with pytest.raises((SystemExit, FileNotFoundError)):
        elsewhere.main(argument)


X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="imitates processors of x86")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for one core")


def asked(way):
    """What the libraries of a new process say of the machine."""
    environment = {key: value for key, value in os.environ.items() if "_NUM_THREADS" not in key}
    command = [sys.executable, "-c", ASKED]
    told = environment | elsewhere.WAYS[way]
    return json.loads(subprocess.run(command, env=told, capture_output=True, check=True).stdout)


@X86
@pytest.mark.oracle
@pytest.mark.parametrize("way, capability, core, numba, flags, numpy", [
    ("avx2", "AVX2", "Haswell", "haswell", ["avx2"], ["X86_V3"]),
    pytest.param("sse", "DEFAULT", "Nehalem", "nehalem", [], [], marks=pytest.mark.slow),
])  # fmt: skip
def test_every_library_says_that_it_is_on_the_imitated_processor(
    way, capability, core, numba, flags, numpy
):
    if not {"avx2", "avx512"} & {*machine.flags()}:
        pytest.skip("imitates less than a processor with AVX2")
    found = asked(way)
    assert (found["torch"], found["blas"], found["numba"]) == (capability, [core], numba)
    assert (found["flags"], found["numpy"], found["lanes"]) == (flags, numpy, 8)


@LINUX
@pytest.mark.oracle
@pytest.mark.slow
def test_one_thread_is_seen_by_every_library():
    assert asked("one-thread")["threads"][:2] == [1, 1]


@LINUX
@pytest.mark.oracle
def test_one_core_is_seen_by_every_library():
    before = os.sched_getaffinity(0)
    with elsewhere.one_core():
        assert asked("one-core")["threads"] == [1, 1, 1]
    assert os.sched_getaffinity(0) == before
