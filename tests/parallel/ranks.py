"""What the tests launch: functions that other processes can import; and worlds of several sizes."""

import itertools
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from ed_lib.parallel import RankError, collectives, launch


def in_worlds(sizes, fn, *args):
    """{p: what each rank of a world of p returned}."""
    return {p: launch(fn, p, *args, timeout=240.0) for p in sizes}


def who(*args):
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), total, torch.get_num_threads(), os.getpid(), args


def change(*arrays):
    for array in arrays:
        array += 1
    return arrays


def many(n):
    """n numbers, so that a result may be large."""
    return torch.full((n,), float(dist.get_rank()))


def close_stdout():
    sys.stdout.close()
    return dist.get_rank()


def wait_alone(world, connection):
    """Sends what a rank is told that torchrun has started, in this world, and whose peers do not
    come.
    """
    os.environ.update(world)
    try:
        launch(len, 2, [], timeout=2)
    except RankError as error:
        connection.send(str(error))


def misbehave(how, rank):
    """The rank does it, all others wait for it."""
    if dist.get_rank() == rank:
        if how == "raises":
            raise KeyError("a word to find")
        if how == "leaves":
            sys.exit(3)
        if how == "exits":
            os._exit(3)
        if how == "exits as a failed import does":
            os._exit(1)
        if how == "is killed":
            os.kill(os.getpid(), 9)
        if how == "returns what cannot be sent":
            return lambda: None
    dist.barrier()
    return None


def hang():
    """Rank 1 sleeps, rank 2 computes without end, and rank 0 waits for both."""
    if dist.get_rank() == 1:
        time.sleep(1000)
    if dist.get_rank() == 2:
        spin()
    dist.barrier()


def exit_while_others_spin(path):
    """Rank 1 writes the time and is gone."""
    if dist.get_rank() == 1:
        Path(path).write_text(str(time.monotonic()))
        os._exit(3)
    spin()


class Stops:
    """A result over whose sending its process neither lives nor dies."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGSTOP)


def stop_halfway():
    return Stops() if dist.get_rank() == 1 else None


def spin(folder=None):
    if folder:
        (Path(folder) / f"rank {dist.get_rank()} spins").touch()
    while True:
        pass


GROUPS = range(1, 9)
LENGTHS = (0, 1, 2, 7, 9, 840, 1001)  # 840 is divisible by 1 … 8
HALVES = (0, 3, 840, 1001)
DTYPES = collectives.SUMMED


def collectives_in_groups():
    """A ring in groups of 1 … 8 ranks, beside torch.distributed. What each rank finds is compared
    in the tests, where pytest tells the numbers:

    {"sums": {(p, n, dtype): (sum, torch's, Traffic)}, "views": {(p, view, every): …},
    "scattered" and "gathered": {(p, n): …}, "told": what the group of three was told}.
    """
    found = {"sums": {}, "views": {}, "scattered": {}, "gathered": {}, "copied": {}, "told": []}
    rank = dist.get_rank()
    for p in GROUPS:
        group = dist.new_group(list(range(p)))
        if rank >= p:
            continue
        found["sums"] |= sums(p, group)
        found["views"] |= views(p, group)
        found["scattered"] |= scattered(p, group)
        found["gathered"] |= gathered(p, group)
        if p == 3:
            found["copied"] = copied(group)
            found["told"] = disagree(group)
    return found


def sums(p, group):
    cases = [(n, torch.float32) for n in LENGTHS]
    if p == 5:
        cases += [(101, dtype) for dtype in DTYPES]
    found = {}
    for n, dtype in cases:
        generator = torch.Generator().manual_seed(100 * dist.get_rank() + n)
        # Small integers: any order of additions gives the same bits.
        values = torch.randint(0, 9, (n,), generator=generator).to(dtype)
        # Gloo's own sum knows no int16.
        right = values.to(torch.int32) if dtype == torch.int16 else values.clone()
        dist.all_reduce(right, group=group)
        traffic = collectives.all_reduce(values, group)
        found[p, n, dtype] = values, right.to(dtype), traffic
    return found


VIEWS = (
    lambda base: base[:, ::2].T,  # (5, 6)
    lambda base: base.view(-1)[::2],
    lambda base: base.view(2, 3, 5, 2).permute(0, 3, 1, 2),  # channels last
    lambda base: base[2, 3],  # no axes at all
)


def views(p, group):
    """Views, on all ranks (every = 1) or on each second one, of floats that round → {(p, view,
    every): (sum, torch's, of all ranks, (Traffic, that of a contiguous tensor), what the memory
    holds, what it should)}.
    """
    rank, found = dist.get_rank(), {}
    for number, every in itertools.product(range(len(VIEWS) if p == 3 else 1), (1, 2)):
        view = VIEWS[number]
        base = torch.randn(6, 10, generator=torch.Generator().manual_seed(rank))
        tensor, kept = view(base), base.clone()
        right, ours = (tensor.clone(memory_format=torch.contiguous_format) for _ in range(2))
        tensor = ours if rank % every else tensor
        # Of copies: gloo itself sums other numbers than a view's.
        dist.all_reduce(right, group=group)
        sent = collectives.all_reduce(tensor, group)
        view(kept).copy_(view(base))
        every_ranks = collectives.gathered(tensor, group)
        both_sent = sent, collectives.all_reduce(right.clone(), group)
        values = tensor.clone(), right, every_ranks, both_sent, base, kept
        found[p, number, every] = values
    return found


def scattered(p, group):
    """The first half of a ring → {(p, n): this rank's part}."""
    rank, found = dist.get_rank(), {}
    for n in HALVES:
        tensor = torch.arange(n) + 1000 * rank
        collectives.ring_reduce_scatter(tensor, collectives.Wire(group))
        found[p, n] = tensor.tensor_split(p)[rank]
    return found


def gathered(p, group):
    """The second half → {(p, n): (all parts, Traffic)}."""
    rank, found = dist.get_rank(), {}
    for n in HALVES:
        tensor, wire = torch.arange(n) + 1000 * rank, collectives.Wire(group)
        collectives.ring_all_gather(tensor, wire)
        found[p, n] = tensor, wire.traffic
    return found


COPIED = {
    "a view": lambda base: base[:, ::2].T,
    "every second": lambda base: base[0, ::2],
    "no axes": lambda base: base[1, 2],
    "eight bits": lambda base: base.to(torch.float8_e4m3fn),
    "nothing": lambda base: base[:0],
}


def copied(group):
    """Rank 0's values in every rank → {which tensor: its values}."""
    found = {}
    for name, view in COPIED.items():
        tensor = view(torch.arange(24.0).view(4, 6) + 100 * dist.get_rank())
        collectives.copy_from_0(tensor, group)
        found[name] = tensor.float()
    return found


def disagree(group):
    """Errors that every rank must see, and the group must survive → the messages, and a sum."""
    rank, messages = dist.get_rank(), []
    dtype = torch.float64 if rank else torch.float32
    one = torch.ones(1)
    for tensor in (
        torch.zeros(3 + rank),
        torch.zeros(4).reshape((2, 2) if rank else (4,)),
        torch.zeros(3, dtype=dtype),
        torch.zeros(3).to_sparse() if rank else torch.zeros(3),
        one.expand(3) if rank else torch.zeros(3),
        torch.zeros(3) if rank else [0.0] * 3,
        torch.zeros(3, dtype=torch.bool),
        torch.zeros(3, dtype=torch.uint16),
        torch.zeros(3, dtype=torch.float8_e4m3fn),
        [1.0, 2.0],
        one.expand(3),
        torch.zeros(3).to_sparse(),
        torch.zeros(3, device="meta"),
    ):
        try:
            collectives.all_reduce(tensor, group=group)
        except (TypeError, ValueError) as error:
            messages.append(f"{type(error).__name__}: {error}")
        else:
            messages.append("no error")
    total = torch.ones(3)
    collectives.all_reduce(total, group=group)
    return [*messages, total.tolist()]
