"""A record in the making: a benchmark's parts one after another, and the record rewritten after each.

A benchmark is a module with ``prepare(device, size)``, which returns a :class:`Plan`. Each part fills a
table or two. What a part raises costs that part; what ends the program costs the part at hand. A later call
resumes: it leaves out what the record has, if the same code made it.
"""

import json
import math
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ed_lib import machine, records

LEFT = 75  # what a program exits with that left parts to do


@dataclass
class Plan:
    """What a benchmark does: ``parts``, {name: a function that measures}, the most valuable first.

    table: what collects their rows, with ``rows`` and ``ceilings``, and ``raise_ceilings``, which takes
    higher ones into account; ceilings: measures those; parameters: of the record.
    """

    table: object
    parts: dict
    ceilings: Callable
    parameters: dict = field(default_factory=dict)


def run(benchmark, device, out, *, size=None, wanted=(), resume=False, deadline=math.inf):
    """Measures the parts ``wanted`` (all of them, if none is named) → {part: what became of it}.

    benchmark: its module. out: the folder of the records. resume: leaves out what is done, in ``out`` or in
    the repository's records, by the code as it is and at this size; parts ``wanted`` without it are measured
    again, and the record's others stay. deadline: no part begins after it, in
    seconds of time.monotonic. What became of a part: "done", "was done", "left" or "failed", with the reason.
    """
    name = benchmark.__name__.rpartition(".")[2]
    plan, code = benchmark.prepare(device, size), records.code_hash(name)
    if unknown := set(wanted) - set(plan.parts):
        raise ValueError(f"wanted names {sorted(unknown)}; {name} has {', '.join(plan.parts)}")
    made = {}
    if (resume or wanted) and (before := begun(name, device, out)) and is_of(before, plan):
        again = set() if resume else set(wanted)
        parts = before.parameters["parts"].items()
        made = {part: how for part, how in parts if how["code"] == code and part not in again}
        plan.table.rows += [row for row in before.rows if row.case["part"] in made]
        plan.table.raise_ceilings({roof.dtype: roof for roof in before.ceilings})
    found = {}
    for part, work in plan.parts.items():
        if wanted and part not in wanted:
            continue
        if part in made:
            found[part] = "was done"
        elif time.monotonic() > deadline:
            found[part] = "left: no time"
        else:
            found[part] = measured(plan, part, work, made, code)
            write(benchmark, plan, made, device, out)
        print(f"{name}, {part}: {found[part]}", flush=True)
    if any(state == "done" for state in found.values()):
        plan.table.raise_ceilings(plan.ceilings())  # a machine that was busy at the start may not be now
        print(write(benchmark, plan, made, device, out), "written")
    return found


def begun(name, device, out):
    """The record that a call before this one left in ``out``, or else the repository's; None if there is none
    with parts.
    """
    path = Path(records.slug(machine.name(device))) / f"{name}.json"
    for folder in (Path(out), records.REPOSITORY / "records"):
        if (folder / path).is_file():
            record = records.read(folder / path)
            return record if "parts" in record.parameters else None
    return None


def is_of(record, plan):
    """Whether a record was made with the plan's parameters: not at a rehearsal's sizes, say."""
    mine = {name: value for name, value in record.parameters.items() if name != "parts"}
    return json.dumps(mine, sort_keys=True) == json.dumps(plan.parameters, sort_keys=True)


def measured(plan, part, work, made, code):
    """Runs one part: its rows stay if it ends, and none if it raises → what became of it."""
    rows, start = len(plan.table.rows), time.monotonic()
    try:
        work()
    except Exception as error:  # of a driver, a compiler, or of ours
        del plan.table.rows[rows:]
        traceback.print_exc()
        return f"failed: {type(error).__name__}: {str(error).partition(chr(10))[0]:.150}"
    for row in plan.table.rows[rows:]:
        row.case["part"] = part
    seconds = round(time.monotonic() - start, 1)
    made[part] = {"code": code, "seconds": seconds, "date": time.strftime("%Y-%m-%d")}
    return "done"


def write(benchmark, plan, made, device, out):
    """The record as far as it is made, as a file → its path."""
    name, of = benchmark.__name__.rpartition(".")[2], machine.name(device)
    parameters = plan.parameters | {"parts": made}
    roofs, rows = list(plan.table.ceilings.values()), plan.table.rows
    provenance = records.provenance(name, device)
    return records.write(records.Record(name, records.slug(of), of, provenance, parameters, roofs, rows), out)
