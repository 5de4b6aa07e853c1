"""What all benchmarks share: versions timed in turns, cases run by seeds, records written table by
table.

A benchmark is a module with ``TABLES``, {table: function(size, device) → rows}, ``SIZE``, a
:class:`Size` or one for each device, and ``TINY``, for a rehearsal. A row is a dict: case, seconds,
results. Optional: ``ceilings`` of (device, format), and ``context``, which makes that of a table.
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


class Size(SimpleNamespace):
    """What a benchmark is run at; called, another with some values changed. workers: trainings side
    by side; None: as the machine has threads.
    """

    seeds, offline, workers = 3, False, None

    def __call__(self, **changes):
        return Size(**vars(self) | changes)

    def rehearsal(self, **changes):
        """A small one, of data that come with scikit-learn, in this process."""
        return self(**{"seeds": 1, "offline": True, "workers": 1} | changes)


@dataclass(frozen=True)
class Version:
    """What is timed. cost: (bytes, FLOPs) that it needs; error: from float64."""

    case: dict
    call: Callable
    cost: tuple = (None, None)
    error: float | None = None
    tolerance: float = float("inf")
    results: dict = field(default_factory=dict)


def measure(versions, device, seconds, *, rounds=3):
    """Rows of the versions whose error is within the tolerance, timed for so many seconds each, in
    turns.
    """
    versions = [*filter(is_right, versions)]
    calls, on_gpu = {n: version.call for n, version in enumerate(versions)}, device != "cpu"
    times, rows = timing.compare(calls, min_seconds=seconds, rounds=rounds, events=on_gpu), []
    for version, time in zip(versions, times.values(), strict=True):
        row = version.case | {"seconds": time.median, "q1": time.q1, "q3": time.q3, "n": time.n}
        if on_gpu:
            row["launch"] = timing.apart(version.call, min_seconds=seconds / 4, min_runs=3)[
                0
            ].median
        row |= dict(zip(("floor_bytes", "floor_flops"), version.cost, strict=True)) | {
            "error": version.error
        }
        rows.append(row | version.results)
    return rows


def is_right(version):
    """Whether its error is within its tolerance; says so if it is not."""
    if wrong := version.error is not None and not version.error <= version.tolerance:
        print(
            f"{version.case}: deviates by {version.error:.1e}, more than rounding explains;"
            " not timed"
        )
    return not wrong


def summary(seconds):
    """Median and quartiles of some seconds, as they stand in a row."""
    q1, median, q3 = np.percentile(seconds, [25, 50, 75]).tolist()
    return {"seconds": median, "q1": q1, "q3": q3, "n": np.size(seconds)}


def runs(function, cases, size, *, seeds=None, **common):
    """Rows of cases: what ``function(seed=n, size=size, **case, **common)`` gives, side by side, as
    lists by seed. size: a :class:`Size`. seeds: how many; without, the size's.
    """
    from joblib import (
        Parallel,
        delayed,
        parallel_config,
    )  # which a bare machine with a GPU may lack

    with parallel_config("loky", inner_max_num_threads=1):
        options, seeds = common | {"size": size}, range(seeds or size.seeds)
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
    torch.set_flush_denormal(flush_denormal)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


@functools.cache
def images(
    name, offline=False, convert=lambda pictures, labels: (data.as_inputs(pictures), labels)
):
    """What ``convert`` makes of the training images and their labels, and of the test images and
    theirs.
    """
    found = data.load(name, offline=offline)
    return convert(found.train_images, found.train_labels), convert(
        found.test_images, found.test_labels
    )


def run(benchmark, device, out, *, only=(), tiny=False):
    """Measures all tables of a module or ``only`` some, each written when it ends → {table: "done",
    or why it failed}. On a CPU each waits for a quiet machine, and fails if a time is below its
    floor.
    """
    size, timed, states = (
        benchmark.TINY if tiny else benchmark.SIZE,
        device == "cpu" and not tiny,
        {},
    )
    size = size[device] if isinstance(size, dict) else size
    ceilings = functools.cache(
        functools.partial(getattr(benchmark, "ceilings", roofline.ceilings), device)
    )
    for table in only or benchmark.TABLES:
        rows, name = [], f"{benchmark.__name__}, {table}"
        try:
            if timed:
                quiet.wait()
            with getattr(benchmark, "context", contextlib.nullcontext)():
                for found in benchmark.TABLES[table](size, device):
                    rows.append(row := {"table": table} | found | floor(found, ceilings))
                    told = {key: value for key, value in row.items() if np.isscalar(value)}
                    print(f"{name}: {told}", flush=True)
                    if timed and row["seconds"] < row.get("floor", 0):
                        raise gates.Busy(f"below its floor: {told}")
                print(write(benchmark, table, rows, size, ceilings, device, out))
            states[table] = "done"
        except Exception as error:  # of a driver, a compiler, or of ours; the other tables go on
            traceback.print_exc()
            states[table] = (
                f"failed: {type(error).__name__}: {str(error).partition(chr(10))[0]:.150}"
            )
        print(f"{name}: {states[table]}", flush=True)
    return states


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
    roofs = {roof["dtype"]: roof for roof in old.attrs.get("ceilings", ())}
    known = [row for row in rows if row.get("floor_flops") is not None]
    roofs |= {format_of(row): vars(ceilings(format_of(row))) for row in known}
    tables = {key: records.rows(old, table=key).to_dict("records") for key in benchmark.TABLES}
    facts |= {"parameters": size, "ceilings": list(roofs.values()), "date": str(date.today())}
    facts["dates"] = old.attrs.get("dates", {}) | {table: facts["date"]}
    facts["code"] = old.attrs.get("code", {}) | {table: provenance.code_hash([benchmark.__name__])}
    rows = [row for each in (tables | {table: rows}).values() for row in each]
    cases = dict.fromkeys(key for row in rows for key in itertools.takewhile("seconds".__ne__, row))
    columns = cases | dict.fromkeys(key for row in rows for key in row)  # the case's come first
    return provenance.write(pd.DataFrame(rows, columns=list(columns), dtype=object), facts, out)
