"""What the tests launch: functions that other processes can import; and worlds of several sizes."""

import itertools
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from ed_lib.parallel import collectives, launch


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
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.uint8,
)


def check_collectives():
    """A ring in groups of 1 … 8 ranks against torch.distributed.

    → {(p, n): Traffic}, and what the ranks of the group of three were told by ``disagree``.
    """
    found, rank, told = {}, dist.get_rank(), None
    for p in GROUPS:
        group = dist.new_group(list(range(p)))
        if rank >= p:
            continue
        cases = []  # tensors, and what torch.distributed makes of them
        for n, dtype in [(n, torch.float32) for n in LENGTHS] + [
            (101, dtype) for dtype in DTYPES if p == 5
        ]:
            generator = torch.Generator().manual_seed(100 * rank + n)
            values = torch.randint(0, 9, (n,), generator=generator).to(
                dtype
            )  # any order gives the same bits
            right = values.clone()
            dist.all_reduce(right, group=group)
            cases.append((values, right))
        for values, right in cases:
            ours = values.clone()
            traffic = collectives.all_reduce(ours, group)
            assert torch.equal(ours, right), (p, values.shape, values.dtype)
            if values.dtype == torch.float32:
                found[p, len(values)] = traffic
        check_views(p, group)
        check_parts(p, group)
        told = disagree(group) if p == 3 else told
    return found, told


VIEWS = (
    lambda base: base[:, ::2].T,  # (5, 6)
    lambda base: base.view(-1)[::2],
    lambda base: base.view(2, 3, 5, 2).permute(0, 3, 1, 2),  # channels last
    lambda base: base[2, 3],  # no axes at all
)


def check_views(p, group):
    """Views, on all ranks or on some, of floats that round: near the truth, the same bits on all
    ranks, as much sent as of contiguous tensors, and nothing changed beside them.
    """
    rank = dist.get_rank()
    for view, every in itertools.product(VIEWS if p == 3 else VIEWS[:1], (1, 2)):
        base = torch.randn(6, 10, generator=torch.Generator().manual_seed(rank))
        tensor, kept = view(base), base.clone()
        right, ours = (tensor.clone(memory_format=torch.contiguous_format) for _ in range(2))
        tensor = ours if rank % every else tensor
        dist.all_reduce(
            right, group=group
        )  # of copies: gloo itself sums other numbers than a view's
        sent = collectives.all_reduce(tensor, group)
        torch.testing.assert_close(tensor, right, rtol=1e-5, atol=1e-5)
        view(kept).copy_(view(base))
        assert torch.equal(base, kept), "changed what does not belong to the view"
        assert all(torch.equal(tensor, other) for other in collectives.gathered(tensor, group))
        assert collectives.all_reduce(right, group) == sent


def check_parts(p, group):
    """The two halves of a ring against what they should leave, and the traffic of the second."""
    rank = dist.get_rank()
    for n in (0, 3, 840, 1001):
        tensor = torch.arange(n) + 1000 * rank
        collectives.ring_reduce_scatter(tensor, collectives.Wire(group))
        right = p * torch.arange(n) + 1000 * sum(range(p))
        assert torch.equal(tensor.tensor_split(p)[rank], right.tensor_split(p)[rank])
        tensor = torch.arange(n) + 1000 * rank
        wire = collectives.Wire(group)
        collectives.ring_all_gather(tensor, wire)
        owner = torch.cat(
            [torch.full_like(part, r) for r, part in enumerate(tensor.tensor_split(p))]
        )
        assert torch.equal(tensor, torch.arange(n) + 1000 * owner)
        if n % p == 0:
            assert wire.traffic.bytes == (p - 1) * n // p * 8


def disagree(group):
    """Errors that every rank must see, and the group must survive → the messages."""
    rank, messages = dist.get_rank(), []
    dtype = torch.float64 if rank else torch.float32
    for call in (
        lambda: collectives.all_reduce(torch.zeros(3 + rank), group=group),
        lambda: collectives.all_reduce(
            torch.zeros(4).reshape((2, 2) if rank else (4,)), group=group
        ),
        lambda: collectives.all_reduce(torch.zeros(3, dtype=dtype), group=group),
        lambda: collectives.all_reduce(torch.zeros(3, dtype=torch.bool), group=group),
        lambda: collectives.all_reduce([1.0, 2.0], group=group),
    ):
        try:
            call()
        except (TypeError, ValueError) as error:
            messages.append(f"{type(error).__name__}: {error}")
        else:
            messages.append("no error")
    total = torch.ones(3)
    collectives.all_reduce(total, group=group)
    assert torch.equal(total, torch.full((3,), 3.0))
    return messages
