"""Pipelines on real processes beside what is foreseen for them: a table of ``parallel``.

The simulator is told what messages, and each stage's micro-batches, take. Stages that compute at once share
caches and bandwidth, and one that keeps many activations finds less of them in its caches: so they are
measured together or in turns, with one or all micro-batches kept, as the schedule has it. First gradients are
compared with float64.
"""

import copy
import time
from collections import defaultdict

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from benchmarks import formats
from benchmarks.harness import ROUNDING, Size, is_right, summary
from ed_lib.parallel import launch, links
from ed_lib.parallel.collectives import Wire
from ed_lib.parallel.pipeline import Pipeline, cut
from ed_lib.parallel.schedules import SCHEDULES
from ed_lib.parallel.simulator import simulate

TOGETHER = {"naive": False, "gpipe": True, "1f1b": True}  # whether stages compute at the same time
KEEPS_ALL = {"naive": False, "gpipe": True, "1f1b": False}  # or about one micro-batch, with two stages


# So many linear layers of a width, with a tanh between each two; messages: bytes, for the link.
SIZE = Size(stages=2, width=1024, layers=8, batch=256, microbatches=(4, 8),
            rounds=9, messages=(2**10, 2**14, 2**18, 2**20),
            schedules=("naive", "gpipe", "1f1b"))  # fmt: skip
TINY = SIZE(width=8, layers=3, batch=6, microbatches=(2, 3), rounds=2, messages=(8, 4096))


def batch(size):
    """A row for each schedule and number of micro-batches; "predicted" seconds and "ratio" by round."""
    ranks = launch(measure, size.stages, size, timeout=300.0)
    link = links.fit(*ranks[0]["link"])
    for (schedule, m), batches in ranks[0]["batches"].items():
        case = {"schedule": schedule, "stages": size.stages, "microbatches": m}
        case |= {"batch": size.batch, "width": size.width, "layers": size.layers}
        error = max(rank["errors"][schedule, m] for rank in ranks)
        if is_right(case, error, ROUNDING):
            message, predicted = 4 * size.batch // m * size.width, []  # bytes, of float32
            bytes = {"activation": message, "gradient": message}
            for stages in zip(*(rank["stages"][schedule, m] for rank in ranks), strict=True):  # of each round
                ops = {op: [stage[op] for stage in stages] for op in ("forward", "backward")}
                run = simulate(SCHEDULES[schedule], size.stages, m, ops, link, bytes)
                predicted.append(run.seconds)
            results = {"predicted": predicted, "ratio": np.divide(batches, predicted).tolist()}
            yield case | summary(batches) | {"error": error} | results


def measure(size):
    """What each rank does: the link's times, its stage's by micro-batches, and the batches'."""
    rank, stages = dist.get_rank(), size.stages
    torch.manual_seed(0)
    layers = [[nn.Linear(size.width, size.width), nn.Tanh()] for _ in range(size.layers)]
    model = nn.Sequential(*(nn.Sequential(*pair) for pair in layers))
    parts, loss = cut(model, stages), nn.functional.mse_loss
    x, t = torch.randn(size.batch, size.width), torch.randn(size.batch, size.width)
    found = {"link": (size.messages, [there_and_back(n) / 2 for n in size.messages])}
    found |= {what: defaultdict(list) for what in ("batches", "stages", "errors")}
    exact = copy.deepcopy(model).double()
    loss(exact(x.double()), t.double()).backward()
    right = [p.grad for p in cut(exact, stages)[rank].parameters()]
    keys, workers = [(how, m) for m in size.microbatches for how in size.schedules], {}
    for how, m in keys:
        workers[how, m] = worker = Pipeline(parts, loss, x.shape, m, SCHEDULES[how])
        parts[rank].zero_grad()
        worker.run(x, t)
        found["errors"][how, m] = formats.deviation([p.grad for p in parts[rank].parameters()], right)
    for n in range(size.rounds + 1):  # the first warms up
        for how, m in keys:
            micro = x[: size.batch // m], t[: size.batch // m]
            for turn in range(1 if TOGETHER[how] else stages):
                dist.barrier()
                if TOGETHER[how] or turn == rank:
                    ops = stage_ops(parts[rank], *micro, m)
                    stage = seconds_of(ops, m, at_once=m if KEEPS_ALL[how] else 1)
            seconds = barrier_to_barrier(lambda key=(how, m): workers[key].run(x, t))
            if n > 0:
                found["batches"][how, m].append(seconds)
                found["stages"][how, m].append(stage)
    return found


def there_and_back(n, repeats=20):
    """The lower quartile of the seconds of n bytes from rank 0 to rank 1 and back."""
    wire, tensor, took = Wire(), torch.zeros(n, dtype=torch.uint8), []
    turns = {0: [wire.send, wire.receive], 1: [wire.receive, wire.send]}.get(wire.rank, [])
    for _ in range(repeats + 2):  # the first two warm up
        dist.barrier()
        start = time.perf_counter()
        for turn in turns:
            turn(tensor, 1 - wire.rank)
        took.append(time.perf_counter() - start)
    return float(np.quantile(took[2:], 0.25))


def stage_ops(module, x, t, m):
    """{op: a function of the micro-batch's number}: what the worker does of each, but for messages."""
    rank, last, kept = dist.get_rank(), dist.get_rank() == dist.get_world_size() - 1, {}

    def forward(i):
        y = module(x.clone().requires_grad_(rank > 0))
        kept[i] = nn.functional.mse_loss(y, t) / m if last else y

    return {"forward": forward, "backward": lambda i: kept.pop(i).backward(None if last else t)}


def seconds_of(ops, m, at_once):
    """{op: mean seconds for one of m micro-batches}, where so many go through one op before the next."""
    seconds = dict.fromkeys(ops, 0.0)
    for first in range(0, m, at_once):
        for name, op in ops.items():
            start = time.perf_counter()
            for i in range(first, first + at_once):
                op(i)
            seconds[name] += (time.perf_counter() - start) / m
    return seconds


def barrier_to_barrier(call):
    """Seconds until all ranks have done what each calls."""
    dist.barrier()
    start = time.perf_counter()
    call()
    dist.barrier()
    return time.perf_counter() - start
