"""The benchmark at a tiny size: its rows have what a chapter reads, and survive a record."""

import inspect
import json

import pytest

from benchmarks import asynchronous
from benchmarks import old_pages as measurements
from benchmarks import old_records as records
from ed_lib.parallel.asynchronous import workers
from ed_lib.parallel.asynchronous.virtual import simulate

CALLED = inspect.signature(workers.train)


def virtual(server, problem, n_tasks, n_workers, **options):
    """What workers.train does, on a clock on which nothing but the pauses takes time."""
    CALLED.bind(server, problem, n_tasks, n_workers, **options)
    assert len(options["pause"]) == n_workers
    return simulate(server, problem, n_tasks, options["pause"])


def record_of(rows, benchmark="parallel"):
    return records.Record(benchmark, "m", "a machine", {}, {}, [], rows)


def test_throughput_without_any_other_cost_is_the_floor(monkeypatch):
    monkeypatch.setattr(asynchronous.workers, "train", virtual)
    rows = list(asynchronous.throughput(n_tasks=64, pause=0.5))
    assert len(rows) == 4 and len({json.dumps(row.case) for row in rows}) == 4
    for row in rows:
        assert sum(row.results["gradients"]) == sum(row.results["histogram"]) == 64
        assert row.completion.median == pytest.approx(row.floor) and row.completion.n == 4
        if row.case["server"] == "synchronous":
            assert row.results["histogram"] == [64] and row.results["mean_staleness"] == [0] * 4
    assert rows[1].floor == pytest.approx(4 * rows[3].floor)  # 5/4 of a pause against 1/3.2
    assert measurements.tables(record_of(rows)).count(" · one slow by 5×<br>") == 2
    assert rows[3].results["mean_staleness"][3] > 2 * max(rows[3].results["mean_staleness"][:3])


def test_updates_are_lost_by_real_processes_only_where_there_are_several():
    rows = list(asynchronous.lost_updates(steps=300, shapes=((50, 2),)))
    assert [row.case["workers"] for row in rows] == [1, 2] and rows[0].results["lost"] == [0.0]
    assert all(0 <= row.results["lost"][0] < 1 and row.results["loss"][0] < 1 for row in rows)
    text = measurements.tables(record_of(rows))
    assert "In all rows: parameters 50; nonzeros 2; steps 300." in text and "\n| workers 2<br>" in text


def test_the_accuracies_at_a_tiny_size():
    rows = list(
        asynchronous.accuracies(n_tasks=200, seeds=2, lrs=(0.05, 1e30), few=360, offline=True, n_workers=1)
    )
    assert len(rows) == 2 * len(asynchronous.methods())
    record = record_of(rows, "parallel_accuracy")
    best = {m: record.find(method=m, lr=0.05).results for m in asynchronous.methods()}
    assert all(0.15 < value <= 1 for found in best.values() for value in found["accuracy"])
    assert best["serial"]["virtual_seconds"] == [200] * 2
    assert best["synchronous"]["virtual_seconds"] == best["asynchronous"]["virtual_seconds"] == [50] * 2
    assert best["asynchronous, one slow"]["virtual_seconds"][0] <= 65
    assert record.find(method="asynchronous", lr=1e30).results["accuracy"] == [0.1, 0.1]
    page = measurements.tables(record)
    assert page.count("% at 0.05<br><small>1e+30: ") == len(asynchronous.methods())
