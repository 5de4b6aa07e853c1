"""Weights in few bits: how long a product with them takes, from one row to many, and what models lose.

Products: matrices in turn, as the layers of a model are, so that no cache holds them. Encoder:
all-MiniLM-L6-v2, its Linear layers rounded after training, beside what people said of SICK's pairs.
Characters: Part I's transformer, rounded after training. Writing: a text, character by character.
"""

import copy
import time
from dataclasses import dataclass
from functools import partial

import torch
from scipy.stats import spearmanr
from torch import nn

from benchmarks import formats
from benchmarks.formats import deviation
from benchmarks.harness import Version, measure, summary
from ed_lib import data
from ed_lib.ed import language
from ed_lib.precision import minilm, weight_only
from ed_lib.precision.decoding import Decoder
from ed_lib.precision.weight_only import Linear4

FORMATS = "float32", "float32, w xᵀ", "bfloat16", "int8", "int4"
HOWS = "nearest", "GPTQ", "AWQ"
WAYS = "float32, no cache", "float32", "int8", "int4"


@dataclass(frozen=True)
class Size:
    """``copies``: matrices in turn; ``sentences``, ``stretches``: to calibrate on; ``pairs``, ``places``:
    held out, None for all; ``trained``, ``wide``: layers, heads and width of the two that write.
    """

    n: int = 4096
    copies: int = 8
    batches: tuple = (1, 2, 4, 8, 16, 32, 64)
    pairs: int | None = None
    sentences: int = 128
    bits: tuple = (8, 4, 3, 2)
    groups: tuple = (128, 32)
    steps: int = 2000
    stretches: int = 32
    trained: tuple = (4, 4, 128)
    wide: tuple = (6, 16, 1024)
    hows: tuple = HOWS
    length: int = 64  # characters to write
    places: int | None = None
    seconds: float = 0.3
    rounds: int = 3


SIZE = Size()
TINY = Size(256, 2, (1, 4), 4, 2, (4,), (128,), 3, 2, (1, 2, 128), (1, 2, 128), HOWS[:1], 4, 2, 0.001, 1)


def ceilings(device, name):
    """Of weights in few bits the floor is that of the operations on the inputs, or of reading them."""
    return formats.ceilings(device, "float32" if name.startswith("float32") else "bfloat16")


def products(size, device):
    for batch in size.batches:
        yield from measure(products_of(size, batch), device, size.seconds, rounds=size.rounds)


def products_of(size, batch):
    """A version of each format: the products of ``batch`` rows, rounded to bfloat16 but for float32."""
    draw = torch.Generator().manual_seed(0)
    w, x = torch.randn(size.n, size.n, generator=draw), torch.randn(batch, size.n, generator=draw)
    for name in FORMATS:
        one, product, numbers, bytes = kept_as(name, w)
        turns = [copy.deepcopy(one) for _ in range(size.copies)]
        few = x if "float32" in name else x.bfloat16()
        call = lambda product=product, x=few, turns=turns: [product(each, x) for each in turns]  # noqa: E731
        cost = size.copies * bytes, size.copies * 2 * w.numel() * batch
        error = deviation([product(one, few)], [x.double() @ numbers.double().T])
        tolerance = 1e-4 if "float32" in name else 3e-2
        yield Version({"format": name, "batch": batch}, call, cost, error, tolerance)


def kept_as(format, w):
    """A weight (O, I) → (what stands for it, the product of that and x (B, I), the numbers meant, bytes)."""
    if format == "int8":
        scale = w.abs().amax(1) / 127  # (O,)
        codes, short = (w / scale[:, None]).round().to(torch.int8), scale.bfloat16()
        product = torch.ops.aten._weight_int8pack_mm
        return codes, lambda codes, x: product(x, codes, short), codes * scale[:, None], codes.nbytes
    if format == "int4":
        few = weight_only.nearest(w, 4, 128)
        return Linear4(few), lambda layer, x: layer(x), few.weight(), few.bytes
    w = w.bfloat16() if format == "bfloat16" else w
    return w, (lambda w, x: (w @ x.T).T) if "xᵀ" in format else (lambda w, x: x @ w.T), w, w.nbytes


def encoders(size, device):
    """A row for each way of rounding; results: "relatedness", "off" and "bytes" of the Linear layers."""
    learned, held_out = data.sick()
    tokenizer, net = minilm.tokenizer(), minilm.load()
    few, right = slice(size.pairs), []
    sides = learned.first[: size.sentences], held_out.first[few], held_out.second[few]
    calibration, *pairs = (minilm.encode(tokenizer, side)[0] for side in sides)
    seen = inputs(net, calibration)
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
    """For each way of rounding: a row with its seconds and bytes, {name: the numbers that a weight becomes}.

    A group of 0 is a row's whole, of −1 the whole matrix. ``exact`` {name: (O, I)}, ``seen`` its inputs.
    """
    ways = [("float32", 32, 0)]
    for bits in size.bits:  # with eight there is nothing to mend
        hows = size.hows[: 1 if bits == 8 else 3]
        ways += [("nearest", bits, -1), ("nearest", bits, 0)]
        ways += [(how, bits, group) for group in size.groups for how in hows]
    for way in ways:
        start = time.perf_counter()
        found = {name: rounded(weight, seen[name], *way) for name, weight in exact.items()}
        row = dict(zip(("how", "bits", "group"), way, strict=True)) | summary([time.perf_counter() - start])
        row["bytes"] = sum(bytes for _, bytes in found.values())
        yield row, {name: weight for name, (weight, _) in found.items()}


def inputs(net, sentences):
    """What each Linear layer of the encoder's is given: {name: (N, I)}."""
    seen, watched = {}, copy.deepcopy(net)
    for name, layer in watched.named_modules():
        if isinstance(layer, nn.Linear) and name.startswith("layers."):
            rows = seen[name] = []
            layer.register_forward_pre_hook(lambda layer, x, rows=rows: rows.append(x[0][0]))
    minilm.embeddings(watched, sentences, batch=1)
    return {name: torch.cat(rows) for name, rows in seen.items()}


def rounded(weight, x, how, bits, group):
    """(the numbers that a weight (O, I), with inputs x (N, I), is rounded to; the bytes of their codes)."""
    if how == "float32":
        return weight, weight.nbytes
    w, factors = weight if group >= 0 else weight.reshape(1, -1), 1
    width = group if group > 0 else w.shape[1]
    if how == "GPTQ":
        few = weight_only.gptq(w, weight_only.hessian(x), bits, width)
    elif how == "AWQ":
        few, factors = weight_only.awq(w, x, bits, width)
    else:
        few = weight_only.nearest(w, bits, width)
    return (few.weight() / factors).view(weight.shape), few.bytes


def transformer(shape, steps=0):
    """The transformer of characters, trained for so many steps; and the text."""
    text = data.text()
    net = language.Transformer(len(text.characters), 64, *shape, rate=3e-3, steps=max(steps, 1))
    for _, batch in zip(range(steps), data.stretches(text.train, 12, 64, seed=0), strict=False):
        net.step(*(half.T for half in batch))
    return net, text


def writers(size, device):
    """A row for each way of rounding the trained transformer; results: "loss" and "bytes"."""
    net, text = transformer(size.trained, size.steps)
    seen = given(net, text.train[: size.stretches * 64].view(-1, 64))
    exact = {name: net.parameters[name].detach().T.contiguous() for name in seen}
    for row, weights in in_few_bits(size, exact, seen):
        net.parameters |= {name: weight.T for name, weight in weights.items()}
        yield row | {"loss": language.held_out_loss(net, text.held_out, size.places)}


def given(net, stretches):
    """What each product of a transformer's blocks is given in these stretches (n, T): {name: (n T, I)}."""
    seen = []  # in the order of the decoder's products

    def watched(w):
        seen.append(rows := [])
        return lambda x: rows.append(x) or x @ w.T

    decoder = Decoder(net, watched)
    for stretch in stretches:
        write(decoder, stretch)
    return {name: torch.cat(rows) for name, rows in zip(decoder.products, seen, strict=False)}


def writing(size, device):
    """Times a text as long as the context, one character after another: a row for each of ``WAYS``."""
    for name in ("trained", "wide"):
        net, text = transformer(getattr(size, name))
        versions = ways(name, net, text.held_out[: size.length])
        yield from measure(versions, device, size.seconds, rounds=size.rounds)


def ways(name, net, line):
    """A version of each way to write a line (T,) with a network."""
    exact, T = dict(net.parameters), len(line)
    for way in WAYS:
        format, _, anew_each = way.partition(",")
        made = {n: kept_as(format, p.detach().T.contiguous()) for n, p in exact.items() if n[0].isdigit()}
        numbers = {n: each.T for n, (_, _, each, _) in made.items()}
        calls = iter([reading(one, product, format) for one, product, _, _ in made.values()])
        decoder = Decoder(net, lambda w, calls=calls: next(calls))
        call = partial(anew, net, line) if anew_each else partial(write, decoder, line)
        weights, bytes = sum(w.numel() for w in numbers.values()), sum(each[3] for each in made.values())
        reads = (T + 1) / 2 if anew_each else 1  # of each character
        net.parameters = {n: p.detach().double() for n, p in (exact | numbers).items()}
        right = net.forward(line[None])[:, -1]
        net.parameters = exact
        error, tolerance = deviation([call()[None]], [right]), 1e-4 if "float32" in way else 5e-2
        cost = T * bytes, T * reads * 2 * weights
        yield Version({"net": name, "format": way}, call, cost, error, tolerance)


def reading(one, product, format):
    """The product with what stands for a weight, as a function of x (1, I) in float32, → (1, O)."""
    if format == "float32":
        return partial(product, one)
    return lambda x: product(one, x.bfloat16()).float()


def write(decoder, text):
    """The scores after a text (T,), read character by character: (V,)."""
    decoder.length = 0  # a new text
    return [decoder.step(character) for character in text.tolist()][-1]


@torch.no_grad()
def anew(net, text):
    """The same, with the whole text so far read for each character."""
    return [net.forward(text[None, : n + 1])[0, -1] for n in range(len(text))][-1]


TABLES = {"products": products, "encoder": encoders, "characters": writers, "writing": writing}
