"""The benchmark of Adam's averages in eight bits: the whole at a tiny size."""

import pytest

from benchmarks import old_pages as measurements
from benchmarks import optimizer_states
from ed_lib import data
from tests.benchmark import measured


@pytest.mark.oracle
def test_a_record_has_every_case(tmp_path):
    try:
        data.text()
    except OSError as error:
        pytest.skip(f"no text: {error}")
    size = optimizer_states.TINY
    record = measured(optimizer_states, size, tmp_path)
    rows = record.select(table="states")
    assert [row.case["states"] for row in rows] == list(size.states)
    weights = (65 + 8 + 65 + 12 * 16) * 16
    assert rows[0].results["bytes"] == [8 * weights] * 2
    assert rows[1].results["bytes"] == [7 * 2 * (2048 + 4)] * 2  # seven parameters, a block each
    assert all(0 < abs(a - b) < 0.1 for a, b in zip(*(row.results["loss"] for row in rows), strict=True))
    assert all(len(curve) == 2 for row in rows for curve in row.results["curve"])
    assert "states" in measurements.page(record)
