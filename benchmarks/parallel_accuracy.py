"""Many devices: what is learned. Long training runs, run by name only.

The source's run of LeNet goes first, alone, since its seconds are compared. All others go side by side, as
many as the machine has threads, with one thread each: only their accuracies count.
"""

import dataclasses
import functools
from dataclasses import dataclass

import torch
from joblib import Parallel, delayed, parallel_config

from benchmarks import asynchronous, data_parallel
from ed_lib import data, machine, records
from ed_lib.ed import EDNetwork, training
from ed_lib.parallel.ed_delay import Delayed, delays
from ed_lib.records import Row


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


def run(device="cpu", size=None):
    """Trains everything → an :class:`ed_lib.records.Record` of this machine's CPU; ``device`` is "cpu"."""
    size = size or Size()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = data_parallel.source(size.lenet)
    rows += data_parallel.scaling(size.lenet)
    rows += asynchronous.accuracies(**size.virtual)
    rows += streaming(size.streaming)
    parameters = dataclasses.asdict(size) | {"threads": "1 in each process"}
    name, made = machine.name(device), records.provenance("parallel_accuracy", device)
    torch.set_num_threads(threads)
    return records.Record("parallel_accuracy", records.slug(name), name, made, parameters, [], rows)


def streaming(size=None):
    """ED in a pipeline that never waits: {table: "streaming ED", rule, stages, rate, …} → rows.

    One network for each of the ten classes; stages = 1 is ED without delay. Results: the "accuracy" on the
    10,000 test images, for each seed. "longest_delay": of the first stage, in batches.
    """
    size = size or Streaming()
    cases = [(rule, p, rate) for rule in size.rules for p in size.stages for rate in size.rates]
    jobs = [delayed(streamed)(*case, seed, size) for case in cases for seed in range(size.seeds)]
    with parallel_config("loky", inner_max_num_threads=1):
        found = Parallel(n_jobs=size.workers or machine.threads(), return_as="generator")(jobs)
    rows = []
    for rule, p, rate in cases:
        accuracies, seconds = zip(*(next(found) for _ in range(size.seeds)), strict=True)
        longest = int(delays(size.depth, p).max())
        case = {"table": "streaming ED", "rule": rule, "stages": p, "longest_delay": longest, "rate": rate}
        case |= {"width": size.width, "depth": size.depth, "batch": size.batch, "images": size.images}
        results = {"accuracy": list(accuracies)}
        rows.append(Row(case, data_parallel.summary(seconds), results=results))
        print(f"streaming ED, {rule}, {p} stages, rate {rate}: {results['accuracy']}", flush=True)
    return rows


def streamed(rule, stages, rate, seed, size):
    """One run → accuracy on the test images, and seconds."""
    torch.set_flush_denormal(True)
    (inputs, labels), test = images(size.offline)
    sizes = inputs.shape[1], size.width, size.depth, 10
    net = EDNetwork(*sizes, rule=rule, init="fan_in", backend="torch", seed=seed)
    learner = Delayed(net, "ed", "sgd", rate, late=delays(size.depth, stages))
    few = inputs[: size.images], labels[: size.images]
    history = training.train(learner, few, test, batch=size.batch, every=10**9, seed=1000 * seed)
    return history.accuracy[-1], history.seconds[-1]


@functools.cache
def images(offline):
    """((inputs, labels), (inputs, labels)): the training and the test images of MNIST."""
    found = data.load("mnist", offline=offline)
    pairs = (found.train_images, found.train_labels), (found.test_images, found.test_labels)
    return [(data.as_inputs(pictures), labels) for pictures, labels in pairs]
