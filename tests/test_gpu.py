"""`make gpu`: what it says without a GPU, its rehearsal, what it leaves and goes on with; chapters' cells."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import types

import pytest
import torch

from benchmarks import ed, ed_variants, lstm, precision
from benchmarks import old_harness as harness
from conftest import ROOT
from ed_lib import arrays, machine
from ed_lib.ed import costs
from tests.benchmark import measured
from tools import cells, gpu, smoke

pytest.importorskip("triton")
SMALLEST = {  # of which a launch, in Triton's interpreter, takes 50 ms
    ed: ed.Size(costs.Shape(3, 2, 8, 2), (1,), (2,), (1,), 0.001),
    lstm: lstm.Size(
        (), (2,), few=1, layers=(1, 2), steps=1, batch=2, hidden=16, rounds=(1, 1), seconds=0.001
    ),
    precision: dataclasses.replace(precision.TINY, products=(16,), mlp=(1,), lenet=(1,), encoder=(1,)),
}
WITHOUT = pytest.mark.skipif(arrays.gpu_count() > 0, reason="this machine has a GPU")


def run(*arguments):
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True)


@WITHOUT
def test_without_a_gpu_it_says_on_one_screen_what_it_would_do():
    result = run("tools.gpu")
    said = (result.stdout + result.stderr).splitlines()
    assert result.returncode == 1 and len(said) <= 24 and max(map(len, said)) <= 120
    assert "needs a GPU" in said[0] and "--rehearse" in said[-1]
    for stage in gpu.STAGES:
        assert any(stage.name in line for line in said)


@WITHOUT
@pytest.mark.slow
@pytest.mark.parametrize(
    "stages",
    [["smoke", "persistent"], ["ED"], ["LSTM"], ["precision"], ["fine-tuning"], ["chapters"]],
    ids=str,
)
def test_the_rehearsal_goes_through_every_stage(stages):
    result = run("tools.gpu", "--rehearse", "--stages", *stages)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    named = [stage.name for stage in gpu.STAGES if any(part in stage.name for part in stages)]
    assert named and all(f"{name}: done" in result.stdout for name in named)
    assert "left out" not in result.stdout.replace("persistent, bfloat16", "") or stages == ["LSTM"]
    assert "not timed" not in result.stdout


@WITHOUT
def test_the_rehearsal_of_one_stage():
    result = run("tools.gpu", "--rehearse", "--stages", "persistent")
    assert result.returncode == 0 and "persistent kernel: done" in result.stdout, result.stderr[-3000:]


@pytest.fixture
def pretended():
    """A stand-in for the GPU in this process."""
    if arrays.gpu_count():
        pytest.skip("the stand-in is for machines without a GPU")
    from tools.stand_in import stand_in

    with harness.one_thread(), stand_in():
        yield


@pytest.mark.parametrize("benchmark", [ed, lstm, precision], ids=lambda module: module.__name__)
def test_every_part_of_a_benchmark_is_in_a_stage_and_goes_well(
    benchmark, pretended, monkeypatch, tmp_path, capsys
):
    """Those that a GPU has; "training, 4 layers" has another name at the tiny size."""
    monkeypatch.setattr(ed_variants, "FORWARD", ed_variants.FORWARD[:1] + ed_variants.FORWARD[-1:])
    monkeypatch.setattr(ed_variants, "UPDATE", ed_variants.UPDATE[:1])
    monkeypatch.setattr(torch, "compile", lambda function: function)  # it knows no stand-in
    name = benchmark.__name__.rpartition(".")[2]
    named = [part for stage in gpu.STAGES if name in stage.arguments for part in stage.parts]
    assert sorted(map(gpu.as_tiny, named)) == sorted(benchmark.prepare("cuda", benchmark.TINY).parts)
    measured(benchmark, SMALLEST[benchmark], tmp_path, "cuda")
    assert "not timed" not in capsys.readouterr().out


@pytest.mark.parametrize("check", [smoke.versions, smoke.clocks, smoke.cupy, smoke.backward, smoke.fp8,
                                   smoke.persistent], ids=lambda check: check.__name__)  # fmt: skip
def test_smoke_tests_go_well(check, pretended, monkeypatch):
    """Those of what the benchmarks do not run."""
    monkeypatch.setattr(smoke, "DEPTH", 1)
    monkeypatch.setattr(smoke, "BATCH", 2)
    check()


def test_gpu_cells_see_the_stand_in(pretended, tmp_path, capsys):
    gpu_cell = "%%gpu\nx = torch.ones(512, device='cuda')\nprint(x.device, x.numel())"
    assert cells.run(notebook(tmp_path / "chapter.ipynb", "import torch", gpu_cell), tiny=True) == "ok"
    assert "cuda:0 16" in capsys.readouterr().out


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """``gpu.run`` with processes that are none: calls([outcome of each stage]) → (all is well, what ran)."""
    monkeypatch.setattr(machine, "name", lambda device: "A GPU")
    stages = (
        gpu.Stage("smoke", (), 5, again=True),
        gpu.Stage("tests", (), 5, needs=("sys",)),
        gpu.Stage("tables", (), 5, ("a part",)),
        gpu.Stage("cells", (), 5, needs=("no_such_module",)),
    )

    def call(outcomes, seconds=100, out=tmp_path):
        ran = {}

        def process(stage, arguments, limit):
            ran[stage.name] = arguments, limit
            return outcomes.get(stage.name, "done")

        monkeypatch.setattr(gpu, "process", process)
        return gpu.run(stages, types.SimpleNamespace(seconds=seconds, out=out)), ran

    return call


def test_what_is_done_is_not_done_again_and_what_failed_is(calls, tmp_path, capsys):
    well, ran = calls({"tests": "failed"})
    assert not well and list(ran) == ["smoke", "tests", "tables"]
    assert "cells: left: no_such_module is not here; lay its wheel into wheels/" in capsys.readouterr().out
    assert json.loads((tmp_path / "a-gpu" / "gpu.json").read_text())["tests"][0] == "failed"
    assert "tests" in calls({})[1]
    assert list(calls({})[1]) == ["smoke", "tables"]  # the benchmark knows itself what it has done
    assert "tests: was done" in capsys.readouterr().out
    noted = json.loads((tmp_path / "a-gpu" / "gpu.json").read_text())
    noted["tests"][1] = "other code"
    (tmp_path / "a-gpu" / "gpu.json").write_text(json.dumps(noted))
    assert "tests" in calls({})[1]


def test_no_stage_begins_without_time_and_none_outlasts_what_is_left(calls, capsys):
    assert not calls({}, seconds=1)[1] and "smoke: left: no time" in capsys.readouterr().out
    ran = calls({}, seconds=9)[1]
    assert all(limit <= 5 for _, limit in ran.values())
    arguments, _ = ran["tables"]
    assert arguments[arguments.index("--seconds") + 1] == "4"


def test_a_stage_that_hangs_is_ended_and_exit_codes_have_names(tmp_path):
    (tmp_path / "stage.py").write_text(
        "import sys, time\ntime.sleep(float(sys.argv[1]))\nsys.exit(int(sys.argv[2]))"
    )
    os.environ["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    stage = gpu.Stage("a stage", (), 1)
    assert gpu.process(stage, ["stage", "60", "0"], 0.5) == "stopped: it took too long"
    for code, state in ((0, "done"), (1, "failed"), (harness.LEFT, "in part: no time for the rest")):
        assert gpu.process(stage, ["stage", "0", str(code)], 30) == state


def notebook(path, *sources):
    cells = [{"cell_type": "code", "metadata": {}, "source": source} for source in sources]
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "x = 0"}, *cells]}))
    return path


def test_gpu_cells_run_with_the_cells_that_they_stand_on_and_no_others(tmp_path, capsys):
    sources = ["import math\n%matplotlib inline", "one = {}", "one['a'] = math.pi", "raise ValueError('no')"]
    sources += ["def f(x):\n    return x + one['a']", "%%gpu\nprint('found', round(f(100)))"]
    path = notebook(tmp_path / "chapter.ipynb", *sources)
    assert cells.needed(cells.cells_of(path)) == [0, 1, 2, 4, 5]
    assert cells.run(path) == "ok" and "found 103" in capsys.readouterr().out
    assert cells.run(path, tiny=True) == "ok" and "found 5" in capsys.readouterr().out


def test_a_cell_that_fails_is_named(tmp_path, capsys):
    path = notebook(tmp_path / "chapter.ipynb", "a = 1", "%%gpu\nassert a == 2, 'no'")
    assert cells.run(path) == "failed: code cell 2: AssertionError: no"


def test_every_gpu_cell_of_the_book_is_found():
    found = {
        path.stem: sum(source.startswith("%%gpu") for _, source in cells.cells_of(path))
        for path in cells.chapters()
    }
    assert found["every_layer_at_once"] == 1 and found["many_steps"] >= 3 and "mixed_precision" not in found


@WITHOUT
def test_the_stand_in_leaves_everything_as_it_was():
    from tools import stand_in

    before = [(where, name, getattr(where, name)) for where, name, _ in stand_in.replacements()]
    with stand_in.stand_in():
        tensor = torch.zeros(2, device="cuda")
        assert tensor.is_cuda and torch.cuda.is_available() and arrays.gpu_count("cupy") == 1
        assert (tensor.cpu() + 1).sum() == 2
    assert not tensor.is_cuda and not torch.cuda.is_available()
    assert all(getattr(where, name) is value for where, name, value in before)


def test_wheels_are_laid_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "before")
    (tmp_path / "wheels").mkdir()
    import zipfile

    with zipfile.ZipFile(tmp_path / "wheels" / "carried_thing-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried_thing.py", "answer = 42")
    gpu.lay_wheels()
    assert importlib.util.find_spec("carried_thing")
    code = "import carried_thing; print(carried_thing.answer)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "42\n"
