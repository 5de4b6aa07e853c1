"""Weights in few bits: how long a product with them takes, from one row to many, and what models lose.

Products: matrices of 4,096 × 4,096, several in turn, as the layers of a model are, so that no cache holds
them. Encoder: all-MiniLM-L6-v2, whose Linear layers are rounded after training; its embeddings are compared
with those of float32, and with what people said of SICK's pairs (relatedness, 1 to 5; Spearman's
correlation). Characters: Part I's transformer, trained on tiny Shakespeare and then rounded. Writing: how
long that one, and a wide one, take for a text, character after character.
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
from ed_lib.precision import minilm, packed, weights_only
from ed_lib.precision.decoding import Decoder
from ed_lib.precision.weights_only import Linear4

HOWS = "nearest", "GPTQ", "AWQ"
WAYS = "float32, no cache", "float32", "int8", "int4"


@dataclass(frozen=True)
class Size:
    """``copies``: matrices in turn; ``sentences``, ``stretches``: to calibrate on; ``pairs``, ``places`` held
    out, None for all; ``trained``, ``wide``: layers, heads and width of the two that write.
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
    """A version of each format: the products of ``batch`` rows."""
    draw = torch.Generator().manual_seed(0)
    w, x = torch.randn(size.n, size.n, generator=draw), torch.randn(batch, size.n, generator=draw)
    few, scale = weights_only.nearest(w, 4), w.abs().amax(1) / 127  # (O,)
    codes, half = (w / scale[:, None]).round().to(torch.int8), x.bfloat16()
    layer, ours, row = Linear4(few), packed.pack(few), packed.halves(x[:1], few.group)
    grids, eight = (few.scale.numpy(), few.least.numpy()), scale.bfloat16()
    calls = {
        "float32": (w, lambda w: x @ w.T, w),
        "float32, w xᵀ": (w, lambda w: (w @ x.T).T, w),
        "bfloat16": (w.bfloat16(), lambda w: half @ w.T, w.bfloat16()),
        "int8": (codes, lambda q: torch.ops.aten._weight_int8pack_mm(half, q, eight), codes * scale[:, None]),
        "int4": (layer, lambda each: each(half), few.weight()),
        "int4, this book's": (ours, lambda p: packed.product(row, p, *grids), few.weight()),
    }
    versions = []
    for name, (one, call, exact) in calls.items():
        if batch == 1 or "this" not in name:
            turns = [copy.deepcopy(one) for _ in range(size.copies)]
            found = torch.as_tensor(call(one)).float().view(batch, -1)
            bytes = {"int8": 1, "bfloat16": 2}.get(name, 4 if "float32" in name else few.bytes / w.numel())
            versions.append(Version(
                {"format": name, "batch": batch},
                lambda call=call, turns=turns: [call(each) for each in turns],
                (size.copies * bytes * w.numel(), size.copies * 2 * w.numel() * batch),
                deviation([found], [x.double() @ exact.double().T]),
                1e-4 if "float32" in name or "this" in name else 3e-2,  # inputs are rounded to bfloat16
            ))  # fmt: skip
    return versions


def encoders(size, device):
    """A row for each way of rounding; results: "relatedness", "off" and "bytes" of the Linear layers."""
    learned, held_out = data.sick()
    tokenizer, net = minilm.tokenizer(), minilm.load()
    few = slice(size.pairs)
    sides = learned.first[: size.sentences], held_out.first[few], held_out.second[few]
    calibration, *pairs = (minilm.encode(tokenizer, side)[0] for side in sides)
    people, right, seen = held_out.relatedness[few], None, inputs(net, calibration)
    exact = {name: net.get_submodule(name).weight.detach().clone() for name in seen}
    for case, weights, seconds, bytes in in_few_bits(size, exact, seen):
        for name, weight in weights.items():
            net.get_submodule(name).weight.data = weight
        first, second = (minilm.embeddings(net, side) for side in pairs)  # (N, H) each
        both = torch.cat([first, second])
        right = both if right is None else right
        relatedness = float(spearmanr((first * second).sum(1), people).statistic)
        off = float((both - right).norm() / right.norm())
        yield case | summary([seconds]) | {"relatedness": relatedness, "off": off, "bytes": bytes}


def in_few_bits(size, exact, seen):
    """(case, {name: the numbers that a weight is rounded to}, the seconds that it takes, bytes) for each way.

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
        seconds, bytes = time.perf_counter() - start, sum(bytes for _, bytes in found.values())
        case = dict(zip(("how", "bits", "group"), way, strict=True))
        yield case, {name: weight for name, (weight, _) in found.items()}, seconds, bytes


def inputs(net, sentences):
    """What each Linear layer of the encoder's is given: {name: (N, I)}."""
    seen, hooks = {}, []
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Linear) and name.startswith("layers."):
            rows = seen[name] = []
            hooks.append(layer.register_forward_pre_hook(lambda layer, x, rows=rows: rows.append(x[0][0])))
    minilm.embeddings(net, sentences, batch=1)
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(rows) for name, rows in seen.items()}


def rounded(weight, x, how, bits, group):
    """(the numbers that a weight (O, I), with inputs x (N, I), is rounded to; the bytes of their codes)."""
    if how == "float32":
        return weight, weight.nbytes
    w, factors = weight if group >= 0 else weight.reshape(1, -1), 1
    width = group if group > 0 else w.shape[1]
    if how == "GPTQ":
        few = weights_only.gptq(w, weights_only.hessian(x), bits, width)
    elif how == "AWQ":
        few, factors = weights_only.awq(w, x, bits, width)
    else:
        few = weights_only.nearest(w, bits, width)
    return (few.weight() / factors).view(weight.shape), few.bytes


def transformer(shape, steps=0):
    """The transformer of characters, trained for so many steps; and the text."""
    text = data.text()
    layers, heads, width = shape
    net = language.Transformer(len(text.characters), 64, layers, heads, width, rate=3e-3, steps=max(steps, 1))
    for _, batch in zip(range(steps), data.stretches(text.train, 12, 64, seed=0), strict=False):
        net.step(*(half.T for half in batch))
    return net, text


def writers(size, device):
    """A row for each way of rounding the trained transformer; results: "loss" and "bytes"."""
    net, text = transformer(size.trained, size.steps)
    seen = given(net, text.train[: size.stretches * 64].view(-1, 64))
    exact = {name: net.parameters[name].detach().T.contiguous() for name in seen}
    for case, weights, seconds, bytes in in_few_bits(size, exact, seen):
        net.parameters |= {name: weight.T for name, weight in weights.items()}
        loss = language.held_out_loss(net, text.held_out, size.places)
        yield case | summary([seconds]) | {"loss": loss, "bytes": bytes}


def given(net, stretches):
    """What each product of a transformer's blocks is given in these stretches (n, T): {name: (n T, I)}."""
    seen = []  # in the order of the decoder's products

    def watched(w):
        seen.append(rows := [])
        return lambda x: rows.append(x) or x @ w.T

    decoder = Decoder(net, watched)
    for stretch in stretches.tolist():
        decoder.length = 0  # a new text
        for character in stretch:
            decoder.step(character)
    return {name: torch.cat(rows) for name, rows in zip(decoder.products, seen, strict=False)}


def writing(size, device):
    """Times a text as long as the context, one character after another: a row for each of ``WAYS``."""
    for name in ("trained", "wide"):
        net, text = transformer(getattr(size, name))
        versions = ways(name, net, text.held_out[: size.length])
        yield from measure(versions, device, size.seconds, rounds=size.rounds)


def ways(name, net, line):
    """A version of each way to write a line (T,) with a network."""
    exact, versions, T = dict(net.parameters), [], len(line)
    for way in WAYS:
        make = PRODUCTS[way.partition(",")[0]]
        made = {n: make(p.detach().T.contiguous()) for n, p in exact.items() if n[0].isdigit()}
        numbers = {n: each.T for n, (_, each, _) in made.items()}
        calls = iter([call for call, _, _ in made.values()])
        decoder = Decoder(net, lambda w, calls=calls: next(calls))
        call = partial(anew, net, line) if "no cache" in way else partial(write, decoder, line)
        weights, bytes = sum(w.numel() for w in numbers.values()), sum(bytes for _, _, bytes in made.values())
        reads = (T + 1) / 2 if "no cache" in way else 1  # of each character
        net.parameters = {n: p.detach().double() for n, p in (exact | numbers).items()}
        right = net.scores(line[None])
        net.parameters = exact
        versions.append(Version(
            {"net": name, "format": way}, call, (T * bytes, T * reads * 2 * weights),
            deviation([call()[None]], [right]), 1e-4 if "float32" in way else 5e-2, {"characters": T},
        ))  # fmt: skip
    return versions


def write(decoder, line):
    """The scores after a text (T,), read character by character."""
    decoder.length = 0
    return [decoder.step(character) for character in line.tolist()][-1]


def anew(net, line):
    """The same, with the whole text so far read for each character."""
    return [net.scores(line[None, : n + 1])[0] for n in range(len(line))][-1]


def eight(w):
    """→ (a function x (1, I) → (1, O), the numbers of the weight (O, I), the bytes of its codes)."""
    scale = w.abs().amax(1) / 127  # (O,)
    codes, short = (w / scale[:, None]).round().to(torch.int8), scale.bfloat16()
    product = torch.ops.aten._weight_int8pack_mm
    return lambda x: product(x.bfloat16(), codes, short).float(), codes * scale[:, None], codes.numel()


def four(w):
    """The same, in four bits."""
    few = weights_only.nearest(w, 4, 128)
    layer = Linear4(few)
    return lambda x: layer(x.bfloat16()).float(), few.weight(), few.bytes


PRODUCTS = {"float32": lambda w: (lambda x: x @ w.T, w, w.nbytes), "int8": eight, "int4": four}
TABLES = {"products": products, "encoder": encoders, "characters": writers, "writing": writing}
