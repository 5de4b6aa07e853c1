"""A data-parallel step of LeNet by each way of summing the gradients, in turns in one launch."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks import formats
from benchmarks.ed_pipeline import barrier_to_barrier
from benchmarks.harness import ROUNDING, is_right, summary
from ed_lib.parallel import launch
from ed_lib.parallel.data_parallel import by_hand, training
from ed_lib.parallel.data_parallel.replica import Replica, reduce_each, shard


@dataclass(frozen=True)
class Size:
    """``repeats`` steps of each way in each of the rounds."""

    ranks: int = 2
    batch: int = 256
    repeats: int = 5
    rounds: int = 11
    timeout: float = 300.0


TINY = Size(batch=20, repeats=1, rounds=2)


def step(size):
    """A row for each way. Results: "against DDP", a step's seconds divided by those of DDP in that round."""
    found = launch(in_turns, size.ranks, size.batch, size.repeats, size.rounds, timeout=size.timeout)[0]
    sent = 2 * (size.ranks - 1) * 4 * sum(int(np.prod(shape)) for shape in by_hand.SHAPES) // size.ranks
    for way, (seconds, error) in found.items():
        case = {"way": way, "ranks": size.ranks, "batch": size.batch}
        if is_right(case, error, ROUNDING):
            against = np.divide(seconds, found["DDP"][0]).round(4).tolist()
            known = {"floor_bytes": 0 if error is None else sent, "error": error}
            yield case | summary(seconds) | known | {"against DDP": against}


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
    return formats.deviation([p.grad for p in params], [e.grad for e in exact])
