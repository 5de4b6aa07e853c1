"""The benchmark of LSTMs on a CPU: the whole at a tiny size, its floor, and what stands beside what."""

import pytest

pytest.importorskip("numba")

from benchmarks import lstm_cpu  # noqa: E402
from benchmarks import old_harness as harness  # noqa: E402
from benchmarks import old_pages as measurements  # noqa: E402
from benchmarks.lstm_subjects import NN  # noqa: E402
from ed_lib import records, roofline, timing  # noqa: E402
from tests.benchmark import measured  # noqa: E402

ROOF = roofline.Ceilings("a machine", "float32", 1e10, 1e11)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lstm_cpu, "ceilings", lambda device, dtypes: {"float32": ROOF})
        return measured(lstm_cpu, lstm_cpu.TINY, tmp_path_factory.mktemp("records"))


def test_a_record_has_every_case_right(record):
    found = {name: [row.case["what"] for row in record.select(table=name)] for name in lstm_cpu.PAGE}
    assert found["climb"] == list(lstm_cpu.CLIMB) and found["layers"] == list(lstm_cpu.STACKED)
    assert found["hidden"] == list(lstm_cpu.SWEPT) and found["batch"] == 2 * list(lstm_cpu.SWEPT)
    assert found["training"] == 2 * list(lstm_cpu.TRAINED)
    assert len(found["calls"]) == 6 and set(found["caches"]) == {"read"}
    for row in record.rows:
        if "format" in row.case:
            assert row.error < (
                0.05 if "int8" in row.case["what"] or "bfloat16" in row.case["what"] else 5e-5
            )
            assert row.results["W_hh"] == [
                4
                * 64
                // (4 if "int8" in row.case["what"] else 2 if "bfloat16" in row.case["what"] else 1)
                * 4
            ]
    page = measurements.page(record)
    assert all(f"## {shown.title}\n" in page for tables in lstm_cpu.PAGE.values() for shown in tables)


def test_ratios_are_those_of_the_times_in_the_same_turns(record):
    rows = record.select(table="climb")
    theirs = rows[-1].completion.median
    for before, row in zip([None, *rows], rows, strict=False):
        assert row.results[f"against {NN}"] == [pytest.approx(theirs / row.completion.median, rel=1e-2)]
        if before:
            wanted = before.completion.median / row.completion.median
            assert row.results["against before"] == [pytest.approx(wanted, rel=1e-2)]
    assert "against before" not in rows[0].results


def test_the_floor_knows_where_the_weights_lie():
    table = lstm_cpu.CachedTable({"float32": ROOF})
    for bytes, rate in ((1000, 1e12), (4000, 1e11)):
        case = {"table": "caches"}
        table.rows.append(records.Row(case, harness.summary([bytes / rate]), bytes=bytes))

    def row(**results):
        time = timing.Timing(1.0, 1.0, 1.0, 1)
        return records.Row({"format": "float32"}, time, bytes=100, flops=10**6, results=results)

    assert table.floor(row()) == pytest.approx(1e-5), "the operations"
    assert table.floor(row(W_hh=[1000], reads=[10**6])) == pytest.approx(1e-3), "a million readings at 1 TB/s"
    assert table.floor(row(W_hh=[5000], reads=[10**6])) == pytest.approx(5e-2), (
        "at the rate of the next below"
    )
    assert table.floor(row(W_hh=[1000], reads=[1])) == pytest.approx(1e-5), "the longest of them"
