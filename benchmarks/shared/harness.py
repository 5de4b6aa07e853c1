"""What all benchmarks share: versions timed in turns, cases run by seeds, records written table by
table.

A benchmark is a module with ``TABLES``, {table: function(size, device) → rows}, ``SIZE``, a
:class:`Size` or one for each device, and ``TINY``, for a rehearsal. A row is a dict: case, seconds,
results. Optional: ``ceilings`` of (device, format), and ``context``, which makes that of a table;
``TIMED = True``, if it is about the speed of the machine, so that it runs by itself; ``ON_GPU``,
its tables that are about a GPU too; ``ON_CPU = False``, if none is about a CPU.
"""

import contextlib
import functools
import itertools
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch

from benchmarks.shared import provenance, quiet
from ed_lib import data, gates, machine, records, roofline, timing

REHEARSED = 1437, 360  # images to learn from, and to test


class Size(SimpleNamespace):
    """What a benchmark is run at; called, another with some values changed. workers: trainings side
    by side; None: as the machine has threads. whole: with the published images, not the samples.
    """

    seeds = 3
    whole = True
    workers = None

    def __call__(self, **changes):
        return Size(**vars(self) | changes)

    def rehearsal(self, **changes):
        """A small one, of a few images that come with the package, in this process."""
        return self(**{"seeds": 1, "whole": False, "workers": 1} | changes)


@dataclass(frozen=True)
class Version:
    """What is timed. cost: (bytes, FLOPs) that it needs; error: from float64."""

    case: dict
    call: Callable
    cost: tuple = (None, None)
    error: float | None = None
    tolerance: float = float("inf")
    results: dict = field(default_factory=dict)


def is_timed(benchmark):
    """Whether a benchmark runs where none is named; the others are alike anywhere, or nearly."""
    return getattr(benchmark, "TIMED", False)


def tables(benchmark, device):
    """The names of a benchmark's tables that are about "cpu" or "cuda"."""
    if device == "cpu":
        return tuple(benchmark.TABLES) if getattr(benchmark, "ON_CPU", True) else ()
    return getattr(benchmark, "ON_GPU", ())


def measure(versions, device, seconds, *, rounds=3):
    """Rows of the versions whose error is within the tolerance, timed for so many seconds each, in
    turns.
    """
    versions = [*filter(is_right, versions)]
    calls = {n: version.call for n, version in enumerate(versions)}
    on_gpu = device != "cpu"
    times = timing.compare(calls, min_seconds=seconds, rounds=rounds, events=on_gpu)
    rows = []
    for version, time in zip(versions, times.values(), strict=True):
        row = version.case | {"seconds": time.median, "q1": time.q1, "q3": time.q3, "n": time.n}
        if on_gpu:
            # How long the call takes to return, before the GPU has done what it asks for.
            launch, _ = timing.apart(version.call, min_seconds=seconds / 4, min_runs=3)
            row["launch"] = launch.median
        row["floor_bytes"], row["floor_flops"] = version.cost
        row["error"] = version.error
        rows.append(row | version.results)
    return rows


def is_right(version):
    """Whether its error is within its tolerance; says so if it is not."""
    # NaN is within no tolerance.
    right = version.error is None or version.error <= version.tolerance
    if not right:
        off = f"deviates by {version.error:.1e}, more than rounding explains"
        print(f"{version.case}: {off}; not timed")
    return right


def summary(seconds):
    """Median and quartiles of some seconds, as they stand in a row."""
    q1, median, q3 = np.percentile(seconds, [25, 50, 75]).tolist()
    return {"seconds": median, "q1": q1, "q3": q3, "n": np.size(seconds)}


def runs(function, cases, size, *, seeds=None, **common):
    """Rows of cases: what ``function(seed=n, size=size, **case, **common)`` gives, side by side, as
    lists by seed. size: a :class:`Size`. seeds: how many; without, the size's.
    """
    # A bare machine with a GPU may lack joblib.
    from joblib import Parallel, delayed, parallel_config

    with parallel_config("loky", inner_max_num_threads=1):
        options = common | {"size": size}
        seeds = range(seeds or size.seeds)
        jobs = (delayed(function)(seed=n, **case, **options) for case in cases for n in seeds)
        found = Parallel(n_jobs=size.workers or machine.threads(), return_as="generator")(jobs)
    for case in cases:
        mine = pd.DataFrame([next(found) for _ in seeds], dtype=object).to_dict("list")
        yield case | summary(mine.pop("seconds")) | mine


@contextlib.contextmanager
def one_thread(flush_denormal=False, threads=1):
    """PyTorch on one thread, as NumPy's products are: too small to share. What is denormal may
    count as 0.
    """
    before = torch.get_num_threads()
    # Some processors take far longer for denormal numbers than for others.
    torch.set_flush_denormal(flush_denormal)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


@functools.cache
def images(name, whole=True, convert=lambda pictures, labels: (data.as_inputs(pictures), labels)):
    """What ``convert`` makes of the training images and their labels, and of the test images and
    theirs; of a few of each unless they are ``whole``.
    """
    found = data.load(name, whole=whole)
    learned, tests = (None, None) if whole else REHEARSED
    return (
        convert(found.train_images[:learned], found.train_labels[:learned]),
        convert(found.test_images[:tests], found.test_labels[:tests]),
    )


def run(benchmark, device, out, *, only=(), tiny=False):
    """Measures all tables of a module or ``only`` some, each written when it ends → {table: "done",
    or why it failed}. On a CPU each waits for a quiet machine, and fails if a time is below its
    floor.
    """
    size = benchmark.TINY if tiny else benchmark.SIZE
    size = size[device] if isinstance(size, dict) else size
    timed = device == "cpu" and not tiny
    # They are measured when a table first asks for a format's, and then known.
    measured = functools.partial(getattr(benchmark, "ceilings", roofline.ceilings), device)
    ceilings = functools.cache(measured)
    states = {}
    for table in only or benchmark.TABLES:
        name = f"{benchmark.__name__}, {table}"
        try:
            if timed:
                quiet.wait()
            with getattr(benchmark, "context", contextlib.nullcontext)():
                rows = list(told(benchmark, table, size, device, ceilings, timed))
                # Cells for another GPU than this one give no rows, and no record has none.
                if rows:
                    print(write(benchmark, table, rows, size, ceilings, device, out))
            states[table] = "done"
        # An error of a driver, of a compiler, or of ours: the other tables go on.
        except Exception as error:
            traceback.print_exc()
            first_line = str(error).partition("\n")[0]
            states[table] = f"failed: {type(error).__name__}: {first_line:.150}"
        print(f"{name}: {states[table]}", flush=True)
    return states


def told(benchmark, table, size, device, ceilings, timed):
    """The rows of a table with their floors, each printed when it is there. ``gates.Busy`` if one
    that is timed is below its floor.
    """
    for found in benchmark.TABLES[table](size, device):
        row = {"table": table} | found | floor(found, ceilings)
        numbers = {key: value for key, value in row.items() if np.isscalar(value)}
        print(f"{benchmark.__name__}, {table}: {numbers}", flush=True)
        if timed and row["seconds"] < row.get("floor", 0):
            raise gates.Busy(f"below its floor: {numbers}")
        yield row


def floor(row, ceilings):
    """{"floor": seconds at the least}: of the bytes, or of the operations, at their format's
    rate.
    """
    if "floor" in row or row.get("floor_flops") is None:
        return {}
    return {"floor": ceilings(format_of(row)).floor(row["floor_bytes"], row["floor_flops"])}


def format_of(row):
    """The format whose rate is that of a row's operations."""
    return row.get("dtype") or row.get("format", "float32")


def write(benchmark, table, rows, size, ceilings, device, out):
    """Puts rows in the place of those that the record has of their table → its path."""
    facts = {"benchmark": benchmark.__name__.rpartition(".")[2]} | provenance.facts(device)
    path = Path(out, facts["machine"], f"{facts['benchmark']}.csv")
    old = records.read(path) if path.exists() else pd.DataFrame({"table": []})
    # The ceilings of the formats in these rows, beside those that the record has.
    roofs = {roof["dtype"]: roof for roof in old.attrs.get("ceilings", ())}
    known = [row for row in rows if row.get("floor_flops") is not None]
    roofs |= {format_of(row): vars(ceilings(format_of(row))) for row in known}
    tables = {key: records.rows(old, table=key).to_dict("records") for key in benchmark.TABLES}
    facts |= {"parameters": size, "ceilings": list(roofs.values()), "date": str(date.today())}
    facts["dates"] = old.attrs.get("dates", {}) | {table: facts["date"]}
    facts["code"] = old.attrs.get("code", {}) | {table: provenance.code_hash([benchmark.__name__])}
    tables[table] = rows
    rows = [row for each in tables.values() for row in each]
    # In a row the case stands before its seconds; so do the columns of all cases.
    cases = dict.fromkeys(key for row in rows for key in itertools.takewhile("seconds".__ne__, row))
    columns = cases | dict.fromkeys(key for row in rows for key in row)
    return provenance.write(pd.DataFrame(rows, columns=list(columns), dtype=object), facts, out)
