"""Pipelines on real processes beside what is foreseen for them: two tables of ``parallel``.

Backpropagation: the simulator is told what messages, and each stage's micro-batches, take. Stages that
compute at once share caches and bandwidth, and one that keeps many activations finds less of them in its
caches: so they are measured together or in turns, with one or all micro-batches kept, as the schedule has
it. ED: the formula takes the slowest stage's t_f, to go forward with one of m micro-batches, and t_u, to
update for it, and no time for messages. First gradients, or ED's weights, are compared with float64.
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
from ed_lib.ed import EDNetwork
from ed_lib.parallel import launch, links
from ed_lib.parallel.collectives import Wire
from ed_lib.parallel.ed_stages import EDPipeline, EDStage
from ed_lib.parallel.pipeline import Pipeline, cut
from ed_lib.parallel.schedules import SCHEDULES
from ed_lib.parallel.simulator import simulate

TOGETHER = {"naive": False, "gpipe": True, "1f1b": True}  # whether stages compute at the same time
KEEPS_ALL = {"naive": False, "gpipe": True, "1f1b": False}  # or about one micro-batch, with two stages
ALPHA, NEARLY_0 = 0.8, 1e-9  # of ED's step that is checked, and of those that are timed, which change nothing


# So many linear layers of a width, with a tanh between each two; messages: bytes, for the link.
SIZE = Size(stages=2, width=1024, layers=8, batch=256, microbatches=(4, 8),
            rounds=9, messages=(2**10, 2**14, 2**18, 2**20),
            schedules=("naive", "gpipe", "1f1b"))  # fmt: skip
TINY = SIZE(width=8, layers=3, batch=6, microbatches=(2, 3), rounds=2, messages=(8, 4096))
# The same for ED; so many batches follow each other.
ED_SIZE = Size(stages=2, inputs=64, width=256, depth=16, batch=256, microbatches=(1, 2, 4, 8), batches=4,
               rounds=9)  # fmt: skip
ED_TINY = ED_SIZE(inputs=5, width=4, depth=5, batch=6, microbatches=(1, 3), batches=3, rounds=2)


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


def in_a_row(size):
    """Seconds of a batch of ED: a row for one process, "serial", and for each number of micro-batches "in a
    row". Results: "ratio to formula", of each round's seconds to those by the formula.
    """
    ranks = launch(measure_ed, size.stages, size, timeout=300.0)
    shape = {"stages": size.stages, "batch": size.batch, "width": size.width, "depth": size.depth}
    yield {"how": "serial"} | shape | summary(ranks[0]["serial"])
    for m in size.microbatches:
        error, seconds = max(rank["error", m] for rank in ranks), ranks[0]["in a row", m]
        if is_right(f"ED pipeline, {m} micro-batches", error, ROUNDING):
            t_f, t_u = (np.max([rank[op, m] for rank in ranks], axis=0) for op in ("forward", "update"))
            ratio = seconds / formula(size.stages, m, t_f, t_u, size.batches)  # (rounds,) each
            case = {"how": "in a row", "microbatches": m} | shape
            yield case | summary(seconds) | {"error": error, "ratio to formula": ratio.tolist()}


def formula(p, m, t_f, t_u, batches):
    """Seconds for each of so many batches in a row; t_f, t_u: numbers or arrays. The first takes
    (p − 1)·t_f + m·(t_f + t_u), each other comes a period later.
    """
    period = np.maximum(np.maximum(m * (t_f + t_u), p * t_f + m * t_u), (m + p - 1) * t_f + t_u)
    return ((p - 1) * t_f + m * (t_f + t_u) + (batches - 1) * period) / batches


def network(size, dtype="float32"):
    options = {"rule": "signed", "init": "fan_in", "alpha": ALPHA, "backend": "torch"}
    return EDNetwork(size.inputs, size.width, size.depth, dtype=dtype, **options)


def measure_ed(size):
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
            for op, seconds in seconds_of(ed_ops(pipeline.stage, x, m), m, at_once=m).items():
                found[op, m].append(seconds)
            run = lambda m=m: [pipeline.step(x, target, m) for _ in range(size.batches)]  # noqa: E731
            found["in a row", m].append(barrier_to_barrier(run) / size.batches)
    return errors | {key: np.array(seconds[1:]) for key, seconds in found.items()}  # the first round warms up


def ed_ops(stage, x, m):
    """{op: a function of the micro-batch's number}: what this rank's stage does of each, without messages."""
    parts = x.tensor_split(m)
    if not stage.is_first:
        cells = stage.net.n_outputs, len(parts[0]), 2 * stage.net.width
        parts = [torch.full(cells, 0.5) for _ in parts]  # (K, b, 2W)
    error = torch.full((len(x) // m, stage.net.n_outputs), 0.5)
    forward, update = (lambda i: stage.forward(i, parts[i])), (lambda i: stage.update(i, error, len(x)))
    return {"forward": forward, "update": update}


def deviation(size, x, target, m):
    """The largest deviation of this rank's weights, after a step, from the serial network's in float64."""
    pipeline, serial = EDPipeline(network(size)), network(size, "float64")
    pipeline.step(x, target, m)
    serial.step(x.double(), target.double())
    right = EDStage(serial, pipeline.number, pipeline.stages).params
    return max(float((value - right[name]).abs().max()) for name, value in pipeline.stage.params.items())
