"""Language models of characters on tiny Shakespeare, taught by other rules: all of a kind at the same rates.

The rate is chosen by runs of one seed, short ones of transformers and whole ones of what reads a window;
then each learns from three seeds at the size of nanoGPT's run on a CPU. The transformer's cases are (how
attention, how the perceptrons are taught, one-signed or not), those of the model that reads a window (the
rule, hidden layers or none, one-signed or not).
"""

import dataclasses
from dataclasses import dataclass, field

from benchmarks.old_harness import Plan, Shown, Table, one_thread, side_by_side, summary
from benchmarks.old_records import Row
from ed_lib import data, timing
from ed_lib.ed import characters
from ed_lib.ed.gpt import Transformer


@dataclass(frozen=True)
class Size:
    """``batch`` stretches of ``context`` characters a step; a window model sees as many places. ``rates`` and
    ``search``, the steps of a run that tries one, by kind. ``every``: steps between two looks at ``places``
    stretches, or as many windows as they have characters; at the end all the held-out text is read.
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
    rates: dict = field(
        default_factory=lambda: {
            "transformer": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
            "window": (1e-3, 3e-3, 1e-2, 3e-2),
        }
    )
    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64
    window: int = 8
    hidden: tuple = (512, 512)
    batch: int = 12
    steps: int = 2000
    search: dict = field(default_factory=lambda: {"transformer": 400, "window": 2000})
    every: int = 100
    places: int = 100
    seeds: int = 3
    workers: int | None = None  # None: as many as the machine has threads


TINY = Size(
    (("backprop", "backprop", False), ("frozen", "broadcast", True)),
    (("broadcast", True, True), ("backprop", False, False)),
    {"transformer": (1e-3, 1e-2), "window": (1e-3, 1e-2)}, 1, 2, 8, 6, 3, (10,), 4, 6,
    {"transformer": 3, "window": 6}, 2, 5, 2, 1,
)  # fmt: skip


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`; ``device`` is "cpu"."""
    size, table = size or Size(), Table()
    kinds = {"window": size.window_models, "transformer": size.transformers}
    works = {
        part(kind, case): (lambda kind=kind, case=case: rows(size, kind, [case]))
        for kind, cases in kinds.items()
        for case in cases
    }
    return Plan(table, table.filled_by(works), dataclasses.asdict(size), context=one_thread)


def part(kind, case):
    """A part for each case, since one takes minutes: its name."""
    first, second, one_signed = case
    hidden = {True: "hidden layers", False: "no hidden layer"}.get(second, second)
    return f"{kind}: {first}, {hidden}{', one-signed' * one_signed}"


def rows(size, kind, cases):
    """One for each case; results: "rates" and "tried", what was tried and the losses that it reached; of each
    seed "loss", in nats a character of all the held-out text, "curve", the looks on the way, and "cosine",
    of each matrix's direction with the gradient at the end, of a transformer.
    """
    rates, search = size.rates[kind], size.search[kind]
    tried = [(case, rate) for case in cases for rate in rates]
    found = side_by_side(run, [(kind, *case, rate, 0, search, size) for case, rate in tried], size.workers)
    found = dict(zip(tried, found, strict=True))
    best = {case: min(rates, key=lambda rate, case=case: found[case, rate]["loss"]) for case in cases}
    first = int(search == size.steps)  # then the first seed's whole run has been made
    jobs = [
        (kind, *case, best[case], n, size.steps, size) for case in cases for n in range(first, size.seeds)
    ]
    runs = side_by_side(run, jobs, size.workers)
    names = {"transformer": ("attention", "mlp", "one_signed"), "window": ("rule", "hidden", "one_signed")}
    for case in cases:
        of_seeds = [found[case, best[case]]] * first + [next(runs) for _ in range(first, size.seeds)]
        results = {"rates": list(rates), "tried": [found[case, rate]["loss"] for rate in rates]}
        results |= {name: [each[name] for each in of_seeds] for name in ("loss", "curve", "cosine", "sample")}
        key = {"table": kind} | dict(zip(names[kind], case, strict=True)) | {"rate": best[case]}
        yield Row(key, summary([each["seconds"] for each in of_seeds]), results=results)


def run(kind, first, second, one_signed, rate, seed, steps, size):
    """Trains one model → {"loss", "curve", "cosine", "sample", "seconds"}; seconds are of a step."""
    text = data.text()
    V, options = len(text.characters), {"rate": rate, "one_signed": one_signed, "steps": steps, "seed": seed}
    if kind == "transformer":
        shape = (V, size.context, size.layers, size.heads, size.width)
        model = Transformer(*shape, attention=first, mlp=second, **options)
        draw = ((x.T, y.T) for x, y in data.stretches(text.train, size.batch, size.context, seed=seed))
        places = size.places
    else:
        model = characters.WindowModel(V, size.window, size.hidden if second else (), first, **options)
        draw = characters.windows(text.train, size.window, size.batch * size.context, seed)
        places = size.places * size.context
    curve, start = [], timing.now()
    for n in range(steps):
        if n % size.every == 0:
            curve.append(round(characters.held_out_loss(model, text.held_out, places), 4))
        model.step(*next(draw))
    seconds, loss = (timing.now() - start) / steps, characters.held_out_loss(model, text.held_out)
    cosine = cosines(model, *next(draw)) if kind == "transformer" else {}
    said = characters.sample(model, "ROMEO:\nI", 300, text.characters, seed=seed)
    return {"loss": loss, "curve": curve, "cosine": cosine, "sample": said, "seconds": seconds}


def cosines(model, x, target):
    """{parameter: of its direction with the gradient}, for a batch, of those that learn."""
    model.directions(x, target)
    ours = {name: p.grad for name, p in model.parameters.items() if p.grad is not None}
    model.directions(x, target, ("backprop", "backprop"))
    pairs = {name: (grad.flatten(), model.parameters[name].grad.flatten()) for name, grad in ours.items()}
    return {
        name: round(float(a @ b / (a.norm() * b.norm()).clamp(min=1e-30)), 4)
        for name, (a, b) in pairs.items()
    }


# The page
TITLE = "A language model without a backward pass"
MEANING = """Models of the characters of tiny Shakespeare, at the size of nanoGPT's run on a CPU; losses in
nats a character of the last tenth of the text, one for each seed. How attention and how the perceptrons are
taught; one-signed: the weights of the perceptrons and scores have ED's signs. The rate is chosen by runs of
one seed: short ones of transformers, whole ones of what reads a window."""


def numbers(name):
    """The losses, one after another."""
    return lambda row: ", ".join(f"{value:.3f}" for value in row.results[name])


COLUMNS = ("at each rate", numbers("tried")), ("loss", numbers("loss"))
PAGE = {
    "transformer": [Shown("transformer", ("attention", "mlp", "one_signed", "rate"), COLUMNS)],
    "window": [
        Shown("a perceptron that reads eight characters", ("rule", "hidden", "one_signed", "rate"), COLUMNS)
    ],
}
