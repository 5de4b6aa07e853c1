"""Weights in few bits: how long a product with them takes, from one row to many, and what models
lose. by_grid, small_by_grid: four bits, in every way of the book, with a grid a row and in groups.

Products: matrices in turn, as the layers of a model are, so that no cache holds them. Encoder:
all-MiniLM-L6-v2, its Linear layers rounded after training, beside what people said of SICK's pairs.
Characters: a small GPT, rounded after training. Writing: a text, character by character.
"""

import copy
from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.shared import formats
from benchmarks.shared.formats import deviation
from benchmarks.shared.harness import Size, Version, measure
from benchmarks.shared.rounding import HOWS, agreement, grid_cases, in_few_bits, inputs, replaced
from benchmarks.shared.weights import FORMATS, Rounded, kept_as
from ed_lib import data, models
from ed_lib.precision import decoding, minilm, quantization

# Characters that the GPT reads.
CONTEXT = 64
WAYS = "float32, no cache", "float32", "bfloat16", "int8", "int4", "W8A8"

# copies: matrices in turn; sentences, stretches: to calibrate on, calibrations: sets of sentences;
# pairs, places: held out, None for all; trained, wide: width, heads and layers of the two that
# write so many characters (length).
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
    calibrations=3,
    resamples=200,
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
    calibrations=1,
    resamples=3,
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
    w = torch.randn(size.n, size.n, generator=draw)
    x = torch.randn(batch, size.n, generator=draw)
    for name in FORMATS if quantization.has_vnni() else FORMATS[:-1]:
        product, numbers, bytes = kept_as(name, w)
        turns = [kept_as(name, w)[0] for _ in range(size.copies)]
        few = x if "float32" in name or name == "W8A8" else x.bfloat16()
        call = partial(all_of, turns, few)
        # W8A8's products are of bytes, which have a rate of their own: its floor is of reading.
        flops = 0 if name == "W8A8" else 2 * w.numel() * batch
        cost = size.copies * bytes, size.copies * flops
        error = deviation([product(few)], [x.double() @ numbers.double().T])
        tolerance = 1e-4 if "float32" in name else 3e-2
        yield Version({"format": name, "batch": batch}, call, cost, error, tolerance)


def all_of(products, x):
    """x through each of the products in turn."""
    return [product(x) for product in products]


def encoders(size, device):
    """A row for each way of rounding; results: "relatedness", "off" and "bytes" of the Linear
    layers.
    """
    # A bare machine with a GPU may lack scipy.
    from scipy.stats import spearmanr

    learned, held_out = data.sick()
    tokenizer = minilm.tokenizer()
    net = minilm.load()
    few = slice(size.pairs)
    sides = learned.first[: size.sentences], held_out.first[few], held_out.second[few]
    calibration, *pairs = (minilm.tokenize(tokenizer, side)[0] for side in sides)
    seen = inputs(net, lambda watched: minilm.embeddings(watched, calibration, batch=1))
    exact = {name: net.get_submodule(name).weight.detach().clone() for name in seen}
    right = None
    for row, weights in in_few_bits(size, exact, seen):
        for name, weight in weights.items():
            net.get_submodule(name).weight.data = weight
        # An embedding of H numbers for each sentence, (N, H) for each side of the pairs.
        first, second = (minilm.embeddings(net, side) for side in pairs)
        found = torch.cat([first, second])
        # The first way is float32.
        right = found if right is None else right
        off = float((found - right).norm() / right.norm())
        relatedness = spearmanr((first * second).sum(1), held_out.relatedness[few]).statistic
        yield row | {"relatedness": float(relatedness), "off": off}


def by_grid(size, device):
    """A row for each way to round an encoder to four bits, and for each set of sentences that it is
    calibrated on; results as of :func:`encoders`, and "wavers", the standard error of the
    correlation's distance from float32's, by pairs drawn again.
    """
    learned, held_out = data.sick()
    tokenizer = minilm.tokenizer()
    net = minilm.load()
    few = slice(size.pairs)
    found_in = [*held_out.first[few], *held_out.second[few]]
    # Each sentence once: many stand in several pairs.
    numbers = {sentence: n for n, sentence in enumerate(dict.fromkeys(found_in))}
    tokens, _ = minilm.tokenize(tokenizer, list(numbers))
    places = [numbers[sentence] for sentence in found_in]

    @cache
    def seen(n):
        some = learned.first[n * size.sentences : (n + 1) * size.sentences]
        calibration, _ = minilm.tokenize(tokenizer, some)
        return inputs(minilm.load(), lambda watched: minilm.embeddings(watched, calibration, 1))

    people = np.asarray(held_out.relatedness[few])
    right = None
    for case in grid_cases(size.calibrations):
        row = case | replaced(net, seen(case["calibration"]), **case)
        # An embedding of H numbers for each sentence, (2 N, H): those of first, then of second.
        found = minilm.embeddings(net, tokens)[places]
        first, second = found.chunk(2)
        cosines = (first * second).sum(1).numpy()
        right = (found, cosines) if right is None else right
        row["off"] = float((found - right[0]).norm() / right[0].norm())
        row["relatedness"], row["wavers"] = agreement(people, cosines, right[1], size.resamples)
        yield row


def small_by_grid(size, device):
    """The same of the trained GPT, from each of three starts; results: "loss" and "bytes"."""
    for seed in range(size.seeds):
        net, text = transformer(size.trained, size.steps, seed)
        learned = text.train.unfold(0, CONTEXT + 1, CONTEXT)[: size.stretches, :-1]
        held_out = text.held_out.unfold(0, CONTEXT + 1, CONTEXT)[: size.places]
        seen = inputs(net, lambda watched, learned=learned: watched(learned))
        for case in grid_cases(1):
            row = {"seed": seed} | case | replaced(net, seen, **case)
            yield row | {"loss": mean_loss(net, held_out)}


@torch.no_grad()
def mean_loss(net, held_out):
    """Of stretches (n, T + 1)."""
    return sum(len(few) * float(loss_of(net, few)) for few in held_out.split(64)) / len(held_out)


def transformer(shape, steps=0, seed=0):
    """A GPT of characters, trained for so many steps at a rate that rises and falls; and the
    text.
    """
    text = data.text()
    net = models.GPT(len(text.characters), CONTEXT, *shape, seed=seed)
    adam = torch.optim.Adam(net.parameters(), betas=(0.9, 0.99), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 3e-3, max(steps, 2), pct_start=0.05)
    draw = data.stretches(text.train, 12, CONTEXT, seed=seed)
    for _ in range(steps):
        # (T, B) each: characters, and those after them.
        x, after = next(draw)
        adam.zero_grad()
        loss_of(net, torch.cat([x, after[-1:]]).T).backward()
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
    # Stretches of CONTEXT characters and the one after them, (n, CONTEXT + 1).
    learned = text.train.unfold(0, CONTEXT + 1, CONTEXT)
    held_out = text.held_out.unfold(0, CONTEXT + 1, CONTEXT)
    seen = inputs(net, lambda watched: watched(learned[: size.stretches, :-1]))
    exact = {name: net.get_submodule(name).weight.detach().clone() for name in seen}
    for row, weights in in_few_bits(size, exact, seen):
        for name, weight in weights.items():
            net.get_submodule(name).weight.data = weight
        yield row | {"loss": mean_loss(net, held_out[: size.places])}


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
    # W8A8 needs sums of bytes that are right.
    for way in WAYS if quantization.has_vnni() else WAYS[:-1]:
        format, _, anew_each = way.partition(",")
        made = copy.deepcopy(net)
        right = copy.deepcopy(net).double()
        bytes = weights = 0
        for layer, linear in net.named_modules():
            if isinstance(linear, nn.Linear):
                few = Rounded(linear, format)
                if format != "float32":
                    made.set_submodule(layer, few)
                right.get_submodule(layer).weight.data = few.numbers.double()
                bytes += few.bytes
                weights += linear.weight.numel()
        call = partial(anew if anew_each else write, made, line)
        # With no cache a character is read as often, on average, as the text is half long.
        reads = (len(line) + 1) / 2 if anew_each else 1
        cost = len(line) * bytes, len(line) * reads * 2 * weights
        error = deviation([call()], [right(line[None])[:, -1]])
        tolerance = 1e-4 if "float32" in way else 5e-2
        yield Version({"net": name, "format": way}, call, cost, error, tolerance)


def write(net, text):
    """The scores after a text (T,), read character by character with a key-value cache: (1, V)."""
    caches = [[] for _ in net.blocks]
    return [decoding.decode_step(net, character[None], caches) for character in text][-1]


@torch.no_grad()
def anew(net, text):
    """The same, with the whole text so far read for each character."""
    return [net(text[None, : n + 1])[:, -1] for n in range(len(text))][-1]


TABLES = {
    "products": products, "encoder": encoders, "by_grid": by_grid, "characters": writers,
    "small_by_grid": small_by_grid, "writing": writing,
}  # fmt: skip
