"""Data parallelism: one step by each way of summing the gradients; and, at full size, the source's run.

``quick`` measures a step of LeNet over several processes, in turns in one launch. ``source`` and ``scaling``
train, and take long: the run of d2l.ai, section 13.5, on one and two devices, and its first exercise, a batch
k times as large on k devices. Losses and accuracies hardly depend on the machine.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks import old_harness as harness
from benchmarks.old_harness import (
    ROUNDING,
    barrier_to_barrier,
    by_seed,
    images,
    is_right,
    one_thread,
    summary,
)
from benchmarks.old_records import Row
from ed_lib import data
from ed_lib.parallel import launch
from ed_lib.parallel.data_parallel import by_hand, training
from ed_lib.parallel.data_parallel.replica import Replica, reduce_each, shard

LR = 0.2  # the source's
POLICIES = ("fixed", "linear", "warm-up")


@dataclass(frozen=True)
class Size:
    """How much of ``quick`` is run: ``repeats`` steps of each way in each of the rounds."""

    ranks: int = 2
    batch: int = 256
    repeats: int = 5
    rounds: int = 11
    timeout: float = 300.0


@dataclass(frozen=True)
class Training:
    """How much is trained. ``epochs`` of the source's run, from one seed, alone on the machine.

    Of the larger batches: ``scaling_epochs``, from each of the seeds, with the rate rising in the first
    ``warm_up`` of them. ``images``: None for all 60,000.
    """

    images: int | None = None
    batch: int = 256
    epochs: int = 10
    devices: tuple = (1, 4)
    scaling_epochs: int = 5
    warm_up: float = 2.0
    seeds: int = 3
    workers: int | None = None  # None: as many as the machine has threads
    offline: bool = False
    timeout: float = 7200.0


TINY = Size(batch=20, repeats=1, rounds=2)  # of a rehearsal
FEW = Training(100, 20, 2, (1, 2), 2, seeds=2, workers=1, offline=True)  # likewise


def quick(size=None):
    """A training step by each way of summing the gradients: {table: "data parallel step", way, …} → rows.

    Results: "against DDP", a step's seconds divided by those that DDP took in the same round.
    """
    size = size or Size()
    found = launch(in_turns, size.ranks, size.batch, size.repeats, size.rounds, timeout=size.timeout)[0]
    sent = 2 * (size.ranks - 1) * 4 * sum(int(np.prod(shape)) for shape in by_hand.SHAPES) // size.ranks
    for way, (seconds, error) in found.items():
        case = {"table": "data parallel step", "way": way, "ranks": size.ranks, "batch": size.batch}
        if is_right(case, error, ROUNDING):
            against = np.divide(seconds, found["DDP"][0]).round(4).tolist()
            yield Row(case, summary(seconds), bytes=0 if error is None else sent, error=error,
                      results={"against DDP": against})  # fmt: skip


def in_turns(batch, repeats, rounds):
    """What each rank does: {way: (seconds of a step in each round, deviation from float64)}."""
    x, y = torch.rand(batch, 1, 28, 28), torch.randint(0, 10, (batch,))
    for tensor in (x, y):
        dist.broadcast(tensor, 0)
    steps = ways(shard(x), shard(y), batch)
    errors = {way: None if way == "no sum" else deviation(params, step, x, y)
              for way, (step, params) in steps.items()}  # fmt: skip
    seconds = {way: [] for way in steps}
    for _ in range(rounds):
        for way, (step, _) in steps.items():
            took = barrier_to_barrier(lambda step=step: [step() for _ in range(repeats)])
            seconds[way].append(took / repeats)
    return {way: (seconds[way], errors[way]) for way in steps}


def ways(x, y, batch):
    """{name: (a step on this rank's shard, the parameters that it trains)}. The first sums nothing."""
    found = {}

    def add(name, net, scale=1.0, zero=None, finish=lambda: None):
        optimizer = torch.optim.SGD(net.parameters(), 1e-6)

        def step():
            (zero or optimizer.zero_grad)()
            (F.cross_entropy(net(x), y, reduction="sum") * scale).backward()
            finish()
            optimizer.step()

        found[name] = step, list(net.parameters())

    def whole(params):  # one all-reduce of torch's for each parameter
        for p in params:
            dist.all_reduce(p.grad)
            p.grad /= batch

    for name in ("no sum", "each parameter, our ring", "each parameter"):
        net = by_hand.LeNet(0)
        params = list(net.parameters())
        finishes = {"no sum": lambda: None, "each parameter": lambda params=params: whole(params)}
        add(name, net, finish=finishes.get(name, lambda params=params: reduce_each(params, batch)))
    for name, capacity, overlap in (
        ("one bucket, after", 2**25, False),
        ("buckets, after", training.BUCKET_BYTES, False),
        ("buckets, overlapping", training.BUCKET_BYTES, True),
    ):
        replica = Replica(by_hand.LeNet(0), capacity, overlap)
        add(name, replica.module, zero=replica.zero_grad, finish=lambda r=replica: r.finish(batch))
    for name, capacity in (("DDP", 25), ("DDP, the same buckets", training.BUCKET_BYTES / 2**20)):
        ddp = DistributedDataParallel(by_hand.LeNet(0), bucket_cap_mb=capacity)
        add(name, ddp, scale=dist.get_world_size() / batch)  # DDP averages over the ranks
    return found


def deviation(params, step, x, y):
    """How far a step's gradients are from the whole batch's in float64, relative to the largest of them."""
    exact = [p.detach().double().requires_grad_() for p in params]
    F.cross_entropy(by_hand.lenet(x.double(), exact), y).backward()
    step()
    return harness.deviation([p.grad for p in params], [e.grad for e in exact])


def source(size=None):
    """The source's run on one device and on two, simulated in one process, and as two processes → rows.

    {table: "source", how, devices, batch, lr, epochs, images}. One after the other, with one thread for each
    process, and once with two for the one device: their seconds, of an epoch, may be compared.
    """
    size = size or Training()
    for how, devices in (("simulated", 1), ("two threads", 1), ("simulated", 2), ("processes", 2)):
        if how == "processes":
            options = size.batch, LR, size.epochs, size.images, 0, size.offline
            found = launch(training.train, devices, *options, timeout=size.timeout)[0]
        else:
            threads = 2 if how == "two threads" else 1
            found = scaled(devices, "fixed", 0, size, size.epochs, times=1, threads=threads)
        case = {"table": "source", "how": how, "devices": devices, "batch": size.batch, "lr": LR}
        case |= {"epochs": size.epochs, "images": size.images or 60_000}
        yield row(case, summary(found["seconds"]), {key: [value] for key, value in found.items()})


def scaling(size=None):
    """A batch k times as large on k simulated devices: the rate fixed, k times as large, or growing to that.

    {table: "scaling", devices, batch, policy, epochs, images} → rows. As many runs go side by side as the
    machine has threads, with one thread each: their seconds are no measure of speed.
    """
    size = size or Training()
    cases = [(k, policy) for k in size.devices for policy in (POLICIES if k > 1 else POLICIES[:1])]
    runs = by_seed(scaled, cases, size.seeds, size, size.scaling_epochs, workers=size.workers)
    for (k, policy), seconds, found in runs:
        case = {"table": "scaling", "devices": k, "batch": k * size.batch, "policy": policy}
        case |= {"epochs": size.scaling_epochs, "images": size.images or 60_000}
        yield row(case, seconds, found, steps=True)


def scaled(devices, policy, seed, size, epochs, times=None, threads=1):
    """A run on simulated devices, with a batch as many times the usual as there are."""
    k = times or devices
    (x, y), test = images("fashion-mnist", size.offline, data.tensors)
    n = size.images or len(x)
    steps = -(-n // (k * size.batch))  # in an epoch
    lr = rate(policy, k, max(1, round(size.warm_up * steps)))
    with one_thread():
        torch.set_num_threads(threads)
        run = by_hand.train(["cpu"] * devices, k * size.batch, lr, epochs, x[:n], y[:n], test, seed)
    losses = np.array(run.loss).reshape(epochs, steps).mean(axis=1)
    found = {"accuracy": run.accuracy[1:], "seconds": run.seconds[1:]}
    return found | {"loss": losses.tolist(), "losses": run.loss}


def rate(policy, k, steps):
    """The learning rate as a number, or as a function of the step: "warm-up" takes ``steps`` to LR·k."""
    if policy == "warm-up":
        return lambda step: LR * (1 + (k - 1) * min(1.0, step / steps))
    return LR * k if policy == "linear" else LR


def row(case, seconds, found, steps=False):
    """A row from the runs of all seeds: the accuracy at the end of each, and their curves by epoch.

    Its seconds are those of an epoch of training. ``steps``: with the loss of each step, of the first seed.
    """
    curves = np.array(found["accuracy"])  # (seeds, epochs)
    results = {"accuracy": curves[:, -1].tolist(), "curve": curves.tolist()}
    results["loss"] = np.round(found["loss"], 5).tolist()
    if steps:
        results["steps"] = np.round(found["losses"][0], 4).tolist()
    return Row(case, seconds, results=results)
