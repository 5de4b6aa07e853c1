"""LSTMs: every rung of NVIDIA's ladder beside ``nn.LSTM``, formats, training, and sweeps over sizes.

The first run of each version is compared with ``nn.LSTM`` in float64; what deviates by more than its format
explains gets no row. All versions of one case take turns. float32 is computed as such everywhere, in cuDNN
as well, which by default takes TF32; ``tf32`` is named. Operations are counted as NVIDIA did: ladder.Shape.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial

from benchmarks import formats as forms
from benchmarks.lstm_subjects import AUTOCAST, DTYPES, IN_A_ROW, NN, Subject, least
from benchmarks.old_harness import Plan, Shown, Table
from ed_lib import timing
from ed_lib.lstm import BEYOND, RUNGS
from ed_lib.lstm import ladder as rungs

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
        """A ``ladder.Shape`` of this setting, with as many inputs as hidden."""
        sizes = {"steps": self.steps, "batch": self.batch, "hidden": self.hidden} | changes
        return rungs.Shape(inputs=sizes["hidden"], **sizes)

    @property
    def combines(self):
        """1, 2, 4, … and all of the few steps."""
        return [2**n for n in range(self.few.bit_length()) if 2**n < self.few] + [self.few]


CPU = Size((128, 256, 512, 1024), (1, 4, 16, 64, 256), few=16)
CUDA = Size((128, 256, 512, 1024, 2048, 4096), (1, 4, 16, 64, 256, 1024), few=100, trained_layers=(1, 4),
            rounds=(5, 5))  # fmt: skip


TINY = Size((8,), (5,), few=2, trained_layers=(1, 2), steps=2, batch=2, hidden=16, rounds=(1, 1),
            seconds=0.001)  # fmt: skip  # of a rehearsal


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan` on "cpu" or "cuda"."""
    size = size or (CPU if device == "cpu" else CUDA)
    found = formats_of(Subject(size.shape(), device))
    ceilings, names = partial(forms.ceilings, device, found), [form.name for form in found]
    table = Table(ceilings(), size.seconds, device, compared)

    def subject(**changes):
        return Subject(size.shape(**changes), device)

    few = partial(subject, steps=size.few)
    parts = {"climb": lambda: climb(table, subject(layers=1), subject(layers=size.layers[-1]))}
    for n, rounds in zip(size.layers, size.rounds, strict=True):
        parts[f"ladder, {n} layers"] = lambda n=n, rounds=rounds: ladder(
            table, subject(layers=n), names, rounds
        )
    for n in size.layers:
        parts[f"formats, {n} layers"] = lambda n=n: formats(table, subject(layers=n), names)
    for n in size.trained_layers:
        parts[f"training, {n} layers"] = lambda n=n: versus(table, "training", few(layers=n), TRAINED)
    parts["combine"] = lambda: [combine(table, few(layers=layers), what, size.combines)
                                for what, layers in ((RUNGS[-2], 1), (LAST, size.layers[-1]))]  # fmt: skip
    parts["batch"] = lambda: [versus(table, "batch", few(batch=n), SWEPT) for n in size.batches]
    parts["hidden"] = lambda: [versus(table, "hidden", few(hidden=n), SWEPT) for n in size.hiddens]
    return Plan(table, parts, dataclasses.asdict(size), ceilings, forms.restored)


@forms.restored()
def formats_of(subject):
    """The formats, as ``formats.Format``, that this machine has and does not merely imitate."""
    found = [form for form in forms.formats(subject.device) if form.name in DTYPES]
    if subject.device != "cpu":
        return found
    short = Subject(dataclasses.replace(subject.shape, steps=10), subject.device)
    calls = {form.name: short.version("formats", NN, form.name).call for form in found}
    seconds = {name: took.q1 for name, took in timing.compare(calls, min_seconds=0.1).items()}
    for name, mine in seconds.items():
        if mine > SLOW * seconds["float32"]:
            print(f"nn.LSTM, {name}: left out, {mine / seconds['float32']:.0f} times as slow as float32")
    return [form for form in found if seconds[form.name] <= SLOW * seconds["float32"]]


def climb(table, first, top):
    """{table: "climb"}: the whole way up as NVIDIA published it, from one layer by the first rung to the most
    layers by the last, in the same turns.
    """
    versions = with_graphs(table, first, [first.version("climb", RUNGS[0])])
    versions += with_graphs(table, top, [top.version("climb", what) for what in (LAST, *BEYOND, NN)])
    table.measure(versions, rounds=5, launches=False)


def ladder(table, subject, names, rounds):
    """Every rung, the batched wavefront and nn.LSTM in float32; the last rung and nn.LSTM in TF32 as well."""
    versions = [subject.version("ladder", what) for what in (*RUNGS, *BEYOND, NN)]
    if "tf32" in names:
        versions += [subject.version("ladder", what, "tf32") for what in (LAST, NN)]
    measure(table, subject, versions, rounds, launches=True)


def formats(table, subject, names):
    """nn.LSTM in every format. On a GPU also by autocast, which casts the weights in each call; as several
    modules of one layer, which cuDNN's persistent kernel takes and several layers it does not.
    """
    kinds = [(NN, name) for name in names]
    if table.device != "cpu":
        low = [name for name in names if name in ("bfloat16", "float16")]
        kinds += [(AUTOCAST, name) for name in low]
        kinds += [(IN_A_ROW, name) for name in low if subject.shape.layers > 1]
    versions = [version for what, name in kinds if (version := possible(subject, what, name))]
    measure(table, subject, versions)


def possible(subject, what, format):
    """A version; None for one that this GPU cannot run, such as one that does not fit."""
    try:
        return subject.version("formats", what, format)
    except Exception as error:  # of a compiler, a driver, or of ours
        layers = subject.shape.layers
        print(f"formats: {what}, {format}, {layers} layers: left out, {error!r:.150}")


def versus(table, name, subject, whats):
    """{table: name}: "training" is forward and backward; "hidden" and "batch" are sweeps over one layer's."""
    measure(table, subject, [subject.version(name, what) for what in whats])


def combine(table, subject, what, numbers):
    """{table: "combine"}: how many steps' input products are combined."""
    measure(table, subject, [subject.version("combine", what, combine=number) for number in numbers])


def measure(table, subject, versions, rounds=3, launches=False):
    """Times versions of one subject in turns, on a GPU also as CUDA graphs."""
    table.measure(with_graphs(table, subject, versions), rounds, launches)


def with_graphs(table, subject, versions):
    """The versions, and on a GPU each that can be recorded also as a CUDA graph."""
    graphs = map(subject.graph, versions) if table.device != "cpu" else ()
    return [*versions, *filter(None, graphs)]


def compared(case, seconds, turns):
    """The results of a row, a list of one number each: "GFLOP/s"; "published", NVIDIA's; "against …", how
    many times as fast as the baseline, nn.LSTM, the rung before, float32 or TF32 in the same turns, if all
    else is equal; in the table "climb" also how many times the GFLOP/s of the baseline, which has one layer
    there, as NVIDIA compared.
    """
    what, format = case["what"], case["format"]
    found = {"GFLOP/s": least(case)[1] / seconds / 1e9}
    of = {LAST: 4}.get(what, 1)  # layers
    if case["table"] == "ladder" and what in RUNGS and (case["layers"], format) == (of, "float32"):
        found["published"] = rungs.PUBLISHED[what]
    if case["table"] == "climb":
        start = {m["how"]: least(m)[1] / median / 1e9 for m, median in turns if m["what"] == "baseline"}
        found |= {f"against baseline, {how}": found["GFLOP/s"] / rate for how, rate in start.items()}
    before = RUNGS[RUNGS.index(what) - 1] if what in RUNGS[1:] else None
    for other, median in turns:
        names = []
        if other | {"what": what} == case:
            roles = {"baseline": "baseline", NN: NN, "before": before}
            names = [name for name, role in roles.items() if role == other["what"]]
        elif format != "float32" and other | {"format": format} == case:
            names = [other["format"]] if other["format"] in forms.BASELINES else []
        found |= {f"against {name}": median / seconds for name in names}
    return {name: [n if isinstance(n, int) else float(f"{n:.4g}")] for name, n in found.items()}


# The page
TITLE = "Rungs of the LSTM"
MEANING = """LSTMs with as many inputs as hidden numbers: the rungs of NVIDIA's ladder, and `nn.LSTM`.
*T* is the number of steps, *B* the batch, *H* the hidden size, *L* the layers;
where a table does not say, they are NVIDIA's: *T* = 100, *B* = 64, *H* = 512. GFLOP/s are the operations of
the matrix products as NVIDIA counted them, over the median time; *published* is its figure, of a Tesla M40.
*× baseline* means: so many times as fast as the baseline in the same turns; *before* is the rung before. In
the table of the whole climb, as NVIDIA compared, it is so many times the GFLOP/s of the baseline with one
layer. Products, other launches and the bytes that they touch were counted. float32 is computed as such, in
cuDNN too, whose own choice would be TF32. The deviation is relative to the largest number of a result;
forward and backward, the gradients are among the results."""


def result(key, form="{:g}"):
    """The one number that a row has by this name, where it has it."""
    return lambda row: form.format(row.results[key][0]) if key in row.results else ""


def times(first, *others):
    """A column that says how many times as fast as the first a row is; and under it as the others."""
    number = result(f"against {first}", "{:.2f}")
    below = [result(f"against {name}", f"{{:.2f}}× {name}") for name in others]
    return f"× {first}", lambda row: (number(row), "<br>".join(filter(None, (text(row) for text in below))))


def rate(row):
    published = f", published {row.results['published'][0]:g}" if "published" in row.results else ""
    return f"{row.results['GFLOP/s'][0]:g} GFLOP/s{published}"


def timed(title, names, *ratios, also=()):
    return Shown(title, (*names, *WHAT, *also), ("time", "× floor", *ratios), (rate, "deviation"))


def counted(title, names, also=()):
    """A table of what was counted, of the rows where something was."""
    return Shown(title, (*names, *WHAT, *also), COUNTS, where=lambda row: "products" in row.results)


L, T, B, H = ("L", "layers"), ("T", "steps"), ("B", "batch"), ("H", "hidden")
WHAT, COMBINED = ("what", "format", "how"), (("combined", "combine"),)
COUNTS = (("products", result("products", "{:,}")), ("others", result("pointwise", "{:,}")),
          ("MB", lambda row: f"{row.results['bytes'][0] / 1e6:,.1f}"))  # fmt: skip
PAGE = {
    "climb": [timed("From one layer's first rung to four layers' last", (L,),
                    times("baseline, eager", "baseline, CUDA graph"))],
    "ladder": [timed("The ladder, forward", (L,), times("baseline", "before", "nn.LSTM")),
               counted("The ladder: products, other launches, MB touched", (L,))],
    "formats": [timed("The same, by format", (L,), times("float32", "tf32", "nn.LSTM"))],
    "training": [timed("Forward and backward", (L, T), times("nn.LSTM")),
                 counted("Forward and backward: products, other launches, MB touched", (L, T))],
    "hidden": [timed("One layer forward, by hidden size", (H, B, T), times("baseline", "nn.LSTM"))],
    "batch": [timed("One layer forward, by batch", (B, H, T), times("baseline", "nn.LSTM"))],
    "combine": [
        timed("By how many steps' input products are combined", (L, T), also=COMBINED),
        counted("The same: products, other launches, MB touched", (L, T), COMBINED),
    ],
}  # fmt: skip
