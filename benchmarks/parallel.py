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
from ed_lib import machine, records, timing
from ed_lib.parallel import collectives, costs, launch
from ed_lib.records import Row

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


def run(device="cpu", size=None):
    """Measures everything → an :class:`ed_lib.records.Record` of this machine's CPU; ``device`` is "cpu"."""
    size = size or Size()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # here too, as in each rank
    rows, link = messages(size)
    rows += all_reduces(size, link)
    rows += data_parallel.quick(size.step)
    rows += pipelines.quick(size.pipeline)
    rows += ed_pipeline.quick(size.ed)
    rows += asynchronous.throughput(**size.throughput)
    rows += asynchronous.lost_updates(**size.lost_updates)
    parameters = dataclasses.asdict(size) | {"backend": "gloo", "threads": "1 in each process"}
    name, made = machine.name(device), records.provenance("parallel", device)
    torch.set_num_threads(threads)
    return records.Record("parallel", records.slug(name), name, made, parameters, [], rows)


def messages(size):
    """Seconds of a message between two ranks: {table: "message", bytes} → rows, and the link fitted to them.

    Results: "predicted", α + nβ; "link", α and β.
    """
    found = np.array(
        launch(time_messages, 2, size.messages, size.rounds, size.repeats, timeout=size.timeout)[0]
    )  # (rounds, sizes)
    link = costs.fit(size.messages, np.median(found, axis=0))
    print(f"link: {link}")
    rows = []
    for bytes, seconds in zip(size.messages, found.T, strict=True):
        results = {"predicted": [link.seconds(bytes)], "link": [link.alpha, link.beta]}
        case = {"table": "message", "bytes": bytes}
        rows.append(Row(case, data_parallel.summary(seconds), bytes=bytes, results=results))
        print(f"{bytes} bytes: {rows[-1].completion}, in the model {timing.text(link.seconds(bytes))}")
    return rows, link


def time_messages(sizes, rounds, repeats):
    """What each of two ranks does: [[seconds for each size] for each round]."""
    return [costs.ping_pong(sizes, repeats) for _ in range(rounds)]


def all_reduces(size, link):
    """Seconds of an all-reduce: {table: "all-reduce", algorithm, ranks, bytes} → rows.

    ``bytes`` of a row is what all ranks send together. Results of our algorithms: "predicted", by the link.
    """
    rows = []
    for ranks in size.ranks:
        arguments = size.all_reduces, size.rounds, size.repeats
        found = launch(time_all_reduces, ranks, *arguments, timeout=size.timeout)[0]
        for algorithm, (seconds, error) in found.items():
            if error:
                print(f"{algorithm}, {ranks} ranks: differs by {error} from {TORCH}; not timed")
                continue
            for bytes, some in zip(size.all_reduces, np.transpose(seconds), strict=True):
                case = {"table": "all-reduce", "algorithm": algorithm, "ranks": ranks, "bytes": bytes}
                sent, results = None, None
                if algorithm != TORCH:
                    sent = costs.traffic(algorithm, bytes, ranks).bytes
                    results = {"predicted": [costs.all_reduce(algorithm, bytes, ranks, link)]}
                rows.append(Row(case, data_parallel.summary(some), bytes=sent, error=error, results=results))
            print(f"{algorithm}, {ranks} ranks: {rows[-1].completion} for {bytes} bytes", flush=True)
    return rows


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
