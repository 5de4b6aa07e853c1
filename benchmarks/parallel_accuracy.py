"""What is learned on many devices. Long training runs, run by name only.

The source's run of LeNet goes first, alone, since its seconds are compared. All others go side by
side: only their accuracies count.
"""

import contextlib
import itertools
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F

from benchmarks.shared.harness import Size, images, one_thread, runs, summary
from ed_lib import data, models, training
from ed_lib.parallel import launch
from ed_lib.parallel.asynchronous import (
    ParameterServer,
    SynchronousServer,
    local_sgd,
    simulate_workers,
)
from ed_lib.parallel.replica import Replica, local_rows

# The source's learning rate.
LR = 0.2


# images, batch and epochs of the source's run (d2l.ai, 13.5), None: all 60,000. gradients: on the
# virtual clock, in batches of 32; each worker takes so many steps between which it meets others;
# tests: None: all.
SIZE = Size(
    images=None, batch=256, epochs=10, gradients=3000, lrs=(0.02, 0.05, 0.1, 0.2, 0.4, 0.8),
    meetings=(1, 5, 20, 50, 200), each=200, inner=[1.25e-4 * 2**n for n in range(9)],
    outer=(0.1, 0.2, 0.4, 0.7, 1.0), tests=None,
)  # fmt: skip
TINY = SIZE.rehearsal(
    images=40,
    batch=20,
    epochs=1,
    gradients=40,
    lrs=(0.05, 1e30),
    meetings=(1, 4),
    each=4,
    inner=(1e-3,),
    outer=(0.7,),
    tests=200,
)


def source(size, device):
    """The source's run on one device and on two, simulated in one process, and as two processes;
    with one thread for each process, and once with two. Seconds are of an epoch. Results:
    "accuracy" at the end.
    """
    # Where the data must be downloaded, they are so once.
    images("fashion-mnist", size.whole, data.tensors)
    for how, devices in (("simulated", 1), ("two threads", 1), ("simulated", 2), ("processes", 2)):
        if how == "processes":
            run = launch(lenets, devices, size, 1, timeout=7200.0)[0]
        else:
            with one_thread(threads=2 if how == "two threads" else 1):
                run = lenets(size, devices)
        # The first epoch is left out: it warms up.
        row = {"how": how, "devices": devices} | summary(run.seconds[1:])
        yield row | {"accuracy": run.accuracy[-1]}


def lenets(size, copies):
    """The source's run on so many copies of LeNet in this process, of each rank if there are
    ranks.
    """
    (x, y), test = images("fashion-mnist", size.whole, data.tensors)
    x, y = x[: size.images], y[: size.images]
    test = [rows[: size.tests] for rows in test]
    nets = [as_the_source_starts(models.lenet()) for _ in range(copies)]
    replicas = [Replica(net, 2**18) for net in nets] if dist.is_initialized() else []
    params = [list(net.parameters()) for net in nets]

    def step(rows):
        loss = 0.0
        rows = torch.from_numpy(rows)
        mine = local_rows(rows) if replicas else rows
        for net, part in zip(nets, mine.tensor_split(copies), strict=True):
            summed = F.cross_entropy(net(x[part]), y[part], reduction="sum")
            summed.backward()
            loss += summed.detach() / len(rows)
        for replica in replicas:
            replica.finish(len(rows))
        with torch.no_grad():
            # ``same`` is one parameter, as every copy has it.
            for same in zip(*params, strict=True):
                total = sum(p.grad for p in same) / (1 if replicas else len(rows))
                for p in same:
                    p -= LR * total
                    p.grad.zero_()
        return loss

    look = partial(training.accuracy, nets[0], *test)
    return training.loop(step, len(x), look, epochs=size.epochs, batch=size.batch)


def as_the_source_starts(net, seed=0):
    """Weights from N(0, 0.01²), biases 0."""
    generator = torch.Generator().manual_seed(seed)
    for p in net.parameters():
        torch.nn.init.normal_(p, 0, 0.01 if p.dim() > 1 else 0, generator)
    return net


EVEN = (1, 1, 1, 1)
SLOW = (1, 1, 1, 5)
GUESSING = 0.1
# Seconds of a gradient, for each worker.
METHODS = {
    "serial": (1,), "synchronous": EVEN,
    "asynchronous": EVEN, "asynchronous, lr by staleness": EVEN,
    "asynchronous, one slow": SLOW, "asynchronous, one slow, lr by staleness": SLOW,
}  # fmt: skip


def asynchronous(size, device):
    """What is learned after the same number of gradients, on the virtual clock: a row for each
    method and lr.

    A network with one hidden layer of 32 on Fashion-MNIST. Results: "accuracy" by seed; a run that
    diverges counts as guessing, 0.1.
    """
    cases = [{"method": method, "lr": lr} for method in METHODS for lr in size.lrs]
    return runs(on_clock, cases, size)


def on_clock(method, lr, seed, size):
    """One training run → accuracy on the tests, and seconds."""
    problem, test = a_problem(seed, size)
    begin = time.perf_counter()
    start = problem.start()
    seconds = METHODS[method]
    # It stays there if the training diverges.
    accuracy = GUESSING
    if method == "synchronous":
        server = SynchronousServer(start, lr, len(seconds))
    else:
        server = ParameterServer(start, lr, by_staleness=method.endswith("by staleness"))
    with contextlib.suppress(FloatingPointError):
        simulate_workers(server, problem, size.gradients, seconds)
        accuracy = training.accuracy(problem.at(server.params), *test)
    return {"accuracy": accuracy, "seconds": time.perf_counter() - begin}


def a_problem(seed, size):
    """A network on Fashion-MNIST, what to learn from drawn by the seed, and the test images,
    labels.
    """
    learned, test = images("fashion-mnist", size.whole)
    x, labels = (torch.as_tensor(each[: size.tests]) for each in test)
    return training.TaskGradients(*learned, seed=seed), (x, labels.long())


WAYS = {"local SGD": torch.optim.SGD, "local AdamW": torch.optim.AdamW, "DiLoCo": torch.optim.AdamW}


def meetings(size, device):
    """The loss on the test images when four workers meet every H steps, after the same number of
    gradients: a row for each way, H, inner rate and, for DiLoCo, outer rate; its momentum is 0.9.
    Results: "loss" by seed.
    """
    cases = [
        {"method": way, "steps": H, "lr": lr, "outer": outer}
        for way, H in itertools.product(WAYS, size.meetings)
        for lr in (size.lrs if way == "local SGD" else size.inner)
        for outer in (size.outer if way == "DiLoCo" else (1.0,))
    ]
    return runs(between_meetings, cases, size)


def alone(size, device):
    """The control of "meetings": one worker that takes each worker's steps and meets nobody, so
    with a quarter of the gradients: a row for each way and inner rate. Beside it, from the same
    machine, the four that meet once, at the end, as "meetings" has them too. Results: "loss" by
    seed.
    """
    rates = {"local SGD": size.lrs, "local AdamW": size.inner}
    each = {"steps": size.each, "outer": 1.0}
    cases = [
        {"method": way, "workers": workers, "lr": lr} | each
        for way, workers in itertools.product(rates, (1, 4))
        for lr in rates[way]
    ]
    # It takes a minute: one thread is enough.
    return runs(between_meetings, cases, size(workers=1))


def between_meetings(method, steps, lr, outer, seed, size, workers=4):
    """One run → the mean cross-entropy on the test images, and seconds."""
    problem, (tests, right) = a_problem(seed, size)
    begin = time.perf_counter()
    momentum = 0.9 if method == "DiLoCo" else 0.0
    how = partial(WAYS[method], lr=lr), outer, momentum
    rounds = size.each // steps
    params = local_sgd(problem.start(), problem, workers, rounds, steps, *how)
    with torch.no_grad():
        loss = F.cross_entropy(problem.at(params)(tests), right)
    return {"loss": min(loss.nan_to_num(1e9).item(), 1e9), "seconds": time.perf_counter() - begin}


context = one_thread
TABLES = {
    "source": source,
    "asynchronous, accuracy": asynchronous,
    "meetings": meetings,
    "alone": alone,
}
