"""The benchmark at a tiny size: every version agrees with the reference; the record survives a round trip."""

import pytest

from benchmarks import __main__ as command
from benchmarks import ed
from ed_lib import arrays, records, roofline
from ed_lib.ed import costs
from tools import measurements

TINY = dict(depths=(8, 16), widths=(4, 8), networks=(1, 3), seconds=0.01)
ROOFS = {dtype: roofline.Ceilings("a machine", dtype, 1e10, 1e11) for dtype in ("float32", "float64")}


@pytest.fixture
def record(monkeypatch):
    monkeypatch.setattr(roofline, "measure", lambda device, dtype: ROOFS[dtype])
    return ed.run("cpu", costs.Shape(20, 4, 32, 8), **TINY)


def test_a_record_has_every_version_right_and_survives_a_round_trip(record, tmp_path, capsys):
    assert "not timed" not in capsys.readouterr().out
    path = records.write(record, tmp_path)
    again = records.load("ed", tmp_path)[0]
    assert path.name == "ed.json" and len(again.rows) == len(record.rows)
    for row in again.rows:
        assert row.completion.median > 0 and row.floor > 0
        assert row.error is None or row.error < ed.ROUNDING[row.case["dtype"]]
    for how in ed.ARTICLES_WAYS:
        assert again.find(table="article", what="update", how=how, dtype="float64", depth=32).bytes
    for part in ("forward", "chain", "update", "step"):
        assert again.select(table="by hand", what=part) and again.parameters["article"]["depth"] == 32
    assert {row.case["depth"] for row in again.select(table="depth")} == {8, 16}
    assert [row.case["n_outputs"] for row in again.select(table="networks")] == [1, 3]
    page = measurements.page([again])
    assert "No GPU has been measured yet" in page and page.count("| update |") >= 8
    assert all(title in page for title in measurements.TITLES.values())


def test_floors_come_from_the_higher_ceilings(monkeypatch):
    seen = iter([(1e10, 1e11)] * 2 + [(3e10, 1e10)] * 2)  # float32 and float64, before and after
    monkeypatch.setattr(roofline, "measure", lambda device, dtype: roofline.Ceilings("m", dtype, *next(seen)))
    record = ed.run("cpu", costs.Shape(5, 2, 8, 3), (4,), (2,), (1,), seconds=0.001)
    assert {(c.bandwidth, c.rate) for c in record.ceilings} == {(3e10, 1e11)}
    for row in record.rows:
        assert row.floor == max(row.bytes / 3e10, row.flops / 1e11)


def test_a_version_that_is_wrong_is_not_timed(monkeypatch, capsys):
    right = ed.ARTICLES_WAYS["einsum"]
    wrong = {"einsum": lambda x, received: 1.01 * right(x, received)}
    monkeypatch.setattr(ed, "ARTICLES_WAYS", ed.ARTICLES_WAYS | wrong)
    monkeypatch.setattr(roofline, "measure", lambda device, dtype: ROOFS[dtype])
    record = ed.run("cpu", costs.Shape(20, 4, 16, 8), (8,), (4,), (1,), seconds=0.001)
    assert not record.select(how="einsum") and record.select(how="four products")
    assert "einsum: deviates by" in capsys.readouterr().out


def test_what_does_not_fit_is_left_out_before_it_is_allocated(monkeypatch, capsys):
    monkeypatch.setattr(ed.machine, "memory", lambda device: 10_000)
    ed.articles_formulas(None, costs.Shape(20, 4, 16, 8), "float64", "cpu")
    assert "left out at depth 16" in capsys.readouterr().out


def test_the_command_line(monkeypatch, tmp_path, record, capsys):
    monkeypatch.setattr(ed, "run", lambda device: record)
    command.main(["ed", "--device", "cpu", "--out", str(tmp_path)])
    assert "ed.json written after" in capsys.readouterr().out
    if not arrays.gpu_count():
        with pytest.raises(SystemExit, match="PyTorch sees no GPU on this machine"):
            command.main(["--device", "cuda"])
    with pytest.raises(SystemExit):
        command.main(["lsmt"])
