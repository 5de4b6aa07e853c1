"""ED cut into a chain of stages on real processes, beside the formula for its time.

In one launch: the link, the seconds that each stage takes to go forward with a micro-batch (t_f) and to
update for it (t_u), measured while all stages compute, and the seconds of one batch and of several that
follow each other, in turns. First the weights after a step are compared with those of the serial network in
float64.

p stages, m micro-batches. One batch: (p − 1)·t_f + m·(t_f + t_u). A batch that follows another comes
max(m·(t_f + t_u), p·t_f + m·t_u, (m + p − 1)·t_f + t_u) later. The formula takes the slowest stage's t_f and
t_u, and no time for messages; the simulator takes each stage's own, and the link. Beside the seconds of a
batch stand those that a stage spent computing in it: the rest is waiting.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.old_harness import ROUNDING, barrier_to_barrier, is_right, summary
from benchmarks.old_records import Row
from ed_lib.ed import EDNetwork
from ed_lib.parallel import launch
from ed_lib.parallel.ed.stages import EDPipeline, EDStage
from ed_lib.parallel.model_parallel import schedules
from ed_lib.parallel.model_parallel.simulator import simulate
from ed_lib.parallel.ranks import costs

BYTES = 4  # of a float32
ALPHA, NEARLY_0 = 0.8, 1e-9  # of the step that is checked, and of those that are timed, which change nothing


@dataclass(frozen=True)
class Size:
    """How much is run. ``batches``: how many follow each other; ``messages``: bytes, for the link."""

    stages: int = 2
    inputs: int = 64
    width: int = 256
    depth: int = 16
    batch: int = 256
    microbatches: tuple = (1, 2, 4, 8)
    batches: int = 4
    rounds: int = 9
    messages: tuple = (2**10, 2**14, 2**18, 2**20)
    timeout: float = 300.0


TINY = Size(2, 5, 4, 5, 6, (1, 3), 3, 2, (8, 4096))  # of a rehearsal


def quick(size=None):
    """Seconds of a batch: {table: "ED pipeline", how: "serial", "one batch" or "in a row", …} → rows.

    Results: "formula" and "predicted" (by the simulator), seconds for each round; "ratio to" each of them, of
    the seconds measured in that round; "computing", the seconds in which the busiest stage computed, of each
    batch; "link", α and β; "forward" and "update", the seconds of each stage for a micro-batch.
    """
    size = size or Size()
    ranks = launch(measure, size.stages, size, timeout=size.timeout)
    link = costs.fit(*ranks[0]["link"])
    shape = {"stages": size.stages, "batch": size.batch, "width": size.width, "depth": size.depth}
    yield Row({"table": "ED pipeline", "how": "serial"} | shape, summary(ranks[0]["serial"]))
    for m in size.microbatches:
        error = max(rank["errors"][m] for rank in ranks)
        if not is_right({"table": "ED pipeline", "microbatches": m}, error, ROUNDING):
            continue
        stages = [{op: [rank["stages"][m][n][op] for rank in ranks] for op in ("forward", "update")}
                  for n in range(size.rounds)]  # fmt: skip
        results = {op: np.median([s[op] for s in stages], axis=0).tolist() for op in ("forward", "update")}
        for how, n in (("one batch", 1), ("in a row", size.batches)):
            case = {"table": "ED pipeline", "how": how, "microbatches": m} | shape
            seconds = ranks[0][how][m]
            found = {"formula": [formula(size.stages, m, s, n) for s in stages]}
            found |= {"predicted": [predicted(size, m, s, n, link) for s in stages]}
            for key in list(found):
                found[f"ratio to {key}"] = np.divide(seconds, found[key]).tolist()
            computing = np.max([rank["computing"][how, m] for rank in ranks], axis=0).tolist()
            found |= results | {"link": [link.alpha, link.beta], "computing": computing}
            yield Row(case, summary(seconds), error=error, results=found)


def formula(p, m, seconds, batches):
    """Seconds for each of so many batches that follow each other."""
    t_f, t_u = max(seconds["forward"]), max(seconds["update"])
    period = max(m * (t_f + t_u), p * t_f + m * t_u, (m + p - 1) * t_f + t_u)
    return ((p - 1) * t_f + m * (t_f + t_u) + (batches - 1) * period) / batches


def predicted(size, m, seconds, batches, link):
    """The same by the simulator."""
    each = size.batch // m * BYTES
    bytes = {"activation": 2 * size.width * each, "error": each}
    schedule = schedules.repeat(schedules.ed, batches)
    return simulate(schedule, size.stages, m, seconds, link, bytes).seconds / batches


def network(size, dtype="float32"):
    options = {"rule": "signed", "init": "fan_in", "alpha": ALPHA, "backend": "torch"}
    return EDNetwork(size.inputs, size.width, size.depth, dtype=dtype, **options)


def measure(size):
    """What each rank does: the link, the deviations, and in each round all cases."""
    torch.set_flush_denormal(True)
    rank, draw = dist.get_rank(), torch.Generator().manual_seed(0)
    x = torch.rand(size.batch, size.inputs, generator=draw)
    target = torch.rand(size.batch, 1, generator=draw)
    found = {"link": (size.messages, costs.ping_pong(size.messages) if rank < 2 else None)}
    found["errors"] = {m: deviation(size, x, target, m) for m in size.microbatches}
    found |= {"serial": []} | {
        what: {m: [] for m in size.microbatches} for what in ("one batch", "in a row", "stages")
    }
    serial, net = network(size), network(size)
    serial.alpha = net.alpha = NEARLY_0
    pipeline = EDPipeline(net)
    clock = Clock(pipeline.stage)
    found["computing"] = {(how, m): [] for how in ("one batch", "in a row") for m in size.microbatches}
    for n in range(size.rounds + 1):  # the first warms up
        times = {("serial",): barrier_to_barrier(lambda: rank == 0 and serial.step(x, target))}
        for m in size.microbatches:
            dist.barrier()
            times["stages", m] = stage_seconds(pipeline.stage, x, m)
            for how, count in (("one batch", 1), ("in a row", size.batches)):
                clock.seconds = 0.0
                times[how, m] = barrier_to_barrier(
                    lambda m=m, count=count: [pipeline.step(x, target, m) for _ in range(count)]
                )
                times[how, m] /= count
                if n:
                    found["computing"][how, m].append(clock.seconds / count)
        for (what, *m), seconds in times.items() if n else ():
            (found[what][m[0]] if m else found[what]).append(seconds)
    return found


class Clock:
    """Adds up the seconds in which a stage computes."""

    def __init__(self, stage):
        self.seconds = 0.0
        stage.forward, stage.update = self.around(stage.forward), self.around(stage.update)

    def around(self, call):
        def run(*args):
            start = time.perf_counter()
            result = call(*args)
            self.seconds += time.perf_counter() - start
            return result

        return run


def stage_seconds(stage, x, m):
    """{op: mean seconds of this rank's stage for a micro-batch}, as in a batch, but for messages."""
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
    return {"forward": (middle - start) / m, "update": (time.perf_counter() - middle) / m}


def deviation(size, x, target, m):
    """The largest deviation of this rank's weights, after a step, from the serial network's in float64."""
    pipeline, serial = EDPipeline(network(size)), network(size, "float64")
    pipeline.step(x, target, m)
    serial.step(x.double(), target.double())
    right = EDStage(serial, pipeline.number, pipeline.stages).params
    return max(float((value - right[name]).abs().max()) for name, value in pipeline.stage.params.items())
