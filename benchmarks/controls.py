"""Controls for the benchmarks of rules and of language models, by the same grids and seeds as theirs.

Perceptrons of which only the last layer learns, from random features: what a rule for hidden layers has to
beat. The transformer whose attention learns by the gradient while its perceptrons stay as drawn: what a rule
for perceptrons has to beat there. And a model that reads a window, by sign symmetry and by local classifiers,
the two rules that keep up with backpropagation on images.
"""

import dataclasses
from dataclasses import dataclass, field, replace

import torch

from benchmarks import language, relatives
from benchmarks.old_harness import Plan, Shown, Table, images, one_thread, side_by_side, summary
from benchmarks.old_records import Row
from ed_lib import data, timing
from ed_lib.ed.learner import accuracy
from ed_lib.ed.relatives import Perceptron

MODELS = {
    "transformer": (("backprop", "frozen", False),),
    "window": (("sign", True, False), ("local", True, False)),
}


@dataclass(frozen=True)
class Size:
    """Those of the two benchmarks."""

    images: relatives.Size = relatives.Size()
    text: language.Size = field(default_factory=language.Size)


TINY = Size(
    relatives.TINY, replace(language.TINY, rates={"transformer": (1e-3, 1e-2), "window": (1e-3, 1e-2)})
)


class LastOnly(Perceptron):
    """Hidden layers that stay as they were drawn."""

    def deltas(self, target, rule=None):
        *hidden, last = super().deltas(target, rule)
        return [*map(torch.zeros_like, hidden), last]


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`; ``device`` is "cpu"."""
    size, table = size or Size(), Table()
    works = {task: (lambda task=task: random_features(size.images, task)) for task in relatives.TASKS}
    works |= {
        language.part(kind, case): (lambda kind=kind, case=case: language.rows(size.text, kind, [case]))
        for kind, cases in MODELS.items()
        for case in cases
    }
    return Plan(table, table.filled_by(works), dataclasses.asdict(size), context=one_thread)


def random_features(size, task):
    """One for each network; results: as those of :func:`benchmarks.relatives.rows`, without cosines."""
    for network in ("free", "one-signed"):
        jobs = [(task, network, rate, 0, True, size) for rate in size.rates]
        kept = [each["right"] for each in side_by_side(run, jobs, size.workers)]
        rate = size.rates[kept.index(max(kept))]
        jobs = [(task, network, rate, seed, False, size) for seed in range(size.seeds)]
        runs = list(side_by_side(run, jobs, size.workers))
        case = {"table": task, "network": network, "rule": "the last layer only", "rate": rate}
        results = {"rates": list(size.rates), "kept": kept, "test": [each["right"] for each in runs]}
        yield Row(case, summary([each["seconds"] for each in runs]), results=results)


def run(task, network, rate, seed, searching, size):
    """Trains one last layer → {"right", "seconds"}."""
    (x, labels), test = images(relatives.TASKS[task], size.offline)
    if searching:
        test, x, labels = (x[-size.kept :], labels[-size.kept :]), x[: -size.kept], labels[: -size.kept]
    widths, steps = (x.shape[1], *size.hidden, int(labels.max()) + 1), size.epochs * -(-len(x) // size.batch)
    net = LastOnly(widths, rate=rate, one_signed=network == "one-signed", steps=steps, seed=seed)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(data.one_hot(labels, widths[-1]))
    start = timing.now()
    for epoch in range(size.epochs):
        for some in data.batches(len(x), size.batch, seed=1000 * seed + epoch):
            net.step(inputs[some], targets[some])
    return {"right": accuracy(net, *test), "seconds": timing.now() - start}


# The page
TITLE = "Controls for rules without a backward pass"
MEANING = """What other benchmarks' numbers are compared with, by their grids of rates and their seeds: of
perceptrons only the last layer learns (shares of test images right, in per cent); of language models the
rules that are named (losses in nats a character of the last tenth of tiny Shakespeare). One for each seed."""
RIGHT = ("kept out, at each rate", relatives.percent("kept")), ("test", relatives.percent("test"))
PAGE = {task: [Shown(task, ("network", "rule", "rate"), RIGHT)] for task in relatives.TASKS} | language.PAGE
