"""Language models of characters on tiny Shakespeare, taught by other rules, each at its best rate.

The rate is chosen by runs of one seed, short ones of transformers and whole ones of what reads a
window; then each learns from three seeds at the size of nanoGPT's run on a CPU.
"""

import functools
from functools import partial

import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.shared.grid import search
from benchmarks.shared.harness import Size, one_thread
from ed_lib import data, timing
from ed_lib.ed.language import EDTransformer
from ed_lib.ed.relatives import Perceptron
from ed_lib.transformer import AVERAGES, held_out_loss, risen_and_fallen

shakespeare = functools.cache(data.text)

# Transformers: the rule of attention, and that of the perceptrons.
TRANSFORMERS = [
    ("backprop", "backprop"),
    ("broadcast", "broadcast"),
    ("frozen", "frozen"),
    ("backprop", "broadcast"),
    ("backprop", "frozen"),
]
# What reads a window: its rule, its hidden layers, and whether its weights are of one sign.
WINDOWS = [
    ("backprop", 2, False),
    ("sign", 2, False),
    ("local", 2, False),
    ("direct", 2, False),
    ("broadcast", 2, False),
    ("frozen", 2, False),
    ("backprop", 1, False),
    ("frozen", 2, True),
    ("backprop", 2, True),
    ("broadcast", 2, True),
    ("backprop", 0, False),
]
# The rate of attention in the table own_rate: the best of ("backprop", "frozen").
ATTENTION_RATE = 3e-3
# A step takes a batch of stretches of context characters, or as many windows. search: steps of a
# transformer's run that tries a rate. every: steps between two looks at so many places; at the end
# all the held-out text is read, or so many characters.
SIZE = Size(
    transformers=TRANSFORMERS, windows=WINDOWS, rates=(1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
    rates_of_windows=(1e-3, 3e-3, 1e-2, 3e-2), own_rates=(1e-5, 3e-5, 1e-4, 3e-4),
    layers=4, heads=4, width=128, context=64, window=8,
    hidden=(512, 512), batch=12, steps=2000, search=400, every=100, places=100, held_out=None,
)  # fmt: skip
TINY = SIZE.rehearsal(
    transformers=TRANSFORMERS[2:4],
    windows=WINDOWS[-2:],
    rates=(1e-3, 3e-3),
    rates_of_windows=(1e-3, 3e-3),
    own_rates=(1e-5, 3e-5),
    layers=1,
    heads=2,
    width=8,
    context=6,
    window=3,
    hidden=(10,),
    batch=4,
    steps=6,
    search=3,
    every=2,
    places=5,
    held_out=500,
    seeds=2,
)


def rows(size, device, table):
    """A row for each case; results: "tried", the losses at the rates; of each seed "loss", in nats
    a character of the held-out text, and "curve", the looks on the way.
    """
    how = {"score": "loss", "tried": "tried", "best": min}
    if table == "transformer":
        keys = "attention", "mlp"
        cases = [dict(zip(keys, case, strict=True)) for case in size.transformers]
        return search(transformer, cases, size.rates, size, **how)
    if table == "own_rate":
        cases = [{"attention": "backprop", "mlp": "broadcast"}]
        return search(own_rate, cases, size.own_rates, size, **how)
    keys = "rule", "hidden", "one_signed"
    cases = [dict(zip(keys, case, strict=True)) for case in size.windows]
    return search(window, cases, size.rates_of_windows, size, **how)


def transformer(attention, mlp, rate, seed, searching, size):
    """Trains one → {"loss", "curve", "seconds"}; seconds are of a step."""
    text = shakespeare()
    steps = size.search if searching else size.steps
    shape = len(text.characters), size.context, size.layers, size.heads, size.width
    model = EDTransformer(*shape, attention=attention, mlp=mlp, rate=rate, steps=steps, seed=seed)
    draw = data.stretches(text.train, size.batch, size.context, seed=seed)
    step = lambda: model.step(*(half.T for half in next(draw)))  # noqa: E731
    return taught(step, partial(held_out_loss, model), steps, size.places, text, size)


def own_rate(attention, mlp, rate, seed, searching, size):
    """Trains a transformer whose perceptrons have this rate, and all else ATTENTION_RATE: whole
    runs, also those that try a rate → {"loss", "curve", "seconds"}.
    """
    text = shakespeare()
    shape = len(text.characters), size.context, size.layers, size.heads, size.width
    model = EDTransformer(*shape, attention=attention, mlp=mlp, steps=size.steps, seed=seed)
    of_mlp = [w for name, w in model.parameters.items() if name.endswith((".up", ".down"))]
    rest = [w for name, w in model.parameters.items() if not name.endswith((".up", ".down"))]
    groups = [{"params": rest, "lr": ATTENTION_RATE}, {"params": of_mlp, "lr": rate}]
    model.optimizer = torch.optim.Adam(groups, betas=AVERAGES, fused=True)
    rises = partial(risen_and_fallen, steps=size.steps)
    model.schedule = LambdaLR(model.optimizer, rises)
    draw = data.stretches(text.train, size.batch, size.context, seed=seed)
    step = lambda: model.step(*(half.T for half in next(draw)))  # noqa: E731
    return taught(step, partial(held_out_loss, model), size.steps, size.places, text, size)


def window(rule, hidden, one_signed, rate, seed, searching, size):
    """Trains a perceptron that reads a window one-hot → {"loss", "curve", "seconds"}."""
    text = shakespeare()
    layers = size.hidden[:hidden]
    V = len(text.characters)
    T = size.window
    batch = size.batch * size.context
    options = {"one_signed": one_signed, "steps": size.steps, "seed": seed}
    net = Perceptron((T * V, *layers, V), rule, rate, **options)
    one_hot = torch.eye(V)
    draw = data.stretches(text.train, batch, T, seed=seed)

    def step():
        # Characters and those after them, (T, B) each.
        x, after = next(draw)
        # Of a window T characters, (B, T V), tell the one after the last, (B, V).
        net.step(one_hot[x.T].flatten(1), one_hot[after[-1]])

    def look(numbers, places=None):
        # Every window, and what comes after it: (n, T + 1).
        stretches = numbers.unfold(0, T + 1, 1)
        places = len(stretches) if places is None else min(places * size.context, len(stretches))
        chosen = stretches[torch.linspace(0, len(stretches) - 1, places).long()]
        shares = [net.forward(one_hot[some[:, :-1]].flatten(1)) for some in chosen.split(4096)]
        return F.nll_loss(torch.cat(shares).clamp(min=1e-30).log(), chosen[:, -1]).item()

    return taught(step, look, size.steps, size.places, text, size)


def taught(step, look, steps, places, text, size):
    """Takes the steps, looking at so many places on the way."""
    curve = []
    start = timing.now()
    for n in range(steps):
        if n % size.every == 0:
            curve.append(round(look(text.held_out, places), 4))
        step()
    seconds = (timing.now() - start) / steps
    return {"loss": look(text.held_out[: size.held_out]), "curve": curve, "seconds": seconds}


TABLES = {table: partial(rows, table=table) for table in ("window", "transformer", "own_rate")}
context = one_thread
