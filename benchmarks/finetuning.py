"""Fine-tuning a pretrained encoder of BERT's architecture on a three-way inference task, in each format.

The settings are those of the article's one worked run (batch 32, rate 5e-5, three epochs, warm-up a tenth,
decay 0.01); the encoder is smaller, all-MiniLM-L6-v2, and the task is SICK. Timed runs, one after another.
"""

import dataclasses
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.old_harness import Plan, Shown, Table, ceilings, summary
from benchmarks.old_records import Row
from benchmarks.precision_subjects import encoder_flops
from ed_lib import data
from ed_lib.precision import finetuning, memory, minilm

FORMATS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Size:
    """``pairs``: None for all."""

    pairs: int | None = None
    batch: int = 32
    epochs: int = 3
    rate: float = 5e-5
    seeds: int = 3


TINY = Size(16, 8, 1, seeds=1)


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`, of a part for each format; float16 on a GPU only."""
    size, formats = size or Size(), ["float32", "bfloat16"] + ["float16"] * (device != "cpu")
    roofs = ceilings(device, formats)
    if device == "cpu":  # what it cannot multiply in few bits it multiplies in float32
        rate = roofs["float32"].rate
        roofs = {name: dataclasses.replace(roof, rate=max(roof.rate, rate)) for name, roof in roofs.items()}
    table = Table(roofs, device=device)
    return Plan(
        table, table.filled_by({name: partial(rows, size, name, device, table) for name in formats}),
        dataclasses.asdict(size),
    )  # fmt: skip


def rows(size, name, device, table):
    """One: results, a value for each seed: "accuracy" on the held-out pairs, "before" the first step, and the
    "loss" of each step; and the bytes of a step on the first batch, "activations", "casts" and "total".
    """
    train, test = load(size)
    runs = [run(size, name, device, seed, train, test) for seed in range(size.seeds)]
    results = {
        "accuracy": [history.accuracy[-1] for history in runs],
        "before": [history.accuracy[0] for history in runs],
        "loss": [[round(loss, 4) for loss in history.loss] for history in runs],
    } | bytes_of_a_step(size, name, device, train)
    steps = list(step_flops(size, train))
    parameters = sum(p.numel() for p in minilm.load().parameters())
    cost = 8 * 4 * parameters * len(steps), sum(steps)  # AdamW reads and writes eight float32 a parameter
    case = {"table": "fine-tuning", "format": name, "pairs": len(train)}
    seconds = summary([sum(history.seconds) for history in runs])
    floor = table.ceilings[name].floor(*cost)
    yield Row(case, seconds, bytes=cost[0], flops=cost[1], floor=floor, results=results)


def load(size):
    """(to learn from, held out): :class:`ed_lib.precision.finetuning.Examples`."""
    tokenizer = minilm.tokenizer()
    parts = [data.Pairs(p.first[: size.pairs], p.second[: size.pairs], p.labels[: size.pairs])
             for p in data.sick()]  # fmt: skip
    return [finetuning.examples(part, tokenizer) for part in parts]


def context(name, device):
    """What a format's forward passes run in."""
    return partial(torch.autocast, device, FORMATS[name]) if FORMATS[name] else nullcontext


def run(size, name, device, seed, train, test):
    """One seed: the history of its training."""
    net = minilm.load(seed=seed).to(device)
    scaler = torch.amp.GradScaler(device) if name == "float16" else None
    options = {"rate": size.rate, "epochs": size.epochs, "batch": size.batch, "seed": 1000 * seed}
    return finetuning.finetune(net, train, test, context=context(name, device), scaler=scaler, **options)


def bytes_of_a_step(size, name, device, train):
    """What a step on the first batch keeps, in bytes."""
    net = minilm.load().to(device)
    *inputs, labels = (each.to(device) for each in train.batch(range(min(size.batch, len(train)))))

    def loss(*inputs):
        with context(name, device)():
            return F.cross_entropy(net(*inputs), labels)

    kept = memory.account(net, torch.optim.AdamW(net.parameters()), loss, *inputs)
    return {"activations": [kept.activations], "casts": [kept.casts], "total": [kept.total]}


def step_flops(size, train):
    """FLOPs of the products of each step, of the first seed's batches, as padded."""
    sizes = {"layers": 6, "hidden": 384, "classes": 3}
    for epoch in range(size.epochs):
        for some in data.batches(len(train), size.batch, seed=epoch):
            longest = max(len(train.tokens[row]) for row in some)
            yield sum(encoder_flops(sizes, longest, len(some)))


# The page
TITLE = "Fine-tuning a pretrained encoder"
MEANING = """all-MiniLM-L6-v2 on SICK's three-way inference: three passes over the pairs, batches of 32, AdamW
at 5e-5 with warm-up. Accuracy on the held-out pairs, in per cent, one for each seed; the time is a whole
run's, its floor that of the products of matrices in the format."""


def percent(name):
    """The shares, one after another."""
    return lambda row: ", ".join(f"{100 * share:.2f}" for share in row.results[name])


def megabytes(name):
    """What a step keeps."""
    return lambda row: f"{row.results[name][0] / 1e6:.0f}"


RIGHT = ("held out", percent("accuracy")), ("before", percent("before"))
KEPT = tuple((name, megabytes(name)) for name in ("activations", "casts", "total"))
PAGE = {
    "fine-tuning": [
        Shown("fine-tuning", ("format",), ("time", "× floor", *RIGHT)),
        Shown("what a step keeps, MB", ("format",), KEPT),
    ]
}
