"""Weights in few bits: how long a product with them takes, from one row to many, and what an encoder loses.

Products: matrices of 4,096 × 4,096, several in turn, as the layers of a model are, so that no cache holds
them. Encoder: all-MiniLM-L6-v2, whose Linear layers are rounded after training; its embeddings are compared
with those of float32, and with what people said of SICK's pairs (relatedness, 1 to 5; Spearman's
correlation).
"""

import copy
import dataclasses
import time
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks.harness import Plan, Shown, Table, Version, ceilings, deviation, summary
from ed_lib.precision import minilm, packed, sick, weights_only
from ed_lib.precision.weights_only import Linear4
from ed_lib.records import Row

HOWS = ("nearest", "GPTQ", "AWQ")
FORMATS = ("float32", "int8", "int4", "int4, this book's")


@dataclass(frozen=True)
class Size:
    """``copies``: matrices in turn; ``pairs``: None for all held out; ``sentences``: to calibrate on."""

    n: int = 4096
    copies: int = 8
    batches: tuple = (1, 2, 4, 8, 16, 32, 64)
    pairs: int | None = None
    sentences: int = 128
    bits: tuple = (8, 4, 3, 2)
    groups: tuple = (128, 32)


TINY = Size(256, 2, (1, 4), 20, 8, (4,), (128,))


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`; ``device`` is "cpu"."""
    size, roof = size or Size(), ceilings(device, ["float32"])["float32"]
    table = Table(dict.fromkeys(FORMATS, roof))
    works = {f"batch {batch}": partial(products, size, table, batch) for batch in size.batches}
    encoder = table.filled_by({"encoder": partial(encoders, size)})
    return Plan(table, works | encoder, dataclasses.asdict(size))


def products(size, table, batch):
    """Times the products of ``batch`` rows."""
    draw = torch.Generator().manual_seed(0)
    w, x = torch.randn(size.n, size.n, generator=draw), torch.randn(batch, size.n, generator=draw)
    few, scale = weights_only.nearest(w, 4), w.abs().amax(1) / 127  # (O,)
    codes, half = (w / scale[:, None]).round().to(torch.int8), x.bfloat16()
    layer, ours, row = Linear4(few), packed.pack(few), packed.halves(x[:1], few.group)
    grids, eight = (few.scale.numpy(), few.least.numpy()), scale.bfloat16()
    calls = {
        "float32": (w, lambda w: x @ w.T, w),
        "int8": (codes, lambda q: torch.ops.aten._weight_int8pack_mm(half, q, eight), codes * scale[:, None]),
        "int4": (layer, lambda each: each(half), few.weight()),
        "int4, this book's": (ours, lambda p: packed.product(row, p, *grids), few.weight()),
    }
    versions = []
    for name, (one, call, exact) in calls.items():
        if batch == 1 or "this" not in name:
            turns = [copy.deepcopy(one) for _ in range(size.copies)]
            found = torch.as_tensor(call(one)).float().view(batch, -1)
            bytes = {"float32": 4, "int8": 1}.get(name, few.bytes / w.numel()) * w.numel()
            versions.append(Version(
                {"table": "products", "format": name, "batch": batch, "part": f"batch {batch}"},
                lambda call=call, turns=turns: [call(each) for each in turns],
                (size.copies * bytes, size.copies * 2 * w.numel() * batch),
                deviation([found], [x.double() @ exact.double().T]),
                3e-2 if name in ("int8", "int4") else 1e-4,  # whose inputs are rounded to bfloat16
            ))  # fmt: skip
    table.measure(versions, launches=False)


def encoders(size):
    """A row for each way of rounding; results: "relatedness", "off" and "bytes" of the Linear layers."""
    learned, held_out = sick.load()
    tokenizer, net = minilm.tokenizer(), minilm.load()
    calibration, _ = minilm.encode(tokenizer, learned.first[: size.sentences])
    seen = inputs(net, calibration)
    pairs = [minilm.encode(tokenizer, side[: size.pairs])[0] for side in (held_out.first, held_out.second)]
    people, right = held_out.relatedness[: size.pairs], None
    for case in [{"how": "float32", "bits": 32, "group": 0}, *cases(size)]:
        start = time.perf_counter()
        rounded, bytes = net, 4 * sum(net.get_submodule(name).weight.numel() for name in seen)
        if case["how"] != "float32":
            rounded, bytes = with_few_bits(net, seen, **case)
        seconds = time.perf_counter() - start
        first, second = (minilm.embeddings(rounded, side) for side in pairs)  # (N, H) each
        both = torch.cat([first, second])
        right = both if right is None else right
        results = {
            "relatedness": [spearman((first * second).sum(1).numpy(), np.array(people))],
            "off": [float((both - right).norm() / right.norm())],
            "bytes": [bytes],
        }
        yield Row({"table": "encoder", "part": "encoder", **case}, summary([seconds]), results=results)


def cases(size):
    """{"how", "bits", "group"}; a group of 0 is a row's whole, of −1 the whole matrix."""
    for bits in size.bits:
        yield {"how": "nearest", "bits": bits, "group": -1}
        yield {"how": "nearest", "bits": bits, "group": 0}
        for group in size.groups:  # with eight bits there is nothing to mend
            yield from ({"how": how, "bits": bits, "group": group} for how in HOWS[: 1 if bits == 8 else 3])


def inputs(net, sentences):
    """What each Linear layer of the encoder's is given: {name: (N, I)}."""
    seen = {}
    layers = {n: m for n, m in net.named_modules() if isinstance(m, nn.Linear) and n.startswith("layers.")}
    hooks = [
        layer.register_forward_pre_hook(lambda m, x, name=name: seen.setdefault(name, []).append(x[0][0]))
        for name, layer in layers.items()
    ]
    minilm.embeddings(net, sentences, batch=1)
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(found) for name, found in seen.items()}


def with_few_bits(net, seen, how, bits, group):
    """(a copy of the encoder with rounded weights, their bytes)."""
    net, total = copy.deepcopy(net), 0
    for name, x in seen.items():
        weight = net.get_submodule(name).weight.data
        w, factors = weight if group >= 0 else weight.reshape(1, -1), 1
        width = group if group > 0 else w.shape[1]
        if how == "GPTQ":
            few = weights_only.gptq(w, weights_only.hessian(x), bits, width)
        elif how == "AWQ":
            few, factors = weights_only.awq(w, x, bits, width)
        else:
            few = weights_only.nearest(w, bits, width)
        weight.copy_((few.weight() / factors).view(weight.shape))
        total += few.bytes
    return net, total


def spearman(a, b):
    """The correlation of ranks; equal numbers share theirs."""
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def ranks(values):
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


# The page
TITLE = "Weights for one token at a time"
MEANING = """Products of 4,096 × 4,096 weights, eight matrices in turn, with a batch of rows: float32, and
PyTorch's operators for weights of eight and four bits (inputs in bfloat16); the floor is that of reading the
weights, or of the operations at float32's rate. And MiniLM with its Linear layers rounded: a grid for each
matrix (group −1), each row (0), or so many neighbours; Spearman's correlation with people's judgement of
SICK's held-out pairs, in per cent, and how far the embeddings are from float32's."""


def shown(name, form):
    return lambda row: form.format(row.results[name][0])


COLUMNS = (
    ("relatedness, %", lambda row: f"{100 * row.results['relatedness'][0]:.1f}"),
    ("off", shown("off", "{:.3f}")),
    ("MB", lambda row: f"{row.results['bytes'][0] / 1e6:.1f}"),
)
PAGE = {
    "products": [Shown("products", ("format", "batch"), ("time", "× floor"))],
    "encoder": [Shown("encoder", ("how", "bits", "group"), COLUMNS)],
}
