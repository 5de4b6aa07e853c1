"""LSTMs: every rung of NVIDIA's ladder beside ``nn.LSTM``, and how many steps' inputs are combined.

The first run of each version is compared with ``nn.LSTM`` in float64; what deviates by more than its format
explains gets no row. All versions of one case take turns, on a GPU also as CUDA graphs. float32 is computed
as such, in cuDNN as well, which by default takes TF32; ``tf32`` is named. Operations are counted as NVIDIA
did: ``ladder.Shape``.
"""

from dataclasses import dataclass

from benchmarks import formats, harness
from benchmarks.lstm_subjects import NN, Subject
from ed_lib.lstm import BEYOND, RUNGS, ladder

LAST = RUNGS[-1]


@dataclass(frozen=True)
class Size:
    """What is run: the source's setting by default. ``few``: the steps of which inputs are combined on a CPU;
    ``rounds``: turns of each version in the ladder, for each of ``layers``.
    """

    few: int = 16
    layers: tuple = (1, 4)
    rounds: tuple = (9, 5)
    steps: int = 100
    batch: int = 64
    hidden: int = 512
    seconds: float = 0.1

    def subject(self, device, layers, steps=None):
        shape = ladder.Shape(steps or self.steps, self.batch, self.hidden, self.hidden, layers)
        return Subject(shape, device)


SIZE, TINY = Size(), Size(few=5, rounds=(2, 1), steps=6, batch=3, hidden=16, seconds=0.001)
context, ceilings = formats.restored, formats.ceilings


def climb(size, device):
    """Every rung, the batched wavefront and nn.LSTM in float32, beside what NVIDIA published for the rung;
    the last rung and nn.LSTM in TF32 too, where a GPU has it.
    """
    for layers, rounds in zip(size.layers, size.rounds, strict=True):
        subject = size.subject(device, layers)
        versions = [subject.version(what) for what in (*RUNGS, *BEYOND, NN)]
        if "tf32" in [form.name for form in formats.formats(device)]:
            versions += [subject.version(what, "tf32") for what in (LAST, NN)]
        for row in measured(subject, versions, size.seconds, rounds, launches=True):
            of = 4 if row["what"] == LAST else 1  # layers
            if row["what"] in RUNGS and (layers, row["format"]) == (of, "float32"):
                row["published"] = ladder.PUBLISHED[row["what"]]
            yield row


def combine(size, device):
    """How many steps' input products are combined: 1, 2, 4, … and all of them."""
    steps = size.few if device == "cpu" else size.steps
    numbers = [2**n for n in range(steps.bit_length()) if 2**n < steps] + [steps]
    for what, layers in ((RUNGS[-2], 1), (LAST, size.layers[-1])):
        subject = size.subject(device, layers, steps)
        yield from measured(subject, [subject.version(what, combine=k) for k in numbers], size.seconds)


def measured(subject, versions, seconds, rounds=3, launches=False):
    """Rows of versions of one subject in turns, with "GFLOP/s" and "against …": how many times as fast as the
    baseline, nn.LSTM, the rung before, or float32 in the same turns, if all else is equal.
    """
    graphs = map(subject.graph, versions) if subject.device != "cpu" else ()
    versions = [*versions, *filter(None, graphs)]  # a graph that cannot be recorded is None
    rows = harness.measure(versions, subject.device, seconds, rounds=rounds, launches=launches)
    return compared(rows)


def compared(rows):
    """The rows with what stands beside them."""
    seconds = {(row["what"], row["format"], row["how"], row.get("combine")): row["seconds"] for row in rows}
    for row in rows:
        what, format, *how = row["what"], row["format"], row["how"], row.get("combine")
        before = RUNGS[RUNGS.index(what) - 1] if what in RUNGS[1:] else None
        others = {"baseline": (RUNGS[0], format), NN: (NN, format), "before": (before, format)}
        others |= {"float32": (what, "float32")} if format == "tf32" else {}
        row["GFLOP/s"] = row["floor_flops"] / row["seconds"] / 1e9
        for name, other in others.items():
            if (*other, *how) in seconds:
                row[f"against {name}"] = seconds[*other, *how] / row["seconds"]
    return rows


TABLES = {"ladder": climb, "combine": combine}
