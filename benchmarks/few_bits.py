"""A small transformer on tiny Shakespeare whose products are of few bits, whose weights are of sixteen, or
whose Adam keeps its averages in eight: nanoGPT's model for a CPU.

All runs of a seed have the same start, batches and rate. The products are those of the blocks' weights.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.nn import functional as F

from benchmarks.harness import REHEARSAL, Training, one_thread, runs
from ed_lib import data, timing
from ed_lib.ed import language
from ed_lib.ed.language import Transformer
from ed_lib.precision.eight_bit_adam import Adam8bit
from ed_lib.precision.low_bit_training import FOUR, RECIPES, Bfloat16Weights, Recipe, Scaling, low_bits

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
SCALED = "float32", "E4M3, no scale", "hybrid, no scale", "NVFP4, scales of one level"
LOSS_SCALE = 2.0**12
BETAS = (0.9, 0.99)  # as the network's own
RATE, SLOW = 3e-3, 1e-4  # a low one, at which the weights of bfloat16 are tried as well


@dataclass(frozen=True)
class Size(Training):
    """``batch`` stretches of ``context`` characters a step. ``every``: steps between looks at ``places``."""

    products: tuple = tuple(CASES)
    scaled: tuple = SCALED
    weights: tuple = WEIGHTS
    states: tuple = tuple(STATES)
    context: int = 64
    shape: tuple = (4, 4, 128)  # layers, heads, width
    batch: int = 12
    steps: int = 800
    every: int = 40
    places: int = 50
    held_out: int | None = None  # characters of the text that is read at the end; None: all


SIZE = Size()
TINY = Size(
    ("float32", "NVFP4"), ("E4M3, no scale",), ("float32", "kahan"), ("float32", "dynamic, blocks of 2048"),
    8, (1, 2, 16), 4, 4, every=3, places=2, held_out=300, **REHEARSAL | {"seeds": 1},
)  # fmt: skip


def rows(size, device, kind):
    """Loss by recipe; of some with the loss times 2¹² and the gradients divided by it; by how a step's sum
    with weights of bfloat16 is rounded; by how Adam's means are kept.

    Results, of each seed: "loss", in nats a character, and of states its "curve", "bytes", and "steps": a run
    ends where its loss is no longer finite, and its "loss" is None. Seconds are of a step.
    """
    rates = [RATE, SLOW] if kind == "weights" else [RATE]
    cases = [{"name": name, "rate": rate} for rate in rates for name in getattr(size, kind)]
    for row in runs(run, cases, size, kind=kind):
        yield {kind: row.pop("name")} | row


def run(kind, name, rate, seed, size):
    """Trains one → {"loss", "seconds"}, of states also {"curve", "bytes", "steps"}."""
    text, states = data.text(), kind == "states"
    shape = len(text.characters), size.context, *size.shape
    net = Transformer(*shape, rate=rate, steps=size.steps, seed=seed)
    context = nullcontext() if name == "float32" else changed(net, kind, name, rate, seed)
    draw, curve, start = data.stretches(text.train, size.batch, size.context, seed=seed), [], timing.now()
    for n in range(size.steps):
        if states and n % size.every == 0:
            loss = language.held_out_loss(net, text.held_out, size.places)
            curve.append(round(loss, 4) if math.isfinite(loss) else None)
        with context:
            x, target = (half.T for half in next(draw))  # (B, T) each
            loss = scaled_step(net, x, target) if kind == "scaled" else net.step(x, target)
        if states and not math.isfinite(loss):
            break
    found = {"seconds": (timing.now() - start) / (n + 1), "loss": None}
    if n + 1 == size.steps:
        found["loss"] = language.held_out_loss(net, text.held_out[: size.held_out])
    more = {"curve": curve, "bytes": bytes_of(net.optimizer), "steps": n + 1}
    return found | (more if states else {})


def changed(net, kind, name, rate, seed):
    """Changes what a network trains in → the context of its steps."""
    if kind in ("products", "scaled"):
        weights = {key: w for key, w in net.parameters.items() if key[0].isdigit()}
        return low_bits(CASES[name], weights, seed)
    if kind == "weights":
        Bfloat16Weights(net.optimizer, name, seed)
    else:
        schedule = net.schedule.lr_lambdas[0]
        net.optimizer = Adam8bit(net.parameters.values(), rate, BETAS, **STATES[name])
        net.schedule = torch.optim.lr_scheduler.LambdaLR(net.optimizer, schedule)
    return nullcontext()


def scaled_step(net, x, target, scale=LOSS_SCALE):
    """A step of a Transformer (B, T), as ``net.step`` makes it, with a loss scale."""
    loss = F.cross_entropy(net.forward(x).flatten(0, 1), target.flatten())
    net.optimizer.zero_grad()
    (scale * loss).backward()
    for p in net.parameters.values():
        p.grad /= scale
    net.optimizer.step()
    net.schedule.step()
    return loss.item()


def bytes_of(optimizer):
    """Of the averages that it keeps."""
    if isinstance(optimizer, Adam8bit):
        return optimizer.bytes()
    return sum(state[key].nbytes for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq"))


context = one_thread
TABLES = {kind: partial(rows, kind=kind) for kind in ("products", "scaled", "weights", "states")}
