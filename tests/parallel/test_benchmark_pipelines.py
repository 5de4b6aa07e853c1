"""The benchmark at a tiny size: a row for every schedule, with a prediction for every round."""

import pytest

from benchmarks import pipelines
from ed_lib.parallel.schedules import SCHEDULES
from ed_lib.parallel.simulator import simulate

TINY = pipelines.Size(
    width=8, layers=3, batch=6, microbatches=(2, 3), rounds=2, messages=(8, 4096), timeout=120.0
)


def test_every_schedule_is_measured_and_predicted(capsys):
    rows = pipelines.quick(TINY)
    cases = [(row.case["microbatches"], row.case["schedule"]) for row in rows]
    assert cases == [(m, name) for m in (2, 3) for name in ("naive", "gpipe", "1f1b")]
    for row in rows:
        assert row.completion.n == 2 and row.completion.median > 0
        assert row.bytes == 2 * 6 * 8 * 4  # every sample's activation and gradient, once
        assert len(row.results["predicted"]) == 2 and min(row.results["predicted"]) > 0
        assert len(row.results["forward"]) == len(row.results["backward"]) == 2
    assert capsys.readouterr().out.count("times the prediction") == 6


def test_the_prediction_is_the_simulators(monkeypatch):
    """A link of 1 s and no bandwidth, and stages of 2 and 3 s: the batch's time by hand."""
    stages = [{"forward": 2.0, "backward": 2.0}, {"forward": 3.0, "backward": 3.0}]
    ranks = [
        {"link": ([1, 2], [1.0, 1.0]), "stages": {("naive", 2): [stage], ("gpipe", 2): [stage]}}
        | {"batches": {("naive", 2): [20.0], ("gpipe", 2): [20.0]}}
        for stage in stages
    ]
    monkeypatch.setattr(pipelines, "launch", lambda *args, **options: ranks)
    size = pipelines.Size(width=1, batch=2, microbatches=(2,), rounds=1, schedules=("naive", "gpipe"))
    naive, gpipe = pipelines.quick(size)
    assert naive.results["predicted"] == pytest.approx([2 * (2 + 1 + 3 + 3 + 1 + 2)])
    # stage 1 forward 3–6, 6–9, back 9–12, 12–15; a message; stage 0 back 16–18
    assert gpipe.results["predicted"] == pytest.approx([18])
    times = {"forward": [2, 3], "backward": [2, 3]}
    assert simulate(SCHEDULES["gpipe"], 2, 2, times).seconds == 16  # without the link
