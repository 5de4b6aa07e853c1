"""The benchmark of products of few bits: the whole at a tiny size."""

import pytest

from benchmarks import few_bits
from benchmarks import old_pages as measurements
from tests.benchmark import measured


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    data = pytest.importorskip("ed_lib.data")
    try:
        data.text()
    except OSError as error:
        pytest.skip(f"no text: {error}")
    return measured(few_bits, few_bits.TINY, tmp_path_factory.mktemp("records"))


def test_a_record_has_every_case(record):
    size = few_bits.TINY
    rows = record.select(table="products")
    assert [row.case["products"] for row in rows] == list(size.products)
    assert all(len(row.results["loss"]) == size.seeds for row in rows)
    assert len({row.results["loss"][0] for row in rows}) == len(rows)  # no two are the same
    found = {(row.case["weights"], row.case["rate"]) for row in record.select(table="weights")}
    assert found == {(name, rate) for name in size.weights for rate in (size.rate, size.slow)}
    assert all(len(c) == -(-size.steps // size.every) for row in rows for c in row.results["curve"])
    assert "## products\n" in measurements.page(record).lower()
