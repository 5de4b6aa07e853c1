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

from benchmarks import precision_subjects as subjects
from benchmarks.parts import Plan
from benchmarks.table import higher
from ed_lib import devices, roofline, timing
from ed_lib.precision import autocast, fp8, memory
from ed_lib.records import Row

BASELINES = ("float32", "tf32")


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
    """The :class:`benchmarks.parts.Plan` on "cpu" or "cuda"."""
    size = size or (CPU if device == "cpu" else CUDA)
    forms = subjects.formats(device)
    table = Table(ceilings(device, forms), size, device)
    encoder = subjects.encoder(device, size.tokens, **size.bert)
    works = {
        "encoder": partial(steps, table, encoder, forms, size.encoder),
        "products": partial(products, table, forms),
        "MLP": partial(steps, table, subjects.mlp(size.widths), forms, size.mlp),
        "LeNet": partial(steps, table, subjects.lenet(), forms, size.lenet),
    }
    parts = {name: subjects.restored()(work) for name, work in works.items()}
    parameters = dataclasses.asdict(size) | {"rate": subjects.RATE, "optimizers": "fused"}
    return Plan(table, parts, partial(ceilings, device, forms), parameters)


@subjects.restored()
def ceilings(device, forms):
    """{rate: roofline.Ceilings} of all that the formats multiply in."""
    found = {"float32": roofline.measure(device, "float32", seconds=1.0)}
    for form in forms:
        if form.rate in roofline.DTYPES and form.rate not in found:
            found[form.rate] = roofline.measure(device, form.rate, seconds=1.0)
        elif form.rate not in found:  # the same memory; the rate of the fastest product
            rate = max(2 * n**3 / product_seconds(form, n, device) for n in roofline.SIZES["cuda"])
            found[form.rate] = dataclasses.replace(found["float32"], dtype=form.rate, rate=rate)
    if device == "cpu":  # what it cannot add in few bits it adds in float32; its products may be slower yet
        for rate, roofs in found.items():
            found[rate] = dataclasses.replace(roofs, rate=max(roofs.rate, found["float32"].rate))
    print(*found.values(), sep="\n", flush=True)
    return found


def product_seconds(form, n, device):
    """Seconds of a product of n × n matrices; the lower quartile."""
    a, b = pair(n, device)
    return timing.measure(product(form, a, b), min_seconds=0.2).q1


def pair(n, device):
    """Two matrices (n, n) of normal numbers, float32."""
    draw = torch.Generator(device).manual_seed(n)
    return (torch.randn(n, n, generator=draw, device=device) for _ in range(2))


def product(form, a, b):
    """A function that multiplies a (n, n) and b (n, n) in a format, into which they are brought before; but
    in emulation, where bringing them is the work. What it returns has the precision that the format gives.
    """
    if form.name.endswith("emulated"):

        def emulated():
            with autocast.autocast():
                return torch.mm(a, b)

        return emulated
    if form.fp8:
        x, y = fp8.to_float8(a), fp8.to_float8(b.t().contiguous())
        return lambda: fp8.product(x, y, torch.bfloat16, fast=True)
    low = a.dtype if form.rate == "tf32" else getattr(torch, form.rate)
    x, y = a.to(low), b.to(low)

    def exact():
        subjects.set_float32(form.float32)
        return torch.mm(x, y)

    return exact


def products(table, forms):
    """{table: "product", n, format} → rows: the product alone."""
    for n in table.size.products:
        a, b = pair(n, table.device)
        right = a.double() @ b.double()
        versions = []
        case = {"table": "product", "n": n}
        for form in forms:
            call = product(form, a, b)
            error = float((call().double() - right).norm() / right.norm())
            named = case | {"format": form.name}
            if is_right(named, error, form):
                versions.append(Version(named, call, *product_cost(n, form), error))
        del right
        table.measure(versions)


def product_cost(n, form):
    """(bytes, {rate: FLOPs}) of a product of n × n matrices; FP8 numbers give a product in bfloat16."""
    width = 1 if form.fp8 else 2 if form.rate in ("bfloat16", "float16") else 4
    return n * n * (2 * width + max(width, 2)), {form.rate: 2 * n**3}


def steps(table, subject, forms, batches):
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
            versions = right_ones(subject, runs.values(), subjects.exactly(model, *data), data)
            if subject.name == "encoder" and table.device != "cpu" and batch in table.size.graphs:
                versions += graphs(subject, model, versions, forms, data)
            table.measure(versions)
        except torch.cuda.OutOfMemoryError:
            return print(
                f"{subject.name}: left out from batch {batch} on, which does not fit into the memory"
            )


def right_ones(subject, runs, exact, data):
    """A :class:`Version` of each run on a batch whose loss and gradients are what its format explains."""
    versions = []
    for run in runs:
        case = {"table": "training step", "model": subject.name, "format": run.form.name}
        case |= {"batch": len(data[0]), "how": "eager"}
        error = run.deviation(*data, exact)
        if is_right(case, error, run.form):
            cost = step_cost(subject, run.model, len(data[0]), run.form)
            versions.append(Version(case, partial(run.step, *data), *cost, error, bytes_of(run, *data)))
    return versions


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
        try:
            call = devices.record(partial(run.step, *data), data[0])
        except RuntimeError as error:
            print(f"{describe(case)}: left out, {str(error).splitlines()[0]}")
            continue
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


@dataclass(frozen=True)
class Version:
    """Something to be timed: its ``case``, what to call, the bytes and {rate: FLOPs} that it cannot do
    without, its deviation from float64, and results known before.
    """

    case: dict
    call: object
    bytes: int
    flops: dict
    error: float
    results: dict | None = None


class Table:
    """Collects rows and prints them. ``ceilings``: {rate: roofline.Ceilings}."""

    def __init__(self, ceilings, size, device):
        self.ceilings, self.size, self.device, self.rows = ceilings, size, device, []

    def measure(self, versions):
        """Times versions in turns: a row for each, with how many times as fast as the baselines it is."""
        functions = {n: version.call for n, version in enumerate(versions)}
        seconds, on_gpu = self.size.seconds, self.device != "cpu"
        timings = list(timing.compare(functions, min_seconds=seconds, rounds=3, events=on_gpu).values())
        for version, completion in zip(versions, timings, strict=True):
            launch = None
            if self.device != "cpu":
                seconds = self.size.seconds / 4
                launch = timing.apart(version.call, min_seconds=seconds, min_runs=3).launch.median
            results = dict(version.results or {})
            for other, baseline in zip(versions, timings, strict=True):
                if other.case["format"] in BASELINES and is_alike(other.case, version.case):
                    results[f"against {other.case['format']}"] = [baseline.median / completion.median]
            flops = sum(version.flops.values())
            results |= {f"FLOPs, {rate}": [number] for rate, number in version.flops.items()}
            floor = self.floor(version.bytes, version.flops)
            row = Row(version.case, completion, launch, version.bytes, flops, floor, version.error,
                      results=results)  # fmt: skip
            self.rows.append(row)
            print(text(row), flush=True)

    def floor(self, bytes, flops):
        """Seconds at the least: of the bytes, or of the operations, each at its format's rate."""
        seconds = sum(self.ceilings[rate].floor(0, number) for rate, number in flops.items())
        return max(self.ceilings["float32"].floor(bytes, 0), seconds)

    def raise_ceilings(self, ceilings):
        """Takes the higher of the old and these ceilings, and computes all floors from them."""
        self.ceilings = higher(self.ceilings, ceilings)
        for n, row in enumerate(self.rows):
            flops = {
                rate: row.results[f"FLOPs, {rate}"][0]
                for rate in self.ceilings
                if f"FLOPs, {rate}" in row.results
            }  # noqa: E501
            self.rows[n] = dataclasses.replace(row, floor=self.floor(row.bytes, flops))


def is_alike(one, other):
    """Whether two cases differ in nothing but the format."""
    return one | {"format": None} == other | {"format": None}


def is_right(case, error, form):
    if right := error <= form.tolerance:
        return right
    print(f"{describe(case)}: deviates by {error:.1e}, more than {form.name} explains; not timed")
    return False


def describe(case):
    what = f"product, n = {case['n']}" if "n" in case else f"{case['model']}, batch {case['batch']}"
    return f"{what}, {case['format']}" + (", CUDA graph" if case.get("how") == "CUDA graph" else "")


def text(row):
    """A row as a line: its times, and how fast against each baseline."""
    line = f"{describe(row.case):<48} {timing.text(row.completion.median):>9}"
    line += f"  floor {timing.text(row.floor):>9}  deviation {row.error:.1e}"
    if row.launch is not None:
        line += f"  launch {timing.text(row.launch):>9}"
    for name in BASELINES:
        if name != row.case["format"] and f"against {name}" in row.results:
            line += f"  {row.results[f'against {name}'][0]:.2f}× {name}"
    return line


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
