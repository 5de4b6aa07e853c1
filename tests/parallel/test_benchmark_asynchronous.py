"""The benchmark at a tiny size: its rows have what a chapter reads, and survive a record."""

import json

import pytest

from benchmarks import asynchronous
from ed_lib import records


def test_the_quick_tables():
    rows = asynchronous.throughput(n_tasks=32, pause=0.005)
    assert len(rows) == 4 and len({json.dumps(row.case) for row in rows}) == 4
    for row in rows:
        assert sum(row.results["gradients"]) == sum(row.results["histogram"]) == 32
        assert row.completion.median >= row.floor > 0 and row.completion.n == 2
        if row.case["server"] == "synchronous":
            assert row.results["histogram"] == [32] and row.results["gradients"].count(8) <= 4
    assert rows[1].floor == pytest.approx(4 * rows[3].floor)  # 5/4 of a pause against 1/3.2
    rows = asynchronous.lost_updates(steps=300, shapes=((50, 2),))
    assert [row.case["workers"] for row in rows] == [1, 2] and rows[0].results["lost"] == [0.0]
    assert all(0 <= row.results["lost"][0] < 1 and row.results["loss"][0] < 1 for row in rows)


def test_the_accuracies_at_a_tiny_size():
    rows = asynchronous.accuracies(n_tasks=200, seeds=2, lrs=(0.05, 1e30), few=360, offline=True)
    assert len(rows) == 2 * len(asynchronous.methods())
    record = records.Record("parallel", "m", "a machine", {}, {}, [], rows)
    best = {m: record.find(method=m, lr=0.05).results for m in asynchronous.methods()}
    assert all(0.15 < value <= 1 for found in best.values() for value in found["accuracy"])
    assert best["serial"]["virtual_seconds"] == [200] * 2
    assert best["synchronous"]["virtual_seconds"] == best["asynchronous"]["virtual_seconds"] == [50] * 2
    assert best["asynchronous, one slow"]["virtual_seconds"][0] <= 65
    assert record.find(method="asynchronous", lr=1e30).results["accuracy"] == [0.1, 0.1]
