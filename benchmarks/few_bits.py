"""A small transformer on tiny Shakespeare whose products are of few bits, whose weights are of sixteen, or
whose Adam keeps its averages in eight.

nanoGPT's model for a CPU, as in the language models' benchmark, by backpropagation. All runs of a seed have
the same start, batches and rate; only the products of the blocks' weight matrices change, not the scores'.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmarks.harness import REHEARSAL, Training, one_thread, runs
from ed_lib import data, timing
from ed_lib.ed import language
from ed_lib.ed.language import Transformer
from ed_lib.precision.eight_bit_adam import Adam8bit
from ed_lib.precision.few_bits import FOUR, RECIPES, Bfloat16Weights, Recipe, Scaling, low_bits

NV, E2M1 = RECIPES["NVFP4"], Scaling("e2m1")
ONE_LEVEL = {role: replace(getattr(NV, role), scale="e4m3") for role in "xwg"}
CASES = (
    {"float32": None}
    | RECIPES
    | {  # the first are NVFP4, but for one of its parts
        "NVFP4 without stochastic rounding": replace(NV, g=FOUR),
        "NVFP4 without Hadamard": replace(NV, hadamard=False),
        "NVFP4 without square blocks": replace(NV, w=FOUR),
        "NVFP4, scales of one level": replace(NV, **ONE_LEVEL),
        # x and w as in "E4M3, per tensor", g in four bits with one scale for a matrix
        "gradients E2M1": Recipe(g=E2M1),
        "gradients E2M1, Hadamard": Recipe(g=E2M1, hadamard=True),
        "gradients E2M1, stochastic": Recipe(g=replace(E2M1, stochastic=True)),
        "gradients E2M1, stochastic, Hadamard": Recipe(g=replace(E2M1, stochastic=True), hadamard=True),
    }
)
WEIGHTS = "float32", "nearest", "stochastic", "kahan"
STATES = {  # how Adam's averages are kept
    "float32": None,
    "dynamic, blocks of 2048": {},
    "linear, blocks of 256": {"kind": "linear", "block": 256},
    "linear, a scale a matrix": {"kind": "linear", "block": None},
}
BETAS = (0.9, 0.99)  # as the network's own
RATE, SLOW = 3e-3, 1e-4  # a low one, at which the weights of bfloat16 are tried as well


@dataclass(frozen=True)
class Size(Training):
    """``batch`` stretches of ``context`` characters a step. ``every``: steps between two looks at ``places``
    stretches (``often`` where Adam's averages change); at the end all the held-out text is read.
    """

    products: tuple = tuple(CASES)
    weights: tuple = WEIGHTS
    states: tuple = tuple(STATES)
    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64
    batch: int = 12
    steps: int = 800
    every: int = 100
    often: int = 40
    places: int = 50
    held_out: int | None = None  # characters of the text that is read at the end; None: all


SIZE = Size()
TINY = Size(
    ("float32", "E4M3, per tensor", "NVFP4"), ("float32", "kahan"), ("float32", "dynamic, blocks of 2048"),
    1, 2, 16, 8, 4, 6, every=3, often=3, places=2, held_out=900, **REHEARSAL,
)  # fmt: skip


def rows(size, device, kind):
    """Loss by recipe; by how a step's sum with weights of bfloat16 is rounded; by how Adam's means are kept.

    Results, of each seed: "loss", in nats a character of all the held-out text, and its "curve" on the way;
    seconds are of a step. Of states also their "bytes", and "steps": a run ends where its loss is no longer
    finite, and its "loss" is None.
    """
    rates = [RATE, SLOW] if kind == "weights" else [RATE]
    cases = [{"name": name, "rate": rate} for rate in rates for name in getattr(size, kind)]
    for row in runs(run, cases, size.seeds, workers=size.workers, kind=kind, size=size):
        yield {kind: row.pop("name")} | row


def run(kind, name, rate, seed, size):
    """Trains one → {"loss", "curve", "seconds"}, of states also {"bytes", "steps"}."""
    text, context = data.text(), nullcontext()
    shape = (len(text.characters), size.context, size.layers, size.heads, size.width)
    net = Transformer(*shape, rate=rate, steps=size.steps, seed=seed)
    if kind == "products" and name != "float32":
        weights = {key: w for key, w in net.parameters.items() if key[0].isdigit()}
        context = low_bits(CASES[name], weights, seed)
    if kind == "weights" and name != "float32":
        Bfloat16Weights(net.optimizer, name, seed)
    if kind == "states" and name != "float32":
        schedule = net.schedule.lr_lambdas[0]
        net.optimizer = Adam8bit(net.parameters.values(), rate, BETAS, **STATES[name])
        net.schedule = torch.optim.lr_scheduler.LambdaLR(net.optimizer, schedule)
    draw, curve = data.stretches(text.train, size.batch, size.context, seed=seed), []
    every, start = size.often if kind == "states" else size.every, timing.now()
    for n in range(size.steps):
        if n % every == 0:
            curve.append(round(language.held_out_loss(net, text.held_out, size.places), 4))
        with context:
            loss = net.step(*(half.T for half in next(draw)))
        if kind == "states" and not math.isfinite(loss):
            break
    seconds, whole = (timing.now() - start) / (n + 1), n + 1 == size.steps
    found = {"loss": language.held_out_loss(net, text.held_out[: size.held_out]) if whole else None}
    found["curve"] = [each if math.isfinite(each) else None for each in curve]
    if kind == "states":
        found |= {"bytes": bytes_of(net.optimizer), "steps": n + 1}
    return found | {"seconds": seconds}


def bytes_of(optimizer):
    """Of the averages that it keeps."""
    if isinstance(optimizer, Adam8bit):
        return optimizer.bytes()
    states = optimizer.state.values()
    return sum(state[key].nbytes for state in states for key in ("exp_avg", "exp_avg_sq"))


context = one_thread
TABLES = {kind: partial(rows, kind=kind) for kind in ("products", "weights", "states")}
