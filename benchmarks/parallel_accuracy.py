"""What is learned on many devices. Long training runs, run by name only.

The source's run of LeNet goes first, alone, since its seconds are compared. All others go side by side, as
many as the machine has threads, with one thread each: only their accuracies count.
"""

import contextlib
import itertools
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.harness import REHEARSAL, Training, images, one_thread, runs, summary
from ed_lib import data
from ed_lib.ed import EDNetwork, learner
from ed_lib.parallel import launch
from ed_lib.parallel.asynchronous.problems import Perceptron
from ed_lib.parallel.asynchronous.servers import Diverged, ModelQueue, ParameterServer, SynchronousServer
from ed_lib.parallel.asynchronous.virtual import simulate
from ed_lib.parallel.data_parallel import by_hand, training
from ed_lib.parallel.ed.stages import delays

LR = 0.2  # the source's


@dataclass(frozen=True)
class Size(Training):
    """How much is trained: the source's run (d2l.ai, section 13.5), networks on the virtual clock, and
    streaming ED on the first ``ed_images`` of MNIST, once.
    """

    images: int | None = None  # of the source's run; None for all 60,000
    batch: int = 256
    epochs: int = 10
    gradients: int = 3000  # on the virtual clock, in batches of 32
    lrs: tuple = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
    tests: int | None = None
    ed_images: int = 8_000
    ed_batch: int = 16
    width: int = 32
    depth: int = 8
    stages: tuple = (1, 2, 4, 8)
    rules: tuple = ("kaneko", "signed")
    rates: tuple = (0.003, 0.01, 0.03, 0.1, 0.3)


SIZE = Size()
TINY = Size(100, 20, 2, 200, (0.05, 1e30), 360, 200, 16, 4, 4, (1, 2, 4), ("signed",), (0.02, 0.1),
            **REHEARSAL)  # fmt: skip


def source(size, device):
    """The source's run on one device and on two, simulated in one process, and as two processes.

    One after the other, with one thread for each process, and once with two for the one device: their
    seconds, of an epoch, may be compared. Results: "accuracy" at the end, and "curve" and "loss" by epoch.
    """
    for how, devices in (("simulated", 1), ("two threads", 1), ("simulated", 2), ("processes", 2)):
        if how == "processes":
            options = size.batch, LR, size.epochs, size.images, 0, size.offline
            found = launch(training.train, devices, *options, timeout=7200.0)[0]
        else:
            found = simulated(devices, 2 if how == "two threads" else 1, size)
        case = {"how": how, "devices": devices, "batch": size.batch, "lr": LR}
        case |= {"epochs": size.epochs, "images": size.images or 60_000}
        curve, loss = found["accuracy"], np.round(found["loss"], 5).tolist()
        yield case | summary(found["seconds"]) | {"accuracy": [curve[-1]], "curve": [curve], "loss": [loss]}


def simulated(devices, threads, size):
    """The run in one process → accuracy, seconds and mean loss by epoch."""
    (x, y), test = images("fashion-mnist", size.offline, data.tensors)
    x, y = x[: size.images], y[: size.images]
    with one_thread():
        torch.set_num_threads(threads)
        run = by_hand.train(["cpu"] * devices, size.batch, LR, size.epochs, x, y, test, 0)
    losses = np.array(run.loss).reshape(size.epochs, -1).mean(axis=1)
    return {"accuracy": run.accuracy[1:], "seconds": run.seconds[1:], "loss": losses}


EVEN, SLOW = (1, 1, 1, 1), (1, 1, 1, 5)  # seconds of a gradient, for each worker
FREE = lambda start, lr, workers: ParameterServer(start, lr)  # noqa: E731
BY_STALENESS = lambda start, lr, workers: ParameterServer(start, lr, by_staleness=True)  # noqa: E731
METHODS = {
    "serial": (FREE, (1,)),
    "synchronous": (SynchronousServer, EVEN),
    "asynchronous": (FREE, EVEN),
    "asynchronous, lr by staleness": (BY_STALENESS, EVEN),
    "asynchronous, one slow": (FREE, SLOW),
    "asynchronous, one slow, lr by staleness": (BY_STALENESS, SLOW),
    "queue of models": (ModelQueue, EVEN),
}


def asynchronous(size, device):
    """What is learned after the same number of gradients, on the virtual clock: a row for each method and lr.

    A network with one hidden layer of 32 on Fashion-MNIST. Results, one for each seed: "accuracy"; of the
    queue, that is the mean over its models, and "averaged" that of the mean of the models. A run that
    diverges counts as guessing, 0.1. "virtual_seconds": what a gradient takes an even worker is one second.
    """
    cases = [{"method": method, "lr": lr} for method in METHODS for lr in size.lrs]
    of = {"data": data.load("fashion-mnist", offline=size.offline).name, "gradients": size.gradients}
    for row in runs(on_clock, cases, size.seeds, workers=size.workers, size=size):
        yield of | row


def on_clock(method, lr, seed, size):
    """One training run → accuracy on the tests, the virtual seconds that it took, and the real ones."""
    (inputs, labels), (tests, test_labels) = images("fashion-mnist", size.offline)
    make, seconds = METHODS[method]
    problem, begin = Perceptron(inputs, labels, seed=seed), time.perf_counter()
    server = make(problem.start(), lr, len(seconds))
    found = {"accuracy": 0.1, "averaged": 0.1, "virtual_seconds": 0.0}  # if it diverges
    with contextlib.suppress(Diverged):
        virtual = simulate(server, problem, size.gradients, seconds).seconds
        models = server.drain() if isinstance(server, ModelQueue) else server.params[None]
        test = tests[: size.tests], test_labels[: size.tests]
        each = [problem.accuracy(model, *test) for model in models]
        found = {"accuracy": float(np.mean(each)), "averaged": problem.accuracy(models.mean(0), *test)}
        found["virtual_seconds"] = float(virtual)
    return found | {"seconds": time.perf_counter() - begin}


def streaming(size, device):
    """ED in a pipeline that never waits, a row for each rule, number of stages and rate.

    One network for each of the ten classes; stages = 1 is ED without delay. Results: the "accuracy" on the
    10,000 test images, for each seed. "longest_delay": of the first stage, in batches.
    """
    options = itertools.product(size.rules, size.stages, size.rates)
    cases = [{"rule": rule, "stages": p, "rate": rate} for rule, p, rate in options]
    of = {"width": size.width, "depth": size.depth, "batch": size.ed_batch, "images": size.ed_images}
    for row in runs(streamed, cases, size.seeds, workers=size.workers, size=size):
        yield of | {"longest_delay": int(delays(size.depth, row["stages"]).max())} | row


class Delayed(learner.Learner):
    """A learner whose layer l learns from the direction of ``late[l]`` steps ago, with that time's weights.

    Before a direction has arrived, a layer stays as it is.
    """

    def __init__(self, net, method="ed", optimizer="sgd", rate=0.1, *, late):
        super().__init__(net, method, optimizer, rate)
        self.late, self.found = late, deque(maxlen=int(max(late)) + 1)  # the last directions

    def find_direction(self, error):
        """Puts the direction that has arrived into each parameter's ``grad``: error (B, K) of this step."""
        super().find_direction(error)
        parameters = self.net.parameters
        self.found.append({name: parameter.grad.clone() for name, parameter in parameters.items()})
        for name, parameter in parameters.items():
            for layer, late in enumerate(self.late):
                if (place := learner.part(name, layer, self.net.depth)) is not None:
                    arrived = self.found[-1 - late][name][place] if late < len(self.found) else 0
                    parameter.grad[place] = arrived


def streamed(rule, stages, rate, seed, size):
    """One run → accuracy on the test images, and seconds."""
    torch.set_flush_denormal(True)
    (inputs, labels), test = images("mnist", size.offline)
    shape = inputs.shape[1], size.width, size.depth, 10
    net = EDNetwork(*shape, rule=rule, init="fan_in", backend="torch", seed=seed)
    late = Delayed(net, "ed", "sgd", rate, late=delays(size.depth, stages))
    few = inputs[: size.ed_images], labels[: size.ed_images]
    history = learner.fit(late, few, test, batch=size.ed_batch, every=10**9, seed=1000 * seed)
    return {"accuracy": history.accuracy[-1], "seconds": sum(history.seconds)}


context = one_thread
TABLES = {"source": source, "asynchronous, accuracy": asynchronous, "streaming ED": streaming}
