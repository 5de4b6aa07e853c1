"""The benchmark of linear recurrences: the whole at a tiny size, and what stands beside what."""

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from benchmarks import old_pages as measurements  # noqa: E402
from benchmarks import recurrences  # noqa: E402
from ed_lib import data, roofline  # noqa: E402
from ed_lib.lstm import scans  # noqa: E402
from tests.benchmark import measured  # noqa: E402

ROOF = roofline.Ceilings("a machine", "float32", 1e10, 1e11)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    numbers = torch.randint(5, (400,), generator=torch.Generator().manual_seed(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrences, "ceilings", lambda device, dtypes: {"float32": ROOF})
        patch.setattr(data, "text", lambda: data.Text(numbers[:360], numbers[360:], "abcde"))
        return measured(recurrences, recurrences.TINY, tmp_path_factory.mktemp("records"))


def test_a_record_has_every_case_right(record):
    size = recurrences.TINY
    rows = record.select(table="scans")
    assert [row.case["what"] for row in rows] == len(size.numbers) * list(scans.SCANS)
    assert all(row.error < 1e-5 and row.bytes == 3 * 4 * 8 * row.case["numbers"] for row in rows)
    page = measurements.page(record)
    assert all(f"## {shown.title}\n" in page for tables in recurrences.PAGE.values() for shown in tables)


def test_networks_are_compared_at_their_best_rates_on_every_seed(record):
    size = recurrences.TINY
    for what in recurrences.NETWORKS:
        row = record.find(table="text", what=what)
        tried = {rate: row.results[f"rate {rate:g}"][0] for rate in size.rates}
        assert row.case["rate"] == min(tried, key=tried.get)
        for seed in range(size.seeds):
            losses = row.results[f"loss, seed {seed}"]
            assert len(losses) == size.training // size.every + 1
            assert abs(losses[0] - np.log(5)) < 0.5, "at first each of five characters is as likely"
        assert row.results["loss, seed 0"][-1] == tried[row.case["rate"]]
        assert row.completion.n == size.seeds * size.training


def test_equal_parameters():
    size = recurrences.Size()
    numbers = [
        sum(p.numel() for p in recurrences.Reader(what, 65, size).parameters())
        for what in recurrences.NETWORKS
    ]
    assert max(numbers) < 1.03 * min(numbers)
