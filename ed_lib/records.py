"""What was measured: a record is a benchmark on a machine, ``records/<machine>/<benchmark>.csv``.
Its first lines, ``# key: JSON``, say what made it; then come a header and a line for each row:
table, case, seconds, floor, results.
"""

import csv
import importlib.resources
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ["table", "seconds", "q1", "q3", "n"]  # the median and the quartiles of n runs
INSTALLED = (
    "ed_lib.recorded"  # the package that holds the records where ed_lib was installed without them
)


def of(benchmark: str, machine: str) -> pd.DataFrame:
    """The record of a benchmark on a machine: cells as they were written, None where nothing is,
    and in ``attrs`` what made it. LookupError, saying what there is, if there is none.
    """
    if machine not in (files := _files(benchmark)):
        there = ", ".join(files) or "no machine"
        raise LookupError(f"no record of {benchmark} on {machine}; there is one on: {there}")
    return read(files[machine])


def by_machine(benchmark: str) -> dict[str, pd.DataFrame]:
    """{machine: record} of a benchmark, in the machines' order; maybe none."""
    return {machine: read(file) for machine, file in _files(benchmark).items()}


def rows(record: pd.DataFrame, **case) -> pd.DataFrame:
    """The rows whose cells equal these (None: nothing there), without columns that are empty; maybe
    none.
    """
    for name, wanted in case.items():
        cells = record.get(name, pd.Series(None, record.index, dtype=object))
        record = record[
            cells.isna() if wanted is None else [bool(cell == wanted) for cell in cells]
        ]
    record = record.dropna(axis=1, how="all")
    return record.apply(lambda cells: cells if cells.hasnans else cells.infer_objects())


def row(record: pd.DataFrame, **case) -> pd.Series:
    """The one such row, without empty cells; LookupError if there is none, or several."""
    if len(found := rows(record, **case)) == 1:
        return record.loc[found.index[0]].dropna()
    there = (found if len(found) else record).loc[:, :"seconds"].iloc[:8, :-1].to_dict("records")
    where = f"{record.attrs.get('benchmark')} on {record.attrs.get('machine')}"
    raise LookupError(f"{len(found)} rows have {case} in {where}; wanted one. There: {there}")


def read(path: Path) -> pd.DataFrame:
    """The record in a file. ValueError, naming file and line, for one that is cut off or
    malformed.
    """
    made: dict = {}
    header, cells, number = list[str](), [], 0
    try:
        *lines, rest = path.read_text(encoding="utf-8").split("\n")
        for number, text in enumerate(lines, 1):  # noqa: B007
            if not header and text.startswith("# "):
                key, _, value = text[2:].partition(": ")
                made[key] = json.loads(value)
                continue
            (texts,) = csv.reader([text], strict=True)
            header = header or texts
            if (
                len(texts) != len(header)
                or not {*NEEDED} <= {*header}
                or len({*header}) != len(header)
            ):
                raise ValueError(
                    f"{texts} does not fit the header; wanted {len(header)} cells, {NEEDED} too"
                )
            cells.append([parsed(text) for text in texts])
        if rest or len(cells) - 1 != made["rows"]:
            raise ValueError(f"the file is cut off: wanted {made['rows']} rows")
        record = pd.DataFrame(cells[1:], columns=header, dtype=object)
    except (ValueError, KeyError, csv.Error) as error:
        raise ValueError(f"{path}, line {number}: {error}") from error
    words = re.sub(
        r"\((R|TM|C)\)|\b(Intel|AMD|NVIDIA|CPU|Processor)\b|@", " ", made.get("device", "")
    )
    record.attrs = made | {
        "label": " ".join(words.split()).replace(" ,", ",")
    }  # the device for people
    return record


def _files(benchmark):
    """{machine: file} of a benchmark's records: the repository's, or those installed with the
    package.
    """
    here = (ROOT / "pyproject.toml").is_file() and (ROOT / "records").is_dir()
    folder = ROOT / "records" if here else importlib.resources.files(INSTALLED)
    files = {entry.name: entry / f"{benchmark}.csv" for entry in folder.iterdir() if entry.is_dir()}
    return {machine: file for machine, file in sorted(files.items()) if file.is_file()}


def parsed(text: str) -> Any:
    """What a cell holds: None for nothing, what is JSON, or else the text."""
    try:
        return (
            json.loads(text, parse_constant=int) if text else None
        )  # NaN is no number, and so a text
    except ValueError:
        return text
