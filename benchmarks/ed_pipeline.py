"""ED cut into a chain of stages on real processes, beside the formula for its time: a table of ``parallel``.

First the weights after a step are compared with those of the serial network in float64. Then, in turns: the
seconds that each of p stages takes to go forward with one of m micro-batches (t_f) and to update for it
(t_u), while all compute; and those of a batch, where several follow each other. One alone: (p − 1)·t_f +
m·(t_f + t_u). Another comes max(m·(t_f + t_u), p·t_f + m·t_u, (m + p − 1)·t_f + t_u) later. The formula takes
the slowest stage's t_f and t_u, and no time for messages.
"""

import time
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.harness import ROUNDING, is_right, summary
from ed_lib.ed import EDNetwork
from ed_lib.parallel import launch
from ed_lib.parallel.ed.stages import EDPipeline, EDStage

ALPHA, NEARLY_0 = 0.8, 1e-9  # of the step that is checked, and of those that are timed, which change nothing


@dataclass(frozen=True)
class Size:
    """How much is run. ``batches``: how many follow each other."""

    stages: int = 2
    inputs: int = 64
    width: int = 256
    depth: int = 16
    batch: int = 256
    microbatches: tuple = (1, 2, 4, 8)
    batches: int = 4
    rounds: int = 9


TINY = Size(2, 5, 4, 5, 6, (1, 3), 3, 2)  # of a rehearsal


def quick(size):
    """Seconds of a batch: a row for one process, "serial", and for each number of micro-batches "in a row".

    Results: "formula", seconds for each round, and "ratio to formula", of the seconds measured in that round;
    "forward" and "update", the seconds of each stage for a micro-batch.
    """
    ranks = launch(measure, size.stages, size, timeout=300.0)
    shape = {"stages": size.stages, "batch": size.batch, "width": size.width, "depth": size.depth}
    yield {"how": "serial"} | shape | summary(ranks[0]["serial"])
    for m in size.microbatches:
        error, seconds = max(rank["error", m] for rank in ranks), ranks[0]["in a row", m]
        if is_right(f"ED pipeline, {m} micro-batches", error, ROUNDING):
            parts = {op: np.array([rank[op, m] for rank in ranks]) for op in ("forward", "update")}  # (p, n)
            expected = formula(size.stages, m, *(part.max(0) for part in parts.values()), size.batches)
            row = {"how": "in a row", "microbatches": m} | shape | summary(seconds) | {"error": error}
            row |= {"formula": expected.tolist(), "ratio to formula": (seconds / expected).tolist()}
            yield row | {op: np.median(part, 1).tolist() for op, part in parts.items()}


def formula(p, m, t_f, t_u, batches):
    """Seconds for each of so many batches that follow each other; t_f, t_u: numbers or arrays."""
    period = np.maximum(np.maximum(m * (t_f + t_u), p * t_f + m * t_u), (m + p - 1) * t_f + t_u)
    return ((p - 1) * t_f + m * (t_f + t_u) + (batches - 1) * period) / batches


def network(size, dtype="float32"):
    options = {"rule": "signed", "init": "fan_in", "alpha": ALPHA, "backend": "torch"}
    return EDNetwork(size.inputs, size.width, size.depth, dtype=dtype, **options)


def measure(size):
    """What each rank does: the deviations, then in each round all cases → {(what, m): seconds of each}."""
    torch.set_flush_denormal(True)
    rank, draw, found = dist.get_rank(), torch.Generator().manual_seed(0), defaultdict(list)
    x, target = (torch.rand(size.batch, n, generator=draw) for n in (size.inputs, 1))
    errors = {("error", m): deviation(size, x, target, m) for m in size.microbatches}
    serial, net = network(size), network(size)
    serial.alpha = net.alpha = NEARLY_0
    pipeline = EDPipeline(net)
    for _ in range(1 + size.rounds):
        found["serial"].append(barrier_to_barrier(lambda: rank == 0 and serial.step(x, target)))
        for m in size.microbatches:
            dist.barrier()
            for op, seconds in zip(("forward", "update"), stage_seconds(pipeline.stage, x, m), strict=True):
                found[op, m].append(seconds)
            run = lambda m=m: [pipeline.step(x, target, m) for _ in range(size.batches)]  # noqa: E731
            found["in a row", m].append(barrier_to_barrier(run) / size.batches)
    return errors | {key: np.array(seconds[1:]) for key, seconds in found.items()}  # the first round warms up


def barrier_to_barrier(call):
    """Seconds until all ranks have done what each calls."""
    dist.barrier()
    start = time.perf_counter()
    call()
    dist.barrier()
    return time.perf_counter() - start


def stage_seconds(stage, x, m):
    """Mean seconds of this rank's stage for a micro-batch, forward and to update, without messages."""
    parts = x.tensor_split(m)
    if not stage.is_first:
        cells = stage.net.n_outputs, len(parts[0]), 2 * stage.net.width
        parts = [torch.full(cells, 0.5) for _ in parts]  # (K, b, 2W)
    start = time.perf_counter()
    for i, part in enumerate(parts):
        stage.forward(i, part)
    middle = time.perf_counter()
    for i, part in enumerate(parts):
        stage.update(i, torch.full((part.shape[-2], stage.net.n_outputs), 0.5), len(x))
    return (middle - start) / m, (time.perf_counter() - middle) / m


def deviation(size, x, target, m):
    """The largest deviation of this rank's weights, after a step, from the serial network's in float64."""
    pipeline, serial = EDPipeline(network(size)), network(size, "float64")
    pipeline.step(x, target, m)
    serial.step(x.double(), target.double())
    right = EDStage(serial, pipeline.number, pipeline.stages).params
    return max(float((value - right[name]).abs().max()) for name, value in pipeline.stage.params.items())
