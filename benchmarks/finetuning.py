"""Fine-tuning a pretrained encoder of BERT's architecture on a three-way inference task, in each format.

The settings are those of the article's one worked run (batch 32, rate 5e-5, three epochs, warm-up a tenth,
decay 0.01); the encoder is smaller, all-MiniLM-L6-v2, and the task is SICK. Timed runs, one after another.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks import formats
from benchmarks.harness import summary
from benchmarks.precision import encoder_flops
from ed_lib import data
from ed_lib.precision import finetuning, memory, minilm


@dataclass(frozen=True)
class Size:
    """``pairs``: None for all."""

    pairs: int | None = None
    batch: int = 32
    epochs: int = 3
    rate: float = 5e-5
    seeds: int = 3


SIZE, TINY = Size(), Size(16, 8, 1, seeds=1)


def fine_tuning(size, device):
    """A row for each format; float16 on a GPU only. Results, a value for each seed: "accuracy" on the
    held-out pairs, "before" the first step, and the "loss" of each step; and the bytes of a step on the first
    batch, "activations", "casts" and "total".
    """
    few = slice(size.pairs)
    parts = [data.Pairs(*(column[few] for column in p)) for p in data.sick()]
    train, test = (finetuning.examples(part, minilm.tokenizer()) for part in parts)
    steps = list(step_flops(size, train))
    parameters = sum(p.numel() for p in minilm.load().parameters())
    bytes = 8 * 4 * parameters * len(steps)  # AdamW reads and writes eight float32 a parameter
    for name in ["float32", "bfloat16"] + ["float16"] * (device != "cpu"):
        context = nullcontext if name == "float32" else partial(torch.autocast, device, getattr(torch, name))
        options = {"rate": size.rate, "epochs": size.epochs, "batch": size.batch, "context": context}
        histories = []
        for seed in range(size.seeds):
            net = minilm.load(seed=seed).to(device)
            options["scaler"] = torch.amp.GradScaler(device) if name == "float16" else None
            histories.append(finetuning.finetune(net, train, test, seed=1000 * seed, **options))
        results = {
            "accuracy": [one.accuracy[-1] for one in histories],
            "before": [one.accuracy[0] for one in histories],
            "loss": [[round(loss, 4) for loss in one.loss] for one in histories],
        }
        case = {"format": name, "pairs": len(train), "floor_bytes": bytes, "floor_flops": sum(steps)}
        seconds = summary([sum(one.seconds) for one in histories])
        yield case | seconds | results | bytes_of_a_step(size, context, device, train)


def bytes_of_a_step(size, context, device, train):
    """What a step on the first batch keeps, in bytes."""
    net = minilm.load().to(device)
    *inputs, labels = (each.to(device) for each in train.batch(range(min(size.batch, len(train)))))

    def loss(*inputs):
        with context():
            return F.cross_entropy(net(*inputs), labels)

    kept = memory.account(net, torch.optim.AdamW(net.parameters()), loss, *inputs)
    return {"activations": kept.activations, "casts": kept.casts, "total": kept.total}


def step_flops(size, train):
    """FLOPs of the products of each step, of the first seed's batches, as padded."""
    sizes = {"layers": 6, "hidden": 384, "classes": 3}
    for epoch in range(size.epochs):
        for some in data.batches(len(train), size.batch, seed=epoch):
            longest = max(len(train.tokens[row]) for row in some)
            yield sum(encoder_flops(sizes, longest, len(some)))


ceilings = formats.ceilings
TABLES = {"fine-tuning": fine_tuning}
