"""Rows as they are measured: timed in turns, printed at once, kept for the record."""

from ed_lib import roofline, timing
from ed_lib.records import Row

COLUMNS = {
    "what": 70,
    "time": 10,
    "quartiles": 22,
    "n": 5,
    "launch": 10,
    "floor": 10,
    "×floor": 8,
    "error": 10,
}


class Table:
    """Collects :class:`ed_lib.records.Row` and prints them.

    ceilings: {dtype: roofline.Ceilings}. seconds: for which each version is timed. launches: whether to
    measure the launch apart, which has a meaning on a GPU.
    """

    def __init__(self, ceilings, seconds, launches):
        self.ceilings, self.seconds, self.launches, self.rows = ceilings, seconds, launches, []
        self._print(list(COLUMNS))

    def measure(self, what, versions, cost, case, deviations=None):
        """One row for each of versions {how: function}, timed in turns; cost is (bytes, FLOPs)."""
        timings = timing.compare(versions, min_seconds=self.seconds, rounds=3)
        for how, completion in timings.items():
            launch = None
            if self.launches:
                launch = timing.apart(versions[how], min_seconds=self.seconds / 4, min_runs=3).launch.median
            floor = roofline.floor(*cost, self.ceilings[case["dtype"]])
            named = {"what": what, "how": how} | case
            row = Row(named, completion, launch, *cost, floor, (deviations or {}).get(how))
            self.rows.append(row)
            self._print(cells(row))

    def _print(self, texts):
        first, *others = zip(texts, COLUMNS.values(), strict=True)
        print(f"{first[0]:<{first[1]}}" + "".join(f"{text:>{width}}" for text, width in others), flush=True)


def cells(row):
    """A row as texts, one for each of the COLUMNS."""
    case, time = row.case, row.completion
    sizes = f"D={case['depth']} W={case['width']} K={case['n_outputs']}"
    return [
        f"{case['what']}, {case['how']} ({case['library']} {case['dtype']} {sizes})",
        _seconds(time.median),
        f"{_seconds(time.q1)} – {_seconds(time.q3)}",
        str(time.n),
        _seconds(row.launch) if row.launch is not None else "",
        _seconds(row.floor),
        f"{time.median / row.floor:.1f}",
        f"{row.error:.1e}" if row.error is not None else "",
    ]


def _seconds(value):
    scale, unit = (1, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "µs")
    return f"{value * scale:.3g} {unit}"
