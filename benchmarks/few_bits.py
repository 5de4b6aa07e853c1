"""A small transformer on tiny Shakespeare whose products are of few bits, or whose weights are of sixteen.

nanoGPT's model for a CPU, as in the language models' benchmark, by backpropagation. All runs of a seed have
the same start, batches and rate; only the products of the blocks' weight matrices change, not the scores'.
"""

import dataclasses
from contextlib import nullcontext
from dataclasses import dataclass, replace

from benchmarks.old_harness import Plan, Shown, Table, by_seed, one_thread
from benchmarks.old_records import Row
from ed_lib import data, timing
from ed_lib.ed import characters
from ed_lib.ed.gpt import Transformer
from ed_lib.precision.few_bits import FOUR, RECIPES, Bfloat16Weights, Recipe, Scaling, low_bits

NV, E2M1 = RECIPES["NVFP4"], Scaling("e2m1")
ONE_LEVEL = {role: replace(getattr(NV, role), scale="e4m3") for role in "xwg"}
WITHOUT = {  # NVFP4, but for one of its parts
    "NVFP4 without stochastic rounding": replace(NV, g=FOUR),
    "NVFP4 without Hadamard": replace(NV, hadamard=False),
    "NVFP4 without square blocks": replace(NV, w=FOUR),
    "NVFP4, scales of one level": replace(NV, **ONE_LEVEL),
}
GRADIENTS = {  # x and w as in "E4M3, per tensor", g in four bits with one scale for a matrix
    "gradients E2M1": Recipe(g=E2M1),
    "gradients E2M1, Hadamard": Recipe(g=E2M1, hadamard=True),
    "gradients E2M1, stochastic": Recipe(g=replace(E2M1, stochastic=True)),
    "gradients E2M1, stochastic, Hadamard": Recipe(g=replace(E2M1, stochastic=True), hadamard=True),
}
CASES = {"float32": None} | RECIPES | WITHOUT | GRADIENTS
WEIGHTS = "float32", "nearest", "stochastic", "kahan"


@dataclass(frozen=True)
class Size:
    """``batch`` stretches of ``context`` characters a step; ``slow``: a low rate, at which the weights of
    bfloat16 are tried as well. ``every``: steps between two looks at ``places`` stretches; at the end all the
    held-out text is read.
    """

    products: tuple = tuple(CASES)
    weights: tuple = WEIGHTS
    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64
    batch: int = 12
    steps: int = 800
    rate: float = 3e-3
    slow: float = 1e-4
    every: int = 100
    places: int = 50
    seeds: int = 3
    workers: int | None = None


TINY = Size(
    ("float32", "E4M3, per tensor", "NVFP4"), ("float32", "kahan"), 1, 2, 16, 8, 4, 6, every=3, places=2,
    seeds=2, workers=1,
)  # fmt: skip


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`, in parts of four cases; ``device`` is "cpu"."""
    size, table = size or Size(), Table()
    cases = [("products", name, size.rate) for name in size.products]
    cases += [("weights", name, rate) for rate in (size.rate, size.slow) for name in size.weights]
    works = {
        f"cases from {n}": (lambda some=cases[n : n + 4]: rows(some, size)) for n in range(0, len(cases), 4)
    }
    return Plan(table, table.filled_by(works), dataclasses.asdict(size), context=one_thread)


def rows(cases, size):
    """One of each; results, of each seed: "loss", in nats a character of all the held-out text, and its
    "curve" on the way.
    """
    for (kind, name, rate), seconds, results in by_seed(run, cases, size.seeds, size, workers=size.workers):
        yield Row({"table": kind, kind: name, "rate": rate}, seconds, results=results)


def run(kind, name, rate, seed, size):
    """Trains one → {"loss", "curve", "seconds"}; seconds are of a step."""
    text = data.text()
    shape = (len(text.characters), size.context, size.layers, size.heads, size.width)
    net = Transformer(*shape, rate=rate, steps=size.steps, seed=seed)
    products = {key: w for key, w in net.parameters.items() if key[0].isdigit()}
    context = nullcontext()
    if kind == "products" and name != "float32":
        context = low_bits(CASES[name], products, seed)
    if kind == "weights" and name != "float32":
        Bfloat16Weights(net.optimizer, name, seed)
    draw, curve = data.stretches(text.train, size.batch, size.context, seed=seed), []
    start = timing.now()
    for n in range(size.steps):
        if n % size.every == 0:
            curve.append(round(characters.held_out_loss(net, text.held_out, size.places), 4))
        with context:
            net.step(*(half.T for half in next(draw)))
    seconds = (timing.now() - start) / size.steps
    return {"loss": characters.held_out_loss(net, text.held_out), "curve": curve, "seconds": seconds}


# The page
TITLE = "Training in eight and four bits"
MEANING = """A transformer of nanoGPT's size for a CPU on the characters of tiny Shakespeare. Losses in nats a
character of the last tenth of the text, one for each seed, and the mean of how far they are from float32's of
the same seed and rate. `products`: the blocks' products are of few bits, emulated; `weights`: these are
bfloat16, and how a step's sum is rounded."""


def against_float32(key):
    """The lines of a table: case, losses, their mean difference from float32's at the same rate."""

    def lines(rows):
        exact = {row.case["rate"]: row for row in rows if row.case[key] == "float32"}
        yield key, "rate", "loss, each seed", "− float32's"
        for row in rows:
            loss, base = row.results["loss"], exact[row.case["rate"]].results["loss"]
            apart = sum(mine - theirs for mine, theirs in zip(loss, base, strict=True)) / len(loss)
            losses = ", ".join(f"{each:.3f}" for each in loss)
            yield row.case[key], f"{row.case['rate']:g}", losses, f"{apart:+.3f}"

    return lines


PAGE = {name: [Shown(name, lines=against_float32(name))] for name in ("products", "weights")}
