"""Data parallelism: one step by each way of summing the gradients; and, at full size, the source's run.

``quick`` measures a step of LeNet over several processes, in turns in one launch. ``training`` is for the
record, and takes about an hour: the run of d2l.ai, section 13.5, on one and two devices, and its first
exercise, a batch k times as large on k devices. Losses and accuracies hardly depend on the machine.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from joblib import Parallel, delayed, parallel_config
from torch.nn.parallel import DistributedDataParallel

from ed_lib import data, machine, timing
from ed_lib.parallel import launch, lenet, train
from ed_lib.parallel.data_parallel import Replica, reduce_each, shard
from ed_lib.records import Row

PARTS = ("collectives", "data_parallel", "launch", "lenet", "train")
MODULES = ("benchmarks.data_parallel", "ed_lib.data", *(f"ed_lib.parallel.{name}" for name in PARTS))
ROUNDING = 1e-5  # of the largest gradient: how far a way of summing may be from float64
LR = 0.2  # the source's
POLICIES = ("fixed", "linear", "warm-up")


@dataclass(frozen=True)
class Size:
    """How much is run. ``images``: None for all 60,000; ``warm_up``: epochs in which the rate rises."""

    ranks: int = 2
    batch: int = 256
    repeats: int = 5
    rounds: int = 9
    images: int | None = None
    epochs: int = 10
    warm_up: float = 2.0
    devices: tuple = (1, 2, 4, 8)
    seeds: int = 3
    workers: int | None = None  # None: as many as the machine has threads
    offline: bool = False
    timeout: float = 7200.0


def quick(size=None):
    """A training step by each way of summing the gradients → a list of rows. Under a minute."""
    size = size or Size()
    found = launch(in_turns, size.ranks, size.batch, size.repeats, size.rounds, timeout=size.timeout)
    sent = 2 * (size.ranks - 1) * 4 * sum(int(np.prod(shape)) for shape in lenet.SHAPES) // size.ranks
    rows = []
    for way, (seconds, error) in found[0].items():
        if error is not None and error > ROUNDING:
            print(f"{way}: deviates by {error:.1e}; not timed")
            continue
        case = {"table": "data parallel step", "way": way, "ranks": size.ranks, "batch": size.batch}
        rows.append(Row(case, summary(seconds), bytes=0 if error is None else sent, error=error))
        print(f"{way}: {rows[-1].completion}", flush=True)
    return rows


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
            dist.barrier()
            start = time.perf_counter()
            for _ in range(repeats):
                step()
            dist.barrier()
            seconds[way].append((time.perf_counter() - start) / repeats)
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
        net = lenet.LeNet(0)
        params = list(net.parameters())
        finishes = {"no sum": lambda: None, "each parameter": lambda params=params: whole(params)}
        add(name, net, finish=finishes.get(name, lambda params=params: reduce_each(params, batch)))
    for name, capacity, overlap in (
        ("one bucket, after", 2**25, False),
        ("buckets, after", train.BUCKET_BYTES, False),
        ("buckets, overlapping", train.BUCKET_BYTES, True),
    ):
        replica = Replica(lenet.LeNet(0), capacity, overlap)
        add(name, replica.module, zero=replica.zero_grad, finish=lambda r=replica: r.finish(batch))
    for name, capacity in (("DDP", 25), ("DDP, the same buckets", train.BUCKET_BYTES / 2**20)):
        ddp = DistributedDataParallel(lenet.LeNet(0), bucket_cap_mb=capacity)
        add(name, ddp, scale=dist.get_world_size() / batch)  # DDP averages over the ranks
    return found


def deviation(params, step, x, y):
    """How far a step's gradients are from the whole batch's in float64, relative to the largest of them."""
    exact = [p.detach().double().requires_grad_() for p in params]
    F.cross_entropy(lenet.lenet(x.double(), exact), y).backward()
    step()
    worst = max(float((p.grad - e.grad).abs().max()) for p, e in zip(params, exact, strict=True))
    return worst / max(float(e.grad.abs().max()) for e in exact)


def training(size=None):
    """The source's run and its first exercise → a list of rows. Long."""
    size = size or Size()
    return source(size) + scaling(size)


def source(size):
    """The source's run with one device and with two: as processes, and simulated within one process."""
    rows = []
    for how, devices in (("processes", 1), ("processes", 2), ("simulated", 2)):
        case = {"table": "source", "how": how, "devices": devices, "batch": size.batch, "lr": LR}
        results = [one_run(how, devices, seed, size) for seed in range(size.seeds)]
        rows.append(row(case | {"epochs": size.epochs}, results))
    return rows


def one_run(how, devices, seed, size):
    """A run of the source's → accuracy, loss and seconds of each epoch."""
    if how == "processes":
        options = size.batch, LR, size.epochs, size.images, seed, size.offline
        return launch(train.train, devices, *options, timeout=size.timeout)[0]
    return scaled(devices, 1, "fixed", seed, size)


def scaling(size):
    """A batch k times as large on k simulated devices: the rate fixed, k times as large, or growing to that.

    As many runs go side by side as the machine has threads, with one thread each: their seconds are no
    measure of speed.
    """
    cases = [(k, policy) for k in size.devices for policy in (POLICIES if k > 1 else POLICIES[:1])]
    jobs = [delayed(scaled)(k, k, policy, seed, size) for k, policy in cases for seed in range(size.seeds)]
    with parallel_config("loky", inner_max_num_threads=1):
        results = Parallel(n_jobs=size.workers or machine.threads(), return_as="generator")(jobs)
    rows = []
    for k, policy in cases:
        case = {"table": "scaling", "devices": k, "batch": k * size.batch, "policy": policy}
        found = [next(results) for _ in range(size.seeds)]
        rows.append(row(case | {"epochs": size.epochs}, found))
    return rows


def scaled(devices, k, policy, seed, size):
    """A run on simulated devices, with a batch k times the usual, and one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = data.load("fashion-mnist", offline=size.offline)
    n = size.images or len(found.train_labels)
    x, y = lenet.tensors(found.train_images[:n], found.train_labels[:n])
    test = lenet.tensors(found.test_images, found.test_labels)
    steps = -(-n // (k * size.batch))  # in an epoch
    lr = rate(policy, k, max(1, round(size.warm_up * steps)))
    run = lenet.train(["cpu"] * devices, k * size.batch, lr, size.epochs, x, y, test, seed)
    torch.set_num_threads(threads)
    losses = np.array(run.loss).reshape(size.epochs, steps).mean(axis=1)
    return {"accuracy": run.accuracy, "loss": losses.tolist(), "seconds": run.seconds, "losses": run.loss}


def rate(policy, k, steps):
    """The learning rate as a number, or as a function of the step: "warm-up" takes ``steps`` to LR·k."""
    if policy == "warm-up":
        return lambda step: LR * (1 + (k - 1) * min(1.0, step / steps))
    return LR * k if policy == "linear" else LR


def row(case, results):
    """A row from the results of all seeds: the accuracy at the end of each, and their curves by epoch.

    Its seconds are those of an epoch of training.
    """
    curves = np.array([result["accuracy"] for result in results])  # (seeds, epochs)
    gathered = {"accuracy": curves[:, -1].tolist(), "curve": curves.tolist()}
    gathered["loss"] = np.round([result["loss"] for result in results], 5).tolist()
    if all("losses" in result for result in results) and case["table"] == "scaling":
        gathered["steps"] = np.round(results[0]["losses"], 4).tolist()  # of the first seed, step by step
    completion = summary([seconds for result in results for seconds in result["seconds"]])
    made = Row(case, completion, results=gathered)
    print(", ".join(f"{key} {value}" for key, value in case.items()), end=": ")
    print(
        f"accuracy {curves[:, -1].round(4).tolist()}, an epoch {timing.text(completion.median)}", flush=True
    )
    return made


def summary(seconds):
    q1, median, q3 = (float(value) for value in np.percentile(seconds, [25, 50, 75]))
    return timing.Timing(median, q1, q3, len(seconds))
