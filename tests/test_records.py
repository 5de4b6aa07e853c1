"""Records: that what is written comes back, that what is wrong is named, and which code it stands
for.
"""

import importlib
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.shared import provenance
from ed_lib import records

MADE = {
    "benchmark": "ed",
    "machine": "nvidia-h200",
    "device": "NVIDIA H200",
    "code": {"update": "c0de"},
}
TIMES = {"seconds": 1.5e-3, "q1": 1.25e-3, "q3": 2e-3, "n": 40}
ROWS = [
    {
        "table": "update",
        "how": "a, b",
        "depth": 4096,
        "wide": True,
        "sizes": [1, 2],
        **TIMES,
        "floor": 1.0,
    },
    {
        "table": "update",
        "how": "loop",
        "depth": 4096,
        "wide": False,
        "rule": "",
        **TIMES,
        "curve": [[1.0]],
    },
    {
        "table": "step",
        "how": "[[7",
        "depth": 64,
        **TIMES,
        "text": "two\nlines, “so”",
        "epochs": [0.5] * 90,
    },
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A repository with one record."""
    monkeypatch.setattr(records, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    provenance.write(pd.DataFrame(ROWS), MADE, tmp_path / "records")
    return tmp_path / "records" / "nvidia-h200" / "ed.csv"


def test_what_is_written_comes_back(place):
    record = records.of("ed", "nvidia-h200")
    assert [row.dropna().to_dict() for _, row in record.iterrows()] == ROWS
    assert record.attrs == MADE | {"rows": 3, "label": "H200"}
    assert [type(cell) for cell in record.depth] == 3 * [int] and record.n.tolist() == [40, 40, 40]
    before = place.read_text()
    provenance.write(record, record.attrs, place.parents[1])
    assert place.read_text() == before


@pytest.mark.oracle
def test_a_table_is_a_csv_file_that_pandas_reads(place):
    table = pd.read_csv(place, comment="#")
    # A text that begins as a list does is written with quotes, as JSON.
    assert table.how.tolist() == ["a, b", "loop", '"[[7"'] and table.seconds.tolist() == 3 * [
        1.5e-3
    ]


CELLS = st.none() | st.booleans() | st.integers() | st.text()
CELLS |= st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(CELLS | st.lists(CELLS | st.lists(st.integers())), min_size=1, max_size=5))
def test_any_value_comes_back_as_it_was(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("records")
    frame = pd.DataFrame({"table": "t", **TIMES, "x": pd.Series(values, dtype=object)})
    back = records.read(provenance.write(frame, MADE, folder))
    assert back.get("x", pd.Series([None] * len(values))).tolist() == values


def test_seconds_are_rounded_and_numbers_of_numpy_are_numbers(tmp_path):
    row = {
        "table": "t",
        "seconds": 1.23456e-3,
        "q1": np.float64(1.11119e-3),
        "q3": 2.5,
        "n": np.int64(12345),
    }
    row |= {
        "error": 1 / 3,
        "loss": 1 / 3,
        "floor_flops": 987654321,
        "rates": [np.float32(0.5), np.int8(1)],
    }
    back = records.read(provenance.write(pd.DataFrame([row]), MADE, tmp_path)).loc[0].tolist()
    assert back == ["t", 1.235e-3, 1.111e-3, 2.5, 12345, 0.3333, 1 / 3, 987654321, [0.5, 1]]
    with pytest.raises(ValueError, match="not JSON compliant"):
        provenance.write(pd.DataFrame([row | {"loss": math.inf}]), MADE, tmp_path)


def test_rows_are_found_by_part_of_their_case(place):
    record = records.of("ed", "nvidia-h200")
    found = records.rows(record, table="update")
    assert (
        found.how.tolist() == ["a, b", "loop"]
        and "text" not in found
        and found.depth.dtype == "int64"
    )
    assert records.rows(record, sizes=[1, 2], wide=True).index.tolist() == [0]
    assert records.rows(record, wide=None).index.tolist() == [2]
    for case, n in (({"other": None}, 3), ({"other": 1}, 0), ({"how": "none"}, 0)):
        assert len(records.rows(record, **case)) == n
    assert records.row(found, how="loop").curve == [[1.0]]
    assert "sizes" not in records.row(record, rule="")
    with pytest.raises(
        LookupError, match="0 rows have {'how': 'magic'} in ed on nvidia-h200.*'loop'"
    ):
        records.row(record, how="magic")
    with pytest.raises(LookupError, match="2 rows have {'table': 'update'}.*'a, b'.*'loop'"):
        records.row(record, table="update")


@pytest.mark.parametrize("old, new, wanted", [
    ("loop,", "loop,1,", "line 8: .*wanted 14 cells"),
    ("loop,4096,", "loop,", "line 8: .*wanted 14 cells"),
    ("table,how", "table,seconds", "line 6: .*does not fit the header"),
    ("seconds,", "minutes,", "line 6: .*does not fit the header"),
    ('"NVIDIA H200"', '"NVIDIA', "line 3: "),
    ("# rows: 3\n", "", "line 8: .*rows"),
    ('"a, b"', '"a, b', "line 7: "),
    ('"[1, 2]"', '"[1 2]"', r"line 7: sizes is \[1 2\], which is no JSON"),
    ('"[1, 2]"', '"[1, 2"', r"line 7: sizes is \[1, 2, which is no JSON"),
    ('"[1, 2]"', '{1: 2}', r"line 7: sizes is {1: 2}, which is no JSON"),
    ('"[1, 2]"', '"""1, 2"', r'line 7: sizes is "1, 2, which is no JSON'),
    ("0.0015", "0.00l5", "line 7: seconds is '0.00l5'; wanted a number"),
    ("0.00125", "NaN", "line 7: q1 is 'NaN'; wanted a number"),
    ("1.0", "1.0.", "line 7: floor is '1.0.'; wanted a number"),
    ('# device: "NVIDIA H200"', "# device: 5", "line 3: device is 5; wanted str"),
    ('# device: "NVIDIA H200"', "# device: null", "line 3: device is None; wanted str"),
    ('# code: {"update": "c0de"}', "# code: 5", "line 4: code is 5; wanted dict"),
    ('# code: {"update": "c0de"}', '# code: {"update": NaN}', "line 4: NaN is no number"),
    ("# rows: 3", "# rows: true", "line 5: rows is True; wanted int"),
    ('# device: "NVIDIA H200"', '# machine: "other"', "line 3: machine stands twice in the head"),
])  # fmt: skip
def test_a_file_that_is_malformed_says_where(place, old, new, wanted):
    text = place.read_text()
    assert old in text
    place.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=f"ed.csv, {wanted}"):
        records.of("ed", "nvidia-h200")


@pytest.mark.parametrize("left", [0, 30, 180, 260, -40, -1])
def test_a_file_that_is_cut_off_says_where(place, left):
    place.write_text(place.read_text()[:left])
    with pytest.raises(ValueError, match=r"ed.csv, line \d: "):
        records.read(place)


def test_records_of_all_machines_are_loaded_in_order_and_a_missing_one_is_an_error(place):
    for machine in ("tesla-t4", "apple-m1"):
        provenance.write(pd.DataFrame(ROWS), MADE | {"machine": machine}, place.parents[1])
    assert [*records.by_machine("ed")] == ["apple-m1", "nvidia-h200", "tesla-t4"]
    with pytest.raises(
        LookupError, match="no record of ed on a-cpu; there is one on: apple-m1, nvidia-h200"
    ):
        records.of("ed", "a-cpu")
    with pytest.raises(
        LookupError, match="no record of lstm on tesla-t4; there is one on: no machine"
    ):
        records.of("lstm", "tesla-t4")


def test_the_repository_comes_before_what_was_installed(place, monkeypatch):
    installed = place.parents[2] / "site" / "ed_lib_of_a_test"
    provenance.write(pd.DataFrame(ROWS), MADE | {"machine": "installed"}, installed)
    monkeypatch.syspath_prepend(installed.parent)
    importlib.invalidate_caches()
    monkeypatch.setattr(records, "INSTALLED", "ed_lib_of_a_test")
    assert [*records.by_machine("ed")] == ["nvidia-h200"]
    (place.parents[2] / "pyproject.toml").unlink()  # records/ of something else
    assert [*records.by_machine("ed")] == ["installed"]
