"""A pipeline on real processes beside what the simulator predicts for it: a table of ``parallel``.

In one launch: the link between the ranks, the seconds that each stage takes for a micro-batch, and those of a
whole batch under each schedule, in turns. The prediction knows the first two. Stages that compute at the same
time share caches and the memory's bandwidth, and one that keeps many micro-batches' activations finds less of
them in its caches: so the stages' seconds are measured together or in turns, with one or all micro-batches
kept, as the schedule has it. First each schedule's gradients are compared with float64.
"""

import copy
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.ed_pipeline import barrier_to_barrier
from benchmarks.formats import deviation
from benchmarks.harness import ROUNDING, is_right, summary
from ed_lib.parallel import launch
from ed_lib.parallel.model_parallel.pipeline import Pipeline, cut
from ed_lib.parallel.model_parallel.schedules import SCHEDULES
from ed_lib.parallel.model_parallel.simulator import simulate
from ed_lib.parallel.ranks import costs

BYTES = 4  # of a float32
TOGETHER = {"naive": False, "gpipe": True, "1f1b": True}  # whether stages compute at the same time
KEEPS_ALL = {"naive": False, "gpipe": True, "1f1b": False}  # or about one micro-batch, with two stages


@dataclass(frozen=True)
class Size:
    """How much is run: ``layers`` linear layers of ``width``, with a tanh between each two."""

    stages: int = 2
    width: int = 1024
    layers: int = 8
    batch: int = 256
    microbatches: tuple = (4, 8)
    schedules: tuple = ("naive", "gpipe", "1f1b")
    rounds: int = 9
    messages: tuple = (2**10, 2**14, 2**18, 2**20)  # bytes, for the link


TINY = Size(2, 8, 3, 6, (2, 3), rounds=2, messages=(8, 4096))  # of a rehearsal


def batch(size):
    """Seconds of a batch under each schedule, a row each.

    Results: "predicted", seconds by the simulator for each round; "ratio", those measured in that round as a
    multiple of it; "link", α and β; "forward" and "backward", the seconds of each stage for a micro-batch.
    """
    ranks = launch(measure, size.stages, size, timeout=300.0)
    link = costs.fit(*ranks[0]["link"])
    for (schedule, m), batches in ranks[0]["batches"].items():
        case = {"schedule": schedule, "stages": size.stages, "microbatches": m}
        case |= {"batch": size.batch, "width": size.width, "layers": size.layers}
        error = max(rank["errors"][schedule, m] for rank in ranks)
        if not is_right(case, error, ROUNDING):
            continue
        message = BYTES * size.batch // m * size.width
        bytes = {"activation": message, "gradient": message}
        rounds = list(zip(*(rank["stages"][schedule, m] for rank in ranks), strict=True))
        ops = [{op: [stage[op] for stage in stages] for op in ("forward", "backward")} for stages in rounds]
        runs = [simulate(SCHEDULES[schedule], size.stages, m, of, link, bytes) for of in ops]
        predicted = [run.seconds for run in runs]
        medians = {op: np.median([of[op] for of in ops], axis=0).tolist() for op in ("forward", "backward")}
        ratio = np.divide(batches, predicted).tolist()
        results = {"predicted": predicted, "ratio": ratio, "link": [link.alpha, link.beta]} | medians
        sent = 2 * (size.stages - 1) * m * message
        yield case | summary(batches) | {"floor_bytes": sent, "error": error} | results


def measure(size):
    """What each rank does: the link's times, its stage's by micro-batches, and the batches'."""
    rank, stages = dist.get_rank(), size.stages
    torch.manual_seed(0)
    layers = [[nn.Linear(size.width, size.width), nn.Tanh()] for _ in range(size.layers)]
    model = nn.Sequential(*(nn.Sequential(*pair) for pair in layers))
    parts = cut(model, stages)
    x, t = torch.randn(size.batch, size.width), torch.randn(size.batch, size.width)
    found = {"link": (size.messages, costs.ping_pong(size.messages) if rank < 2 else None)}
    make = lambda how, m: Pipeline(parts, nn.functional.mse_loss, x.shape, m, SCHEDULES[how])  # noqa: E731
    workers = {(how, m): make(how, m) for m in size.microbatches for how in size.schedules}
    exact = copy.deepcopy(model).double()
    nn.functional.mse_loss(exact(x.double()), t.double()).backward()
    right = [p.grad for p in cut(exact, stages)[rank].parameters()]
    found |= {what: {key: [] for key in workers} for what in ("batches", "stages", "errors")}
    for key, worker in workers.items():
        parts[rank].zero_grad()
        worker.run(x, t)
        found["errors"][key] = deviation([p.grad for p in parts[rank].parameters()], right)
    for n in range(size.rounds + 1):  # the first warms up
        for (schedule, m), worker in workers.items():
            micro = x[: size.batch // m], t[: size.batch // m]
            for turn in range(1 if TOGETHER[schedule] else stages):
                dist.barrier()
                if TOGETHER[schedule] or turn == rank:
                    stage = stage_seconds(parts[rank], *micro, m, KEEPS_ALL[schedule])
            seconds = barrier_to_barrier(lambda worker=worker: worker.run(x, t))
            if n > 0:
                found["batches"][schedule, m].append(seconds)
                found["stages"][schedule, m].append(stage)
    return found


def stage_seconds(module, x, t, microbatches, keeps_all):
    """{op: mean seconds of this rank's stage for a micro-batch}, as the worker does it but for messages."""
    rank, last = dist.get_rank(), dist.get_rank() == dist.get_world_size() - 1
    seconds, kept, at_once = {"forward": 0.0, "backward": 0.0}, [], microbatches if keeps_all else 1
    for _ in range(microbatches // at_once):
        start = time.perf_counter()
        for _ in range(at_once):
            y = module(x.clone().requires_grad_(rank > 0))
            kept.append(nn.functional.mse_loss(y, t) / microbatches if last else y)
        middle = time.perf_counter()
        while kept:
            kept.pop(0).backward(None if last else t)
        seconds["forward"] += (middle - start) / microbatches
        seconds["backward"] += (time.perf_counter() - middle) / microbatches
    return seconds
