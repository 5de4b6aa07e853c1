"""The benchmarks at a tiny size: a row for every schedule, with a prediction for every round."""

import pytest

from benchmarks import old_pages as measurements
from benchmarks import old_records as records
from benchmarks import pipelines
from ed_lib.parallel.model_parallel.schedules import SCHEDULES
from ed_lib.parallel.model_parallel.simulator import simulate


def page(rows):
    return measurements.tables(records.Record("parallel", "m", "a machine", {}, {}, [], rows))


def test_every_schedule_is_measured_and_predicted():
    rows = list(pipelines.quick(pipelines.TINY))
    cases = [(row.case["microbatches"], row.case["schedule"]) for row in rows]
    assert cases == [(m, name) for m in (2, 3) for name in ("naive", "gpipe", "1f1b")]
    for row in rows:
        assert row.completion.n == 2 and row.completion.median > 0
        assert 0 < row.error < pipelines.ROUNDING
        assert row.bytes == 2 * 6 * 8 * 4  # every sample's activation and gradient, once
        assert len(row.results["ratio"]) == 2
        assert len(row.results["predicted"]) == 2 and min(row.results["predicted"]) > 0
        assert len(row.results["forward"]) == len(row.results["backward"]) == 2
    assert page(rows).count("| 1f1b · m = ") == 2


@pytest.mark.oracle
def test_the_prediction_is_the_simulators(monkeypatch):
    """A link of 1 s and no bandwidth, and stages of 2 and 3 s: the batch's time by hand."""
    stages = [{"forward": 2.0, "backward": 2.0}, {"forward": 3.0, "backward": 3.0}]
    ranks = [
        {"link": ([1, 2], [1.0, 1.0]), "stages": {("naive", 2): [stage], ("gpipe", 2): [stage]}}
        | {"batches": {("naive", 2): [20.0], ("gpipe", 2): [20.0]}}
        | {"errors": {("naive", 2): 1e-7, ("gpipe", 2): 1e-7}}
        for stage in stages
    ]
    monkeypatch.setattr(pipelines, "launch", lambda *args, **options: ranks)
    size = pipelines.Size(width=1, batch=2, microbatches=(2,), rounds=1, schedules=("naive", "gpipe"))
    naive, gpipe = pipelines.quick(size)
    ranks[1]["errors"]["naive", 2] = 1e-3  # on one rank
    assert [row.case["schedule"] for row in pipelines.quick(size)] == ["gpipe"]
    assert naive.results["predicted"] == pytest.approx([2 * (2 + 1 + 3 + 3 + 1 + 2)])
    # stage 1 forward 3–6, 6–9, back 9–12, 12–15; a message; stage 0 back 16–18
    assert gpipe.results["predicted"] == pytest.approx([18])
    assert gpipe.results["ratio"] == pytest.approx([20 / 18])
    times = {"forward": [2, 3], "backward": [2, 3]}
    assert simulate(SCHEDULES["gpipe"], 2, 2, times).seconds == 16  # without the link
