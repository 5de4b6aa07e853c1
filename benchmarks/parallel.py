"""Many devices: a data-parallel step of LeNet, by each way of summing the gradients.

The devices are processes on a CPU, with one thread each: a GPU alone is one device, and NCCL refuses two
ranks on it. Gradients are first compared with float64; what deviates is not timed.
"""

import copy
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from benchmarks import formats
from benchmarks.harness import ROUNDING, Size, is_right, one_thread, summary
from ed_lib import models
from ed_lib.parallel import launch, train
from ed_lib.parallel.replica import Replica, local_rows

# So many repeats of a step in each round.
SIZE = Size(ranks=2, batch=256, repeats=5, rounds=11)
TINY = SIZE(batch=20, repeats=1, rounds=2)


def step(size, device):
    """A row for each way, all taken in turns in one launch."""
    found = launch(in_turns, size.ranks, size.batch, size.repeats, size.rounds, timeout=300.0)[0]
    for way, (seconds, error) in found.items():
        case = {"way": way, "ranks": size.ranks, "batch": size.batch}
        if is_right(case, error, ROUNDING):
            yield case | summary(seconds) | {"error": error}


def in_turns(batch, repeats, rounds):
    """What each rank does: {way: (seconds of a step in each round, deviation from float64)}."""
    torch.manual_seed(7)  # unseeded, rounding flips a ReLU now and then
    x, y = torch.rand(batch, 1, 28, 28), torch.randint(0, 10, (batch,))
    for tensor in (x, y):
        dist.broadcast(tensor, 0)
    steps, found = ways(local_rows(x), local_rows(y), batch), {}
    for way, (step, net) in steps.items():
        found[way] = [], None if way == "no sum" else deviation(net, step, x, y)
    for _ in range(rounds):
        for way, (step, _) in steps.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(repeats):
                step()
            dist.barrier()
            found[way][0].append((time.perf_counter() - start) / repeats)
    return found


def ways(x, y, batch):
    """{name: (a step on this rank's shard, the network that it trains)}. The first sums nothing."""
    found = {}
    for name, overlap in (("no sum", None), ("buckets, after", False), ("buckets, overlapping", True)):
        net = models.lenet()
        optimizer = torch.optim.SGD(net.parameters(), 1e-6)
        replica = None if overlap is None else Replica(net, train.BUCKET_BYTES, overlap)

        def step(net=net, optimizer=optimizer, replica=replica):
            (replica or optimizer).zero_grad()
            F.cross_entropy(net(x), y, reduction="sum").backward()
            if replica:
                replica.finish(batch)
            optimizer.step()

        found[name] = step, net
    return found


def deviation(net, step, x, y):
    """How far a step's gradients are from the whole batch's in float64."""
    exact = copy.deepcopy(net).double()
    wanted = torch.autograd.grad(F.cross_entropy(exact(x.double()), y), exact.parameters())
    step()
    return formats.deviation([p.grad for p in net.parameters()], wanted)


context = one_thread
TABLES = {"data parallel step": step}
