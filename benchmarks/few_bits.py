"""What is lost in few bits: the loss of a small transformer on tiny Shakespeare, nanoGPT's for a CPU, whose
products are of four or eight bits, whose weights are of sixteen, or whose Adam has averages of eight.

All runs of a seed have the same start, batches and rate. The products are those of the blocks' weights.
"""

import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional as F

from benchmarks.harness import Size, one_thread, runs
from ed_lib import data, timing
from ed_lib.ed import language
from ed_lib.ed.language import Transformer
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
SMALL = 4096  # parameters of fewer numbers keep averages in float32, as in bitsandbytes and torchao
STATES = {  # how Adam's averages are kept
    "float32": None,
    "dynamic, blocks of 2048": {},
    "linear, blocks of 256": {"kind": "linear", "block": 256},
    "linear, blocks of 256, ε = 1e-5": {"kind": "linear", "block": 256, "eps": 1e-5},
    "linear, a scale a matrix": {"kind": "linear", "block": None},
}
SCALED = "float32", "E4M3, no scale", "hybrid, no scale", "NVFP4, scales of one level"
LOSS_SCALE = 2.0**12
AVERAGES = "mean", "square"  # of gradients
BETAS = (0.9, 0.99)  # as the network's own
RATE, SLOW = 3e-3, 1e-4  # a low one, at which the weights of bfloat16 are tried as well


# A step takes a batch of stretches of context characters. shape: layers, heads, width. every: steps between
# looks at so many places; at the end all the held-out text is read, or so many characters.
SIZE = Size(products=[*CASES], scaled=SCALED, weights=WEIGHTS, states=[*STATES], context=64,
            shape=(4, 4, 128), batch=12, steps=800, every=40, places=50, held_out=None)  # fmt: skip
TINY = SIZE.rehearsal(
    products=("float32", "NVFP4"), scaled=SCALED[1:2], weights=("float32", "kahan"), states=[*STATES][:2],
    context=8, shape=(1, 2, 16), batch=4, steps=4, every=3, places=2, held_out=300,
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


class Adam8bit(torch.optim.Optimizer):
    """``torch.optim.Adam`` with averages of eight bits: 2 bytes a weight in place of 8 (T. Dettmers and
    others, 2021, arXiv 2110.02861). kind: of the codes, as :func:`numbers` has them; block: so many
    neighbours share a scale, the largest magnitude among them; None: a whole parameter does.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, kind="dynamic", block=2048):
        self.block, self.tables = block, (numbers(kind, True), numbers(kind, False))
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self):
        """Each weight by Adam's formula; the averages are float32 only while they are at work."""
        for group in self.param_groups:
            for p in [p for p in group["params"] if p.grad is not None]:
                self.move(p, p.grad, self.state[p], **group)

    def move(self, p, g, state, lr, betas, eps, **_):
        """One step of a parameter with the gradient g."""
        n, averages = state.get("step", 0) + 1, []
        state["step"] = n
        for key, table, beta, new in zip(AVERAGES, self.tables, betas, (g, g**2), strict=True):
            table, kept = table.to(p.device), [*state.get(key, [torch.zeros_like(p)])]
            before = kept[0] if len(kept) == 1 else decode(*kept, table, p)
            average = beta * before + (1 - beta) * new
            state[key] = encode(average, table, self.block or p.numel()) if p.numel() >= SMALL else (average,)
            averages.append(average / (1 - beta**n))
        mean, square = averages
        p.sub_(lr * mean / (square.sqrt() + eps))


def numbers(kind, signed):
    """What the 256 codes stand for, ascending, float32 (256,). "linear": evenly spaced. "dynamic": half of
    them between 0.1 and 1, half of the rest in the decade below, and so on down to 10⁻⁷; and 0 and 1.
    """
    if kind == "linear":
        return torch.arange(-127, 129) / 127 if signed else torch.arange(256) / 255
    found = [torch.tensor([0.0, 1.0])]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (6 - decade + (not signed)) + 1)
        middles = 10.0**-decade * (edges[1:] + edges[:-1]) / 2
        found += [middles, -middles] if signed else [middles]
    return torch.cat(found).sort().values


def encode(x, table, block):
    """x of n numbers → the nearest codes, uint8 (blocks, block), filled up with 0, and scales (blocks,). NaN
    counts as 0 and infinity as the largest number, so that they do not reach their neighbours.
    """
    rows = F.pad(x.flatten().nan_to_num(), (0, -x.numel() % block)).view(-1, block)
    scale = rows.abs().amax(1)  # (blocks,)
    middles = (table[1:] + table[:-1]) / 2  # from here on the next code is nearer
    share = rows / scale.clamp(min=1e-38)[:, None]  # −1 to 1
    return torch.bucketize(share, middles, right=True).to(torch.uint8), scale


def decode(codes, scale, table, like):
    """The numbers of :func:`encode`'s codes, in the shape of ``like``."""
    return (table[codes.int()] * scale[:, None]).flatten()[: like.numel()].view(like.shape)


def bytes_of(optimizer):
    """Of the averages that it keeps."""
    keys = AVERAGES if isinstance(optimizer, Adam8bit) else ("exp_avg", "exp_avg_sq")
    kept = (state[key] for state in optimizer.state.values() for key in keys)
    return sum(t.nbytes for each in kept for t in (each if isinstance(each, tuple) else [each]))


context = one_thread
TABLES = {kind: partial(rows, kind=kind) for kind in ("products", "scaled", "weights", "states")}
