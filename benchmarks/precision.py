"""Fewer bits: training steps of an MLP, LeNet and an encoder, in each format.

Each step is first compared with float64, by its loss and its gradients; what deviates by more than its format
explains is not timed. All formats of one case take turns. On a GPU the baselines are float32, computed as
such, and TF32; on a CPU float32 alone, and float16 is emulated besides. Optimizers are fused in every format.
FP8 is there where the GPU multiplies it, and what is no linear layer is then in bfloat16. The long training
runs are another benchmark, ``precision_accuracy``.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks import formats, harness
from benchmarks import precision_subjects as subjects
from benchmarks.harness import Version
from ed_lib.precision import memory


@dataclass(frozen=True)
class Size:
    """The batches of each network, for which steps an encoder's are recorded as CUDA ``graphs`` too;
    ``seconds`` for which each version is timed.
    """

    mlp: tuple
    lenet: tuple
    encoder: tuple
    graphs: tuple = (1, 2, 4, 8)
    widths: tuple = subjects.WIDTHS
    bert: dict = dataclasses.field(default_factory=lambda: dict(subjects.BERT))
    tokens: int = 128
    seconds: float = 0.3


SIZE = {
    "cpu": Size((1, 8, 64, 512, 4096), (1, 8, 64, 512), (1, 2)),
    "cuda": Size(
        (1, 16, 256, 1024, 4096, 16384, 65536),
        (1, 16, 64, 256, 1024, 4096, 16384),
        (1, 2, 4, 8, 16, 32, 64, 128, 256),
    ),
}
TINY = Size(
    (1, 8), (1, 8), (1, 2), (1,), (20, 16, 10), tokens=4, seconds=0.001,
    bert={"layers": 1, "hidden": 16, "heads": 2, "vocabulary": 30, "positions": 8, "classes": 3},
)  # fmt: skip


def ceilings(device, name):
    with formats.restored():
        return formats.ceilings(device, name)


def training_step(size, device):
    """Forward, loss, backward, update: a row for each model, format, batch and how, "eager" or "CUDA graph".

    Results: "against float32" and "against tf32", how many times as fast as that format in the same turns;
    and the bytes of each part of ed_lib.precision.memory's.
    """
    with formats.restored():
        forms = formats.formats(device)
        encoder = subjects.encoder(device, size.tokens, **size.bert)
        networks = [(encoder, size.encoder), (subjects.mlp(size.widths), size.mlp),
                    (subjects.lenet(), size.lenet)]  # fmt: skip
        for subject, batches in networks:
            model = subject.make()
            runs = [
                subjects.Training(subject, form, model, device)
                for form in forms
                if form.name not in subject.without
            ]
            for batch in batches:
                try:
                    versions = versions_of(subject, runs, model, subject.batch(batch, device))
                    if device != "cpu" and subject is encoder and batch in size.graphs:
                        versions += graphs(subject, model, versions, runs, subject.batch(batch, device))
                    yield from formats.against_baselines(harness.measure(versions, device, size.seconds))
                except torch.cuda.OutOfMemoryError:
                    print(f"{subject.name}: left out from batch {batch} on, which does not fit")
                    break


def versions_of(subject, runs, model, batch):
    """A step of each run on a batch (x, y), compared with the loss and the gradients in float64."""
    exact, found = subjects.exactly(model, *batch), []
    for run in runs:
        case = {"model": subject.name, "format": run.form.name, "batch": len(batch[0]), "how": "eager"}
        cost, error = step_cost(subject, run.model, len(batch[0]), run.form), run.deviation(*batch, exact)
        call, bytes = partial(run.step, *batch), bytes_of(run, *batch)
        found.append(Version(case, call, cost, error, run.form.tolerance, bytes))
    return found


def step_cost(subject, model, batch, form):
    """(bytes, {rate: FLOPs}) that a step cannot do without."""
    linear, others = subject.flops(batch)
    flops = {"fp8": linear, "bfloat16": others} if form.fp8 else {form.rate: linear + others}
    return subjects.step_bytes(subject, sum(p.numel() for p in model.parameters())), flops


def graphs(subject, model, versions, runs, batch):
    """The same steps, where there is no scaler, as CUDA graphs: a step is one launch."""
    found = []
    for version, run in zip(versions, runs, strict=True):
        if run.scaler is None:
            again = subjects.Training(subject, run.form, model, batch[0].device, capturable=True)
            case = version.case | {"how": "CUDA graph"}
            if call := formats.captured(case, partial(again.step, *batch), batch[0]):
                found.append(dataclasses.replace(version, case=case, call=call, results={}))
    return found


def bytes_of(run, x, y):
    """{part: bytes} of a step; on a GPU with its "peak", beside what is there before and after it.

    None of them where a format is emulated: its tensors are not those of a machine that has it.
    """
    if run.form.name.endswith("emulated"):
        return {}
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
    return found


TABLES = {"training step": training_step}
