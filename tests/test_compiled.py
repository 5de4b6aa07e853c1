"""Compiled code is kept until a source changes that may be in it; and not run after a fork."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numba
import numpy as np
import pytest
import torch

from conftest import ROOT
from ed_lib import compiled
from ed_lib.ed import EDNetwork
from ed_lib.lstm.lstm_on_cpu import Packed

# a function of another file than that of the product, which is compiled into it
CALLER = """
from ed_lib.compiled import cached
from ed_lib.registers import FAST, product

@cached(**FAST)
def add(x, w, start, out):
    product(x, w, start, out)
"""
SUM = """
import numpy as np
from ed_lib.caller import add
from ed_lib.registers import WIDE
x, w, start = np.ones((1, 3), "f"), np.ones((3, WIDE), "f"), np.full((1, WIDE), 10, "f")
out = np.empty_like(start)
add(x, w, start, out)
print(out[0, 0], sum(add.stats.cache_hits.values()))
"""
FOLDER = "from ed_lib import compiled; print(compiled.FOLDER)"


def run(folder, script, **environment):
    """What a script prints that imports the package in ``folder``."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_CACHE")}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=folder,
        env=own | {"PYTHONPATH": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()


def test_a_change_of_another_file_is_seen(tmp_path):
    shutil.copytree(
        ROOT / "ed_lib", tmp_path / "ed_lib", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "ed_lib" / "caller.py").write_text(CALLER)
    assert run(tmp_path, SUM) == ["13.0", "0"]
    assert run(tmp_path, SUM) == ["13.0", "1"], "what is kept is used"
    registers = tmp_path / "ed_lib" / "registers.py"
    text = registers.read_text()
    assert text.count("fadd") == 1
    registers.write_text(text.replace("fadd", "fsub"))
    assert run(tmp_path, SUM) == ["7.0", "0"]
    registers.write_text(text)
    assert run(tmp_path, SUM) == ["13.0", "1"], "back to what was, and to its folder"
    folders = [*(tmp_path / "ed_lib" / "__pycache__").glob("ed_lib-*")]
    assert len(folders) == 2


def test_numbas_own_folder_is_that_of_the_user(tmp_path):
    name = f"ed_lib-{compiled.fingerprint()}"
    kept = run(ROOT, FOLDER, NUMBA_CACHE_DIR=str(tmp_path))
    assert kept == [str(tmp_path / name)]
    assert " ".join(run(ROOT, FOLDER)) == str(ROOT / "ed_lib" / "__pycache__" / name)


def test_all_that_is_compiled_together_is_among_the_sources():
    names = {path.name for path in compiled.sources()}
    assert names >= {
        "compiled.py", "registers.py", "flush_to_zero.py", "barrier.py", "ed_on_cpu.py",
        "exponential.py", "lstm_on_cpu.py", "scans.py",
    }  # fmt: skip


def test_the_folders_last_used_stay(tmp_path):
    for day in range(compiled.KEPT + 3):
        folder = tmp_path / f"ed_lib-{day}"
        folder.mkdir()
        (folder / compiled.USED).touch()
        os.utime(folder / compiled.USED, (day, day))
    (tmp_path / "ed_lib-half").mkdir()  # without the mark: of something else
    (tmp_path / "another").mkdir()
    compiled.remove_old(tmp_path / "ed_lib-1")
    last = {f"ed_lib-{day}" for day in range(3, compiled.KEPT + 3)}
    assert {path.name for path in tmp_path.iterdir()} == {*last, "another", "ed_lib-half"}


def test_where_nothing_can_be_written_functions_are_compiled_all_the_same(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(compiled, "places", lambda: [tmp_path / "file" / "below"])
    assert compiled.choose_folder() is None
    monkeypatch.setattr(compiled, "FOLDER", None)
    assert compiled.cached()(abs_of)(-3) == 3


def test_numbas_own_setting_is_as_it_was(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "as it was")
    monkeypatch.setattr(compiled, "FOLDER", tmp_path)
    kept = compiled.cached()(abs_of)
    assert numba.config.CACHE_DIR == "as it was"
    assert tmp_path in Path(kept.stats.cache_path).parents


def abs_of(x):
    return abs(x)


FORK = """
import os, numba, numpy as np
from ed_lib import compiled

@numba.njit(parallel=True)
def count(x):
    for k in numba.prange(len(x)):
        x[k] += 1

def forked():
    if not (child := os.fork()):
        try:
            compiled.check_threads()
        except RuntimeError as error:
            os._exit(7 if "wanted a process that is spawned" in str(error) else 1)
        count(np.zeros(3))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

early = forked()
count(np.zeros(3))
compiled.check_threads()
late = forked()
print(numba.threading_layer(), early, late)
"""


FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")


@FORKS
def test_a_fork_after_use_is_told():
    layer, early, late = run(ROOT, FORK)
    assert early == "0", "no threads had started"
    assert late == ("7" if layer == "omp" else "0")


@FORKS
@pytest.mark.slow
def test_a_fork_is_no_matter_where_the_threads_survive_it():
    assert run(ROOT, FORK, NUMBA_THREADING_LAYER="workqueue") == ["workqueue", "0", "0"]


def test_a_forked_process_gets_an_error_from_ed_and_the_lstm(monkeypatch):
    network = EDNetwork(2, 2, 1, path="kernel")
    packed = Packed(torch.nn.LSTM(1, 1))
    monkeypatch.setattr(compiled, "lost_threads", True)
    with pytest.raises(RuntimeError, match="forked after Numba's OpenMP threads had started"):
        network.forward(np.ones((1, 2), np.float32))
    with pytest.raises(RuntimeError, match="forked after Numba's OpenMP threads had started"):
        packed(torch.ones(1, 1, 1))
