"""Fewer bits: products of matrices, and training steps of an MLP, LeNet and an encoder, in each format.

Each version is first compared with float64: a product by its numbers, a step by its loss and its gradients;
what deviates by more than its format explains is not timed. All formats of one case take turns. On a GPU the
baselines are float32, computed as such, and TF32; on a CPU float32 alone, and float16 is emulated besides.
Optimizers are fused in every format. FP8 is there where the GPU multiplies it, and what is no linear layer
is then in bfloat16. The long training runs are another benchmark, ``precision_accuracy``.
"""

import dataclasses
import math
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks import formats
from benchmarks import old_harness as harness
from benchmarks import precision_subjects as subjects
from benchmarks.formats import BASELINES
from benchmarks.old_harness import Plan, Shown, Table, Version
from ed_lib import timing
from ed_lib.precision import memory


@dataclass(frozen=True)
class Size:
    """How much is run: sizes n of products, batches of each network; ``seconds`` for which each version is
    timed.
    """

    products: tuple
    mlp: tuple
    lenet: tuple
    encoder: tuple
    graphs: tuple = ()
    widths: tuple = subjects.WIDTHS
    bert: dict = dataclasses.field(default_factory=lambda: dict(subjects.BERT))
    tokens: int = 128
    seconds: float = 0.3


CPU = Size((128, 256, 512, 1024), (1, 8, 64, 512, 4096), (1, 8, 64, 512), (1, 2))
CUDA = Size(
    (256, 512, 1024, 2048, 4096, 8192, 16384),
    (1, 16, 256, 1024, 4096, 16384, 65536),
    (1, 16, 64, 256, 1024, 4096, 16384),
    (1, 2, 4, 8, 16, 32, 64, 128, 256),
    graphs=(1, 2, 4, 8),
)


TINY = Size(
    (16, 32), (1, 8), (1, 8), (1, 2), graphs=(1,), widths=(20, 16, 10), tokens=4, seconds=0.001,
    bert={"layers": 1, "hidden": 16, "heads": 2, "vocabulary": 30, "positions": 8, "classes": 3},
)  # fmt: skip  # of a rehearsal


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan` on "cpu" or "cuda"."""
    size = size or (CPU if device == "cpu" else CUDA)
    forms = formats.formats(device)
    ceilings = partial(formats.ceilings, device, forms)
    table = Table(ceilings(), size.seconds, device, formats.against_baselines)
    encoder = subjects.encoder(device, size.tokens, **size.bert)
    parts = {
        "encoder": partial(steps, table, encoder, forms, size.encoder, size.graphs),
        "products": partial(products, table, forms, size.products),
        "MLP": partial(steps, table, subjects.mlp(size.widths), forms, size.mlp),
        "LeNet": partial(steps, table, subjects.lenet(), forms, size.lenet),
    }
    parameters = dataclasses.asdict(size) | {"rate": subjects.RATE, "optimizers": "fused"}
    return Plan(table, parts, parameters, ceilings, formats.restored)


def products(table, forms, sizes):
    """{table: "product", n, format} → rows: the product alone."""
    for n in sizes:
        a, b = formats.pair(n, table.device)
        right, versions = a.double() @ b.double(), []
        for form in forms:
            call, case = formats.product(form, a, b), {"table": "product", "n": n, "format": form.name}
            error = float((call().double() - right).norm() / right.norm())
            versions.append(Version(case, call, product_cost(n, form), error, form.tolerance))
        del right
        table.measure(versions)


def product_cost(n, form):
    """(bytes, {rate: FLOPs}) of a product of n × n matrices; FP8 numbers give a product in bfloat16."""
    width = 1 if form.fp8 else 2 if form.rate in ("bfloat16", "float16") else 4
    return n * n * (2 * width + max(width, 2)), {form.rate: 2 * n**3}


def steps(table, subject, forms, batches, graphed=()):
    """{table: "training step", model, format, batch, how} → rows: forward, loss, backward, update.

    how: "eager", or for the encoder "CUDA graph". Results: "against float32" and "against tf32", how many
    times as fast as that format in the same turns; and the bytes of each part of ed_lib.precision.memory's.
    """
    forms = [form for form in forms if form.name not in subject.without]
    model = subject.make()
    runs = {form.name: subjects.Training(subject, form, model, table.device) for form in forms}
    for batch in batches:
        data = subject.batch(batch, table.device)
        try:
            exact = subjects.exactly(model, *data)
            versions = [version(subject, run, exact, data) for run in runs.values()]
            if table.device != "cpu" and batch in graphed:
                versions += graphs(subject, model, versions, forms, data)
            table.measure(versions)
        except torch.cuda.OutOfMemoryError:
            return print(
                f"{subject.name}: left out from batch {batch} on, which does not fit into the memory"
            )


def version(subject, run, exact, data):
    """A step of a run on a batch, compared with the ``exact`` loss and gradients."""
    case = {"table": "training step", "model": subject.name, "format": run.form.name}
    case |= {"batch": len(data[0]), "how": "eager"}
    cost, error = step_cost(subject, run.model, len(data[0]), run.form), run.deviation(*data, exact)
    return Version(case, partial(run.step, *data), cost, error, run.form.tolerance, bytes_of(run, *data))


def step_cost(subject, model, batch, form):
    """(bytes, {rate: FLOPs}) that a step cannot do without."""
    linear, others = subject.flops(batch)
    flops = {"fp8": linear, "bfloat16": others} if form.fp8 else {form.rate: linear + others}
    return subjects.step_bytes(subject, sum(p.numel() for p in model.parameters())), flops


def graphs(subject, model, versions, forms, data):
    """The same steps, where there is no scaler, as CUDA graphs: a step is one launch."""
    found = []
    for version in versions:
        form = next(form for form in forms if form.name == version.case["format"])
        if form.scaler() is not None:
            continue
        run = subjects.Training(subject, form, model, data[0].device, capturable=True)
        case = version.case | {"how": "CUDA graph"}
        if call := harness.recorded(case, partial(run.step, *data), data[0]):
            found.append(dataclasses.replace(version, case=case, call=call, results=None))
    return found


def bytes_of(run, x, y):
    """{part: [bytes]} of a step; on a GPU with its "peak", beside what is there before and after it.

    None where a format is emulated: its tensors are not those of a machine that has it.
    """
    if run.form.name.endswith("emulated"):
        return None
    found = dataclasses.asdict(memory.account(run.model, run.optimizer, run.loss, x, y))
    run.optimizer.zero_grad()
    if x.is_cuda:
        run.step(x, y)
        run.optimizer.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run.step(x, y)
        found["peak"] = torch.cuda.max_memory_allocated() - before
        run.optimizer.zero_grad()
    return {part: [bytes] for part, bytes in found.items()}


# The page
TITLE = "Steps in few bits"
MEANING = """*2.10× float32* means: 2.1 times as fast as float32 in the same turns. On a GPU float32 is
computed as such, unless it says `tf32`. `bfloat16` and `float16` are mixed precision by autocast, with
float32 weights; `fp8` has linear layers in FP8, and the rest in bfloat16. Every optimizer is fused. The
deviation is that of the loss, or of all gradients as one vector, relative to its size. A machine without a
GPU has no rows for TF32, FP8 and CUDA graphs, and none for the encoder in float16, where a step would take
half a minute; *emulated* float16 is there in its place."""


def crossover(rows, format, baseline):
    """Where a format begins to be faster than the baseline, from rows of one model that differ in batch.

    (the smallest batch from which on it is faster at every batch measured, or None; the batch at which it is
    fastest in comparison; how many times as fast it is there). None if the two have no batch in common.
    """
    seconds = {
        name: {row.case["batch"]: row.completion.median for row in rows if row.case["format"] == name}
        for name in (format, baseline)
    }
    speed = {
        batch: seconds[baseline][batch] / mine
        for batch, mine in sorted(seconds[format].items())
        if batch in seconds[baseline]
    }
    if not speed:
        return None
    slower = [batch for batch, ratio in speed.items() if ratio <= 1]
    faster = [batch for batch in speed if batch > max(slower, default=-math.inf)]
    best = max(speed, key=speed.get)
    return (faster[0] if faster else None), best, speed[best]


def crossovers(rows):
    """[(model, how, format, baseline, batch or None, best batch, best ratio)] of all training steps."""
    rows = [row for row in rows if row.case["table"] == "training step"]
    found = []
    for model, how in dict.fromkeys((row.case["model"], row.case["how"]) for row in rows):
        mine = [row for row in rows if (row.case["model"], row.case["how"]) == (model, how)]
        names = dict.fromkeys(row.case["format"] for row in mine)
        for name in names:
            for baseline in BASELINES:
                compared = name != baseline and baseline in names and (name, baseline) != BASELINES
                if compared and (at := crossover(mine, name, baseline)):
                    found.append((model, how, name, baseline, *at))
    return found


def against(row):
    """{baseline: how many times as fast as it the row is}; float32 itself is compared with none."""
    known = {name: (row.results or {}).get(f"against {name}") for name in BASELINES}
    mine = row.case["format"]
    return {name: ratio[0] for name, ratio in known.items() if ratio and mine not in (name, "float32")}


def speed(row):
    """How many times as fast as float32; and as the others."""
    ratios = against(row)
    others = (f"{ratio:.2f}× {name}" for name, ratio in ratios.items() if name != "float32")
    return f"{ratios['float32']:.2f}" if "float32" in ratios else "", "<br>".join(others)


def product_time(row):
    """A format's time, and in brackets how many times as fast as the baselines it is."""
    ratios = [f"{ratio:.2f}× {name}" for name, ratio in against(row).items()]
    text = f"{row.case['format']}: {timing.text(row.completion.median)}"
    return text + (f" ({', '.join(ratios)})" if ratios else "")


def crossing(rows):
    """One line for a model, a format and a baseline."""
    yield ["network, how, format", "faster from batch", "at best"]
    for model, how, name, baseline, batch, best, ratio in crossovers(rows):
        case = f"{model} · {how} · {name} against {baseline}"
        yield [case, str(batch or "never"), f"{ratio:.2f}×<br><small>batch {best}</small>"]


def megabytes(part, label=""):
    return lambda row: f"{label}{row.results[part][0] / 1e6:,.2f}" if part in row.results else ""


STEP = ("network", "model"), "how", "batch", "format"
PAGE = {
    "product": [
        Shown("Products of square matrices, by format", ("n",), (("time", product_time),))
    ],
    "training step": [
        Shown("From which batch on a format is faster", lines=crossing),
        Shown("Training steps, by format", STEP, ("time", "× floor", ("× float32", speed)), ("deviation",)),
        Shown("Memory of a training step, in MB (10⁶ bytes)",
              (("network", "model"), "batch", "format"),
              [(part, megabytes(part)) for part in ("activations", "peak")],
              [megabytes(part, f"{part} ") for part in ("parameters", "gradients", "optimizer", "casts")],
              where=lambda row: "parameters" in (row.results or {})),
    ],
}  # fmt: skip
