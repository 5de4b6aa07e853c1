"""What is gained when no worker waits for another, and what is paid: throughput, staleness, accuracy.

``throughput`` and ``lost_updates`` are quick, and run real processes. ``accuracies`` trains networks on the
virtual clock: those figures do not depend on the machine, its rows' seconds do.
"""

import time
from collections import Counter

import numpy as np
import torch

from benchmarks.old_harness import by_seed, images, summary
from benchmarks.old_records import Row
from ed_lib import data, timing
from ed_lib.parallel.asynchronous import hogwild, workers
from ed_lib.parallel.asynchronous.problems import Perceptron
from ed_lib.parallel.asynchronous.servers import Diverged, ModelQueue, ParameterServer, SynchronousServer
from ed_lib.parallel.asynchronous.virtual import simulate

SPEEDS = {"even": (1, 1, 1, 1), "one slow by 5×": (1, 1, 1, 5)}  # time of a gradient, for each worker
SERVERS = {
    "synchronous": lambda start, lr, p: SynchronousServer(start, lr, p),
    "asynchronous": lambda start, lr, p: ParameterServer(start, lr),
    "asynchronous, lr by staleness": lambda start, lr, p: ParameterServer(start, lr, by_staleness=True),
    "queue of models": ModelQueue,
}
LRS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)


def throughput(n_tasks=240, pause=0.02, timeout=300.0):
    """Seconds for a gradient, of four processes: {table: "asynchronous, throughput", server, workers} → rows.

    A worker sleeps ``pause`` seconds (the slow one five times as long), in place of a device that computes,
    and then computes the gradient of a small network. The floor is what the sleeping alone takes. Results:
    for each of the four workers its gradients, and their mean staleness; and how often each staleness was.
    """
    random = np.random.default_rng(0)
    problem = Perceptron(random.random((512, 784), dtype=np.float32), random.integers(10, size=512))
    for name in ("synchronous", "asynchronous"):
        for speeds, relative in SPEEDS.items():
            pauses = [pause * times for times in relative]
            server = SERVERS[name](problem.start(), 0.05, len(pauses))
            run = workers.train(server, problem, n_tasks, len(pauses), pause=pauses, timeout=timeout)
            each = max(pauses) / len(pauses) if name == "synchronous" else 1 / sum(1 / p for p in pauses)
            case = {"table": "asynchronous, throughput", "server": name, "workers": speeds, "pause": pause}
            note, results = "compute emulated by sleeping", staleness_of(server, len(pauses))
            yield Row(case, per_gradient(run), floor=each, note=note, results=results)


def per_gradient(run, block=16):
    """Seconds for each gradient, in blocks of as many as four workers, one slow by 5×, bring in its time."""
    ends = [0.0, *(span.end for span in run.spans)][::block]
    return summary(np.diff(ends) / block)


def staleness_of(server, n_workers):
    """Gradients of each worker, how stale they were on average, and how often each staleness was."""
    of = [[push.staleness for push in server.log if push.worker == worker] for worker in range(n_workers)]
    counts = Counter(push.staleness for push in server.log)
    return {
        "gradients": [len(some) for some in of],
        "mean_staleness": [float(np.mean(some)) if some else 0.0 for some in of],
        "histogram": [counts[staleness] for staleness in range(max(counts) + 1)],
    }


def lost_updates(steps=40_000, n_workers=2, shapes=((100_000, 4), (1000, 4), (4, 4)), timeout=120.0):
    """Hogwild: {table: "asynchronous, lost updates", parameters, nonzeros, workers} → rows.

    Results: the share of additions that were lost, and the loss in units of the loss at the start.
    """
    for n_params, nonzeros in shapes:
        problem = hogwild.SparseSquares.random(4000, n_params, nonzeros)
        begin = problem.loss(torch.zeros(n_params, dtype=torch.float64))
        for p in (1, n_workers):
            start = time.perf_counter()
            params, moved = hogwild.train(problem, p, steps, 0.5, timeout=timeout)
            took = time.perf_counter() - start
            case = {"table": "asynchronous, lost updates", "parameters": n_params, "nonzeros": nonzeros}
            found = {"lost": [1 - float(moved.sum()) / (steps * nonzeros)]}
            found |= {"loss": [problem.loss(params) / begin]}
            completion = timing.Timing(took, took, took, 1)
            note = "with the start of the processes"
            yield Row(case | {"workers": p, "steps": steps}, completion, note=note, results=found)


def methods():
    """{name: (server, seconds of each worker)} of what ``accuracies`` compares."""
    even, slow = SPEEDS.values()
    return {
        "serial": ("asynchronous", (1,)),
        "synchronous": ("synchronous", even),
        "asynchronous": ("asynchronous", even),
        "asynchronous, lr by staleness": ("asynchronous, lr by staleness", even),
        "asynchronous, one slow": ("asynchronous", slow),
        "asynchronous, one slow, lr by staleness": ("asynchronous, lr by staleness", slow),
        "queue of models": ("queue of models", even),
    }


def accuracies(n_tasks=3000, seeds=3, lrs=LRS, few=None, offline=False, n_workers=None):
    """After the same number of gradients: {table: "asynchronous, accuracy", method, lr} → rows.

    A network with one hidden layer of 32 on Fashion-MNIST, batches of 32, on the virtual clock; tests on the
    10,000 test images, or the first ``few``. Results, one for each seed: "accuracy"; of the queue, that is
    the mean over its models, and "averaged" that of the mean of the models. A run that diverges counts as
    guessing, 0.1. "virtual_seconds": what a gradient takes an even worker is one second. So many runs go side
    by side as ``n_workers`` says, or as the machine has threads.
    """
    cases = [(method, lr) for method in methods() for lr in lrs]
    name = data.load("fashion-mnist", offline=offline).name
    runs = by_seed(accuracy_of, cases, seeds, n_tasks, few, offline, workers=n_workers)
    for (method, lr), seconds, results in runs:
        case = {"table": "asynchronous, accuracy", "method": method, "lr": lr, "data": name}
        yield Row(case | {"gradients": n_tasks}, seconds, results=results)


def accuracy_of(method, lr, seed, n_tasks, few, offline):
    """One training run → accuracy on the tests, the virtual seconds that it took, and the real ones."""
    (inputs, labels), (tests, test_labels) = images("fashion-mnist", offline)
    server, seconds = methods()[method]
    problem, begin = Perceptron(inputs, labels, seed=seed), time.perf_counter()
    server = SERVERS[server](problem.start(), lr, len(seconds))
    try:
        virtual = simulate(server, problem, n_tasks, seconds).seconds
    except Diverged:
        took = time.perf_counter() - begin
        return {"accuracy": 0.1, "averaged": 0.1, "virtual_seconds": 0.0, "seconds": took}
    models = server.drain() if isinstance(server, ModelQueue) else server.params[None]
    found = [problem.accuracy(model, tests[:few], test_labels[:few]) for model in models]
    averaged = problem.accuracy(models.mean(0), tests[:few], test_labels[:few])
    took = time.perf_counter() - begin
    result = {"accuracy": float(np.mean(found)), "averaged": averaged}
    return result | {"virtual_seconds": float(virtual), "seconds": took}
