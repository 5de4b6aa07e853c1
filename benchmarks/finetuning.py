"""Fine-tuning a pretrained encoder of BERT's architecture on a three-way inference task, in each
format.

The settings are those of the article's one worked run (batch 32, rate 5e-5, three epochs, warm-up a
tenth, decay 0.01); the encoder is smaller, all-MiniLM-L6-v2, and the task is SICK. Timed runs, one
after another.
"""

from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.precision import flops, parameters_of
from benchmarks.shared import formats
from benchmarks.shared.harness import Size, summary
from ed_lib import data, models
from ed_lib.precision import memory, minilm

# pairs: of how many sentences; None: all.
SIZE = Size(pairs=None, batch=32, epochs=3, rate=5e-5, seeds=3)
TINY = SIZE(pairs=4, batch=4, epochs=1, seeds=1)


def fine_tuning(size, device):
    """A row for each format. Results: "accuracy" on the held-out pairs, by seed; and the bytes of a
    step on the first batch, "activations", "casts" and "total".
    """
    few = slice(size.pairs)
    tokenizer = minilm.tokenizer()
    parts = [data.Pairs(*(column[few] for column in p)) for p in data.sick()]
    train, test = (minilm.examples(part, tokenizer) for part in parts)
    steps = list(step_flops(size, train))
    for name in formats.names(device):
        context = partial(formats.context, device, name)
        options = {
            "rate": size.rate,
            "epochs": size.epochs,
            "batch": size.batch,
            "context": context,
        }
        histories = []
        for seed in range(size.seeds):
            net = minilm.load(seed=seed).to(device)
            options["scaler"] = torch.amp.GradScaler(device) if name == "float16" else None
            with formats.products(name):
                histories.append(minilm.finetune(net, train, test, seed=1000 * seed, **options))
        # AdamW reads and writes eight float32 a parameter.
        bytes = 8 * 4 * parameters_of(net) * len(steps)
        case = {
            "format": name,
            "pairs": len(train.labels),
            "floor_bytes": bytes,
            "floor_flops": sum(steps),
        }
        row = case | summary([sum(one.seconds) for one in histories])
        row["accuracy"] = [one.accuracy[-1] for one in histories]
        yield row | bytes_of_a_step(net, size, context, device, train)


def bytes_of_a_step(net, size, context, device, train):
    """What a step on the first batch keeps, in bytes."""
    *inputs, labels = train.batch(range(min(size.batch, len(train.labels))), device)

    def loss(*inputs):
        with context():
            return F.cross_entropy(net(*inputs), labels)

    kept = memory.account(net, torch.optim.AdamW(net.parameters()), loss, *inputs)
    return {name: getattr(kept, name) for name in ("activations", "casts", "total")}


def step_flops(size, train):
    """FLOPs of the products of each step, of the first seed's batches, as padded."""
    make = partial(models.Encoder, **minilm.SIZES)
    counted = {}
    for epoch in range(size.epochs):
        for some in data.batches(len(train.labels), size.batch, seed=epoch):
            batch = train.batch(some)
            # Batches of one shape, (B, T), are counted once.
            shape = batch[0].shape
            if shape not in counted:
                counted[shape] = flops(make, *batch)
            yield counted[shape]


context = formats.restored
ceilings = formats.ceilings
TABLES = {"fine-tuning": fine_tuning}
TIMED = True
ON_GPU = tuple(TABLES)
