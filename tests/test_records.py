"""Records: that what is written comes back, names its makers and nobody else, and says what is wrong."""

import dataclasses
import getpass
import importlib
import json
import os
import platform
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT
from ed_lib import records
from ed_lib.records import Record, Row
from ed_lib.roofline import Ceilings
from ed_lib.timing import Timing
from tools import measurements

CASE = {"what": "update", "how": "batched product", "depth": 4096, "width": 32, "sizes": [1, 2]}


@pytest.fixture
def record():
    rows = [
        Row(CASE, Timing(1.5e-3, 1.25e-3, 2e-3, 40), 2.5e-5, 2**31, 2**33 + 1, 1e-3, 3e-7, "warm"),
        Row(CASE | {"how": "loop"}, Timing(2.0, 1.5, 3.5, 5)),
    ]
    ceilings = [Ceilings("NVIDIA H200", "float32", 4.2e12, 5.1e13, "read")]
    made = {"date": "2026-01-01", "code": "c0de", "gpu": None}
    return Record("ed", "nvidia-h200", "NVIDIA H200", made, {"batch": 64, "alpha": 0.123456}, ceilings, rows)


def test_what_is_written_comes_back(record, tmp_path):
    path = records.write(record, tmp_path / "records")
    assert path == tmp_path / "records" / "nvidia-h200" / "ed.json"
    assert records.read(path) == records.read(str(path)) == record
    assert [file.name for file in path.parent.iterdir()] == ["ed.json"], "the temporary file stayed"


def test_the_file_is_stable_and_holds_one_row_a_line(record, tmp_path):
    path = records.write(record, tmp_path)
    text = path.read_text(encoding="utf-8")
    assert records.write(records.read(path), tmp_path).read_text(encoding="utf-8") == text
    assert sum('"completion"' in line for line in text.splitlines()) == 2 == text.count('"completion"')
    assert text.endswith("  ]\n}\n") and list(json.loads(text)) == sorted(json.loads(text))


def test_a_record_without_rows_is_a_record(record, tmp_path):
    empty = dataclasses.replace(record, rows=[], ceilings=[])
    assert records.read(records.write(empty, tmp_path)) == empty


def test_measurements_are_rounded_and_counts_are_not(record, tmp_path):
    numbers = {
        "median": 1.23456e-3,
        "q1": np.float64(1.11119e-3),
        "q3": np.float32(2.5),
        "n": np.int64(12345),
    }
    row = Row(
        {"width": np.int64(123456)}, Timing(**numbers), 9.87654e-6, 123456789, 987654321, 1.23456, 1 / 3
    )
    ceiling = Ceilings("x", "float32", 1.23456e12, 1.23456e13)
    path = records.write(dataclasses.replace(record, rows=[row], ceilings=[ceiling]), tmp_path)
    back = records.read(path)
    assert back.rows == [
        Row({"width": 123456}, Timing(1.235e-3, 1.111e-3, 2.5, 12345), 9.877e-6, 123456789, 987654321,
            1.235, 0.3333)
    ]  # fmt: skip
    assert back.ceilings == [Ceilings("x", "float32", 1.235e12, 1.235e13)]
    assert back.parameters == record.parameters


@pytest.mark.parametrize("change, error, wanted", [
    ({"machine": "Some Machine"}, ValueError, "machine is 'Some Machine'; wanted small letters"),
    ({"machine": ".."}, ValueError, "machine is '..'"),
    ({"benchmark": "a/b"}, ValueError, "benchmark is 'a/b'"),
    ({"rows": [Row({}, Timing(float("nan"), 1, 1, 1))]}, ValueError, "median is nan; wanted a finite number"),
    ({"rows": [Row({}, Timing(1, 1, 1, 1), error=np.inf)]}, ValueError, "error is inf"),
    ({"parameters": {"where": Path("x")}}, TypeError, "a record holds .*Path"),
    ({"parameters": {"where": "/home/me/records"}}, ValueError, "record holds the path '/home/me/records'"),
    ({"provenance": {"command": "python ~/a/b.py --x"}}, ValueError, "record holds the path '~/a/b.py'"),
    ({"provenance": {"command": "python --out=C:\\Users\\me"}}, ValueError, "record holds the path 'C:"),
    ({"rows": [Row({}, Timing(1, 1, 1, 1), note="see /tmp/x/y")]}, ValueError, "holds the path '/tmp/x/y'"),
])  # fmt: skip
def test_what_does_not_belong_in_a_record_is_named_and_nothing_is_written(
    record, tmp_path, change, error, wanted
):
    before = records.write(record, tmp_path).read_text()
    with pytest.raises(error, match=re.escape(wanted).replace(r"\.\*", ".*")):
        records.write(dataclasses.replace(record, **change), tmp_path)
    assert [p.read_text() for p in tmp_path.rglob("*") if p.is_file()] == [before]


def test_addresses_and_rates_are_no_paths(record, tmp_path):
    row = Row(
        {"how": "a/b, GB/s and/or"}, Timing(1, 1, 1, 1), note="https://example.org/a/b, 1/2, ../records/x"
    )
    records.write(dataclasses.replace(record, rows=[row]), tmp_path)


def test_a_write_that_fails_leaves_the_old_file(record, tmp_path, monkeypatch):
    path = records.write(record, tmp_path)
    before = path.read_text()

    def fail(*names):
        raise OSError("disk full")

    monkeypatch.setattr(records.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        records.write(dataclasses.replace(record, rows=[]), tmp_path)
    assert path.read_text() == before and list(path.parent.iterdir()) == [path]


def spoil(data, keys, value):
    """``data`` with the entry under these keys replaced, or taken out where ``value`` is ``spoil``."""
    *inner, last = keys
    place = data
    for key in inner:
        place = place[key]
    if value is spoil:
        del place[last]
    else:
        place[last] = value
    return data


@pytest.mark.parametrize("keys, value, wanted", [
    (["provenance"], spoil, "ed.json lacks provenance"),
    (["extra"], 1, "ed.json has extra, which a Record has not"),
    (["rows"], {}, "ed.json has rows that are no list"),
    (["rows", 1, "case"], spoil, "ed.json, row 1 lacks case"),
    (["rows", 0], 7, "ed.json, row 0 holds int; wanted the keys of a Row"),
    (["rows", 0, "completion", "q1"], spoil, "ed.json, completion of row 0 lacks q1"),
    (["ceilings", 0, "bandwidth"], -1, "ed.json, ceilings 0: bandwidth is -1"),
    (["ceilings", 0, "rate"], "fast", "ed.json, ceilings 0: rate is 'fast'"),
])  # fmt: skip
def test_a_record_that_lacks_something_says_where_and_what(record, tmp_path, keys, value, wanted):
    path = records.write(record, tmp_path)
    path.write_text(json.dumps(spoil(json.loads(path.read_text()), keys, value)))
    with pytest.raises(ValueError, match=re.escape(str(tmp_path)) + f".*{wanted}"):
        records.read(path)


@pytest.mark.parametrize("content", [b"", b"{", b'{"rows": [', b"\xff\xfe"])
def test_a_corrupt_file_is_named(tmp_path, content):
    (tmp_path / "ed.json").write_bytes(content)
    with pytest.raises(ValueError, match="ed.json is not valid JSON"):
        records.read(tmp_path / "ed.json")


def test_a_row_is_found_by_part_of_its_case(record):
    assert record.find(how="loop") == record.find(how="loop", depth=4096) == record.rows[1]
    assert record.select(what="update") == record.select() == record.rows
    assert record.select(sizes=[1, 2], how="loop") == [record.rows[1]]
    assert record.select(how="other") == record.select(other=None) == []


@pytest.mark.parametrize("case, wanted", [
    ({"how": "magic"}, "no row has {'how': 'magic'} in ed on nvidia-h200; wanted one"),
    ({"what": "update"}, "2 rows have {'what': 'update'} in ed on nvidia-h200; wanted one"),
])  # fmt: skip
def test_none_or_several_rows_are_an_error_that_shows_what_is_there(record, case, wanted):
    with pytest.raises(LookupError, match=re.escape(wanted) + ".*batched product.*loop"):
        record.find(**case)


def test_an_error_shows_only_some_of_many_rows(record):
    many = dataclasses.replace(record, rows=20 * record.rows)
    with pytest.raises(LookupError, match="; and 32 more$"):
        many.find(how="magic")
    with pytest.raises(LookupError, match="no rows$"):
        dataclasses.replace(record, rows=[]).find(how="magic")


def test_records_of_all_machines_are_loaded_in_order(record, tmp_path):
    for machine in ("nvidia-t4", "apple-m1", "nvidia-h200"):
        records.write(dataclasses.replace(record, machine=machine), tmp_path)
    records.write(dataclasses.replace(record, benchmark="lstm", machine="other"), tmp_path)
    (tmp_path / "README.md").write_text("not a machine")
    found = [record.machine for record in records.load("ed", tmp_path)]
    assert found == ["apple-m1", "nvidia-h200", "nvidia-t4"]
    assert records.load("nothing", tmp_path) == records.load("ed", tmp_path / "nowhere") == []
    with pytest.raises(ValueError, match="benchmark is '../ed'"):
        records.load("../ed", tmp_path)


def test_the_repository_comes_before_what_was_installed(record, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "REPOSITORY", tmp_path)
    monkeypatch.setattr(records, "INSTALLED", "recorded_for_a_test")
    assert records.load("ed") == []  # neither is there
    installed = tmp_path / "site" / "recorded_for_a_test"
    records.write(dataclasses.replace(record, machine="installed"), installed)
    monkeypatch.syspath_prepend(installed.parent)
    importlib.invalidate_caches()
    assert [record.machine for record in records.load("ed")] == ["installed"]
    records.write(record, tmp_path / "records")
    assert [record.machine for record in records.load("ed")] == ["installed"], "records/ of something else"
    (tmp_path / "pyproject.toml").touch()
    assert [record.machine for record in records.load("ed")] == ["nvidia-h200"]


@pytest.mark.parametrize("name, wanted", [
    ("NVIDIA H200", "nvidia-h200"),
    ("Intel(R) Xeon(R) Processor @ 2.50GHz, 2 threads", "intel-xeon-2.50ghz-2-threads"),
    ("Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz, 1 thread", "intel-core-i7-9750h-2.60ghz-1-thread"),
    ("Tesla T4", "tesla-t4"),
    ("../a/b", "a-b"),
])  # fmt: skip
def test_a_slug_is_a_folder_s_name(name, wanted):
    assert records.slug(name) == wanted


def test_a_name_without_letters_has_no_slug():
    with pytest.raises(ValueError, match="name is '..!'; wanted"):
        records.slug("..!")


def test_records_that_are_older_than_the_code_are_named_and_marked():
    """They are a warning, and no failure: to measure again takes a quiet machine, and some hours."""
    found = measurements.recorded()
    older = [f"{record.machine}/{record.benchmark}" for record in found if records.is_older(record)]
    if older:
        warnings.warn(f"records older than the code that they measured: {', '.join(older)}", stacklevel=1)
    assert measurements.overview(found).count("| changed |") == len(older)


def test_a_record_is_older_once_its_benchmark_reaches_other_code(record):
    made = dataclasses.replace(record, provenance=records.provenance("ed"))
    assert not records.is_older(made)
    assert records.is_older(dataclasses.replace(made, benchmark="no_longer_there"))
    assert {"benchmarks.ed", "ed_lib.ed.rules", "ed_lib.ed.kernels"} <= set(made.provenance["modules"])
    assert not {"benchmarks.lstm", "ed_lib.lstm", "tools.measurements"} & set(made.provenance["modules"])


def test_the_provenance_names_versions_and_code_but_no_host_user_or_folder(record, tmp_path, monkeypatch):
    words = [
        "/opt/x/python",
        "-m",
        "benchmarks",
        "ed",
        "--out",
        f"{Path.home()}/deep/records",
        f"--b={ROOT}/c",
    ]
    monkeypatch.setattr(sys, "orig_argv", words)
    made = records.provenance("ed")
    assert made["command"] == "python -m benchmarks ed --out records --b=c"
    assert made["versions"]["numpy"] == np.__version__ and made["versions"]["python"] in sys.version
    assert set(made["versions"]) == {"python", "numpy", "torch", "cupy", "triton"} and made["gpu"] is None
    assert made["code"] == records.code_hash("ed") and made["threads"] >= 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", made["date"])
    text = records.write(dataclasses.replace(record, provenance=made), tmp_path).read_text()
    assert not {platform.node(), getpass.getuser()} & set(re.findall(r"[\w.-]+", text))
    assert str(ROOT) not in text and os.sep + "home" not in text


def test_a_claim_about_a_record_that_is_missing_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "load", lambda benchmark: [])
    with pytest.raises(LookupError, match="no record of ed on a-machine; there is one on: no machine"):
        records.of("ed", "a-machine")
