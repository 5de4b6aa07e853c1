"""What is lost in few bits: the loss of a small transformer on tiny Shakespeare, nanoGPT's for a
CPU, whose products are of four or eight bits, or whose weights are of sixteen.

All runs of a seed have the same start, batches and rate. The products are those of the blocks'
weights.
"""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from torch.nn import functional as F

from benchmarks.shared.harness import Size, one_thread, runs
from ed_lib import data, timing
from ed_lib.precision.low_bit_training import (
    A_ROW,
    FOUR,
    RECIPES,
    Bfloat16Weights,
    Recipe,
    Scaling,
    low_bits,
)
from ed_lib.transformer import Transformer, held_out_loss

NV = RECIPES["NVFP4"]
E2M1 = Scaling("e2m1")
ONE_LEVEL = {role: replace(getattr(NV, role), scale="e4m3") for role in "xwg"}
CASES = (
    {"float32": None}
    | RECIPES
    # The first are NVFP4, but for one of its parts.
    | {
        "NVFP4 without stochastic rounding": replace(NV, g=FOUR),
        "NVFP4 without Hadamard": replace(NV, hadamard=False),
        "NVFP4 without square blocks": replace(NV, w=FOUR),
        "NVFP4, scales of one level": replace(NV, **ONE_LEVEL),
        # x and w as in "E4M3, per tensor", g in four bits with one scale for a matrix
        "gradients E2M1": Recipe(g=E2M1),
        "gradients E2M1, Hadamard": Recipe(g=E2M1, hadamard=True),
        "gradients E2M1, stochastic": Recipe(g=replace(E2M1, stochastic=True)),
        "gradients E2M1, stochastic, Hadamard": Recipe(
            g=replace(E2M1, stochastic=True), hadamard=True
        ),
        # Between one scale for a matrix and one for a block: one for a row.
        "E2M1, per tensor": Recipe(E2M1, E2M1, E2M1),
        "gradients E2M1, per row": Recipe(g=A_ROW),
        "gradients E2M1, per row, stochastic": Recipe(g=replace(A_ROW, stochastic=True)),
    }
)
BY_ROW = (
    "E2M1, per row",
    "gradients E2M1, per row",
    "float32",
    "gradients E2M1, per row, stochastic",
    "E2M1, per tensor",
)
# One scale for a matrix of gradients, and so many of its numbers at most at the largest of E2M1.
CLIPPED = "float32", 0.97, 0.99, 0.995, 0.999
WEIGHTS = "float32", "nearest", "stochastic", "kahan"
SCALED = "float32", "E4M3, no scale", "hybrid, no scale", "NVFP4, scales of one level"
LOSS_SCALE = 2.0**12
RATE = 3e-3
# A low one, at which the weights of bfloat16 are tried as well.
SLOW = 1e-4


# A step takes a batch of stretches of context characters. shape: layers, heads, width. At the end
# all the held-out text is read, or so many characters.
SIZE = Size(
    products=[name for name in CASES if name == "float32" or name not in BY_ROW],
    scaled=SCALED,
    weights=WEIGHTS,
    by_row=BY_ROW,
    clipped=CLIPPED,
    context=64,
    shape=(4, 4, 128),
    batch=12,
    steps=800,
    held_out=None,
)
TINY = SIZE.rehearsal(
    products=("float32", "NVFP4"),
    scaled=SCALED[1:2],
    weights=("float32", "kahan"),
    by_row=BY_ROW[:1],
    clipped=CLIPPED[-1:],
    context=8,
    shape=(1, 2, 16),
    batch=4,
    steps=4,
    held_out=300,
)


def rows(size, device, kind):
    """Loss by recipe; of some with the loss times 2¹² and the gradients divided by it; by how a
    step's sum with weights of bfloat16 is rounded; by_row: of E2M1 with a scale for each row,
    beside one for the matrix; clipped: of gradients in E2M1 with one scale, the largest cut off.
    Results, of each seed: "loss", in nats a character. Seconds are of a step.
    """
    rates = [RATE, SLOW] if kind == "weights" else [RATE]
    cases = [{"name": name, "rate": rate} for rate in rates for name in getattr(size, kind)]
    for row in runs(run, cases, size, kind=kind):
        yield {kind: row.pop("name")} | row


def run(kind, name, rate, seed, size):
    """Trains one → {"loss", "seconds"}."""
    text = data.text()
    shape = len(text.characters), size.context, *size.shape
    net = Transformer(*shape, rate=rate, steps=size.steps, seed=seed)
    few = nullcontext()
    if kind == "weights" and name != "float32":
        Bfloat16Weights(net.optimizer, name, seed)
    elif name != "float32":
        # The weights of the blocks are named by a block's number.
        of_blocks = {key: w for key, w in net.parameters.items() if key[0].isdigit()}
        few = low_bits(CASES[name], of_blocks, seed) if name in CASES else Clipped(name, of_blocks)
    step = partial(scaled_step, net) if kind == "scaled" else net.step
    draw = data.stretches(text.train, size.batch, size.context, seed=seed)
    start = timing.now()
    for _ in range(size.steps):
        with few:
            # Characters and those after them, (B, T) each.
            step(*(half.T for half in next(draw)))
    seconds = (timing.now() - start) / size.steps
    return {"loss": held_out_loss(net, text.held_out[: size.held_out]), "seconds": seconds}


class Clipped(low_bits):
    """Gradients in E2M1 with one scale for a matrix. Only a share of its numbers fits: larger ones
    are clipped.
    """

    def __init__(self, share, weights):
        super().__init__(Recipe(g=E2M1), weights)
        self.share = share

    def round(self, name, role, x):
        if role == "g":
            most = x.abs().flatten().quantile(self.share)
            x = x.clamp(-most, most)
        return super().round(name, role, x)


def scaled_step(net, x, target, scale=LOSS_SCALE):
    """A step of a Transformer (B, T), as ``net.step`` makes it, with a loss scale."""
    loss = F.cross_entropy(net.forward(x).flatten(0, 1), target.flatten())
    net.optimizer.zero_grad()
    (scale * loss).backward()
    for p in net.parameters.values():
        p.grad /= scale
    net.optimizer.step()
    net.schedule.step()


context = one_thread
KINDS = "products", "scaled", "weights", "by_row", "clipped"
TABLES = {kind: partial(rows, kind=kind) for kind in KINDS}
