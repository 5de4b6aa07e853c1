"""The benchmarks: each at a tiny size, the harness, and what they count or train against others'
numbers.
"""

import importlib
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks import __main__ as command
from benchmarks import cells, critical_batch, precision, precision_accuracy, relatives
from benchmarks.shared import harness
from benchmarks.shared.harness import Size, Version
from ed_lib import arrays, data, gpu_cells, machine, models, records, roofline, training
from ed_lib.diagnose import diagnosing, machine_costs

FILES = (Path(__file__).parents[1] / "benchmarks").glob("[a-z]*.py")
BENCHMARKS = sorted({file.stem for file in FILES if "\nTABLES" in file.read_text()} - {"cells"})
ROOFS = {"float32": 1e11, "float64": 5e10}


def roof(device="cpu", dtype="float32", threads=None):
    return roofline.Ceilings("m", dtype, 1e10, ROOFS.get(dtype, 1e11))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Ceilings that are not measured, diagnoses of few runs, and nothing compiled, which takes
    seconds a piece. jax, which counts its devices once in a process, has as many as the exercises
    of a chapter want of it later.
    """
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=256")
    monkeypatch.setattr(roofline, "ceilings", roof)
    monkeypatch.setattr(diagnosing, "SECONDS", 0)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    # It would hold for all later tests of the process too.
    monkeypatch.setattr(machine, "keep_memory", lambda: True)
    yield
    # It is kept for the process, and was made of those ceilings.
    machine_costs.memory.cache_clear()


# The first loads 90 MB of weights for each of its formats, the second starts processes, the third
# rounds an encoder in every way, and the others train many networks.
LONG = {"finetuning", "own_steps", "one_token", "accuracy", "parallel_accuracy"}
LONG |= {"precision_accuracy"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in BENCHMARKS],
)
def test_a_rehearsal(name, tmp_path, capsys):
    """Each table has rows, of different cases, each right and with its floor; the record reads
    back.
    """
    benchmark = importlib.import_module(f"benchmarks.{name}")
    states = harness.run(benchmark, "cpu", tmp_path, tiny=True)
    said = capsys.readouterr()
    if any("ConnectionError" in state for state in states.values()):  # no data, and no network
        pytest.skip(f"{states}")
    assert set(states.values()) == {"done"}, said.err
    assert "not timed" not in said.out
    record = records.read(tmp_path / machine.slug("cpu") / f"{name}.csv")
    assert list(dict.fromkeys(record.table)) == list(benchmark.TABLES) == list(record.attrs["code"])
    for table in benchmark.TABLES:
        rows = records.rows(record, table=table)
        assert not rows.loc[:, :"seconds"].iloc[:, :-1].astype(str).duplicated().any(), (
            "each case once"
        )
        assert (rows.seconds > 0).all() and (rows.q1 <= rows.q3).all() and (rows.n > 0).all()
        assert "floor_flops" not in rows or (rows.floor > 0).all()


ON_A_T4 = """
from types import SimpleNamespace
import torch
from ed_lib import chapter
card = SimpleNamespace(name="Tesla T4", major=7, minor=5, total_memory=16e9)
told = {"is_available": True, "device_count": 1, "get_device_properties": card}
for name, answer in told.items():
    setattr(torch.cuda, name, lambda *device, answer=answer: answer)
chapter.setup()
"""


def test_what_a_gpu_cell_prints_is_shown_where_there_is_none(tmp_path, monkeypatch, capsys):
    """It ran in a process of its own, after the cells before it, and those after it run too; a
    cell of another text is another cell. What needs a better GPU is not recorded.
    """
    sources = [ON_A_T4, "factor = 21", "1 / 0", gpu_cell := "%%gpu\nprint(2 * factor)"]
    sources += ["%%gpu 8.0\nprint(factor)", "open('reached', 'w').close()"]
    found = {
        "cells": [
            {"cell_type": "code", "id": str(n), "source": [source]}
            for n, source in enumerate(sources)
        ]
    }
    (path := tmp_path / "some.ipynb").write_text(json.dumps(found))
    tables = {"some": partial(cells.chapter, path)}
    fake = SimpleNamespace(__name__="benchmarks.cells", TINY=Size(), TABLES=tables)
    assert harness.run(fake, "cpu", tmp_path, tiny=True) == {"some": "done"}
    assert (tmp_path / "reached").exists()
    record = records.read(tmp_path / machine.slug() / "cells.csv")
    monkeypatch.setattr(records, "by_machine", lambda name: {"m": record})
    monkeypatch.setattr(arrays, "gpu_count", lambda name="": 0)
    capsys.readouterr()
    assert record[["cell", "code"]].values.tolist() == [
        [str(sources.index(gpu_cell)), gpu_cells.hash_of(gpu_cell)]
    ]
    for source, wanted in (
        (gpu_cell, "42"),
        (gpu_cell.replace("2", "3"), "this machine has none."),
    ):
        gpu_cells.run("", source.removeprefix("%%gpu\n"))
        assert capsys.readouterr().out.strip().endswith(wanted)


class Fake:
    """A benchmark with two tables of one row, which notes its runs. A row in ``errors`` is raised
    instead.
    """

    __name__, SIZE, TINY = "benchmarks.fake", Size(large=True), Size(large=False)

    def __init__(self):
        self.runs, self.errors = [], {}
        self.TABLES = {
            name: lambda size, device, name=name: self.measure(name, size) for name in "ab"
        }

    def measure(self, name, size):
        self.runs.append((name, size.large))
        if name in self.errors:
            raise self.errors[name]
        yield {"what": name} | harness.summary([float(len(self.runs))])


def test_a_table_takes_the_place_of_its_rows_and_leaves_the_others(tmp_path, monkeypatch):
    fake = Fake()
    assert harness.run(fake, "cpu", tmp_path, tiny=True) == {"a": "done", "b": "done"}
    fake.errors["a"] = RuntimeError("no such kernel\nand more")
    monkeypatch.setattr(harness.provenance, "code_hash", lambda names: f"code of {names}")
    states = harness.run(fake, "cpu", tmp_path, tiny=True)
    assert states == {"a": "failed: RuntimeError: no such kernel", "b": "done"}
    record = records.read(tmp_path / machine.slug("cpu") / "fake.csv")
    assert record[["table", "what", "seconds"]].to_numpy().tolist() == [
        ["a", "a", 1.0],
        ["b", "b", 4.0],
    ]
    assert record.attrs["code"]["b"] == "code of ['benchmarks.fake']" != record.attrs["code"]["a"]
    assert record.attrs["parameters"] == {"large": False} and set(record.attrs["dates"]) == {
        "a",
        "b",
    }
    assert fake.runs == [("a", False), ("b", False)] * 2


def test_at_full_size_a_cpu_is_waited_for_and_nothing_is_below_its_floor(tmp_path, monkeypatch):
    fake, waited = Fake(), []
    monkeypatch.setattr(harness.quiet, "wait", lambda: waited.append(1))
    fast = {"dtype": "float32", "floor_bytes": 0, "floor_flops": 2e11} | harness.summary([1.0])
    fake.TABLES["b"] = lambda size, device: [fast]
    states = harness.run(fake, "cpu", tmp_path)
    assert states["a"] == "done" and fake.runs == [("a", True)] and len(waited) == 2
    assert states["b"].startswith("failed: Busy: below its floor")
    assert set(records.read(tmp_path / machine.slug("cpu") / "fake.csv").table) == {"a"}


def test_what_is_wrong_is_not_timed_and_a_floor_is_its_formats(capsys):
    def version(how, error):
        return Version(
            {"how": how, "format": "float64"}, lambda: None, (10, 3e11), error, 1e-5, {"known": 7}
        )

    (row,) = harness.measure([version("right", 1e-6), version("wrong", 1e-4)], "cpu", 0.001)
    assert "'how': 'wrong', 'format': 'float64'}: deviates by 1.0e-04" in capsys.readouterr().out
    assert (row["how"], row["floor_flops"], row["known"], row["error"]) == ("right", 3e11, 7, 1e-6)
    assert harness.floor(row, lambda name: roof(dtype=name)) == {"floor": 6.0}


@pytest.mark.parametrize("words, code, asked", [
    ("ed --only paths --tiny", 0, [("ed", "_build/tiny", {"only": ["paths"], "tiny": True})]),
    ("ed precision", 1, [(name, "records", {"only": (), "tiny": False}) for name in ("ed", "precision")]),
    ("", 1, [(name, "records", {"only": (), "tiny": False}) for name in ("ed", "finetuning", "lstm", "lstm_cpu", "own_steps", "precision")]),
    ("cells", 0, []), ("cells ed", 0, [("ed", "records", {"only": (), "tiny": False})]),
    ("lsmt", 2, []), ("ed lstm --only paths", 2, []), ("ed --only path", 2, []),
])  # fmt: skip
def test_the_command_line(monkeypatch, words, code, asked):
    def run(benchmark, device, out, **options):
        seen.append((name := benchmark.__name__.removeprefix("benchmarks."), out, options))
        return {"t": "failed: x" if name == "precision" else "done"}

    seen = []
    monkeypatch.setattr(harness, "run", run)
    with pytest.raises(SystemExit) as ended:
        command.main([*words.split(), "--device", "cpu"])
    assert ended.value.code == code and seen == asked


def test_each_benchmark_declares_which_of_its_tables_are_about_a_gpu(monkeypatch):
    on_gpu = {}
    for name, module in command.modules().items():
        tables = harness.tables(module, "cuda")
        assert set(tables) <= set(module.TABLES), name
        assert tables or harness.tables(module, "cpu"), f"{name} is about no device"
        on_gpu |= {name: tables} if tables and name != "cells" else {}
    assert on_gpu == {
        "ed": ("paths", "article", "by hand"),
        "finetuning": ("fine-tuning",),
        "lstm": ("ladder", "combine"),
        "own_steps": ("parts", "pairs"),
        "precision": ("training step",),
    }
    seen = []
    monkeypatch.setattr(arrays, "gpu_count", lambda name="": 1)
    monkeypatch.setattr(
        harness, "run", lambda module, *_, only, **__: seen.append((module.__name__, only)) or {}
    )
    with pytest.raises(SystemExit):
        command.main(["--device", "cuda"])
    assert {name.removeprefix("benchmarks."): only for name, only in seen} == on_gpu | {
        "cells": tuple(cells.TABLES)
    }


def test_searching_never_sees_the_test_images():
    (x, _), (tests, _) = harness.images("mnist", whole=False)
    size, whole = relatives.TINY, len(x)
    for searching, learned, judge in (
        (True, whole - size.kept, x[-size.kept :]),
        (False, whole, tests),
    ):
        (mine, labels), (others, _) = relatives.split("MNIST", searching, size)
        assert len(mine) == len(labels) == learned
        np.testing.assert_array_equal(others, judge)


@pytest.mark.oracle
def test_the_steps_are_those_after_which_the_target_is_reached():
    """By a plain loop, with autograd and no optimizer."""
    size = critical_batch.TINY
    row = next(row for row in critical_batch.steps(size, "cpu", "SGD") if all(row["steps"]))
    for seed, steps in enumerate(row["steps"]):
        (x, y), (test_x, test_y) = harness.images("fashion-mnist", False, data.tensors)
        x, test_x, net = x.flatten(1), test_x.flatten(1), models.mlp(size.widths, seed)
        order = [
            rows
            for e in range(9)
            for rows in data.batches(len(x), row["batch"], seed=1000 * seed + e)
        ]
        for n, rows in enumerate(order[:steps], start=1):
            gradients = torch.autograd.grad(
                F.cross_entropy(net(x[rows]), y[rows]), net.parameters()
            )
            with torch.no_grad():
                for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                    parameter -= row["rate"] * gradient
            right = training.accuracy(net, test_x[: size.looks], test_y[: size.looks])
            assert (right >= size.target) == (n == steps) or n % max(1, n // 50)


@pytest.mark.oracle
def test_flops_of_a_step_are_three_times_its_products_but_for_the_gradient_of_the_input():
    x, y = precision.subjects(precision.SIZE["cpu"])[1].batch(3, "cpu")
    wide = 784 * 256 + 256 * 256 + 256 * 10
    assert precision.flops(models.mlp, x, y) == 2 * 3 * (3 * wide - 784 * 256)
    tokens = torch.zeros(1, 7, dtype=torch.int64)
    attention, linear = 2 * 7**2 * 32, 7 * 12 * 32**2  # a layer's multiplications
    encoder = partial(models.Encoder, layers=2, hidden=32, heads=2, vocabulary=9, positions=8)
    assert precision.flops(encoder, tokens, y[:1]) == 6 * (
        2 * (attention + linear) + 32**2 + 3 * 32
    )


@pytest.mark.oracle
def test_bytes_of_a_step_are_what_the_optimizer_touches():
    model = torch.nn.Linear(10, 3)
    for subject, states in zip(precision.subjects(precision.TINY)[:2], (2, 0), strict=True):
        optimizer = getattr(torch.optim, subject.optimizer)(model.parameters(), 1e-3)
        model(torch.ones(1, 10)).sum().backward()
        optimizer.step()
        kept = [
            v for s in optimizer.state.values() for v in s.values() if v is not None and v.dim()
        ]
        assert sum(v.numel() for v in kept) == states * 33
        assert subject.cost(33, *subject.batch(1, "cpu"))[0] == 4 * 33 * (2 + 2 + 2 * states)


@pytest.mark.oracle
def test_bytes_of_smaller_models_are_those_counted_by_hand():
    size = precision_accuracy.TINY(batches=(1,))
    rows = list(precision_accuracy.smaller(size, "cpu"))
    learned = [*rows, *precision_accuracy.wider(size, "cpu")]
    found = {row["way"]: row["bytes"] for row in learned}
    assert found["float32"] == found["float32, trained on"] == [516_272]
    # Weights, a scale for each of 208 filters, biases.
    assert found["int8 weights"] == [128_860 + 8 * 208]
    assert max(found["int4 weights"] + found["int4, trained"]) <= 128_860 / 2 + 8 * 208 + 2
    assert found["student, alone"] == found["32 units"] == [4 * (784 * 32 + 32 + 330)]
    assert found["50% of filters cut, trained on"] == [4 * (100 + 6275 + 25_664 + 650)]
    assert all(max(found[f"pruned {share}%, gradually"]) < 70_000 for share in (90, 95, 98))
    assert all(row["error"] < 1e-5 for row in rows)
