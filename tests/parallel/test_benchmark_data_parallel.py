"""The benchmark at a tiny size: every way of summing is right, and every run is there."""

import json

import numpy as np

from benchmarks import data_parallel
from benchmarks import old_pages as measurements
from benchmarks import old_records as records
from ed_lib.parallel.data_parallel import by_hand


def page(rows, benchmark):
    return measurements.tables(records.Record(benchmark, "m", "a machine", {}, {}, [], rows))


def test_every_way_of_summing_is_right_and_timed(capsys):
    rows = list(data_parallel.quick(data_parallel.TINY))
    assert "not timed" not in capsys.readouterr().out
    assert [row.case["way"] for row in rows][:2] == ["no sum", "each parameter, our ring"] and len(rows) == 8
    assert [row.bytes for row in rows] == [0] + [4 * 129_068] * 7  # 2(p − 1)/p · n
    assert rows[0].error is None and all(0 < row.error < data_parallel.ROUNDING for row in rows[1:])
    assert all(row.completion.n == 2 and row.completion.median > 0 for row in rows)
    against = {row.case["way"]: row.results["against DDP"] for row in rows}
    assert against["DDP"] == [1.0, 1.0] and all(min(found) > 0 for found in against.values())
    text = page(rows, "parallel")
    assert "In all rows: ranks 2; batch 20." in text and all(f"\n| {way}" in text for way in against)


def test_a_way_that_is_wrong_is_not_timed(monkeypatch, capsys):
    found = {"wrong": ([1.0, 1.0], 1e-3), "right": ([3.0, 5.0], 1e-8), "DDP": ([2.0, 4.0], 1e-8)}
    monkeypatch.setattr(data_parallel, "launch", lambda *args, **options: [found])
    rows = list(data_parallel.quick(data_parallel.TINY))
    assert [row.case["way"] for row in rows] == ["right", "DDP"]
    assert rows[0].results["against DDP"] == [1.5, 1.25] and rows[0].completion.median == 4.0
    assert "wrong, ranks 2, batch 20: deviates by 1.0e-03" in capsys.readouterr().out


def test_the_sources_run_and_the_larger_batches():
    source, scaling = map(
        list, (data_parallel.source(data_parallel.FEW), data_parallel.scaling(data_parallel.FEW))
    )
    assert [(row.case["how"], row.case["devices"]) for row in source] == [
        ("simulated", 1), ("two threads", 1), ("simulated", 2), ("processes", 2)
    ]  # fmt: skip
    first = np.array(source[0].results["loss"])
    for row in source:  # the same run, but for rounding
        assert np.abs(np.array(row.results["loss"]) - first).max() < 2e-5
        assert np.shape(row.results["curve"]) == (1, 2) and row.completion.n == 2
    assert scaling[0].results["loss"][0] == source[0].results["loss"][0]  # the same run again
    assert [(row.case["devices"], row.case["policy"]) for row in scaling] == [
        (1, "fixed"), (2, "fixed"), (2, "linear"), (2, "warm-up")
    ]  # fmt: skip
    for row in scaling:
        assert len(row.results["accuracy"]) == 2 and np.shape(row.results["curve"]) == (2, 2)
        assert [curve[-1] for curve in row.results["curve"]] == row.results["accuracy"]
    json.dumps([row.results for row in source + scaling])
    assert [len(row.results["steps"]) for row in scaling] == [10, 6, 6, 6]
    assert all(row.case["images"] == 100 and row.case["epochs"] == 2 for row in source + scaling)
    found = page(source + scaling, "parallel_accuracy")
    assert "In all rows: batch 20; lr 0.2; images 100; epochs 2; n = 1." in found
    assert "\n| processes · devices 2 |" in found and "\n| devices 2 · batch 40 · warm-up |" in found


def test_the_rate_grows_to_k_times_the_usual():
    warm = data_parallel.rate("warm-up", 4, 10)
    assert np.allclose([warm(step) for step in (0, 5, 10, 99)], [0.2, 0.5, 0.8, 0.8])
    assert data_parallel.rate("linear", 4, 10) == 0.8 and data_parallel.rate("fixed", 4, 10) == 0.2
    assert 4 * sum(int(np.prod(shape)) for shape in by_hand.SHAPES) == 516_272
