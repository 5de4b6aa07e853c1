"""The records as they were, until the benchmarks write tables.

A record is one benchmark on one machine: what was timed, on what, with which versions and which code, and
how far from the floor it came. It is a file of JSON, ``records/<machine>/<benchmark>.json``, that a chapter
draws beside the live run and that ``git diff`` can show.
"""

import dataclasses
import datetime
import importlib.resources
import json
import math
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ed_lib import machine, records
from ed_lib.roofline import Ceilings
from ed_lib.timing import Timing

INSTALLED = "ed_lib.recorded"  # the package that holds the records where ed_lib was installed without them
REPOSITORY = records.ROOT
LOCAL = re.compile(r"""(?<![\w./:~])(?:~?/\w[^\s"]*/|[A-Za-z]:\\\\)[^\s"]*""")  # an absolute path, in JSON
SHOWN = 8  # cases that an error lists


@dataclass(frozen=True)
class Row:
    """One thing measured. ``case`` names it by its parameters, such as {"what": "update", "width": 32}.

    ``completion``: seconds until the work was done; ``launch``: the median of the seconds until the call
    returned, or None. ``bytes`` and ``flops`` are what the computation cannot do without, ``floor`` the
    seconds that they take at the least (roofline.floor), ``error`` the largest deviation from the float64
    reference; each None where it does not apply. ``results``: what else was measured, such as {"accuracy":
    [0.981, 0.979, 0.98]}, one value for each seed.
    """

    case: dict
    completion: Timing
    launch: float | None = None
    bytes: int | None = None
    flops: int | None = None
    floor: float | None = None
    error: float | None = None
    note: str = ""
    results: dict | None = None


@dataclass(frozen=True)
class Record:
    """The rows of a ``benchmark`` on a ``machine`` (a slug, which names its folder), and what made them.

    ``device`` is its name for people, ``provenance`` what :func:`provenance` found, ``parameters`` what the
    benchmark was called with, ``ceilings`` the roofs of the machine in the dtypes that occur.
    """

    benchmark: str
    machine: str
    device: str
    provenance: dict
    parameters: dict
    ceilings: list
    rows: list

    @property
    def label(self) -> str:
        """The device's name without the words that say nothing, for tables: "Xeon 2.50GHz, 2 threads"."""
        words = re.sub(r"\((R|TM|C)\)|\b(Intel|AMD|NVIDIA|CPU|Processor)\b|@", " ", self.device)
        return " ".join(words.split()).replace(" ,", ",")

    def find(self, **case) -> Row:
        """The one :class:`Row` whose case contains these items; LookupError if there is none, or several."""
        if len(found := self.select(**case)) == 1:
            return found[0]
        number, there = (f"{len(found)} rows have", found) if found else ("no row has", self.rows)
        cases = "; ".join(str(row.case) for row in there[:SHOWN]) or "no rows"
        more = f"; and {len(there) - SHOWN} more" if len(there) > SHOWN else ""
        raise LookupError(
            f"{number} {case} in {self.benchmark} on {self.machine}; wanted one. There: {cases}{more}"
        )

    def select(self, **case) -> list[Row]:
        """The rows whose case contains these items, in the order in which they were measured; maybe none."""
        return [row for row in self.rows if all(k in row.case and row.case[k] == v for k, v in case.items())]


def slug(name: str) -> str:
    """A device's name for a folder: "NVIDIA H200" → "nvidia-h200".

    Small letters, digits, hyphens and dots, without the words that say nothing. ValueError if nothing is
    left.
    """
    name = re.sub(r"\((r|tm|c)\)|\b(cpu|processor)\b", " ", name.lower())
    if not (short := re.sub(r"[^a-z0-9.]+", "-", name).strip("-.")):
        raise ValueError(f"name is {name!r}; wanted one with letters or digits")
    return short


def code_hash(benchmark: str) -> str:
    """SHA-256 over the sources of a benchmark's module and all of ours that it imports in turn."""
    return records.code_hash([f"benchmarks.{benchmark}"])


def is_older(record: Record) -> bool:
    """True if the code that was measured is no longer what it was, be it in a comment only."""
    return code_hash(record.benchmark) != record.provenance["code"]


def provenance(benchmark: str, device: str = "cpu") -> dict:
    """What made a measurement, as a dict for :class:`Record`: when, where, with which versions and code.

    Names neither the host, nor the user, nor a folder. ValueError as machine.name.
    """
    import torch

    return {
        "date": datetime.date.today().isoformat(),
        "cpu": machine.name("cpu"),
        "threads": torch.get_num_threads(),
        "blas_threads": _blas_threads(),
        "gpu": machine.facts(device)["gpu"],
        "os": platform.platform(),
        "versions": {key.lower(): value for key, value in machine.versions().items()},
        "code": code_hash(benchmark),
        "modules": [path.as_posix() for path in records.reached([f"benchmarks.{benchmark}"])],
        "command": _command(),
    }


def write(record: Record, folder: Path | str) -> Path:
    """Writes a record to ``folder/<machine>/<benchmark>.json``, all of it or nothing, and returns the path.

    Seconds, errors and ceilings are rounded to four significant digits. ValueError for a machine or benchmark
    whose name does not fit a file, for NaN or infinity, and for a string that is a folder of this machine's;
    TypeError for what JSON does not know.
    """
    for name in ("machine", "benchmark"):
        _check_name(name, getattr(record, name))
    data = dataclasses.asdict(record)
    rows = data.pop("rows")
    for item in data["ceilings"] + rows + [row["completion"] for row in rows]:
        item.update({key: _rounded(key, value) for key, value in item.items()})
    text = _json(data, indent=2).removesuffix("\n}")  # "rows" comes last in the alphabet too
    lines = ",\n".join(f"    {_json(row)}" for row in rows)
    if local := LOCAL.search(text + lines):
        raise ValueError(f"record holds the path {local[0]!r}; wanted none of this machine's folders")
    path = Path(folder) / record.machine / f"{record.benchmark}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(f'{text},\n  "rows": [\n{lines}\n  ]\n}}\n', encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def read(path: Path | str) -> Record:
    """The :class:`Record` in a file. ValueError, naming the file and what is wrong, if it holds none."""
    path = Path(path) if isinstance(path, str) else path  # or what importlib.resources has for a path
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON, or of UTF-8
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    record = _build(Record, data, f"{path}")
    for name in ("ceilings", "rows"):
        if not isinstance(getattr(record, name), list):
            raise ValueError(f"{path} has {name} that are no list")
    ceilings = [_build(Ceilings, c, f"{path}, ceilings {i}") for i, c in enumerate(record.ceilings)]
    rows = [_build(Row, r, f"{path}, row {i}") for i, r in enumerate(record.rows)]
    rows = [
        dataclasses.replace(row, completion=_build(Timing, row.completion, f"{path}, completion of row {i}"))
        for i, row in enumerate(rows)
    ]
    return dataclasses.replace(record, ceilings=ceilings, rows=rows)


def load(benchmark: str, folder: Path | str | None = None) -> list[Record]:
    """The records of a benchmark on all machines that it was measured on, sorted by machine; maybe none.

    From ``folder``, or from the repository's, or from the copy that was installed with the package.
    """
    _check_name("benchmark", benchmark)
    if (folder := _records() if folder is None else Path(folder)) is None or not folder.is_dir():
        return []
    files = [e / f"{benchmark}.json" for e in folder.iterdir() if e.is_dir() and not [*e.glob("*.csv")]]
    return sorted((read(file) for file in files if file.is_file()), key=lambda record: record.machine)


def of(benchmark: str, machine: str) -> Record:
    """The :class:`Record` of a benchmark on a machine; LookupError, saying what there is, if there is none.

    For a claim about a record: it cannot hold because nothing was looked at.
    """
    found = {record.machine: record for record in load(benchmark)}
    if machine not in found:
        there = ", ".join(found) or "no machine"
        raise LookupError(f"no record of {benchmark} on {machine}; there is one on: {there}")
    return found[machine]


def _records():
    """The folder of the records; None if there is none."""
    if (REPOSITORY / "records").is_dir() and (REPOSITORY / "pyproject.toml").is_file():
        return REPOSITORY / "records"
    try:
        return importlib.resources.files(INSTALLED)
    except ModuleNotFoundError:
        return None


def _build(kind, data, where):
    """A dataclass from a dict out of JSON; ValueError, beginning with ``where``, if it does not fit."""
    if not isinstance(data, dict):
        raise ValueError(f"{where} holds {type(data).__name__}; wanted the keys of a {kind.__name__}")
    fields = dataclasses.fields(kind)
    needed = {field.name for field in fields if field.default is dataclasses.MISSING}
    if missing := sorted(needed - set(data)):
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    if unknown := sorted(set(data) - {field.name for field in fields}):
        raise ValueError(f"{where} has {', '.join(unknown)}, which a {kind.__name__} has not")
    try:
        return kind(**data)
    except (TypeError, ValueError) as error:  # Ceilings checks its numbers
        raise ValueError(f"{where}: {error}") from error


def _json(data, indent=None):
    def plain(value):
        if hasattr(value, "item"):  # NumPy's numbers
            return value.item()
        raise TypeError(f"a record holds {value!r}; wanted numbers, strings, lists and dicts")

    return json.dumps(data, indent=indent, sort_keys=True, ensure_ascii=False, allow_nan=False, default=plain)


def _rounded(name, value):
    if not isinstance(value, (float, np.floating)):
        return value
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}; wanted a finite number, or None")
    return float(f"{value:.4g}")


def _check_name(name, value):
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", value):
        raise ValueError(f"{name} is {value!r}; wanted small letters, digits, hyphens, dots and underscores")


def _blas_threads():
    """How many threads NumPy's BLAS takes, or None where threadpoolctl is missing and cannot say."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return None
    counts = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    return max(counts, default=None)


def _command():
    """The command line that is running, with the last part only of every absolute path in it."""
    command = " ".join(["python", *sys.orig_argv[1:]])
    return re.sub(r"""(^|[\s='"(,])(?:~|/|[A-Za-z]:\\)(?=\S)(?:\S*[/\\])?""", r"\1", command)
