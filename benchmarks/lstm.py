"""LSTMs: every rung of NVIDIA's ladder beside ``nn.LSTM``, formats, training, and sweeps over sizes.

The first run of each version is compared with ``nn.LSTM`` in float64; what deviates by more than its format
explains gets no row. All versions of one case take turns. float32 is computed as such everywhere, in cuDNN
as well, which by default takes TF32; ``tf32`` is named. Operations are counted as NVIDIA did: costs.flops.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial

from benchmarks import precision, precision_subjects
from benchmarks.lstm_subjects import AUTOCAST, DTYPES, IN_A_ROW, NN, PERSISTENT, Subject
from benchmarks.parts import Plan
from benchmarks.table import higher
from ed_lib import timing
from ed_lib.lstm import BEYOND, RUNGS, costs
from ed_lib.records import Row

LAST = RUNGS[-1]
SWEPT = ("baseline", LAST, NN)
TRAINED = ("combined_gemms", "fused_pointwise", LAST, NN)
SLOW = 3  # times as slow as float32: a format that a CPU only imitates is left out


@dataclass(frozen=True)
class Size:
    """What is run: the source's setting by default. ``few``: the steps of training and of the sweeps;
    ``rounds``: turns of each version in the ladder; ``seconds`` for which a version is timed in any table.
    """

    hiddens: tuple
    batches: tuple
    few: int
    trained_layers: tuple = (1,)
    layers: tuple = (1, 4)
    steps: int = 100
    batch: int = 64
    hidden: int = 512
    rounds: tuple = (9, 5)  # for each of the layers
    seconds: float = 0.1

    def shape(self, **changes):
        """A ``costs.Shape`` of this setting, with as many inputs as hidden."""
        sizes = {"steps": self.steps, "batch": self.batch, "hidden": self.hidden} | changes
        return costs.Shape(inputs=sizes["hidden"], **sizes)

    @property
    def combines(self):
        """1, 2, 4, … and all of the few steps."""
        return [2**n for n in range(self.few.bit_length()) if 2**n < self.few] + [self.few]


CPU = Size((128, 256, 512, 1024), (1, 4, 16, 64, 256), few=16)
CUDA = Size((128, 256, 512, 1024, 2048, 4096), (1, 4, 16, 64, 256, 1024), few=100, trained_layers=(1, 4),
            rounds=(5, 5))  # fmt: skip


TINY = Size((8,), (5,), few=3, trained_layers=(1, 2), steps=3, batch=3, hidden=16, rounds=(2, 1),
            seconds=0.001)  # fmt: skip  # of a rehearsal


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.parts.Plan` on "cpu" or "cuda"."""
    size = size or (CPU if device == "cpu" else CUDA)
    forms = formats_of(Subject(size.shape(), device))
    table, names = Table(precision.ceilings(device, forms), size, device), [form.name for form in forms]

    def with_layers(function, layers, *arguments):
        return lambda: function(table, Subject(size.shape(layers=layers), device), *arguments)

    works = {"climb": lambda: climb(table)}
    rounds = dict(zip(size.layers, size.rounds, strict=True))
    works |= {f"ladder, {n} layers": with_layers(ladder, n, names, rounds[n]) for n in size.layers}
    works |= {f"formats, {n} layers": with_layers(formats, n, names) for n in size.layers}
    works |= {f"training, {n} layers": partial(training, table, n) for n in size.trained_layers}
    works |= {"combine": partial(combine, table), "batch": partial(sweep, table, "batch", size.batches)}
    works |= {"hidden": partial(sweep, table, "hidden", size.hiddens)}
    parts = {name: precision_subjects.restored()(work) for name, work in works.items()}
    return Plan(table, parts, partial(precision.ceilings, device, forms), dataclasses.asdict(size))


@precision_subjects.restored()
def formats_of(subject):
    """The formats, as ``precision_subjects.Format``, that this machine has and does not merely imitate."""
    forms = [form for form in precision_subjects.formats(subject.device) if form.name in DTYPES]
    if subject.device != "cpu":
        return forms
    short = Subject(dataclasses.replace(subject.shape, steps=10), subject.device)
    calls = {form.name: short.version("formats", NN, form.name).call for form in forms}
    seconds = {name: found.q1 for name, found in timing.compare(calls, min_seconds=0.1).items()}
    for name, mine in seconds.items():
        if mine > SLOW * seconds["float32"]:
            print(f"nn.LSTM, {name}: left out, {mine / seconds['float32']:.0f} times as slow as float32")
    return [form for form in forms if seconds[form.name] <= SLOW * seconds["float32"]]


def climb(table):
    """{table: "climb"}: the whole way up as NVIDIA published it, from one layer by the first rung to the most
    layers by the last, in the same turns.
    """
    first, top = (Subject(table.size.shape(layers=n), table.device) for n in (1, table.size.layers[-1]))
    versions = [first.version("climb", RUNGS[0])]
    versions += [top.version("climb", what) for what in (LAST, *BEYOND, NN)]
    table.measure(top, versions, rounds=5)


def ladder(table, subject, names, rounds):
    """Every rung, the batched wavefront and nn.LSTM in float32; the last rung and nn.LSTM in TF32 as well."""
    versions = [subject.version("ladder", what) for what in (*RUNGS, *BEYOND, NN)]
    if "tf32" in names:
        versions += [subject.version("ladder", what, "tf32") for what in (LAST, NN)]
    table.measure(subject, versions, rounds, launches=table.device != "cpu")


def formats(table, subject, names):
    """nn.LSTM in every format. On a GPU also by autocast, which casts the weights in each call; as several
    modules of one layer, which cuDNN's persistent kernel takes and several layers it does not; and ours.
    """
    kinds = [(NN, name) for name in names]
    if table.device != "cpu":
        low = [name for name in names if name in ("bfloat16", "float16")]
        kinds += [(AUTOCAST, name) for name in low]
        kinds += [(IN_A_ROW, name) for name in low if subject.shape.layers > 1]
        kinds += [(PERSISTENT, name) for name in names]
    versions = [version for what, name in kinds if (version := possible(subject, what, name))]
    table.measure(subject, versions)


def possible(subject, what, format):
    """A version that has run once; None for one that this GPU cannot run, such as one that does not fit."""
    try:
        version = subject.version("formats", what, format)
        version.call()
        return version
    except Exception as error:  # of a compiler, a driver, or of ours
        layers = subject.shape.layers
        print(f"formats: {what}, {format}, {layers} layers: left out, {error!r:.150}")


def training(table, layers):
    """{table: "training"}: forward and backward."""
    subject = Subject(table.size.shape(steps=table.size.few, layers=layers), table.device)
    table.measure(subject, [subject.version("training", what) for what in TRAINED])


def sweep(table, key, numbers):
    """{table: key, key: number}, of one layer; key: "hidden" or "batch"."""
    for number in numbers:
        subject = Subject(table.size.shape(steps=table.size.few, **{key: number}), table.device)
        table.measure(subject, [subject.version(key, what) for what in SWEPT])


def combine(table):
    """{table: "combine"}, of one and several layers."""
    for what, layers in ((RUNGS[-2], 1), (LAST, table.size.layers[-1])):
        subject = Subject(table.size.shape(steps=table.size.few, layers=layers), table.device)
        versions = [subject.version("combine", what, combine=combine) for combine in table.size.combines]
        table.measure(subject, versions)


class Table:
    """Collects rows and prints them. ``ceilings``: {format: roofline.Ceilings}."""

    def __init__(self, ceilings, size, device):
        self.ceilings, self.size, self.device, self.rows = ceilings, size, device, []

    def measure(self, subject, versions, rounds=3, launches=False):
        """Times versions in turns, on a GPU also as CUDA graphs: a row for each that is right."""
        if self.device != "cpu":
            versions = [*versions, *graphs(subject, versions)]
        functions = {n: version.run for n, version in enumerate(versions)}
        seconds, on_gpu = self.size.seconds, self.device != "cpu"
        timings = timing.compare(functions, min_seconds=seconds, rounds=rounds, events=on_gpu)
        medians = [(version.case, timings[n].median) for n, version in enumerate(versions)]
        for version, completion in zip(versions, timings.values(), strict=True):
            if not version.is_right:
                print(f"{describe(version.case)}: deviates by {version.error:.1e}; left out")
                continue
            launch = None
            if launches:
                seconds = self.size.seconds / 4
                launch = timing.apart(version.run, min_seconds=seconds, min_runs=3).launch.median
            cost, results = least(version.case), compared(version, completion.median, medians)
            floor = self.ceilings[version.case["format"]].floor(*cost)
            row = Row(version.case, completion, launch, *cost, floor, version.error, results=results)
            self.rows.append(row)
            print(text(row), flush=True)

    def raise_ceilings(self, ceilings):
        """Takes the higher of the old and these ceilings, and computes all floors from them."""
        self.ceilings = higher(self.ceilings, ceilings)
        for n, row in enumerate(self.rows):
            floor = self.ceilings[row.case["format"]].floor(row.bytes, row.flops)
            self.rows[n] = dataclasses.replace(row, floor=floor)


def graphs(subject, versions):
    """The same versions as CUDA graphs, those that can be recorded."""
    found = []
    for version in versions:
        try:
            found.append(version.graph(subject.x))
        except RuntimeError as error:
            print(f"{describe(version.case)}: no CUDA graph, {str(error).splitlines()[0]}")
    return found


def least(case):
    """(bytes, FLOPs) that a case cannot do without; costs.least_bytes and costs.flops of a way forward.

    The way back multiplies twice as much, for the gradients of weights and of inputs; it reads weights and dy
    and writes their gradients and dx, which are the bytes of the way forward once more.
    """
    sizes = {key: case[key] for key in ("steps", "batch", "hidden", "layers")}
    shape = costs.Shape(inputs=case["hidden"], itemsize=DTYPES[case["format"]].itemsize, **sizes)
    ways = (2, 3) if case["table"] == "training" else (1, 1)
    return ways[0] * costs.least_bytes(shape), ways[1] * costs.flops(shape)


def compared(version, seconds, medians):
    """The results of a row, a list of one number each: "GFLOP/s"; "published", NVIDIA's; "against …", how
    many times as fast as the baseline, nn.LSTM, the rung before, float32 or TF32 in the same turns, if all
    else is equal; in the table "climb" also how many times the GFLOP/s of the baseline, which has one layer
    there, as NVIDIA compared; "products", "pointwise", "bytes" and "waits", as counted.
    """
    case = version.case
    what, format = case["what"], case["format"]
    found = {"GFLOP/s": least(case)[1] / seconds / 1e9}
    of = {LAST: 4}.get(what, 1)  # layers
    if case["table"] == "ladder" and what in RUNGS and (case["layers"], format) == (of, "float32"):
        found["published"] = costs.PUBLISHED[what]
    if case["table"] == "climb":
        start = {m["how"]: least(m)[1] / median / 1e9 for m, median in medians if m["what"] == "baseline"}
        found |= {f"against baseline, {how}": found["GFLOP/s"] / rate for how, rate in start.items()}
    before = RUNGS[RUNGS.index(what) - 1] if what in RUNGS[1:] else None
    for other, median in medians:
        names = []
        if other | {"what": what} == case:
            names += [other["what"]] * (other["what"] in ("baseline", NN)) + ["before"] * (
                other["what"] == before
            )
        elif (
            format != "float32"
            and other | {"format": format} == case
            and other["format"] in precision.BASELINES
        ):
            names += [other["format"]]
        found |= {f"against {name}": median / seconds for name in names}
    if version.counts is not None:
        found |= dataclasses.asdict(version.counts)
    return {
        name: [value if isinstance(value, int) else float(f"{value:.4g}")] for name, value in found.items()
    }


def describe(case):
    sizes = ", ".join(
        f"{key} {case[key]}" for key in ("layers", "hidden", "batch", "steps", "combine") if key in case
    )
    return f"{case['table']}: {case['what']}, {case['format']}, {case['how']} ({sizes})"


def text(row):
    """A row as a line: its time, its GFLOP/s, and how fast in comparison."""
    found = {name: values[0] for name, values in row.results.items()}
    line = f"{describe(row.case):<95} {timing.text(row.completion.median):>9} {found['GFLOP/s']:>8g} GFLOP/s"
    line += f"  floor {timing.text(row.floor):>9}  deviation {row.error:.1e}"
    if row.launch is not None:
        line += f"  launch {timing.text(row.launch):>9}"
    ratios = [f"{value:.2f}× {name[8:]}" for name, value in found.items() if name.startswith("against ")]
    return line + "".join(f"  {ratio}" for ratio in ratios)
