"""The benchmark at a tiny size: every version agrees with the reference; the record survives a round trip."""

import dataclasses
import functools

import numpy as np
import pytest
import torch

from benchmarks import (
    accuracy,
    asynchronous,
    data_parallel,
    ed,
    ed_pipeline,
    parallel,
    parallel_accuracy,
    pipelines,
)
from benchmarks import old_harness as harness
from ed_lib import data, roofline, training
from ed_lib.ed import costs
from ed_lib.parallel import launch
from ed_lib.parallel.ranks import collectives
from ed_lib.parallel.ranks.costs import Link
from tests.benchmark import measured
from benchmarks import old_pages as measurements

TINY = ed.Size(costs.Shape(20, 4, 32, 8), depths=(8, 16), widths=(4, 8), networks=(1, 3), seconds=0.01)
ROOFS = {dtype: roofline.Ceilings("a machine", dtype, 1e10, 1e11) for dtype in ("float32", "float64")}


@pytest.fixture
def roofs(monkeypatch):
    monkeypatch.setattr(roofline, "raised", lambda device, dtype: ROOFS[dtype])


def test_a_record_has_every_version_right_and_survives_a_round_trip(roofs, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch, "compile", lambda function: function)  # which takes seconds a piece
    again = measured(ed, TINY, tmp_path)
    assert "not timed" not in capsys.readouterr().out
    assert [path.name for path in tmp_path.rglob("*.json")] == ["ed.json"]
    assert {row.case["part"] for row in again.rows} == set(again.parameters["parts"])
    cases = [str(row.case) for row in again.rows]
    assert len(cases) == len(set(cases))
    for row in again.rows:
        assert row.completion.median > 0
        assert row.floor == pytest.approx(max(row.bytes / 1e10, row.flops / 1e11), rel=1e-3)
        assert row.error is None or row.error < ed.ROUNDING[row.case["dtype"]]
    for how in ed.ARTICLES_WAYS:
        assert again.find(table="article", what="update", how=how, dtype="float64", depth=32).bytes
    for part in ("forward", "chain", "update", "step"):
        assert again.select(table="by hand", what=part) and again.parameters["article"]["depth"] == 32
    assert {row.case["depth"] for row in again.select(table="depth")} == {8, 16}
    for what in ("forward", "update"):
        compiled = {row.case["how"] for row in again.select(table="compilers", what=what)}
        assert compiled >= {"loop over layers", "torch.compile", "kernel"}
    assert [row.case["n_outputs"] for row in again.select(table="networks")] == [1, 3]
    for case in ({"table": "paths"}, {"table": "article"}, {"table": "by hand"}, {"table": "autograd"}):
        assert {row.case["depth"] for row in again.select(**case)} == {32, 4}
    assert {row.case["depth"] for row in again.select(part="smaller") + again.select(table="width")} == {4}
    page = measurements.page(again)
    assert "No GPU has been measured yet" in measurements.overview([again]) and page.count("| update · ") >= 8
    for name, tables in ed.PAGE.items():
        assert (tables[0].title in page) == (name != "variants"), "kernels have cuts on a GPU only"


def test_a_version_that_is_wrong_is_not_timed(roofs, monkeypatch, tmp_path, capsys):
    right = ed.ARTICLES_WAYS["einsum"]
    wrong = {"einsum": lambda x, received: 1.01 * right(x, received)}
    monkeypatch.setattr(ed, "ARTICLES_WAYS", ed.ARTICLES_WAYS | wrong)
    record = measured(ed, TINY, tmp_path, wanted=["article, float64"])
    assert not record.select(how="einsum") and record.select(how="four products")
    assert "einsum: deviates by" in capsys.readouterr().out


def test_what_does_not_fit_is_left_out_before_it_is_allocated(monkeypatch, capsys):
    monkeypatch.setattr(ed.machine, "memory", lambda device: 10_000)
    ed.articles_formulas(None, costs.Shape(20, 4, 16, 8), "float64", "cpu")
    assert "left out at depth 16" in capsys.readouterr().out


@pytest.fixture
def few_digits(monkeypatch):
    """scikit-learn's digits in place of one data set, and few of the rates."""
    monkeypatch.setattr(data, "load", functools.partial(data.load, offline=True))
    monkeypatch.setattr(accuracy, "RATES", {"sgd": (0.05, 0.2), "adam": (1e-3, 3e-3)})
    monkeypatch.setattr(accuracy, "SETS", ("mnist",))
    monkeypatch.setattr(roofline, "raised", lambda device, dtype: ROOFS[dtype])
    accuracy.images.cache_clear()
    with harness.one_thread():
        yield
    accuracy.images.cache_clear()


def test_the_record_of_accuracy_is_complete_and_survives_a_round_trip(few_digits, tmp_path, capsys):
    record = measured(accuracy, dataclasses.replace(accuracy.TINY, seeds=2, workers=1), tmp_path)
    learned = [row for row in record.rows if row.case["table"] not in ("parity", "seconds")]
    for row in learned:
        assert len(row.results["accuracy"]) == len(row.results["held_out"]) == row.completion.n == 2
        assert all(0 <= value <= 1 for value in row.results["accuracy"])
    for row in record.select(table="ten"):  # the rate that was best on the images held out
        case = {key: row.case[key] for key in ("data", "method", "rule", "optimizer")}
        tried = record.select(table="rates", **case)
        top = max(tried, key=lambda one: np.mean(one.results["held_out"]))
        assert row.case["rate"] == top.case["rate"] and len(tried) == 2
    frozen = {(row.case["depth"], *(row.case["learns"] or ["all"])) for row in record.select(table="freeze")}
    wanted = {(depth, layers) for depth in (2, 4) for layers in ("all", "input", "hidden", "output")}
    assert frozen == wanted | {(0, "all")}
    networks = {row.case["network"] for row in record.select(table="routing")}
    assert networks == {"one a class", *accuracy.VARIANTS}
    assert [row.case["width"] for row in record.select(table="best")] == [5, 5, 5]
    assert len(record.select(table="tasks", method="logistic")) == 3
    assert len(record.select(table="seconds")) == 10
    parity = record.select(table="parity")
    assert len(parity) == len(accuracy.PUBLISHED) and all(len(row.results["epochs"]) == 2 for row in parity)
    page = measurements.page(record)
    assert all(shown.title in page for tables in accuracy.PAGE.values() for shown in tables)


def test_runs_of_one_seed_are_the_same_and_of_another_are_not(few_digits, capsys):
    one = accuracy.Run("t", task="zero or one", width=4, few=100)
    first, again, other = (accuracy.do(one, seed, "cpu", 20) for seed in (0, 0, 1))
    assert first["loss"] == again["loss"] != other["loss"]


def test_images_held_out_are_never_learned_from(few_digits, monkeypatch, capsys):
    """What lies behind the images that are learned from is what judges."""
    seen = []

    def train(learner, learn, judge, **options):
        seen.append((learn, judge))
        return training.History([1.0], [0, 1], [0, 1], [0.0, 1.0], [0.1, 0.5])

    monkeypatch.setattr(accuracy, "fit", train)
    accuracy.do(accuracy.Run("t", width=4, few=5000), 0, "cpu", 100)
    (learn, judge) = seen[0]
    inputs, _ = accuracy.images("mnist", "ten classes")[0]
    assert len(learn[0]) == len(inputs) - 100 and len(judge[0]) == 100
    np.testing.assert_array_equal(np.concatenate([learn[0], judge[0]]), inputs)


@pytest.fixture
def links_only(monkeypatch):
    """The parts that have tests of their own left out."""
    for module, name in (
        (data_parallel, "quick"), (pipelines, "quick"), (ed_pipeline, "quick"),
        (asynchronous, "throughput"), (asynchronous, "lost_updates"),
        (data_parallel, "source"), (data_parallel, "scaling"), (asynchronous, "accuracies"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, lambda *args, **options: [])


def test_messages_and_all_reduces_are_measured_and_compared_with_the_model(links_only, tmp_path, capsys):
    threads = torch.get_num_threads()
    record = measured(parallel, parallel.TINY, tmp_path)
    assert torch.get_num_threads() == threads and "not timed" not in capsys.readouterr().out
    assert record.parameters["step"]["batch"] == 20 and record.provenance["threads"] == 1
    sent = record.select(table="message")
    link = Link(*sent[0].results["link"])
    assert [row.results["predicted"] for row in sent] == [[link.seconds(8)], [link.seconds(4096)]]
    for name in (*collectives.ALGORITHMS, parallel.TORCH):
        rows = record.select(table="all-reduce", algorithm=name)
        assert [row.case["bytes"] for row in rows] == [12, 4004]
        assert all(row.completion.median > 0 and row.completion.n == 2 and row.error == 0 for row in rows)
        assert [row.bytes for row in rows] == ([None] * 2 if name == parallel.TORCH else [24, 8008])
    page = measurements.page(record)
    texts = f"The model: {link}.", "| bytes 4,004 | naive\N{NO-BREAK SPACE}", "<br>ring\N{NO-BREAK SPACE}"
    assert all(text in page for text in texts)


def test_an_all_reduce_that_is_wrong_is_seen_and_not_timed(monkeypatch, capsys):
    assert (
        launch(wrong, 2, timeout=120.0)
        == [{"naive": 0.0, "tree": 0.0, "ring": 1.0, "halving_doubling": 0.0}] * 2
    )
    found = {"ring": ([[1.0, 2.0]], 1.0), "tree": ([[3.0, 4.0]], 0.0)}
    monkeypatch.setattr(parallel, "launch", lambda *args, **options: [found])
    rows = list(parallel.all_reduces(parallel.Size(all_reduces=(8, 16), ranks=(2,)), Link(1.0, 0.0)))
    assert [row.case["algorithm"] for row in rows] == ["tree"] * 2
    assert [row.completion.median for row in rows] == [3.0, 4.0] and rows[0].results == {"predicted": [2.0]}
    assert "all-reduce: ring, ranks 2: deviates by 1.0e+00" in capsys.readouterr().out


def wrong():
    """What each rank does: the deviations, with a ring that adds 1 at rank 1."""
    right = collectives.ALGORITHMS["ring"]

    def ring(flat, wire):
        right(flat, wire)
        flat += wire.rank

    collectives.ALGORITHMS["ring"] = ring
    return parallel.deviations(101)


def test_streaming_ed_by_delay_and_rate(links_only, tmp_path, capsys):
    record = measured(parallel_accuracy, parallel_accuracy.TINY, tmp_path)
    cases = [(row.case["stages"], row.case["longest_delay"], row.case["rate"]) for row in record.rows]
    assert cases == [(p, late, rate) for p, late in ((1, 0), (2, 1), (4, 2)) for rate in (0.02, 0.1)]
    found = {case: row.results["accuracy"] for case, row in zip(cases, record.rows, strict=True)}
    assert all(len(one) == 2 and 0 < min(one) for one in found.values())
    assert found[1, 0, 0.1] != found[4, 2, 0.1], "the delay had no effect"
    page = measurements.page(record)
    assert "In all rows: rule signed; " in page and page.count("\n| stages ") == 3
    assert page.count("0.02: ") + page.count("% at 0.02") == 3


def test_of_two_measured_roofs_the_higher_stands_for_bandwidth_and_rate_apart():
    first = {"x": roofline.Ceilings("m", "x", 1e9, 5e9, "copy")}
    second = {"x": roofline.Ceilings("m", "x", 2e9, 4e9, "scale")}
    wanted = {"x": roofline.Ceilings("m", "x", 2e9, 5e9, "scale")}
    assert harness.higher(first, second) == harness.higher(second, first) == wanted
