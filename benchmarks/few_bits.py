"""A small transformer on tiny Shakespeare whose products are of few bits, or whose weights are of sixteen.

nanoGPT's model for a CPU, as in the language models' benchmark, by backpropagation. All runs of a seed have
the same start, batches and rate; only the products of the blocks' weight matrices change, not the scores'.
"""

import dataclasses
from contextlib import nullcontext
from dataclasses import dataclass, replace

from benchmarks.harness import Plan, Shown, Table, one_thread, side_by_side, summary
from ed_lib import texts, timing
from ed_lib.ed import characters
from ed_lib.ed.gpt import Transformer
from ed_lib.precision.few_bits import FOUR, RECIPES, Bfloat16Weights, Scaling, low_bits
from ed_lib.records import Row

NV, ONE_LEVEL = RECIPES["NVFP4"], {"scale": "e4m3"}
CASES = RECIPES | {
    "NVFP4 without stochastic rounding": replace(NV, g=FOUR),
    "NVFP4 without Hadamard": replace(NV, hadamard=False),
    "NVFP4 without square blocks": replace(NV, w=FOUR),
    "NVFP4, scales of one level": replace(
        NV, **{role: replace(getattr(NV, role), **ONE_LEVEL) for role in "xwg"}
    ),
    "NVFP4, all stochastic": replace(
        NV, **{role: replace(getattr(NV, role), stochastic=True) for role in "xwg"}
    ),
    "E2M1, one scale for a matrix": replace(NV, x=Scaling("e2m1"), w=Scaling("e2m1"), g=Scaling("e2m1")),
}  # fmt: skip
WEIGHTS = "nearest", "stochastic", "kahan"


@dataclass(frozen=True)
class Size:
    """``batch`` stretches of ``context`` characters a step; ``slow``: the rate at which weights of bfloat16
    are tried beside ``rate``. ``every``: steps between two looks at ``places`` stretches; at the end all the
    held-out text is read.
    """

    recipes: tuple = tuple(CASES)
    weights: tuple = WEIGHTS
    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64
    batch: int = 12
    steps: int = 1000
    rate: float = 3e-3
    slow: float = 1e-4
    every: int = 100
    places: int = 50
    seeds: int = 3
    workers: int | None = None


TINY = Size(("per tensor", "NVFP4"), ("kahan",), 1, 2, 16, 8, 4, 6, every=3, places=2, seeds=2, workers=1)


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`; ``device`` is "cpu"."""
    size, table = size or Size(), Table()
    works = {"products: float32": lambda: rows(size, "products", "float32", size.rate)}
    works |= {
        f"products: {name}": (lambda name=name: rows(size, "products", name, size.rate))
        for name in size.recipes
    }
    works |= {
        f"weights: {name}, {rate:g}": (lambda name=name, rate=rate: rows(size, "weights", name, rate))
        for rate in (size.rate, size.slow)
        for name in ("float32", *size.weights)
        if (name, rate) != ("float32", size.rate)
    }
    return Plan(table, table.filled_by(works), dataclasses.asdict(size), context=one_thread)


def rows(size, kind, name, rate):
    """One; results, of each seed: "loss", in nats a character of all the held-out text, and the "curve"."""
    jobs = [(kind, name, rate, seed, size) for seed in range(size.seeds)]
    runs = list(side_by_side(run, jobs, size.workers))
    case = {"table": kind, kind: name, "rate": rate}
    results = {key: [each[key] for each in runs] for key in ("loss", "curve")}
    yield Row(case, summary([each["seconds"] for each in runs]), results=results)


def run(kind, name, rate, seed, size):
    """Trains one → {"loss", "curve", "seconds"}; seconds are of a step."""
    text = texts.load()
    shape = (len(text.characters), size.context, size.layers, size.heads, size.width)
    net = Transformer(*shape, rate=rate, steps=size.steps, seed=seed)
    products = {key: w for key, w in net.parameters.items() if key[0].isdigit()}
    context = nullcontext()
    if kind == "products" and name != "float32":
        context = low_bits(CASES[name], products, seed)
    if kind == "weights" and name != "float32":
        Bfloat16Weights(net.optimizer, name, seed)
    draw, curve = texts.batches(text.train, size.batch, size.context, seed=seed), []
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
character of the last tenth of the text, one for each seed. `products`: the blocks' products are of few bits,
emulated; `weights`: these are bfloat16, and how a step's sum is rounded."""


def numbers(name):
    """The losses, one after another."""
    return lambda row: ", ".join(f"{value:.3f}" for value in row.results[name])


PAGE = {
    "products": [Shown("products", ("products",), (("loss", numbers("loss")),))],
    "weights": [Shown("weights", ("weights", "rate"), (("loss", numbers("loss")),))],
}
