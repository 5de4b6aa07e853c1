"""How well ED learns: ten classes, against backpropagation in its own architecture and against an
ordinary network of as many cells; and with layers frozen.

The last of the training images are held out: rates are chosen by the accuracy on those of one short
run each, along grids that grow until the best is at no edge.
"""

import functools
import itertools

import torch

from benchmarks.shared import harness
from benchmarks.shared.grid import search
from benchmarks.shared.networks import Ordinary
from ed_lib import data
from ed_lib.ed import EDNetwork, learner

BATCH = 64
METHODS = [
    {"method": "ed", "rule": "kaneko"}, {"method": "ed", "rule": "signed"},
    {"method": "squared", "rule": "signed"}, {"method": "cross_entropy", "rule": "signed"},
    # As many cells, joined as usual, by backpropagation.
    {"method": "ordinary", "rule": ""},
]  # fmt: skip
# few: training images of a run that tries a rate; a long one takes so many passes over all. width:
# pairs of cells for each class. sgd, adam: where the grids begin.
SIZE = harness.Size(
    few=12_000,
    held_out=6_000,
    passes=5,
    width=64,
    stack=1024,
    article=4096,
    sets=("mnist", "fashion-mnist"),
    sgd=(0.03, 0.1, 0.3),
    adam=(3e-4, 1e-3, 3e-3),
)
TINY = SIZE.rehearsal(
    few=128,
    passes=1,
    width=3,
    stack=3,
    article=4,
    sets=("mnist",),
    sgd=(0.1, 0.3),
    adam=(1e-3, 3e-3),
)


def ten_classes(size, device):
    """The ten-class task in full, each method with either optimizer at its best rate; results:
    "kept", what each rate reached on the images held out; by seed that of the best, "held_out", the
    tests' "accuracy".
    """
    grids = {"sgd": size.sgd, "adam": size.adam}
    sizes = {"width": size.width, "passes": size.passes}
    for of, method, name in itertools.product(size.sets, METHODS, grids):
        case = {"data": of} | method | {"optimizer": name} | sizes
        yield from search(run, [case], grids[name], size, score="held_out")


def frozen(size, device):
    """Only some layers learning, in a deep stack and in the article's own network; and no stack at
    all.
    """
    ours = {
        "task": "zero or one",
        "rule": "kaneko",
        "rate": 0.2,
        "depth": size.stack,
        "init": "fan_in",
    }
    article = ours | {"rule": "signed", "rate": 0.8, "depth": size.article, "init": "half_normal"}
    stacks = [ours, ours | {"task": "even or odd"}, article]
    learns = learner.LAYERS, ("input",), ("hidden",), ("output",)
    cases = [one | {"learns": names} for one in stacks for names in learns]
    cases += [one | {"depth": 0} for one in stacks]
    return harness.runs(run, cases, size, decay=False)


def run(seed, size, *, data="mnist", task="ten classes", passes=1, searching=False, **case):
    """One run with one seed → {"held_out", "accuracy", "seconds"}. searching: a short one."""
    passes, few = (1, size.few) if searching else (passes, None)
    torch.set_flush_denormal(True)
    (inputs, labels), test = images(data, task, size.whole)
    # Where there are few images, a sixth of them judges.
    out = min(size.held_out, len(labels) // 6)
    judge = inputs[-out:], labels[-out:]
    kept = min(few or len(labels), len(labels) - out)
    pupil = a_learner(seed, passes * -(-kept // BATCH), classes=int(labels.max()) + 1, **case)
    options = {"epochs": passes, "batch": BATCH, "every": 10**9, "seed": 1000 * seed}
    history = learner.fit(pupil, (inputs[:kept], labels[:kept]), judge, **options)
    return {
        "held_out": round(history.accuracy[-1], 5),
        "accuracy": round(learner.accuracy(pupil.net, *test), 5),
        "seconds": sum(history.seconds),
    }


def a_learner(
    seed,
    steps,
    classes,
    *,
    rate,
    method="ed",
    rule="signed",
    optimizer="sgd",
    width=32,
    depth=0,
    init="fan_in",
    learns=learner.LAYERS,
    decay=True,
):
    """The learner of a run; ``steps`` of them in all."""
    k = classes if classes > 2 else 1
    steps = steps if decay else None
    if method == "ordinary":
        hidden = [2 * width * k] * (depth + 1)
        return Ordinary((784, *hidden, k), optimizer, rate, steps=steps, seed=seed)
    net = EDNetwork(784, width, depth, k, rule=rule, init=init, seed=seed, backend="torch")
    return learner.Learner(net, method, optimizer, rate, steps=steps, layers=learns)


@functools.cache
def images(name, task, whole):
    """((inputs, labels), (inputs, labels)): the training and the test images of a task."""
    pairs = harness.images(name, whole)
    if task == "zero or one":
        return [data.pick(*pair, [0, 1]) for pair in pairs]
    return [(x, y % 2 if task == "even or odd" else y) for x, y in pairs]


TABLES = {"ten": ten_classes, "freeze": frozen}
context = functools.partial(harness.one_thread, flush_denormal=True)
