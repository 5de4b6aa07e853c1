"""Fewer bits: training steps of an MLP, LeNet and an encoder, in each format.

Each step is first compared with float64, by its loss and its gradients; what deviates by more than
its format explains is not timed. All formats of one case take turns. float32 is computed as such.
Optimizers are fused in every format.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.shared import formats, harness
from benchmarks.shared.harness import Size
from ed_lib import models, training

# So many samples go through the reference at a time.
CHUNK = 64
# It is so small that repetitions leave the network as it was.
RATE = 1e-12
BERT = {
    "layers": 12,
    "hidden": 768,
    "heads": 12,
    "vocabulary": 30_522,
    "positions": 512,
    "classes": 3,
}
# The batches of each network, and their sizes; seconds for each version.
CPU = Size(
    mlp=(1, 8, 64, 512, 4096),
    lenet=(1, 8, 64, 512),
    encoder=(1, 2),
    widths=(784, 256, 256, 10),
    bert=BERT,
    tokens=128,
    seconds=0.3,
)
LARGE = {
    "mlp": (1, 16, 256, 4096, 65536),
    "lenet": (1, 16, 256, 4096, 16384),
    "encoder": (1, 4, 16, 64, 256),
}
SIZE = {"cpu": CPU, "cuda": CPU(**LARGE)}
TINY = CPU(
    mlp=(1, 8), lenet=(1, 8), widths=(20, 16, 10), tokens=4, seconds=0.001,
    bert={"layers": 1, "hidden": 16, "heads": 2, "vocabulary": 30, "positions": 8, "classes": 3},
)  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A network to be trained. shape: of a sample, which is numbers, or words of so many."""

    name: str
    make: Callable
    shape: tuple
    batches: tuple
    optimizer: str = "SGD"
    words: int = 0

    def batch(self, n, device):
        """n inputs, of class 0 all: with classes at random the gradients of what has not learned
        cancel each other, the more so the larger the batch, and what is left is mostly rounding.
        """
        draw = torch.Generator().manual_seed(n)
        sample = partial(torch.randint, self.words) if self.words else torch.rand
        x = sample((n, *self.shape), generator=draw).to(device)
        return x, torch.zeros(n, dtype=torch.int64, device=device)

    def cost(self, parameters, x, y):
        """(bytes, FLOPs) of a step: float32 parameters, gradients and AdamW's two averages, read
        and written; products as torch counts them.
        """
        return 4 * parameters * (8 if self.optimizer == "AdamW" else 4), flops(self.make, x, y)


def subjects(size):
    """What is timed."""
    encoder = partial(models.Encoder, **size.bert), (size.tokens,), size.encoder, "AdamW"
    return [Subject("encoder", *encoder, size.bert["vocabulary"]),
            Subject("MLP", partial(models.mlp, size.widths), size.widths[:1], size.mlp),
            Subject("LeNet", models.lenet, (1, 28, 28), size.lenet)]  # fmt: skip


def flops(make, *batch):
    """Of a training step, by torch's counter, on the device "meta", which computes nothing; of
    attention its two products.
    """
    with torch.device("meta"):
        model = make()
        *inputs, labels = (tensor.to("meta") for tensor in batch)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        F.cross_entropy(model(*inputs), labels).backward()
    return counter.get_total_flops()


def training_step(size, device):
    """Forward, loss, backward, update: a row for each model, batch and format. Results: "against
    float32", how many times as fast as that in the same turns.
    """
    for subject in subjects(size):
        model = subject.make()
        runs = [Run(subject, name, model, device) for name in formats.names(device)]
        for n in subject.batches:
            try:
                batch = subject.batch(n, device)
                exact = exactly(model, *batch)
                cost = subject.cost(parameters_of(model), *batch)
                versions = [run.version(batch, exact, cost) for run in runs]
                rows = harness.measure(versions, device, size.seconds)
                exactly_in = {row["format"]: row["seconds"] for row in rows}["float32"]
                yield from (row | {"against float32": exactly_in / row["seconds"]} for row in rows)
            except torch.cuda.OutOfMemoryError:
                print(f"{subject.name}: left out from batch {n} on, which does not fit")
                break


def parameters_of(model):
    return sum(p.numel() for p in model.parameters())


def exactly(model, x, y):
    """Loss, and gradient of each parameter, in float64."""
    model = copy.deepcopy(model).to(x.device).double()
    total = 0.0
    x = x.double() if x.is_floating_point() else x
    # The gradients of the parts add up to those of the batch.
    for some, labels in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
        loss = F.cross_entropy(model(some), labels, reduction="sum") / len(x)
        loss.backward()
        total += loss.item()
    return total, [p.grad for p in model.parameters()]


class Run:
    """One subject in one format: model, optimizer and, for float16, a scale that does not
    change.
    """

    def __init__(self, subject, format, model, device):
        self.subject = subject
        self.format = format
        self.device = device
        fixed = {"init_scale": 2.0**14, "growth_interval": 10**9, "enabled": format == "float16"}
        self.model = copy.deepcopy(model).to(device)
        self.scaler = torch.amp.GradScaler(device, **fixed)
        kind = getattr(torch.optim, subject.optimizer)
        self.optimizer = kind(self.model.parameters(), RATE, fused=True)

    def version(self, batch, exact, cost):
        """A step on a batch (x, y), compared with the ``exact`` loss and gradients."""
        case = {
            "model": self.subject.name,
            "format": self.format,
            "batch": len(batch[0]),
            "how": "eager",
        }
        error = self.deviation(*batch, exact)
        call = partial(self.step, *batch)
        return harness.Version(case, call, cost, error, formats.TOLERANCE[self.format])

    def loss(self, x, y):
        with formats.context(self.device, self.format):
            return F.cross_entropy(self.model(x), y)

    def step(self, x, y):
        """Forward, loss, backward, update."""
        with formats.products(self.format):
            training.optimizer_step(self.loss(x, y), self.optimizer, self.scaler)

    def deviation(self, x, y, exact):
        """How far loss and gradients, as one vector, are from ``exact`` ones, relative: the
        larger.
        """
        self.optimizer.zero_grad()
        with formats.products(self.format):
            loss = self.loss(x, y)
            self.scaler.scale(loss).backward()
        right, gradients = exact
        off = total = 0.0
        for p, g in zip(self.model.parameters(), gradients, strict=True):
            off += float((p.grad.double() / self.scaler.get_scale() - g).square().sum())
            total += float(g.square().sum())
        return max(abs(loss.item() - right) / abs(right), math.sqrt(off / total))


TABLES = {"training step": training_step}
TIMED = True
ON_GPU = tuple(TABLES)
context = formats.restored
ceilings = formats.ceilings
