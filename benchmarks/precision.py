"""Fewer bits: training steps of an MLP, LeNet and an encoder, in each format.

Each step is first compared with float64, by its loss and its gradients; what deviates by more than its format
explains is not timed. All formats of one case take turns. On a GPU the baselines are float32, computed as
such, and TF32; on a CPU float32 alone, and float16 is emulated besides. Optimizers are fused in every format.
FP8 is there where the GPU multiplies it, and what is no linear layer is then in bfloat16.
"""

import copy
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks import formats, harness
from ed_lib import models, training
from ed_lib.precision import fp8, memory

CHUNK = 64  # samples that go through the reference at a time
RATE = 1e-12  # so that repetitions leave the network as it was
BERT = {"layers": 12, "hidden": 768, "heads": 12, "vocabulary": 30_522, "positions": 512, "classes": 3}


@dataclass(frozen=True)
class Size:
    """The batches of each network; ``seconds`` for which each version is timed."""

    mlp: tuple
    lenet: tuple
    encoder: tuple
    widths: tuple = (784, 256, 256, 10)
    bert: dict = dataclasses.field(default_factory=lambda: dict(BERT))
    tokens: int = 128
    seconds: float = 0.3


SIZE = {"cpu": Size((1, 8, 64, 512, 4096), (1, 8, 64, 512), (1, 2)),
        "cuda": Size((1, 16, 256, 4096, 65536), (1, 16, 256, 4096, 16384), (1, 4, 16, 64, 256))}  # fmt: skip
TINY = Size(
    (1, 8), (1, 8), (1, 2), (20, 16, 10), tokens=4, seconds=0.001,
    bert={"layers": 1, "hidden": 16, "heads": 2, "vocabulary": 30, "positions": 8, "classes": 3},
)  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A network to be trained. ``inputs(n, draw)``: n of them; ``flops(n)`` → those of a step in layers that
    FP8 has, and in the others; ``optimizer``: "SGD" or "AdamW"; ``without``: formats left out.
    """

    name: str
    make: Callable
    inputs: Callable
    flops: Callable
    optimizer: str = "SGD"
    without: tuple = ()

    def batch(self, n, device):
        """n inputs, of class 0 all: with classes at random the gradients of what has not learned cancel each
        other, the more so the larger the batch, and what is left is mostly rounding.
        """
        x = self.inputs(n, generator=torch.Generator().manual_seed(n))
        return x.to(device), torch.zeros(n, dtype=torch.int64, device=device)

    def step_bytes(self, parameters):
        """That a step moves: float32 parameters, gradients and AdamW's two averages, read and written."""
        return 4 * parameters * (8 if self.optimizer == "AdamW" else 4)


def subjects(size, device):
    """[(subject, its batches)]: FP8 has no convolutions; a CPU takes half a minute for BERT in float16."""
    sizes, slow = BERT | size.bert, ("float16",) if device == "cpu" else ()
    make = partial(models.Encoder, **sizes)
    flops = partial(encoder_flops, sizes, size.tokens)
    words, widths = sizes["vocabulary"], size.widths
    sentences = lambda n, generator: torch.randint(words, (n, size.tokens), generator=generator)  # noqa: E731
    vectors = lambda n, generator: torch.rand(n, widths[0], generator=generator)  # noqa: E731
    pictures = lambda n, generator: torch.rand(n, 1, 28, 28, generator=generator)  # noqa: E731
    mlp = Subject("MLP", partial(models.mlp, widths), vectors, partial(mlp_flops, widths))
    return [
        (Subject("encoder", make, sentences, flops, "AdamW", slow), size.encoder),
        (mlp, size.mlp),
        (Subject("LeNet", models.lenet, pictures, lenet_flops, without=("fp8",)), size.lenet),
    ]


def mlp_flops(widths, n):
    """(in layers whose sizes are multiples of 16, in others) of a step's products on n samples: forward 2
    operations a weight and sample, backward twice that; the first layer has no gradient of its input.
    """
    found = [0, 0]
    for layer, (K, N) in enumerate(zip(widths[:-1], widths[1:], strict=True)):
        found[bool(K % fp8.MULTIPLE or N % fp8.MULTIPLE)] += (2 if layer == 0 else 3) * 2 * n * K * N
    return tuple(found)


def lenet_flops(n):
    """(0, FLOPs) of a step on n images: each number of an output is a sum of as many products as it has."""
    first, second = 20 * 26 * 26 * 3 * 3, 50 * 9 * 9 * 20 * 5 * 5
    return 0, n * (2 * 2 * first + 3 * 2 * (second + 800 * 128 + 128 * 10))


def encoder_flops(sizes, tokens, n):
    """(in linear layers, in attention and the layer of classes) of a step on n sentences of so many tokens,
    without what the backward pass computes again.
    """
    L, H, T = sizes["layers"], sizes["hidden"], tokens
    linear = L * T * (3 + 1 + 4 + 4) * H**2 + H**2  # multiplications a sentence, the pooler's last
    attention = L * 2 * T**2 * H
    return 6 * n * linear, 6 * n * (attention + H * sizes["classes"])


def training_step(size, device):
    """Forward, loss, backward, update: a row for each model, batch and format. Results: "against …", how many
    times as fast as a baseline in the same turns; and the bytes of each part of ed_lib.precision.memory's.
    """
    forms = formats.formats(device)
    for subject, batches in subjects(size, device):
        model = subject.make()
        runs = [Run(subject, form, model, device) for form in forms if form.name not in subject.without]
        for n in batches:
            try:
                batch = subject.batch(n, device)
                exact = exactly(model, *batch)
                versions = [run.version(batch, exact) for run in runs]
                yield from formats.against_baselines(harness.measure(versions, device, size.seconds))
            except torch.cuda.OutOfMemoryError:
                print(f"{subject.name}: left out from batch {n} on, which does not fit")
                break


def exactly(model, x, y):
    """Loss, and gradient of each parameter, in float64."""
    model, total = copy.deepcopy(model).to(x.device).double(), 0.0
    for some, labels in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
        some = some.double() if some.is_floating_point() else some
        loss = F.cross_entropy(model(some), labels, reduction="sum") / len(x)
        loss.backward()
        total += loss.item()
    return total, [p.grad for p in model.parameters()]


class Run:
    """One subject in one format: model, optimizer and scaler."""

    def __init__(self, subject, form, model, device):
        self.subject, self.form, self.scaler = subject, form, form.scaler()
        self.model = copy.deepcopy(model).to(device)
        if form.fp8:
            fp8.use_float8(self.model)
        self.optimizer = getattr(torch.optim, subject.optimizer)(self.model.parameters(), RATE, fused=True)

    def version(self, batch, exact):
        """A step on a batch (x, y), compared with the ``exact`` loss and gradients."""
        form, n = self.form, len(batch[0])
        linear, others = self.subject.flops(n)
        flops = {"fp8": linear, "bfloat16": others} if form.fp8 else {form.rate: linear + others}
        bytes = self.subject.step_bytes(sum(p.numel() for p in self.model.parameters()))
        case = {"model": self.subject.name, "format": form.name, "batch": n, "how": "eager"}
        error, kept = self.deviation(*batch, exact), self.bytes_of(*batch)
        return harness.Version(case, partial(self.step, *batch), (bytes, flops), error, form.tolerance, kept)

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
        self.optimizer.zero_grad()
        return max(abs(loss.item() - right) / abs(right), math.sqrt(off / total))

    def bytes_of(self, x, y):
        """{part: bytes} of a step, on a GPU with its "peak"; none of a format that is emulated, whose tensors
        are not those of a machine that has it.
        """
        if self.form.name.endswith("emulated"):
            return {}
        found = dataclasses.asdict(memory.account(self.model, self.optimizer, self.loss, x, y))
        self.optimizer.zero_grad()
        if x.is_cuda:
            for _ in range(2):  # the first makes the optimizer's state
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                self.step(x, y)
                found["peak"] = torch.cuda.max_memory_allocated() - before
                self.optimizer.zero_grad()
        return found


TABLES = {"training step": training_step}
context, ceilings = formats.restored, formats.ceilings
