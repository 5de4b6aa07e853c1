"""What all benchmarks share: versions that are timed in turns, and a record that is made part by part.

A benchmark is a module with ``prepare(device, size)``, which returns a :class:`Plan`, and with TINY, a size
for a rehearsal. Its parts are measured one after another, and the record is rewritten after each. What a part
raises costs that part; what ends the program costs the part at hand. A later call resumes: it leaves out what
the record has, if the same code made it.
"""

import contextlib
import dataclasses
import functools
import json
import math
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from benchmarks import old_records as records
from benchmarks.old_records import Row
from ed_lib import data, devices, gates, machine, roofline, timing

ROUNDING = 1e-5  # relative to the largest: how far sums of float32 numbers may be from float64
LEFT = 75  # what a program exits with that left parts to do


@dataclass(frozen=True)
class Version:
    """Something to be timed: its ``case`` for the record, what to call, and (bytes, FLOPs) that it cannot do
    without; FLOPs by rate, {rate: number}, where there are several. It is timed if its ``error``, the
    deviation from float64, is within the ``tolerance``. ``results``: what else is known, or is to be asked
    for once it has been timed.
    """

    case: dict
    call: Callable
    cost: tuple
    error: float | None = None
    tolerance: float = math.inf
    results: dict | Callable | None = None


class Table:
    """Collects :class:`ed_lib.records.Row` and prints them.

    ceilings: {dtype or format: roofline.Ceilings}. seconds: for which each version is timed. compared: from a
    case, its seconds and [(case, seconds)] of all in the same turns, results for its row.
    """

    def __init__(self, ceilings=(), seconds=0.3, device="cpu", compared=lambda case, seconds, turns: {}):
        self.ceilings, self.seconds, self.device, self.compared = dict(ceilings), seconds, device, compared
        self.rows = []

    def measure(self, versions, rounds=3, launches=True):
        """Times :class:`Version`\\ s against each other, in turns: one row for each that is right.

        launches: whether to measure the launch apart, on a GPU, where it has a meaning.
        """
        versions = [
            version for version in versions if is_right(version.case, version.error, version.tolerance)
        ]
        calls, on_gpu = {n: version.call for n, version in enumerate(versions)}, self.device != "cpu"
        timings = timing.compare(calls, min_seconds=self.seconds, rounds=rounds, events=on_gpu)
        turns = [(version.case, timings[n].median) for n, version in enumerate(versions)]
        for version, completion in zip(versions, timings.values(), strict=True):
            launch = None
            if launches and on_gpu:
                launch = timing.apart(version.call, min_seconds=self.seconds / 4, min_runs=3).launch.median
            known, (bytes, flops) = version.results, version.cost
            results = dict(known() if callable(known) else known or {})
            results |= self.compared(version.case, completion.median, turns)
            if isinstance(flops, dict):
                results |= {f"FLOPs, {rate}": [number] for rate, number in flops.items()}
                flops = sum(flops.values())
            row = Row(
                version.case, completion, launch, bytes, flops, None, version.error, "", results or None
            )
            self.add(dataclasses.replace(row, floor=self.floor(row)))

    def add(self, row):
        self.rows.append(row)
        print(text(row), flush=True)

    def filled_by(self, works):
        """The parts of a plan: each adds the rows that its function gives, as they come."""

        def fill(work):
            for row in work():
                self.add(row)

        return {name: functools.partial(fill, work) for name, work in works.items()}

    def floor(self, row):
        """Seconds at the least: of the bytes, or of the operations, each at its format's rate."""
        rates = {name[7:]: n for name, n in (row.results or {}).items() if name.startswith("FLOPs, ")}
        if not rates:
            return self.ceilings[row.case.get("dtype") or row.case["format"]].floor(row.bytes, row.flops)
        seconds = sum(self.ceilings[rate].floor(0, number) for rate, (number,) in rates.items())
        return max(self.ceilings["float32"].floor(row.bytes, 0), seconds)

    def raise_ceilings(self, ceilings):
        """Takes the higher of the old and these ceilings, and computes all floors from them."""
        self.ceilings = higher(self.ceilings, ceilings)
        for n, row in enumerate(self.rows):
            if row.flops is not None:
                self.rows[n] = dataclasses.replace(row, floor=self.floor(row))

    def select(self, **case):
        """The rows whose case contains these items; LookupError if none does, since a part is missing."""
        if found := [row for row in self.rows if row.case | case == row.case]:
            return found
        raise LookupError(f"no row has {case}: the part that measures it is not done")


def is_right(case, error, tolerance):
    """Whether a deviation is within what rounding explains; says so if it is not."""
    if error is None or error <= tolerance:
        return True
    print(f"{described(case)}: deviates by {error:.1e}, more than rounding explains; not timed", flush=True)
    return False


def recorded(case, function, like):
    """A function as a CUDA graph on the GPU of the array ``like``; None, said why, if that cannot be."""
    try:
        return devices.record(function, like)
    except RuntimeError as error:
        print(f"{described(case)}: left out, {str(error).splitlines()[0]}", flush=True)


def higher(ceilings, others):
    """{name: roofline.Ceilings} with the higher bandwidth and rate of two, where both have them."""
    return {name: (ceilings.get(name) or others[name]).higher(others.get(name)) for name in ceilings | others}


def ceilings(device, dtypes=("float32", "float64")):
    """{dtype: roofline.Ceilings}, the highest ever seen, measured now once more."""
    found = {dtype: roofline.raised(device, dtype) for dtype in dtypes}
    print(*found.values(), sep="\n", flush=True)
    return found


def described(case):
    """A case in words: texts as they are, numbers with what they are."""
    words = {
        key: value for key, value in case.items() if key not in ("table", "part") and value not in (None, "")
    }
    return f"{case['table']}: " + ", ".join(v if isinstance(v, str) else f"{k} {v}" for k, v in words.items())


def text(row):
    """A row as a line: its case, its times, how far it is from the floor and from others, its accuracies."""
    line, found = f"{described(row.case):<90} {timing.text(row.completion.median):>9}", row.results or {}
    if row.floor:
        line += f", {row.completion.median / row.floor:5.1f} × floor {timing.text(row.floor)}"
    if row.launch is not None:
        line += f", launch {timing.text(row.launch)}"
    if row.error is not None:
        line += f", deviation {row.error:.1e}"
    for name, values in found.items():
        if name.startswith(("against ", "ratio")):
            line += f", {np.median(values):.2f}× {name.removeprefix('against ')}"
        elif name == "accuracy":
            line += f", accuracy {np.mean(values):.2%} ({min(values):.2%} to {max(values):.2%})"
    return line


def summary(seconds):
    """Median and quartiles of some seconds."""
    q1, median, q3 = (float(value) for value in np.percentile(seconds, [25, 50, 75]))
    return timing.Timing(median, q1, q3, np.size(seconds))


def barrier_to_barrier(call):
    """Seconds until all ranks have done what each calls."""
    dist.barrier()
    start = time.perf_counter()
    call()
    dist.barrier()
    return time.perf_counter() - start


def deviation(found, right):
    """The largest difference of two lists of tensors, relative to the largest number that is right."""
    worst = max(float((mine - exact).abs().max()) for mine, exact in zip(found, right, strict=True))
    return worst / max(float(exact.abs().max()) for exact in right)


@contextlib.contextmanager
def one_thread(flush_denormal=False):
    """PyTorch on one thread, as NumPy's products are: too small to share. What is denormal may count as 0."""
    threads = torch.get_num_threads()
    torch.set_flush_denormal(flush_denormal)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def side_by_side(function, jobs, workers=None):
    """What ``function(*job)`` returns for each job, in order and as it is done; as many at a time as
    ``workers`` says, or the machine has threads, with one thread each: their seconds are no measure of speed.
    """
    from joblib import Parallel, delayed, parallel_config  # which a bare machine with a GPU may lack

    with parallel_config("loky", inner_max_num_threads=1):
        calls = (delayed(alone)(function, *job) for job in jobs)
        return Parallel(n_jobs=workers or machine.threads(), return_as="generator")(calls)


def alone(function, *arguments):
    torch.set_num_threads(1)
    return function(*arguments)


def by_seed(function, cases, seeds, *common, workers=None):
    """For each case: it, its seconds, and {key: [of each seed]} of all else that is in the dicts that
    ``function(*case, seed, *common)`` returns.
    """
    found = side_by_side(function, [(*case, n, *common) for case in cases for n in range(seeds)], workers)
    for case in cases:
        runs = [next(found) for _ in range(seeds)]
        results = {key: [run[key] for run in runs] for key in runs[0]}
        yield case, summary(results.pop("seconds")), results


def inputs(pictures, labels):
    return data.as_inputs(pictures), labels


@functools.cache
def images(name, offline, convert=inputs):
    """What ``convert`` makes of the training images and their labels, and of the test images and theirs."""
    found = data.load(name, offline=offline)
    pairs = (found.train_images, found.train_labels), (found.test_images, found.test_labels)
    return [convert(*pair) for pair in pairs]


@dataclass
class Plan:
    """What a benchmark does: ``parts``, {name: a function that measures}, the most valuable first.

    table: what collects their rows; ceilings: measures those; parameters: of the record; context: in which
    each part runs. tables: whether each part fills the table of its name; otherwise the cases say the part.
    """

    table: Table
    parts: dict
    parameters: dict = field(default_factory=dict)
    ceilings: Callable = dict
    context: Callable = contextlib.nullcontext
    tables: bool = False

    def part_of(self, row):
        return row.case["table" if self.tables else "part"]


def run(benchmark, device, out, *, size=None, wanted=(), resume=False, deadline=math.inf):
    """Measures the parts ``wanted`` (all of them, if none is named) → {part: what became of it}.

    benchmark: its module. out: the folder of the records. resume: leaves out what is done, in ``out`` or in
    the repository's records, by the code as it is and at this size; parts ``wanted`` without it are measured
    again, and the record's others stay. deadline: no part begins after it, in seconds of time.monotonic.
    What became of a part: "done", "was done", "left" or "failed", with the reason.
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
        plan.table.rows += [row for row in before.rows if plan.part_of(row) in made]
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
            found[part] = measured(plan, part, work, made, code, quiet=device == "cpu" and size is None)
            write(name, plan, made, device, out)
        print(f"{name}, {part}: {found[part]}", flush=True)
    if any(state == "done" for state in found.values()):
        plan.table.raise_ceilings(plan.ceilings())  # a machine that was busy at the start may not be now
        print(write(name, plan, made, device, out), "written")
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


def measured(plan, part, work, made, code, quiet=False):
    """Runs one part: its rows stay if it ends, and none if it raises → what became of it.

    quiet: waits for a quiet machine before it, and refuses a time below its floor.
    """
    rows, start = len(plan.table.rows), time.monotonic()
    try:
        if quiet:
            gates.wait_for_quiet()
        with plan.context():
            work()
        if quiet:
            plan.table.raise_ceilings(plan.ceilings())
            refuse_impossible(plan.table.rows[rows:])
    except Exception as error:  # of a driver, a compiler, or of ours
        del plan.table.rows[rows:]
        traceback.print_exc()
        return f"failed: {type(error).__name__}: {str(error).partition(chr(10))[0]:.150}"
    for row in plan.table.rows[rows:]:
        if not plan.tables:
            row.case["part"] = part
    seconds = round(time.monotonic() - start, 1)
    made[part] = {"code": code, "seconds": seconds, "date": time.strftime("%Y-%m-%d")}
    return "done"


def refuse_impossible(rows):
    """``gates.Busy`` if one of these rows took less than its floor."""
    below = [row for row in rows if row.floor and row.completion.median < row.floor]
    if below:
        times = (f"{described(row.case)}: {timing.text(row.completion.median)}" for row in below)
        raise gates.Busy(f"below the floor: {'; '.join(times)}")


def write(name, plan, made, device, out):
    """The record as far as it is made, as a file → its path."""
    of, parameters = machine.name(device), plan.parameters | {"parts": made}
    with plan.context():
        provenance = records.provenance(name, device)
    roofs, rows = list(plan.table.ceilings.values()), plan.table.rows
    return records.write(records.Record(name, records.slug(of), of, provenance, parameters, roofs, rows), out)


class Shown(NamedTuple):
    """How the page of measurements shows a table: in the first column what a row is called, then numbers.

    names: keys of the case, or (head, key or function of a row); "seeds" is their number. numbers: columns
    that the page knows, or (head, function of a row → text, or text and what stands below it in small print);
    one that is empty in all rows is left out. details: for the small print under the name. where:
    which rows are shown. above: what stands over the table. In place of numbers, best: (key, function of a
    row), the accuracy at each value of the key, the highest first; or together: (head, function of all rows
    of one name); or lines: the whole table from its rows, its head first.
    """

    title: str
    names: tuple = ()
    numbers: tuple = ()
    details: tuple = ()
    where: Callable = lambda row: True
    above: Callable | None = None
    best: tuple | None = None
    together: tuple | None = None
    lines: Callable | None = None


def each(label, key, form="{}"):
    """For the small print: all values of a result, after what they are; nothing, where there are none."""

    def text(row):
        found = ", ".join(form.format(value) for value in row.results.get(key, ()))
        return found and label + found

    return text


def mean_of(key):
    """The mean of a result, as a function of the row."""
    return lambda row: np.mean(row.results[key])
