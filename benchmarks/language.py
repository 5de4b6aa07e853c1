"""Language models of characters on tiny Shakespeare, taught by other rules: all of a kind at the same rates.

The rate is chosen by runs of one seed, short ones of transformers and whole ones of what reads a window;
then each learns from three seeds at the size of nanoGPT's run on a CPU.
"""

import functools
from dataclasses import dataclass
from functools import partial

from benchmarks.harness import REHEARSAL, Training, one_thread, search
from benchmarks.relatives import cosine
from ed_lib import data, timing
from ed_lib.ed import language
from ed_lib.ed.language import Transformer

shakespeare = functools.cache(data.text)


@dataclass(frozen=True)
class Size(Training):
    """The cases; ``batch`` stretches of ``context`` characters a step, or as many windows.
    ``search``: steps of a transformer's run that tries a rate. ``every``: steps between two looks at
    ``places`` stretches; at the end all the held-out text is read, or so many characters.
    """

    transformers: tuple = (
        ("backprop", "backprop", False), ("direct", "direct", False), ("broadcast", "broadcast", False),
        ("frozen", "broadcast", False), ("frozen", "broadcast", True), ("backprop", "broadcast", False),
        ("frozen", "backprop", False), ("frozen", "frozen", False),
    )  # fmt: skip
    window_models: tuple = (
        ("backprop", True, False), ("direct", True, False), ("broadcast", True, False),
        ("backprop", True, True), ("broadcast", True, True), ("backprop", False, False),
    )  # fmt: skip
    rates: tuple = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
    rates_of_windows: tuple = (1e-3, 3e-3, 1e-2, 3e-2)
    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64
    window: int = 8
    hidden: tuple = (512, 512)
    batch: int = 12
    steps: int = 2000
    search: int = 400
    every: int = 100
    places: int = 100
    held_out: int | None = None


SIZE = Size()
TINY = Size(
    (("backprop", "backprop", False), ("frozen", "broadcast", True)),
    (("broadcast", True, True), ("backprop", False, False)), (1e-3, 1e-2), (1e-3, 1e-2), 1, 2, 8, 6, 3, (10,),
    4, 6, 3, 2, 5, 500, **REHEARSAL,
)  # fmt: skip


def rows(size, device, table):
    """A row for each case; results: "tried", the losses at the rates; of each seed "loss", in nats a
    character of the held-out text, "curve", the looks on the way, and of transformers "cosine", of each
    matrix's direction with the gradient at the end.
    """
    function, keys, cases, rates = {
        "transformer": (transformer, ("attention", "mlp", "one_signed"), size.transformers, size.rates),
        "window": (window, ("rule", "hidden", "one_signed"), size.window_models, size.rates_of_windows),
    }[table]
    cases, options = [dict(zip(keys, case, strict=True)) for case in cases], {"score": "loss", "best": min}
    options |= {"tried": "tried", "workers": size.workers, "size": size}
    return search(function, cases, rates, size.seeds, **options)


def transformer(attention, mlp, one_signed, rate, seed, searching, size):
    """Trains one → {"loss", "curve", "cosine", "seconds"}; seconds are of a step."""
    text, steps = shakespeare(), size.search if searching else size.steps
    shape = len(text.characters), size.context, size.layers, size.heads, size.width
    options = {"rate": rate, "one_signed": one_signed, "steps": steps, "seed": seed}
    model = Transformer(*shape, attention=attention, mlp=mlp, **options)
    draw = ((x.T, y.T) for x, y in data.stretches(text.train, size.batch, size.context, seed=seed))
    return taught(model, draw, steps, size.places, text, size) | {"cosine": cosines(model, *next(draw))}


def window(rule, hidden, one_signed, rate, seed, searching, size):
    """Trains one → {"loss", "curve", "seconds"}."""
    text, layers = shakespeare(), size.hidden if hidden else ()
    options = {"rate": rate, "one_signed": one_signed, "steps": size.steps, "seed": seed}
    model = language.WindowModel(len(text.characters), size.window, layers, rule, **options)
    draw = language.windows(text.train, size.window, size.batch * size.context, seed)
    return taught(model, draw, size.steps, size.places * size.context, text, size)


def taught(model, draw, steps, places, text, size):
    """Trains a model on what is drawn, looking at so many places on the way."""
    curve, start = [], timing.now()
    for n in range(steps):
        if n % size.every == 0:
            curve.append(round(language.held_out_loss(model, text.held_out, places), 4))
        model.step(*next(draw))
    seconds = (timing.now() - start) / steps
    loss = language.held_out_loss(model, text.held_out[: size.held_out])
    return {"loss": loss, "curve": curve, "seconds": seconds}


def cosines(model, x, target):
    """{parameter: of its direction with the gradient}, for a batch, of those that learn."""
    model.directions(x, target)
    ours = {name: p.grad for name, p in model.parameters.items() if p.grad is not None}
    model.directions(x, target, ("backprop", "backprop"))
    return {name: cosine(grad, model.parameters[name].grad) for name, grad in ours.items()}


TABLES = {table: partial(rows, table=table) for table in ("window", "transformer")}
context = one_thread
