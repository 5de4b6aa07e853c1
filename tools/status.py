"""`make status`: the chapters and tables of records whose code has changed since: information, no
fault.
"""

from benchmarks.shared import provenance
from ed_lib import records
from tools import notebooks, readability
from tools.pages import ROOT


def chapters():
    """(chapter, the day of its outputs) for each whose code has changed since."""
    for path in notebooks.chapters():
        made = (nb := notebooks.read(ROOT / path)).metadata.get("ed_lib", {})
        if made.get("code") != notebooks.fingerprint(nb):
            yield path.as_posix(), made.get("executed", "never executed")


def tables():
    """(benchmark, table and machine; the day of its record) for each that was measured by other
    code.
    """
    for name in sorted({path.stem for path in (ROOT / "records").glob("*/*.csv")}):
        now = provenance.code_hash([f"benchmarks.{name}"])
        for machine, record in records.by_machine(name).items():
            for table in record["table"].unique():
                if record.attrs["code"].get(table) != now:
                    yield f"{name}, {table} ({machine})", record.attrs["date"]


if __name__ == "__main__":
    for folder in ("ed_lib", "benchmarks", "tools"):
        print(readability.densities(ROOT / folder))
    for kind, found in (("chapters", [*chapters()]), ("tables of records", [*tables()])):
        lines = [f"  {name}: {day}" for name, day in found]
        print(f"{len(found)} {kind} were made by other code", *lines, sep="\n")
