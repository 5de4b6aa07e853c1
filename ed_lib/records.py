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
# What is read of the head, and its types: others may be anything.
HEAD = {"benchmark": str, "machine": str, "device": str, "date": str, "rows": int}
HEAD |= {"flags": list, "code": dict, "dates": dict}
TOLD = 8  # cases that an error lists
NEEDED = ["table", "seconds", "q1", "q3", "n"]  # the median and the quartiles of n runs
NUMBERS = {*NEEDED[1:], "floor"}
LIKE_JSON = ("[", "{", '"')  # how lists, objects and quoted texts begin
# The package that holds the records where ed_lib was installed without the repository.
INSTALLED = "ed_lib.recorded"
# What the makers write into a device's name and no reader needs.
FILLERS = re.compile(r"\((R|TM|C)\)|\b(Intel|AMD|NVIDIA|CPU|Processor)\b|@")


def of(benchmark: str, machine: str) -> pd.DataFrame:
    """The record of a benchmark on a machine: cells as they were written, None where nothing is,
    and in ``attrs`` what made it. LookupError, saying what there is, if there is none.
    """
    files = _files(benchmark)
    if machine not in files:
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
        # A column that is not there is one in which every cell is empty.
        cells = record.get(name, pd.Series(None, record.index, dtype=object))
        # Cell by cell: a list is compared as a whole, which pandas would take for a column.
        fits = cells.isna() if wanted is None else [bool(cell == wanted) for cell in cells]
        record = record[fits]
    record = record.dropna(axis=1, how="all")
    # Columns of numbers become such, but where an empty cell would turn whole numbers into floats.
    return record.apply(lambda cells: cells if cells.hasnans else cells.infer_objects())


def row(record: pd.DataFrame, **case) -> pd.Series:
    """The one such row, without empty cells; LookupError if there is none, or several."""
    found = rows(record, **case)
    if len(found) == 1:
        return record.loc[found.index[0]].dropna()
    # The cases of those that were found, or else of what there is: the columns before the seconds.
    cases = (found if len(found) else record).loc[:, :"seconds"].iloc[:, :-1]
    there = cases.head(TOLD).to_dict("records")
    where = f"{record.attrs.get('benchmark')} on {record.attrs.get('machine')}"
    raise LookupError(f"{len(found)} rows have {case} in {where}; wanted one. There: {there}")


def read(path: Path) -> pd.DataFrame:
    """The record in a file. ValueError, naming file and line, for one that is cut off or
    malformed.
    """
    made: dict[str, Any] = {}  # of the head
    header: list[str] = []
    table: list[list] = []
    number = 0
    try:
        *lines, rest = path.read_text(encoding="utf-8").split("\n")
        for number, text in enumerate(lines, 1):  # noqa: B007
            if not header and text.startswith("# "):
                key, value = _fact(text[2:], made)
                made[key] = value
            elif not header:
                header = _split(text)
                _check_header(header)
            else:
                table.append(_cells(_split(text), header))
        # The last line ends too; and the head tells how many there are.
        if rest or not header or len(table) != made["rows"]:
            raise ValueError(f"the file is cut off: wanted {made['rows']} rows")
    except (ValueError, KeyError, csv.Error) as error:
        raise ValueError(f"{path}, line {number}: {error}") from error
    record = pd.DataFrame(table, columns=header, dtype=object)
    record.attrs = made | {"label": _label(made.get("device", ""))}
    return record


def _fact(text, made):
    """A line of the head, "key: JSON" → the key and what it holds."""
    key, _, written = text.partition(": ")
    if key in made:
        raise ValueError(f"{key} stands twice in the head")
    value = json.loads(written, parse_constant=_refuse)
    # The very type: True would be an int otherwise.
    if key in HEAD and type(value) is not HEAD[key]:
        raise ValueError(f"{key} is {value!r}; wanted {HEAD[key].__name__}")
    return key, value


def _split(line):
    """The texts between a line's commas."""
    (texts,) = csv.reader([line], strict=True)
    return texts


def _check_header(header):
    missing = [name for name in NEEDED if name not in header]
    if missing or len({*header}) != len(header):
        raise ValueError(f"{header} does not fit the header; wanted {NEEDED}, and each name once")


def _cells(texts, header):
    if len(texts) != len(header):
        raise ValueError(f"{texts} does not fit the header; wanted {len(header)} cells")
    cells = []
    for name, text in zip(header, texts, strict=True):
        value = parsed(text)
        if isinstance(value, str):
            if name in NUMBERS:
                raise ValueError(f"{name} is {value!r}; wanted a number")
            # Only a text that is written as JSON begins so: this list lacks a comma, say.
            if value == text and text.startswith(LIKE_JSON):
                raise ValueError(f"{name} is {text}, which is no JSON")
        cells.append(value)
    return cells


def _label(device):
    """The device for people: "NVIDIA H200" → "H200"."""
    words = FILLERS.sub(" ", device).split()
    return " ".join(words).replace(" ,", ",")


def _files(benchmark):
    """{machine: file} of a benchmark's records: the repository's, or those installed with the
    package.
    """
    # Beside an installed package there may be a folder records/ that is somebody else's.
    here = (ROOT / "pyproject.toml").is_file() and (ROOT / "records").is_dir()
    folder = ROOT / "records" if here else importlib.resources.files(INSTALLED)
    found = {}
    for machine in sorted(entry.name for entry in folder.iterdir() if entry.is_dir()):
        file = folder / machine / f"{benchmark}.csv"
        if file.is_file():
            found[machine] = file
    return found


def parsed(text: str) -> Any:
    """What a cell holds: None for nothing, what is JSON, or else the text."""
    if not text:
        return None
    try:
        # JSON has neither NaN nor infinity, which Python reads all the same: they are texts.
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def stands_as_it_is(text: str) -> bool:
    """Whether a text can be a cell without JSON's quotes: it is one line, and nobody would read it
    as something else.
    """
    return parsed(text) == text and text.isprintable() and not text.startswith(LIKE_JSON)


def _refuse(constant):
    raise ValueError(f"{constant} is no number")
