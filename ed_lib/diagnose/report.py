"""The report of a diagnosis: one screen of text, a table, a roofline, and two of them compared."""

from collections import Counter
from typing import TYPE_CHECKING

from ed_lib.diagnose import verdict
from ed_lib.diagnose.cures import Cure, cures
from ed_lib.diagnose.operators import Operator
from ed_lib.diagnose.verdict import Measured
from ed_lib.timing import tell, three_digits

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MEGA = 1e6
GIGA = 1e9
HEAVIEST = 6  # operators that are printed
OFFERED = 6  # cures
PLACES = 3  # lines of the reader's code
REASONS = 2  # why the compiler broke off, and why it compiled again
SHORT = {"forward": "→", "backward": "←", "optimizer": "⟳"}  # of the phases
PLACE = 18  # letters of a line's file and number: its end
SMALL = 0.005  # of a step: a part below is not printed
UNSTEADY = 1.25  # times the first quartile is the third: something disturbed the measurement
CLEARLY = 0.1  # of a step: what is waited for at one line, to be told
WIDEST = 88  # letters of a line


class Diagnosis:
    """What a step waits for. ``print(report)`` fits one screen."""

    def __init__(self, measured: Measured):
        self.measured = measured
        self.parts: dict[str, float] = measured.parts
        self.seconds: float = measured.seconds
        self.verdict: str = verdict.verdict(measured.parts)
        self.cures: list[Cure] = cures(measured)
        self.operators: list[Operator] = measured.operators

    def __str__(self):
        blocks = [
            self._headline(),
            self._parts(),
            self._cures(),
            self._heaviest(),
            self._memory(),
            self._places(),
            self._compiled(),
            self._device(),
            self._trained(),
        ]
        return "\n".join(_cut(line) for block in blocks for line in block)

    def _repr_html_(self):
        import html

        return f"<pre>{html.escape(str(self))}</pre>"

    def _headline(self):
        counted = self.measured
        flops = sum(one.flops for one in self.operators)
        moved = sum(one.bytes for one in self.operators)
        calls = sum(one.calls for one in self.operators)
        steady = counted.timing.q3 < UNSTEADY * counted.timing.q1
        unsteady = [] if steady else ["its time varies: close other programs, and diagnose again"]
        return [
            f"The step waits most for: {self.verdict}",
            f"the step takes {tell(self.seconds)} (quartiles {tell(counted.timing.q1)} to "
            f"{tell(counted.timing.q3)}, n = {counted.timing.n})",
            f"{calls:,} calls, {three_digits(flops / GIGA)} GFLOP, "
            f"{three_digits(moved / MEGA)} MB moved",
            *unsteady,
        ]

    def _parts(self):
        lines = ["", "share of the step's time"]
        for name, seconds in self.parts.items():
            if seconds > SMALL * self.seconds:
                lines.append(f"  {seconds / self.seconds:5.0%}  {tell(seconds):>8}  {name}")
        return lines

    def _cures(self):
        if not self.cures:
            return []
        head = "bound (times as fast at the most), and the cure"
        lines = ["", head]
        for cure in self.cures[:OFFERED]:
            lines.append(f"  {cure.bound:5.2f}  {cure.name}: {cure.why}")
        return lines

    def _heaviest(self):
        head = f"  {'operator':26}{'calls':>6}{'MB':>8}{'GFLOP':>7}{'time':>9}{'÷ floor':>10}  line"
        lines = ["", head]
        for one in self.operators[:HEAVIEST]:
            name = f"{SHORT[one.phase]} {one.name}"
            if one.dtype != "float32":
                name += f" {one.dtype}"
            lines.append(
                f"  {name[:25]:26}{one.calls:6}{one.bytes / MEGA:8.1f}{one.flops / GIGA:7.2f}"
                f"{tell(one.seconds):>9}{_times(one):>10}  {one.place[-PLACE:]}"
            )
        return lines

    def _memory(self):
        held = self.measured.held
        parts = {
            "parameters": held.parameters,
            "gradients": held.gradients,
            "optimizer": held.optimizer,
            "activations": held.activations,
        }
        told = ", ".join(f"{name} {three_digits(size / MEGA)}" for name, size in parts.items())
        peak = f"peak of a step {three_digits(held.peak / MEGA)}"
        reserved = f", reserved and unused {three_digits(held.reserved / MEGA)}"
        # On two lines, since large numbers are long.
        return ["", f"memory in MB: {told};", f"  {peak}{reserved if held.reserved else ''}"]

    def _device(self):
        """How busy a GPU was, by its own clock, from its first kernel to its last."""
        profile = self.measured.profile
        if not profile.span:
            return []
        share = f"{profile.busy / profile.span:.0%}"
        return [f"the device was busy {share} of the time, {profile.kernels} kernels"]

    def _trained(self):
        """What a diagnosis has changed, where nothing was named that is put back."""
        if self.measured.restored:
            return []
        return [f"{self.measured.steps} steps were trained, and nothing was put back"]

    def _places(self):
        """Where the host hands numbers over, and where it does other things for long."""
        calls = self.measured.calls
        waits = Counter(
            call.place for call in calls if call.synchronises and call.phase != "optimizer"
        )
        lines = [f"hands numbers to the host: {_listed(waits)}"] if waits else []
        for call in calls:
            if call.ignored > CLEARLY:
                share = f"{call.ignored:.0%} of its rows"
                lines.append(f"the loss ignores {share}; their scores need none: {call.place}")
        if self.parts[verdict.DATA] > CLEARLY * self.seconds and self.measured.waits:
            lines.append(f"waits for batches at: {_listed(self.measured.waits, times=False)}")
        clearly = self._outside()
        if clearly:
            told = ", ".join(f"{tell(seconds)} at {place}" for place, seconds in clearly.items())
            lines.append(f"outside PyTorch, just before these lines: {told}")
        return lines

    def _outside(self):
        """{line: seconds} of the part outside PyTorch, divided as the watcher saw it."""
        seen: Counter = Counter({"the step's end": self.measured.tail})
        for call in self.measured.calls:
            seen[call.place] += call.outside
        share = self.parts[verdict.OUTSIDE] / (sum(seen.values()) or 1.0)
        told = {place: share * seconds for place, seconds in seen.most_common(PLACES)}
        return {place: took for place, took in told.items() if took > CLEARLY * self.seconds}

    def _compiled(self):
        made = self.measured.compilation
        if made is None or self.measured.profile.compiled is None:
            return []
        lines = [f"torch.compile: {made.graphs} graphs, {sum(made.breaks.values())} breaks"]
        lines += _first("break", made.breaks)
        lines += _first("compiled again", made.recompilations)
        return lines

    @property
    def table(self) -> "pd.DataFrame":
        """The operators, heaviest first: phase, operator, format, calls, bytes, FLOPs, floor and
        time in seconds.
        """
        import pandas as pd

        rows = [
            (
                one.phase,
                one.name,
                one.dtype,
                one.calls,
                one.bytes,
                one.flops,
                one.floor,
                one.seconds,
            )
            for one in self.operators
        ]
        names = ["phase", "operator", "dtype", "calls", "bytes", "FLOPs", "floor", "seconds"]
        return pd.DataFrame(rows, columns=names)

    def compare(self, other: "Diagnosis") -> str:
        """This report and that of the step after a cure, side by side."""
        if not isinstance(other, Diagnosis):
            raise TypeError(f"other is of {type(other).__name__}; wanted a Diagnosis")
        faster = self.seconds / other.seconds
        lines = [f"{'':28}{'before':>10}{'after':>10}"]
        for name in (*verdict.PARTS, "the step"):
            before = self.parts.get(name, self.seconds)
            after = other.parts.get(name, other.seconds)
            if max(before, after) > SMALL * self.seconds:
                lines.append(f"{name:28}{tell(before):>10}{tell(after):>10}")
        lines.append(f"{three_digits(faster)} times as fast; it waits most for: {other.verdict}")
        return "\n".join(lines)

    def figure(self) -> "Figure":
        """A roofline: each operator a point, at its FLOPs a byte and the FLOP/s that it reached,
        its size its share of the step's time.
        """
        from ed_lib.diagnose.drawing import roofline

        return roofline(self)


def _cut(line):
    return line if len(line) <= WIDEST else line[: WIDEST - 1] + "…"


def _times(operator):
    # Below a microsecond a floor is no measure.
    return f"{operator.seconds / operator.floor:.1f}" if operator.floor > 1e-6 else ""


def _first(what, reasons):
    """A line for each of the most frequent reasons, and one for how many more there are."""
    most = sorted(reasons, key=lambda why: -reasons[why])
    lines = [f"  {what}: {why}" for why in most[:REASONS]]
    if len(most) > REASONS:
        lines[-1:] = [f"  {what}: for {len(most) - REASONS + 1} reasons more"]
    return lines


def _listed(places, times=True):
    most = places.most_common(PLACES)
    shown = [f"{place} ({n} times)" if times and n > 1 else place for place, n in most]
    more = len(places) - PLACES
    return ", ".join(shown) + (f" and {more} lines more" if more > 0 else "")
