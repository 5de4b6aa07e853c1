"""Fewer bits: training steps of an MLP, LeNet and an encoder, in each format.

Each step is first compared with float64, by its loss and its gradients; what deviates by more than its format
explains is not timed. All formats of one case take turns. float32 is computed as such; TF32, on a GPU, is a
format of its own. Optimizers are fused in every format.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks import formats, harness
from benchmarks.harness import Size
from ed_lib import models, training
from ed_lib.precision import memory

CHUNK = 64  # samples that go through the reference at a time
RATE = 1e-12  # so that repetitions leave the network as it was
BERT = {"layers": 12, "hidden": 768, "heads": 12, "vocabulary": 30_522, "positions": 512, "classes": 3}


# The batches of each network, and their sizes; seconds for each version.
CPU = Size(mlp=(1, 8, 64, 512, 4096), lenet=(1, 8, 64, 512), encoder=(1, 2), widths=(784, 256, 256, 10),
           bert=BERT, tokens=128, seconds=0.3)  # fmt: skip
LARGE = {"mlp": (1, 16, 256, 4096, 65536), "lenet": (1, 16, 256, 4096, 16384), "encoder": (1, 4, 16, 64, 256)}
SIZE = {"cpu": CPU, "cuda": CPU(**LARGE)}
TINY = CPU(
    mlp=(1, 8), lenet=(1, 8), widths=(20, 16, 10), tokens=4, seconds=0.001,
    bert={"layers": 1, "hidden": 16, "heads": 2, "vocabulary": 30, "positions": 8, "classes": 3},
)  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A network to be trained. ``shape``: of a sample, which is numbers, or words of so many; ``flops(n)`` →
    those of a step; ``without``: formats left out.
    """

    name: str
    make: Callable
    shape: tuple
    flops: Callable
    optimizer: str = "SGD"
    without: tuple = ()
    words: int = 0

    def batch(self, n, device):
        """n inputs, of class 0 all: with classes at random the gradients of what has not learned cancel each
        other, the more so the larger the batch, and what is left is mostly rounding.
        """
        draw = torch.Generator().manual_seed(n)
        sample = partial(torch.randint, self.words) if self.words else torch.rand
        x = sample((n, *self.shape), generator=draw).to(device)
        return x, torch.zeros(n, dtype=torch.int64, device=device)

    def step_bytes(self, parameters):
        """That a step moves: float32 parameters, gradients and AdamW's two averages, read and written."""
        return 4 * parameters * (8 if self.optimizer == "AdamW" else 4)


def subjects(size, device):
    """[(subject, its batches)]; a CPU takes half a minute for BERT in float16."""
    bert, widths, slow = size.bert, size.widths, ("float16",) if device == "cpu" else ()
    make, flops = partial(models.Encoder, **bert), partial(encoder_flops, bert, size.tokens)
    encoder = Subject("encoder", make, (size.tokens,), flops, "AdamW", slow, bert["vocabulary"])
    mlp = Subject("MLP", partial(models.mlp, widths), widths[:1], partial(mlp_flops, widths))
    lenet = Subject("LeNet", models.lenet, (1, 28, 28), lenet_flops)
    return [(encoder, size.encoder), (mlp, size.mlp), (lenet, size.lenet)]


def mlp_flops(widths, n):
    """Of a step on n samples; the first layer has no gradient of its input."""
    products = [K * N for K, N in zip(widths[:-1], widths[1:], strict=True)]
    return 2 * n * (3 * sum(products) - products[0])


def lenet_flops(n):
    """Of a step on n images: each number of an output is a sum of as many products as it has."""
    first, second = 20 * 26 * 26 * 3 * 3, 50 * 9 * 9 * 20 * 5 * 5
    return n * (2 * 2 * first + 3 * 2 * (second + 800 * 128 + 128 * 10))


def encoder_flops(sizes, tokens, n):
    """Of a step on n sentences of those tokens."""
    L, H, T = sizes["layers"], sizes["hidden"], tokens
    linear = L * T * (3 + 1 + 4 + 4) * H**2 + H**2  # multiplications a sentence, the pooler's last
    attention = L * 2 * T**2 * H
    return 6 * n * (linear + attention + H * sizes["classes"])


def training_step(size, device):
    """Forward, loss, backward, update: a row for each model, batch and format. Results: "against float32",
    how many times as fast as that in the same turns; and the bytes of the "activations".
    """
    forms = formats.formats(device)
    for subject, batches in subjects(size, device):
        model = subject.make()
        runs = [Run(subject, form, model, device) for form in forms if form.name not in subject.without]
        for n in batches:
            try:
                batch = subject.batch(n, device)
                exact = exactly(model, *batch)
                rows = harness.measure([run.version(batch, exact) for run in runs], device, size.seconds)
                exactly_in = {row["format"]: row["seconds"] for row in rows}["float32"]
                yield from (row | {"against float32": exactly_in / row["seconds"]} for row in rows)
            except torch.cuda.OutOfMemoryError:
                print(f"{subject.name}: left out from batch {n} on, which does not fit")
                break


def exactly(model, x, y):
    """Loss, and gradient of each parameter, in float64."""
    model, total = copy.deepcopy(model).to(x.device).double(), 0.0
    x = x.double() if x.is_floating_point() else x
    for some, labels in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
        loss = F.cross_entropy(model(some), labels, reduction="sum") / len(x)
        loss.backward()
        total += loss.item()
    return total, [p.grad for p in model.parameters()]


class Run:
    """One subject in one format: model, optimizer and scaler."""

    def __init__(self, subject, form, model, device):
        self.subject, self.form, self.scaler = subject, form, form.scaler()
        self.model = copy.deepcopy(model).to(device)
        self.optimizer = getattr(torch.optim, subject.optimizer)(self.model.parameters(), RATE, fused=True)

    def version(self, batch, exact):
        """A step on a batch (x, y), compared with the ``exact`` loss and gradients."""
        form, n = self.form, len(batch[0])
        parameters = sum(p.numel() for p in self.model.parameters())
        cost = self.subject.step_bytes(parameters), self.subject.flops(n)
        case = {"model": self.subject.name, "format": form.name, "batch": n, "how": "eager"}
        error, call = self.deviation(*batch, exact), partial(self.step, *batch)
        kept = {"activations": memory.account(self.model, self.optimizer, self.loss, *batch).activations}
        return harness.Version(case, call, cost, error, form.tolerance, kept)

    def loss(self, x, y):
        formats.set_float32(self.form.float32)
        with self.form.context():
            return F.cross_entropy(self.model(x), y)

    def step(self, x, y):
        """Forward, loss, backward, update."""
        training.optimizer_step(self.loss(x, y), self.optimizer, self.scaler)

    def deviation(self, x, y, exact):
        """How far loss and gradients, as one vector, are from ``exact`` ones, relative: the larger."""
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        scale = 1.0 if self.scaler is None else self.scaler.get_scale()
        (loss * scale).backward()
        right, gradients = exact
        off = total = 0.0
        for p, g in zip(self.model.parameters(), gradients, strict=True):
            off += float((p.grad.double() / scale - g).square().sum())
            total += float(g.square().sum())
        return max(abs(loss.item() - right) / abs(right), math.sqrt(off / total))


TABLES = {"training step": training_step}
context, ceilings = formats.restored, formats.ceilings
