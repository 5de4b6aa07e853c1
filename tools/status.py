"""`make status`: how long and how dense the code is; the drafts; the chapters, tables of records
and GPU cells whose code has changed since they were made; and the chapters whose records have. It
is information, no fault. With FILE=…, the chapters and benchmarks that reach this file.
"""

import sys
from pathlib import Path

from benchmarks.shared import provenance
from ed_lib import records
from tools import gpu_cells, notebooks, readability
from tools.pages import ROOT

FOLDERS = "ed_lib", "ed_lib/ed", "ed_lib/parallel", "ed_lib/precision", "ed_lib/lstm"
FOLDERS += "benchmarks", "tools", "tests"


def chapters():
    """(chapter, the day of its outputs) for each whose code, or a record that it reads, has changed
    since.
    """
    for path in notebooks.chapters():
        nb = notebooks.read(ROOT / path)
        made = nb.metadata.get("ed_lib", {})
        if made.get("code") != notebooks.fingerprint(nb):
            yield path.as_posix(), made.get("executed", "never executed")


def tables():
    """(benchmark, machine and tables; the day of its record) for each record with tables that were
    measured by other code. Of GPU cells each has a hash of its own: :func:`cells`.
    """
    names = {path.stem for path in (ROOT / "records").glob("*/*.csv")}
    for name in sorted(names - {"cells"}):
        now = provenance.code_hash([f"benchmarks.{name}"])
        for machine, record in records.by_machine(name).items():
            code = record.attrs["code"]
            other = [table for table in record["table"].unique() if code.get(table) != now]
            if other:
                yield f"{name} ({machine}): {'; '.join(other)}", record.attrs["date"]


def cells():
    """(chapter, id of a cell and machine; what became of it) for each GPU cell of another code than
    the one that its record is of.
    """
    for path, chapter, cell, _, new in gpu_cells.changed():
        became = "another code" if new else "no such cell any more"
        yield f"{chapter}, cell {cell} ({path.parent.name})", became


def drafts():
    """(draft, that it is one), for each."""
    return [(path.as_posix(), "in no table of contents") for path in notebooks.drafts()]


def reaching(file):
    """The chapters and benchmarks whose outputs and records hang on a file of ours."""
    if not (ROOT / file).is_file():
        sys.exit(f"FILE is {file}; wanted a file of the repository, such as ed_lib/timing.py")
    for path in notebooks.chapters():
        cells = map(notebooks.as_python, notebooks.code_cells(notebooks.read(ROOT / path)))
        modules = {"ed_lib.chapter"}.union(*map(provenance.imported, cells))
        if file in provenance.reached(modules):
            yield path.as_posix()
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        if file in provenance.reached([f"benchmarks.{path.stem}"]):
            yield path.relative_to(ROOT).as_posix()


def whole():
    """Prints all of it."""
    for folder in FOLDERS:
        print(readability.densities(ROOT / folder))
    for what, found in (
        ("drafts of chapters", drafts()),
        ("chapters have outputs that were made by other code, or of other records", [*chapters()]),
        ("records have tables that were measured by other code", [*tables()]),
        ("GPU cells were recorded with other code", [*cells()]),
    ):
        print(f"\n{len(found)} {what}", *(f"  {name}: {about}" for name, about in found), sep="\n")


if __name__ == "__main__":
    print(*reaching(Path(sys.argv[1])), sep="\n") if sys.argv[1:] else whole()
