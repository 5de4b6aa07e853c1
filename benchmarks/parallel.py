"""Many devices: a data-parallel step, pipelines, and workers that do not wait.

The devices are processes on a CPU, with one thread each: a GPU alone is one device, and NCCL refuses two
ranks on it. Gradients and weights are first compared with float64; what deviates is not timed.
"""

import copy

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from benchmarks import formats, pipelines
from benchmarks.harness import ROUNDING, Size, is_right, one_thread, summary
from benchmarks.pipelines import barrier_to_barrier
from ed_lib import models
from ed_lib.parallel import launch, train, workers
from ed_lib.parallel.asynchronous import ParameterServer, Perceptron, SynchronousServer
from ed_lib.parallel.replica import Replica, shard

SPEEDS = {"even": (1, 1, 1, 1), "one slow by 5×": (1, 1, 1, 5)}  # time of a gradient, for each worker


# So many repeats of a step in each round; a worker sleeps for a pause, in seconds, in place of a gradient.
SIZE = Size(ranks=2, batch=256, repeats=5, rounds=11, pipeline=pipelines.SIZE, workers=4,
            gradients=240, pause=0.02)  # fmt: skip
TINY = SIZE(batch=20, repeats=1, rounds=2, pipeline=pipelines.TINY, workers=2, gradients=16,
            pause=0.001)  # fmt: skip


def step(size, device):
    """A step of LeNet by each way of summing the gradients, in turns in one launch."""
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
    steps, found = ways(shard(x), shard(y), batch), {}
    for way, (step, net) in steps.items():
        found[way] = [], None if way == "no sum" else deviation(net, step, x, y)
    for _ in range(rounds):
        for way, (step, _) in steps.items():
            took = barrier_to_barrier(lambda step=step: [step() for _ in range(repeats)])
            found[way][0].append(took / repeats)
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


def throughput(size, device):
    """Seconds for a gradient, of four processes, one row for each server and speed of the workers.

    A worker sleeps, in place of a device that computes, and then computes the gradient of a small network.
    The floor is what the sleeping alone takes.
    """
    random = np.random.default_rng(0)
    problem = Perceptron(random.random((512, 784), np.float32), random.integers(10, size=512))
    for name in ("synchronous", "asynchronous"):
        for speeds, relative in SPEEDS.items():
            pauses, start = [size.pause * times for times in relative[-size.workers :]], problem.start()
            if name == "synchronous":
                server, floor = SynchronousServer(start, 0.05, len(pauses)), max(pauses) / len(pauses)
            else:
                server, floor = ParameterServer(start, 0.05), 1 / sum(1 / pause for pause in pauses)
            run = workers.train(server, problem, size.gradients, pauses, timeout=300.0)
            # In blocks of as many as four workers, one slow by 5×, bring in its time.
            ends = [0.0, *(span.end for span in run.spans)][::16]
            row = {"server": name, "workers": speeds, "pause": size.pause} | summary(np.diff(ends) / 16)
            yield row | {"floor": floor}


context = one_thread
TABLES = {
    "data parallel step": step,
    "pipeline": lambda size, device: pipelines.batch(size.pipeline),
    "asynchronous, throughput": throughput,
}
