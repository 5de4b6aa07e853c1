"""Adam with averages of eight bits: the transformer of ``few_bits``, trained with each way to keep them."""

import dataclasses
import math
from dataclasses import dataclass, replace

import torch

from benchmarks import few_bits
from benchmarks.old_harness import Plan, Shown, Table, by_seed, one_thread
from benchmarks.old_records import Row
from ed_lib import data, timing
from ed_lib.ed import characters
from ed_lib.ed.gpt import Transformer
from ed_lib.precision.eight_bit_adam import Adam8bit

CASES = {
    "float32": None,
    "dynamic, blocks of 2048": {},
    "linear, blocks of 256": {"kind": "linear", "block": 256},
    "linear, a scale a matrix": {"kind": "linear", "block": None},
}
BETAS = (0.9, 0.99)  # as the network's own


@dataclass(frozen=True)
class Size(few_bits.Size):
    products: tuple = ()
    weights: tuple = ()
    states: tuple = tuple(CASES)
    every: int = 40


TINY = replace(
    Size(), states=("float32", "dynamic, blocks of 2048"), layers=1, heads=2, width=16, context=8, batch=4,
    steps=6, every=3, places=2, seeds=2, workers=1,
)  # fmt: skip


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`; ``device`` is "cpu"."""
    size, table = size or Size(), Table()
    works = {name: (lambda name=name: rows([(name,)], size)) for name in size.states}
    return Plan(table, table.filled_by(works), dataclasses.asdict(size), context=one_thread)


def rows(cases, size):
    """One of each; results, of each seed: "loss" at the end, "curve" on the way, "bytes" of the averages, and
    "steps". A run ends where its loss is no longer finite; its "loss" is None.
    """
    for (name,), seconds, results in by_seed(run, cases, size.seeds, size, workers=size.workers):
        yield Row({"table": "states", "states": name, "rate": size.rate}, seconds, results=results)


def run(name, seed, size):
    """Trains one → {"loss", "curve", "bytes", "seconds"}; seconds are of a step."""
    text = data.text()
    shape = (len(text.characters), size.context, size.layers, size.heads, size.width)
    net = Transformer(*shape, rate=size.rate, steps=size.steps, seed=seed)
    if name != "float32":
        put_in(net, Adam8bit(net.parameters.values(), size.rate, BETAS, **CASES[name]))
    draw, curve = data.stretches(text.train, size.batch, size.context, seed=seed), []
    start = timing.now()
    for n in range(size.steps):
        if n % size.every == 0:
            curve.append(round(characters.held_out_loss(net, text.held_out, size.places), 4))
        if not math.isfinite(net.step(*(half.T for half in next(draw)))):
            break
    seconds, whole = (timing.now() - start) / (n + 1), n + 1 == size.steps
    loss = characters.held_out_loss(net, text.held_out) if whole else None
    curve = [each if math.isfinite(each) else None for each in curve]
    found = {"loss": loss, "curve": curve, "bytes": bytes_of(net.optimizer), "steps": n + 1}
    return found | {"seconds": seconds}


def put_in(net, optimizer):
    """Gives a transformer another optimizer, with the schedule of its own."""
    schedule = net.schedule.lr_lambdas[0]
    net.optimizer, net.schedule = optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)


def bytes_of(optimizer):
    """Of the averages that it keeps."""
    if isinstance(optimizer, Adam8bit):
        return optimizer.bytes()
    states = optimizer.state.values()
    return sum(state[key].nbytes for state in states for key in ("exp_avg", "exp_avg_sq"))


# The page
TITLE = "Adam's averages in eight bits"
MEANING = """The transformer of few_bits, trained by Adam with its two averages kept in eight bits: codes
spread over seven decades ("dynamic") or evenly ("linear"), and a scale for each block of neighbours or for a
whole matrix. Losses in nats a character of the last tenth of the text, one for each seed."""


def ends(row):
    pairs = zip(row.results["loss"], row.results.get("steps", row.results["loss"]), strict=True)
    return ", ".join(f"{loss:.3f}" if loss else f"none after step {step}" for loss, step in pairs)


PAGE = {"states": [Shown(
    "Adam's averages", ("states",),
    (("loss, each seed", ends), ("MB", lambda row: f"{row.results['bytes'][0] / 1e6:.2f}")),
)]}  # fmt: skip
