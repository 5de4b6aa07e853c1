"""Rows as they are measured: timed in turns, printed at once, kept for the record."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from ed_lib import timing
from ed_lib.records import Row

COLUMNS = {
    "what": 75,
    "time": 10,
    "quartiles": 22,
    "n": 5,
    "launch": 10,
    "floor": 10,
    "×floor": 8,
    "error": 10,
}


@dataclass(frozen=True)
class Version:
    """Something to be timed: its ``case`` for the record, what to call, (bytes, FLOPs), the error it has, and
    what to ask for ``results`` once it has been timed.
    """

    case: dict
    call: Callable
    cost: tuple
    error: float | None = None
    results: Callable | None = None


class Table:
    """Collects :class:`ed_lib.records.Row` and prints them.

    ceilings: {dtype: roofline.Ceilings}. seconds: for which each version is timed. launches: whether to
    measure the launch apart, which has a meaning on a GPU.
    """

    def __init__(self, ceilings, seconds, launches):
        self.ceilings, self.seconds, self.launches, self.rows = ceilings, seconds, launches, []
        self._print(list(COLUMNS))

    def measure(self, versions):
        """Times :class:`Version`\\ s against each other, in turns: one row for each."""
        calls = {n: version.call for n, version in enumerate(versions)}
        timings = timing.compare(calls, min_seconds=self.seconds, rounds=3, events=self.launches)
        for version, completion in zip(versions, timings.values(), strict=True):
            launch = None
            if self.launches:
                launch = timing.apart(version.call, min_seconds=self.seconds / 4, min_runs=3).launch.median
            floor = self.ceilings[version.case["dtype"]].floor(*version.cost)
            results = version.results() if version.results else None
            row = Row(version.case, completion, launch, *version.cost, floor, version.error, results=results)
            self.rows.append(row)
            self._print(texts(self.rows[-1]))

    def raise_ceilings(self, ceilings):
        """Takes the higher of the old and these ceilings, and computes all floors from them."""
        self.ceilings = higher(self.ceilings, ceilings)
        for n, row in enumerate(self.rows):
            floor = self.ceilings[row.case["dtype"]].floor(row.bytes, row.flops)
            self.rows[n] = dataclasses.replace(row, floor=floor)

    def _print(self, texts):
        (first, width), *others = zip(texts, COLUMNS.values(), strict=True)
        print(f"{first:<{width}}" + "".join(f"{text:>{width}}" for text, width in others), flush=True)


def higher(ceilings, others):
    """{name: roofline.Ceilings} with the higher bandwidth and rate of two, where both have them."""
    found = {}
    for name in ceilings | others:
        mine = ceilings.get(name) or others[name]
        other = others.get(name) or mine
        best, rate = max(mine, other, key=lambda roof: roof.bandwidth), max(mine.rate, other.rate)
        found[name] = dataclasses.replace(mine, bandwidth=best.bandwidth, access=best.access, rate=rate)
    return found


def texts(row):
    """A row as texts, one for each of the COLUMNS."""
    case, time = row.case, row.completion
    sizes = f"D={case['depth']} W={case['width']} K={case['n_outputs']}"
    return [
        f"{case['what']}, {case['how']} ({case['library']} {case['dtype']} {sizes})",
        timing.text(time.median),
        f"{timing.text(time.q1)} – {timing.text(time.q3)}",
        str(time.n),
        timing.text(row.launch) if row.launch is not None else "",
        timing.text(row.floor),
        f"{time.median / row.floor:.1f}",
        f"{row.error:.1e}" if row.error is not None else "",
    ]
