"""Many devices: what is learned. Long training runs, run by name only.

The source's run of LeNet goes first, alone, since its seconds are compared. All others go side by side, as
many as the machine has threads, with one thread each: only their accuracies count.
"""

import dataclasses
from dataclasses import dataclass

import torch

from benchmarks import asynchronous, data_parallel
from benchmarks.old_harness import Plan, Shown, Table, by_seed, images, mean_of, one_thread
from benchmarks.old_records import Row
from ed_lib.ed import EDNetwork
from ed_lib.ed.learner import fit
from ed_lib.parallel.ed.delay import Delayed, delays


@dataclass(frozen=True)
class Streaming:
    """How much streaming ED is trained: on the first ``images`` of MNIST, once, in batches of ``batch``."""

    images: int = 8_000
    batch: int = 16
    width: int = 32
    depth: int = 8
    stages: tuple = (1, 2, 4, 8)
    rules: tuple = ("kaneko", "signed")
    rates: tuple = (0.003, 0.01, 0.03, 0.1, 0.3)
    seeds: int = 3
    workers: int | None = None  # None: as many as the machine has threads
    offline: bool = False


@dataclass(frozen=True)
class Size:
    """How much is run; ``virtual``: the arguments of :func:`benchmarks.asynchronous.accuracies`."""

    lenet: data_parallel.Training = data_parallel.Training()
    virtual: dict = dataclasses.field(
        default_factory=lambda: {"n_tasks": 3000, "seeds": 3, "lrs": asynchronous.LRS}
    )
    streaming: Streaming = Streaming()


TINY = Size(data_parallel.FEW, {"n_tasks": 200, "seeds": 2, "lrs": (0.05, 1e30), "few": 360, "offline": True},
            Streaming(200, 16, 4, 4, (1, 2, 4), ("signed",), (0.02, 0.1), 2, 1, True))  # fmt: skip


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`, of a part for each table; ``device`` is "cpu"."""
    size, table = size or Size(), Table()
    works = {
        "source": lambda: data_parallel.source(size.lenet),
        "scaling": lambda: data_parallel.scaling(size.lenet),
        "asynchronous, accuracy": lambda: asynchronous.accuracies(**size.virtual),
        "streaming ED": lambda: streaming(size.streaming),
    }
    parameters = dataclasses.asdict(size) | {"threads": "1 in each process"}
    return Plan(table, table.filled_by(works), parameters, context=one_thread, tables=True)


def streaming(size=None):
    """ED in a pipeline that never waits: {table: "streaming ED", rule, stages, rate, …} → rows.

    One network for each of the ten classes; stages = 1 is ED without delay. Results: the "accuracy" on the
    10,000 test images, for each seed. "longest_delay": of the first stage, in batches.
    """
    size = size or Streaming()
    cases = [(rule, p, rate) for rule in size.rules for p in size.stages for rate in size.rates]
    runs = by_seed(streamed, cases, size.seeds, size, workers=size.workers)
    for (rule, p, rate), seconds, results in runs:
        longest = int(delays(size.depth, p).max())
        case = {"table": "streaming ED", "rule": rule, "stages": p, "longest_delay": longest, "rate": rate}
        case |= {"width": size.width, "depth": size.depth, "batch": size.batch, "images": size.images}
        yield Row(case, seconds, results=results)


def streamed(rule, stages, rate, seed, size):
    """One run → accuracy on the test images, and seconds."""
    torch.set_flush_denormal(True)
    (inputs, labels), test = images("mnist", size.offline)
    sizes = inputs.shape[1], size.width, size.depth, 10
    net = EDNetwork(*sizes, rule=rule, init="fan_in", backend="torch", seed=seed)
    learner = Delayed(net, "ed", "sgd", rate, late=delays(size.depth, stages))
    few = inputs[: size.images], labels[: size.images]
    history = fit(learner, few, test, batch=size.batch, every=10**9, seed=1000 * seed)
    return {"accuracy": history.accuracy[-1], "seconds": sum(history.seconds)}


# The page
TITLE = "What is learned on many devices"
MEANING = """No choice was made by these accuracies: every rate stands there, with the accuracy on the test
images."""


PAGE = {
    "source": [Shown(
        "LeNet on Fashion-MNIST as in the source (there on one GPU 0.82, 3.7 s an epoch; on two 0.82, 3.8 s)",
        ("how", "devices", "batch", "lr", "images", "epochs", "seeds"), ("accuracy", ("an epoch", "time")),
    )],
    "scaling": [Shown(
        "LeNet with a larger batch on more simulated devices",
        ("devices", "batch", "policy", "images", "epochs", "seeds"), ("accuracy",),
    )],
    "asynchronous, accuracy": [Shown(
        "Servers and workers on a virtual clock: accuracy after the same number of gradients",
        ("method", "data", "gradients"), best=("lr", mean_of("accuracy")),
    )],
    "streaming ED": [Shown(
        "Streaming ED: accuracy by the number of stages, of which the first is the latest",
        ("rule", "stages", "longest_delay", "images"), best=("rate", mean_of("accuracy")),
    )],
}  # fmt: skip
