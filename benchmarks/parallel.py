"""Many devices: messages and all-reduces, a data-parallel step, pipelines, and workers that do not wait.

The devices are processes on a CPU, with one thread each, whatever else the machine has: a GPU alone is one
device, and NCCL refuses two ranks on it. Everything is first compared with something else: sums with
``dist.all_reduce``, gradients and weights with float64; what deviates is not timed. The long training runs
are another benchmark, ``parallel_accuracy``.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from benchmarks import asynchronous, data_parallel, ed_pipeline, pipelines
from benchmarks.old_harness import Plan, Shown, Table, each, is_right, one_thread, summary
from benchmarks.old_records import Row
from ed_lib import timing
from ed_lib.parallel import launch
from ed_lib.parallel.ranks import collectives, costs
from ed_lib.parallel.ranks.costs import Link

TORCH = "dist.all_reduce"


@dataclass(frozen=True)
class Size:
    """How much is run. ``messages`` and ``all_reduces``: their sizes in bytes; times are medians of
    ``repeats``, in each of the rounds.
    """

    messages: tuple = (2**6, 2**10, 2**14, 2**18, 2**20, 2**22)
    all_reduces: tuple = (2**6, 2**12, 2**16, 2**20, 2**22)
    ranks: tuple = (2, 4)
    rounds: int = 9
    repeats: int = 7
    step: data_parallel.Size = data_parallel.Size()
    pipeline: pipelines.Size = pipelines.Size()
    ed: ed_pipeline.Size = ed_pipeline.Size()
    throughput: dict = dataclasses.field(default_factory=lambda: {"n_tasks": 240, "pause": 0.02})
    lost_updates: dict = dataclasses.field(default_factory=lambda: {"steps": 40_000})
    timeout: float = 300.0


TINY = Size(  # of a rehearsal
    (8, 4096), (12, 4004), (2,), 2, 1, data_parallel.TINY, pipelines.TINY, ed_pipeline.TINY,
    {"n_tasks": 16, "pause": 0.001}, {"steps": 300, "shapes": ((50, 2),)},
)  # fmt: skip


def prepare(device="cpu", size=None):
    """The :class:`benchmarks.harness.Plan`, of a part for each table; ``device`` is "cpu"."""
    size, table = size or Size(), Table()
    works = {
        "message": lambda: messages(size),
        "all-reduce": lambda: all_reduces(size, Link(*table.select(table="message")[0].results["link"])),
        "data parallel step": lambda: data_parallel.quick(size.step),
        "pipeline": lambda: pipelines.quick(size.pipeline),
        "ED pipeline": lambda: ed_pipeline.quick(size.ed),
        "asynchronous, throughput": lambda: asynchronous.throughput(**size.throughput),
        "asynchronous, lost updates": lambda: asynchronous.lost_updates(**size.lost_updates),
    }
    parameters = dataclasses.asdict(size) | {"backend": "gloo", "threads": "1 in each process"}
    return Plan(table, table.filled_by(works), parameters, context=one_thread, tables=True)


def messages(size):
    """Seconds of a message between two ranks: {table: "message", bytes} → rows.

    Results: "predicted", α + nβ; "link", α and β fitted to all of them, γ and the contention.
    """
    arguments = size.messages, size.rounds, size.repeats
    links, found = zip(*launch(time_messages, 2, *arguments, timeout=size.timeout)[0], strict=True)
    gamma, contention = (
        float(np.median([getattr(one, name) for one in links])) for name in ("gamma", "contention")
    )
    fitted = costs.fit(size.messages, np.median(found, axis=0))
    link = Link(fitted.alpha, fitted.beta, gamma, contention)
    for bytes, seconds in zip(size.messages, np.transpose(found), strict=True):  # (sizes, rounds)
        results = {"predicted": [link.seconds(bytes)], "link": list(dataclasses.astuple(link))}
        case = {"table": "message", "bytes": bytes}
        yield Row(case, summary(seconds), bytes=bytes, results=results)


def time_messages(sizes, rounds, repeats):
    """What each of two ranks does: [(Link, [seconds for each size]) for each round]."""
    return [costs.measure(sizes, repeats) for _ in range(rounds)]


def all_reduces(size, link):
    """Seconds of an all-reduce: {table: "all-reduce", algorithm, ranks, bytes} → rows.

    ``bytes`` of a row is what all ranks send together. Results of our algorithms: "predicted", by the link.
    """
    for ranks in size.ranks:
        arguments = size.all_reduces, size.rounds, size.repeats
        found = launch(time_all_reduces, ranks, *arguments, timeout=size.timeout)[0]
        for algorithm, (seconds, error) in found.items():
            case = {"table": "all-reduce", "algorithm": algorithm, "ranks": ranks}
            if not is_right(case, error, 0):
                continue
            for bytes, some in zip(size.all_reduces, np.transpose(seconds), strict=True):
                sent, results = None, None
                if algorithm != TORCH:
                    sent = costs.traffic(algorithm, bytes, ranks).bytes
                    results = {"predicted": [costs.all_reduce(algorithm, bytes, ranks, link)]}
                yield Row(case | {"bytes": bytes}, summary(some), bytes=sent, error=error, results=results)


def time_all_reduces(sizes, rounds, repeats):
    """What each rank does: {algorithm: ([[seconds for each size] for each round], deviation)}."""
    found = {name: ([], error) for name, error in deviations(max(sizes) // 4).items()}
    found[TORCH] = [], 0.0
    for _ in range(rounds):
        for name, seconds in costs.time_all_reduces(sizes, repeats).items():
            found[name][0].append(seconds)
        found[TORCH][0].append([time_torchs(bytes, repeats) for bytes in sizes])
    return found


def deviations(n):
    """{algorithm: the largest difference from torch's sum}: of whole numbers, so there should be none."""
    draw = torch.Generator().manual_seed(dist.get_rank())
    tensor = torch.randint(-1000, 1000, (n,), generator=draw).float()
    right = tensor.clone()
    dist.all_reduce(right)
    errors = {}
    for name in collectives.ALGORITHMS:
        ours = tensor.clone()
        collectives.all_reduce(ours, name)
        worst = (ours - right).abs().max()
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        errors[name] = worst.item()
    return errors


def time_torchs(bytes, repeats):
    """Median seconds of torch's all-reduce, measured as costs.time_all_reduces does it."""
    tensor, times = torch.zeros(bytes // 4), []
    for _ in range(repeats + 2):  # the first two warm up
        dist.barrier()
        start = timing.now()
        dist.all_reduce(tensor)
        seconds = torch.tensor([timing.now() - start])
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        times.append(seconds.item())
    return float(np.median(times[2:]))


# The page
TITLE = "Messages, steps and pipelines"
MEANING = """Processes on one machine's CPU, with one thread each, which send each other messages by gloo;
more of them than there are cores take turns. *Model* is the time in the α–β model of the link, *simulator*
that of the pipeline on paper with each stage's measured times; *m* is the number of micro-batches. *× DDP*,
*× model*, *× simulator* and *× formula* are the time as a multiple of theirs."""


def against_model(row):
    """The measured time as a multiple of the median of what the model predicts."""
    found = (row.results or {}).get("predicted")
    return f"{row.completion.median / np.median(found):.2f}" if found else ""


def predicted(row):
    return f"of {timing.text(row.results['predicted'][0])}"


def algorithm(row):
    """One algorithm's time, and in brackets as a multiple of the model's."""
    multiple = against_model(row)
    text = f"{row.case['algorithm']} {timing.text(row.completion.median)}"
    return f"{text} ({multiple})" if multiple else text, ""


def median_of(key):
    """The median of some results, where the row has them."""
    return lambda row: f"{np.median(row.results[key]):.2f}" if key in (row.results or {}) else ""


PAGE = {
    "message": [Shown(
        "A message between two ranks",
        ("bytes",), ("time", ("× model", lambda row: (against_model(row), predicted(row)))),
        above=lambda rows: f"The model: {Link(*rows[0].results['link'])}.",
    )],
    "all-reduce": [Shown(
        "An all-reduce: the time, and in brackets as a multiple of the model's",
        ("ranks", "bytes"), (("time (× model)", algorithm),),
    )],
    "data parallel step": [Shown(
        "A training step of LeNet, by the way in which gradients are summed",
        ("way", "ranks", "batch"), ("time", ("× DDP", median_of("against DDP"))), ("deviation",),
    )],
    "pipeline": [Shown(
        "A batch through a pipeline, by schedule",
        ("schedule", ("m", "microbatches")), ("time", ("× simulator", median_of("ratio"))), ("deviation",),
    )],
    "ED pipeline": [Shown(
        "A batch through an ED pipeline", ("how", ("m", "microbatches")),
        ("time", ("× formula", median_of("ratio to formula")),
         ("× simulator", median_of("ratio to predicted"))),
        ("deviation",),
    )],
    "asynchronous, throughput": [Shown(
        "A gradient, of four workers that sleep in place of computing",
        ("server", "workers"), ("time", "× floor"),
        (each("gradients of each ", "gradients"),
         each("mean staleness of each ", "mean_staleness", "{:.1f}")),
    )],
    "asynchronous, lost updates": [Shown(
        "Hogwild: additions that were lost",
        ("parameters", "nonzeros", "workers", "steps"), (("lost", each("", "lost", "{:.2%}")), "time"),
        (each("loss, of that at the start ", "loss", "{:.1e}"),),
    )],
}  # fmt: skip
