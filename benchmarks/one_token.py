"""Weights in few bits: how long a product with them takes, from one row to many, and what models
lose.

Products: matrices in turn, as the layers of a model are, so that no cache holds them. Encoder:
all-MiniLM-L6-v2, its Linear layers rounded after training, beside what people said of SICK's pairs.
Characters: a small GPT, rounded after training. Writing: a text, character by character.
"""

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import nn

from benchmarks.shared import formats
from benchmarks.shared.formats import deviation
from benchmarks.shared.harness import Size, Version, measure, summary
from ed_lib import data, machine, models
from ed_lib.precision import decoding, minilm, quantization, weight_only
from ed_lib.precision.weight_only import Linear4

FORMATS = "float32", "float32, w xᵀ", "float32, NumPy", "bfloat16", "int8", "int4", "W8A8"
HOWS = "nearest", "GPTQ", "AWQ"
WAYS = "float32, no cache", "float32", "bfloat16", "int8", "int4"
POOL = ThreadPoolExecutor(machine.threads())

# copies: matrices in turn; sentences, stretches: to calibrate on; pairs, places: held out, None for
# all; trained, wide: width, heads and layers of the two that write so many characters (length).
SIZE = Size(
    n=4096,
    copies=8,
    batches=(1, 2, 4, 8, 16, 32, 64),
    pairs=None,
    sentences=128,
    bits=(8, 4, 3, 2),
    groups=(128, 32),
    steps=2000,
    stretches=32,
    trained=(128, 4, 4),
    wide=(1024, 16, 6),
    hows=HOWS,
    length=64,
    places=None,
    seconds=0.3,
    rounds=3,
)
TINY = SIZE(
    n=256,
    copies=2,
    batches=(1, 4),
    pairs=4,
    sentences=2,
    bits=(4,),
    groups=(128,),
    steps=3,
    stretches=2,
    trained=(128, 2, 1),
    wide=(128, 2, 1),
    hows=HOWS[:1],
    length=4,
    places=2,
    seconds=0.001,
    rounds=1,
)


def ceilings(device, name):
    """Of weights in few bits the floor is that of the operations on the inputs, or of reading the
    weights; of inputs in eight bits the second alone, since products of bytes have a rate of their
    own.
    """
    return formats.ceilings(device, "float32" if name.startswith("float32") else "bfloat16")


def products(size, device):
    for batch in size.batches:
        yield from measure(products_of(size, batch), device, size.seconds, rounds=size.rounds)


def products_of(size, batch):
    """A version of each format: the products of ``batch`` rows, rounded to bfloat16 but for
    float32.
    """
    draw = torch.Generator().manual_seed(0)
    w, x = torch.randn(size.n, size.n, generator=draw), torch.randn(batch, size.n, generator=draw)
    for name in FORMATS if quantization.has_vnni() else FORMATS[:-1]:
        product, numbers, bytes = kept_as(name, w)
        turns = [kept_as(name, w)[0] for _ in range(size.copies)]
        few = x if "float32" in name or name == "W8A8" else x.bfloat16()
        call = lambda x=few, turns=turns: [each(x) for each in turns]  # noqa: E731
        cost = size.copies * bytes, size.copies * 2 * w.numel() * batch * (name != "W8A8")
        error = deviation([product(few)], [x.double() @ numbers.double().T])
        tolerance = 1e-4 if "float32" in name else 3e-2
        yield Version({"format": name, "batch": batch}, call, cost, error, tolerance)


def kept_as(format, w):
    """A weight (O, I) → (the product with a copy of it in this format, of x (B, I); the numbers;
    bytes).
    """
    if format == "int8":
        scale = quantization.choose_scale(w)  # (O, 1)
        codes, short = quantization.quantize(w, scale, 8), scale[:, 0].bfloat16()
        product = torch.ops.aten._weight_int8pack_mm
        return lambda x: product(x, codes, short), codes * scale, codes.nbytes
    if format == "W8A8":
        layer = quantization.W8A8(w)
        return layer, layer.codes * layer.scale[:, None], layer.codes.nbytes
    if format == "int4":
        few = weight_only.rtn(w, 4, 128)
        return Linear4(few), few.weight(), few.bytes
    w = w.bfloat16() if format == "bfloat16" else w.clone()
    if "NumPy" in format:
        return in_numpy(w), w, w.nbytes
    return (lambda x: (w @ x.T).T) if "xᵀ" in format else (lambda x: x @ w.T), w, w.nbytes


def in_numpy(w):
    """The product with w by NumPy's BLAS, a part of w on each thread: its own threads, which spin
    when they have done, would slow down who comes next.
    """
    parts = np.array_split(w.numpy(), machine.threads())
    return lambda x: torch.from_numpy(
        np.concatenate([*POOL.map(lambda w: w @ x.numpy().T, parts)]).T
    )


class Rounded(nn.Module):
    """A Linear layer with its weight in few bits: (…, I) → (…, O), float32, with inputs in
    bfloat16.
    """

    def __init__(self, linear, format):
        super().__init__()
        self.bias, self.outputs = linear.bias, linear.out_features
        self.product, self.numbers, self.bytes = kept_as(format, linear.weight.detach())

    def forward(self, x):
        y = self.product(x.flatten(0, -2).bfloat16()).float()  # (…, I) → (N, I) → (N, O)
        return y.view(*x.shape[:-1], self.outputs) + self.bias


def encoders(size, device):
    """A row for each way of rounding; results: "relatedness", "off" and "bytes" of the Linear
    layers.
    """
    learned, held_out = data.sick()
    tokenizer, net = minilm.tokenizer(), minilm.load()
    few, right = slice(size.pairs), []
    sides = learned.first[: size.sentences], held_out.first[few], held_out.second[few]
    calibration, *pairs = (minilm.tokenize(tokenizer, side)[0] for side in sides)
    seen = inputs(net, lambda watched: minilm.embeddings(watched, calibration, batch=1))
    exact = {name: net.get_submodule(name).weight.detach().clone() for name in seen}
    for row, weights in in_few_bits(size, exact, seen):
        for name, weight in weights.items():
            net.get_submodule(name).weight.data = weight
        first, second = (minilm.embeddings(net, side) for side in pairs)  # (N, H) each
        right.append(torch.cat([first, second]))  # the first is float32's
        off = float((right[-1] - right[0]).norm() / right[0].norm())
        relatedness = spearmanr((first * second).sum(1), held_out.relatedness[few]).statistic
        yield row | {"relatedness": float(relatedness), "off": off}


def in_few_bits(size, exact, seen):
    """For each way of rounding: a row with its seconds and bytes, {name: the numbers that a weight
    becomes}.

    A group of 0 is a row's whole, of −1 the whole matrix. ``exact`` {name: (O, I)}, ``seen`` its
    inputs.
    """
    ways = [("float32", 32, 0)]
    for bits in size.bits:  # with eight there is nothing to mend
        hows = size.hows[: 1 if bits == 8 else 3]
        ways += [("nearest", bits, -1), ("nearest", bits, 0)]
        ways += [(how, bits, group) for group in size.groups for how in hows]
    for way in ways:
        start = time.perf_counter()
        found = {name: rounded(weight, seen[name], *way) for name, weight in exact.items()}
        row = dict(zip(("how", "bits", "group"), way, strict=True)) | summary(
            [time.perf_counter() - start]
        )
        row["bytes"] = sum(bytes for _, bytes in found.values())
        yield row, {name: weight for name, (weight, _) in found.items()}


def inputs(net, run):
    """What each Linear layer of a transformer's blocks is given when it is run: {name: (N, I)}."""
    seen, watched = {}, copy.deepcopy(net)
    for name, layer in watched.named_modules():
        if isinstance(layer, nn.Linear) and "." in name:
            rows = seen[name] = []
            layer.register_forward_pre_hook(
                lambda layer, x, rows=rows: rows.append(x[0].flatten(0, -2))
            )
    with torch.no_grad():
        run(watched)
    return {name: torch.cat(rows) for name, rows in seen.items()}


def rounded(weight, x, how, bits, group):
    """(the numbers that a weight (O, I), with inputs x (N, I), is rounded to; the bytes of their
    codes).
    """
    if how == "float32":
        return weight, weight.nbytes
    w, factors = weight if group >= 0 else weight.reshape(1, -1), 1
    width = group if group > 0 else w.shape[1]
    if how == "GPTQ":
        few = weight_only.gptq(w, weight_only.hessian(x), bits, width)
    elif how == "AWQ":
        few, factors = weight_only.awq(w, x, bits, width)
    else:
        few = weight_only.rtn(w, bits, width)
    return (few.weight() / factors).view(weight.shape), few.bytes


def transformer(shape, steps=0):
    """A GPT of characters, trained for so many steps at a rate that rises and falls; and the
    text.
    """
    text = data.text()
    net = models.GPT(len(text.characters), 64, *shape)
    adam = torch.optim.Adam(net.parameters(), betas=(0.9, 0.99), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 3e-3, max(steps, 2), pct_start=0.05)
    for _, batch in zip(range(steps), data.stretches(text.train, 12, 64, seed=0), strict=False):
        adam.zero_grad()
        loss_of(net, torch.cat([batch[0], batch[1][-1:]]).T).backward()
        adam.step()
        schedule.step()
    return net, text


def loss_of(net, text):
    """The mean loss in nats of the characters of stretches (B, T + 1), but for the first of
    each.
    """
    return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def writers(size, device):
    """A row for each way of rounding the trained GPT; results: "loss" and "bytes"."""
    net, text = transformer(size.trained, size.steps)
    learned, held_out = (
        part.unfold(0, 65, 64) for part in (text.train, text.held_out)
    )  # (n, 65) each
    seen = inputs(net, lambda watched: watched(learned[: size.stretches, :-1]))
    exact = {name: net.get_submodule(name).weight.detach().clone() for name in seen}
    for row, weights in in_few_bits(size, exact, seen):
        for name, weight in weights.items():
            net.get_submodule(name).weight.data = weight
        with torch.no_grad():
            some = held_out[: size.places]
            loss = sum(len(few) * float(loss_of(net, few)) for few in some.split(64)) / len(some)
        yield row | {"loss": loss}


def writing(size, device):
    """Times a text as long as the context, one character after another: a row for each of
    ``WAYS``.
    """
    for name in ("trained", "wide"):
        net, text = transformer(getattr(size, name))
        versions = ways(name, net, text.held_out[: size.length])
        yield from measure(versions, device, size.seconds, rounds=size.rounds)


def ways(name, net, line):
    """A version of each way to write a line (T,) with a network."""
    for way in WAYS:
        format, _, anew_each = way.partition(",")
        made, right, bytes, weights = copy.deepcopy(net), copy.deepcopy(net).double(), 0, 0
        for layer, linear in net.named_modules():
            if isinstance(linear, nn.Linear):
                few = Rounded(linear, format)
                if format != "float32":
                    made.set_submodule(layer, few)
                right.get_submodule(layer).weight.data = few.numbers.double()
                bytes, weights = bytes + few.bytes, weights + linear.weight.numel()
        call = partial(anew if anew_each else write, made, line)
        reads = (len(line) + 1) / 2 if anew_each else 1  # of each character
        cost = len(line) * bytes, len(line) * reads * 2 * weights
        error, tolerance = (
            deviation([call()], [right(line[None])[:, -1]]),
            1e-4 if "float32" in way else 5e-2,
        )
        yield Version({"net": name, "format": way}, call, cost, error, tolerance)


def write(net, text):
    """The scores after a text (T,), read character by character with a key-value cache: (1, V)."""
    caches = [[] for _ in net.blocks]
    return [decoding.decode_step(net, character[None], caches) for character in text][-1]


@torch.no_grad()
def anew(net, text):
    """The same, with the whole text so far read for each character."""
    return [net(text[None, : n + 1])[:, -1] for n in range(len(text))][-1]


TABLES = {"products": products, "encoder": encoders, "characters": writers, "writing": writing}
