"""What was measured: a record is a benchmark on a machine, ``records/<machine>/<benchmark>.csv``. Its first
lines, ``# key: JSON``, say what made it; then come a header and a line for each row: table, case, seconds,
floor, results. Long lists (curves, sampled text) stand in a JSON beside.
"""

import ast
import csv
import hashlib
import importlib.resources
import json
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

ROOT, OURS = Path(__file__).resolve().parents[1], ("ed_lib", "benchmarks")
NEEDED = ["table", "seconds", "q1", "q3", "n"]  # the median and the quartiles of n runs
ROUNDED = {"seconds", "q1", "q3", "launch", "floor", "error"}  # to four significant digits
INSTALLED = "ed_lib.recorded"  # the package that holds the records where ed_lib was installed without them
LONG = 200  # letters of a list that stands beside the table


def of(benchmark: str, machine: str) -> pd.DataFrame:
    """The record of a benchmark on a machine: cells as they were written, None where nothing is, and in
    ``attrs`` what made it. LookupError, saying what there is, if there is none.
    """
    if machine not in (files := _files(benchmark)):
        there = ", ".join(files) or "no machine"
        raise LookupError(f"no record of {benchmark} on {machine}; there is one on: {there}")
    return read(files[machine])


def load(benchmark: str) -> dict[str, pd.DataFrame]:
    """{machine: record} of a benchmark, in the machines' order; maybe none."""
    return {machine: read(file) for machine, file in _files(benchmark).items()}


def rows(record: pd.DataFrame, **case) -> pd.DataFrame:
    """The rows whose cells equal these (None: nothing there), without columns that are empty; maybe none."""
    for name, wanted in case.items():
        cells = record.get(name, pd.Series(None, record.index, dtype=object))
        record = record[cells.isna() if wanted is None else [bool(cell == wanted) for cell in cells]]
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
    """The record in a file. ValueError, naming file and line, for one that is cut off or malformed."""
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
            if len(texts) != len(header) or not {*NEEDED} <= {*header} or len({*header}) != len(header):
                raise ValueError(f"{texts} does not fit the header; wanted {len(header)} cells, {NEEDED} too")
            cells.append([_value(text) for text in texts])
        if rest or len(cells) - 1 != made["rows"]:
            raise ValueError(f"the file is cut off: wanted {made['rows']} rows")
        record = pd.DataFrame(cells[1:], columns=header, dtype=object)
    except (ValueError, KeyError, csv.Error) as error:
        raise ValueError(f"{path}, line {number}: {error}") from error
    if (beside := path.parent / f"{path.stem}.json").is_file():
        for name, long in json.loads(beside.read_text(encoding="utf-8")).items():
            short = record.get(name, [None] * len(record))
            record[name] = [long.get(str(n), cell) for n, cell in enumerate(short)]
    words = re.sub(r"\((R|TM|C)\)|\b(Intel|AMD|NVIDIA|CPU|Processor)\b|@", " ", made.get("device", ""))
    record.attrs = made | {"label": " ".join(words.split()).replace(" ,", ",")}  # the device for people
    return record


def write(frame: pd.DataFrame, provenance: dict, folder: Path | str) -> Path:
    """Writes a record, without empty columns, to ``folder/<machine>/<benchmark>.csv``, named by its
    provenance, and returns the path. ValueError for an infinite number.
    """
    path, table, long = Path(folder, provenance["machine"], f"{provenance['benchmark']}.csv"), {}, []
    for name in frame:
        texts = [_text(value, name in ROUNDED) for value in frame[name]]
        lists = {n: texts[n] for n, value in enumerate(frame[name]) if isinstance(value, list)}
        moved = {n: text for n, text in lists.items() if text[1] in "[{" or len(text) > LONG}
        if moved:
            lines = ",\n".join(f'"{n}": {text}' for n, text in moved.items())
            long.append(f"{_json(name)}: {{\n{lines}}}")
        if any(texts := ["" if n in moved else text for n, text in enumerate(texts)]):
            table[name] = texts
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        made = {key: value for key, value in provenance.items() if key != "label"} | {"rows": len(frame)}
        file.writelines(f"# {key}: {_json(value)}\n" for key, value in made.items())
        csv.writer(file, lineterminator="\n").writerows([table, *zip(*table.values(), strict=True)])
    path.with_suffix(".json").unlink(missing_ok=True)
    if text := ",\n".join(long):
        path.with_suffix(".json").write_text(f"{{{text}}}\n", encoding="utf-8")
    return path


def _files(benchmark):
    """{machine: file} of a benchmark's records: the repository's, or those installed with the package."""
    here = (ROOT / "pyproject.toml").is_file() and (ROOT / "records").is_dir()
    folder = ROOT / "records" if here else importlib.resources.files(INSTALLED)
    files = {entry.name: entry / f"{benchmark}.csv" for entry in folder.iterdir() if entry.is_dir()}
    return {machine: file for machine, file in sorted(files.items()) if file.is_file()}


def _value(text):
    """What a cell holds: None for nothing, JSON, or else a text."""
    try:
        return json.loads(text, parse_constant=int) if text else None  # NaN is no number, and so a text
    except ValueError:
        return text


def _text(value, is_rounded):
    if value is None or value != value:  # NaN is nothing
        return ""
    if isinstance(value, str) and _value(value) == value and value.isprintable():
        return value
    return _json(float(f"{value:.4g}") if is_rounded and isinstance(value, float) else value)


def _json(value):
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=lambda one: one.tolist())  # NumPy's


def code_hash(names: Iterable[str], root: Path = ROOT, begun: str = "") -> str:
    """SHA-256 of ``begun`` and the code, without docstrings and comments, of all files that names reach."""
    digest = hashlib.sha256(begun.encode())
    for path in reached(names, root):
        tree = ast.parse((root / path).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
                node.body = node.body[1:]
        digest.update(f"{path.as_posix()}\0{ast.unparse(tree)}\0".encode())
    return digest.hexdigest()


def imported(source: str) -> set[str]:
    """The names of ours that Python source imports; "a.*" for ``import_module(f"a.{name}")``."""
    names = {f"{match}*" for match in re.findall(r"""import_module\(f["']([\w.]+)\{""", source)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] in OURS}


def reached(names: Iterable[str], root: Path = ROOT) -> list[Path]:
    """The files behind names and behind all that they import in turn: sorted, relative to ``root``."""
    found, todo = set(), set(names)
    while todo:
        parts = todo.pop().split(".")
        stems = [Path(*parts[:end]) for end in range(1, len(parts) + 1)]  # a.b.c runs a, a.b and a.b.c
        paths = [path for stem in stems for path in (stem / "__init__.py", stem.parent / f"{stem.name}.py")]
        for path in [file.relative_to(root) for at in paths for file in root.glob(at.as_posix())]:
            if path not in found:
                found.add(path)
                todo |= imported((root / path).read_text(encoding="utf-8"))
    return sorted(found)
