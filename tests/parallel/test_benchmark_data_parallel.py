"""The benchmark at a tiny size: every way of summing is right, and every run is there."""

import json

import numpy as np

from benchmarks import data_parallel
from ed_lib.parallel import lenet

TINY = data_parallel.Size(
    batch=20, repeats=1, rounds=2, images=100, epochs=2, devices=(1, 2), seeds=2, workers=1, offline=True,
    timeout=120.0,
)  # fmt: skip


def test_every_way_of_summing_is_right_and_timed(capsys):
    rows = data_parallel.quick(TINY)
    assert "not timed" not in capsys.readouterr().out
    assert [row.case["way"] for row in rows][:2] == ["no sum", "each parameter, our ring"] and len(rows) == 8
    assert [row.bytes for row in rows] == [0] + [4 * 129_068] * 7  # 2(p − 1)/p · n
    assert rows[0].error is None and all(0 < row.error < data_parallel.ROUNDING for row in rows[1:])
    assert all(row.completion.n == 2 and row.completion.median > 0 for row in rows)


def test_a_way_that_is_wrong_is_not_timed(monkeypatch, capsys):
    found = {"wrong": ([1.0], 1e-3), "right": ([1.0], 1e-8)}
    monkeypatch.setattr(data_parallel, "launch", lambda *args, **options: [found])
    assert [row.case["way"] for row in data_parallel.quick(TINY)] == ["right"]
    assert "wrong: deviates by 1.0e-03; not timed" in capsys.readouterr().out


def test_the_sources_run_and_the_larger_batches():
    rows = data_parallel.training(TINY)
    source, scaling = ([row for row in rows if row.case["table"] == name] for name in ("source", "scaling"))
    assert [(row.case["how"], row.case["devices"]) for row in source] == [
        ("processes", 1), ("processes", 2), ("simulated", 2)
    ]  # fmt: skip
    first = np.array(source[0].results["loss"])
    for row in source:  # the same run, but for rounding
        assert np.abs(np.array(row.results["loss"]) - first).max() < 2e-5
    assert [(row.case["devices"], row.case["policy"]) for row in scaling] == [
        (1, "fixed"), (2, "fixed"), (2, "linear"), (2, "warm-up")
    ]  # fmt: skip
    for row in rows:
        assert len(row.results["accuracy"]) == 2 and np.shape(row.results["curve"]) == (2, 2)
        json.dumps(row.results)
    assert [len(row.results["steps"]) for row in scaling] == [10, 6, 6, 6]


def test_the_rate_grows_to_k_times_the_usual():
    warm = data_parallel.rate("warm-up", 4, 10)
    assert np.allclose([warm(step) for step in (0, 5, 10, 99)], [0.2, 0.5, 0.8, 0.8])
    assert data_parallel.rate("linear", 4, 10) == 0.8 and data_parallel.rate("fixed", 4, 10) == 0.2
    assert 4 * sum(int(np.prod(shape)) for shape in lenet.SHAPES) == 516_272
