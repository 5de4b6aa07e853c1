"""What ``benchmarks.precision`` trains, and what a step costs at the least."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.formats import set_float32
from ed_lib import models
from ed_lib.precision import fp8

CHUNK = 64  # samples that go through the reference at a time
RATE = 1e-12  # so that repetitions leave the network as it was
WIDTHS = (784, 256, 256, 10)
BERT = {"layers": 12, "hidden": 768, "heads": 12, "vocabulary": 30_522, "positions": 512, "classes": 3}


@dataclass(frozen=True)
class Subject:
    """A network to be trained. ``batch(n, device)`` → inputs and labels; ``flops(n)`` → those of a step in
    layers that FP8 has, and in the others; ``optimizer``: "SGD" or "AdamW"; ``without``: formats left out.
    """

    name: str
    make: Callable
    batch: Callable
    flops: Callable
    optimizer: str = "SGD"
    without: tuple = ()


def mlp(widths=WIDTHS):
    return Subject("MLP", partial(models.mlp, widths), partial(vectors, widths), partial(mlp_flops, widths))


def lenet():
    """Without FP8, in which there are no convolutions."""
    return Subject("LeNet", models.lenet, images, lenet_flops, without=("fp8",))


def encoder(device, tokens=128, **sizes):
    """Without float16 on a CPU, where a step of it takes half a minute; emulated it takes a second or two."""
    sizes = BERT | sizes
    without = ("float16",) if device == "cpu" else ()
    batch, flops = partial(sentences, sizes, tokens), partial(encoder_flops, sizes, tokens)
    return Subject("encoder", partial(models.Encoder, **sizes), batch, flops, "AdamW", without)


def vectors(widths, n, device):
    return _labelled(torch.rand(n, widths[0], generator=torch.Generator().manual_seed(n)), device)


def images(n, device):
    return _labelled(torch.rand(n, 1, 28, 28, generator=torch.Generator().manual_seed(n)), device)


def sentences(sizes, tokens, n, device):
    draw = torch.Generator().manual_seed(n)
    return _labelled(torch.randint(sizes["vocabulary"], (n, tokens), generator=draw), device)


def _labelled(x, device):
    """The inputs with class 0 for all of them. With classes at random the gradients of a network that has not
    learned cancel each other, the more so the larger the batch, and what is left is mostly rounding.
    """
    return x.to(device), torch.zeros(len(x), dtype=torch.int64, device=device)


def mlp_flops(widths, n):
    """(in layers whose sizes are multiples of 16, in others) of a step on n samples.

    A product forward takes 2 operations a weight and sample, backward two such; the first layer has no
    gradient of its input. Everything but products is left out.
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
    """(in linear layers, in attention and the layer of classes) of a step on n sentences of so many tokens.

    What is computed again in the backward pass, as flash attention does, does not count.
    """
    L, H, T = sizes["layers"], sizes["hidden"], tokens
    linear = L * T * (3 + 1 + 4 + 4) * H**2 + H**2  # multiplications a sentence, the pooler's last
    attention = L * 2 * T**2 * H
    return 6 * n * linear, 6 * n * (attention + H * sizes["classes"])


def step_bytes(subject, parameters):
    """Bytes that a step moves at the least, all in float32: parameters read and written, gradients written
    and read, and AdamW's two averages read and written.
    """
    return 4 * parameters * (8 if subject.optimizer == "AdamW" else 4)


class Training:
    """One subject in one format: model, optimizer and scaler, and a step on a batch."""

    def __init__(self, subject, form, model, device, capturable=False):
        self.form, self.model, self.scaler = form, copy.deepcopy(model).to(device), form.scaler()
        if form.fp8:
            fp8.use_float8(self.model)
        more = {"capturable": True} if capturable else {}
        kind = getattr(torch.optim, subject.optimizer)
        self.optimizer = kind(self.model.parameters(), RATE, fused=True, **more)

    def loss(self, x, y):
        set_float32(self.form.float32)
        with self.form.context():
            return F.cross_entropy(self.model(x), y)

    def step(self, x, y):
        """Forward, loss, backward, update; as ed_lib.training does it."""
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def deviation(self, x, y, exact):
        """How far loss and gradients are from ``exact`` ones in float64, relative to their sizes: the larger.

        The gradients count as one vector. Leaves none behind.
        """
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


def exactly(model, x, y):
    """Loss, and gradient of each parameter, in float64."""
    model, total = copy.deepcopy(model).to(x.device).double(), 0.0
    for some, labels in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
        some = some.double() if some.is_floating_point() else some
        loss = F.cross_entropy(model(some), labels, reduction="sum") / len(x)
        loss.backward()
        total += loss.item()
    return total, [p.grad for p in model.parameters()]
