"""What the tests launch: functions that other processes can import."""

import os
import sys
import time

import torch
import torch.distributed as dist

from ed_lib.parallel import collectives


def who(*args):
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), total, torch.get_num_threads(), os.getpid(), args


def change(array):
    array += 1
    return array


def misbehave(how, rank):
    """The rank does it, all others wait for it."""
    if dist.get_rank() == rank:
        if how == "raises":
            raise KeyError("a word to find")
        if how == "leaves":
            sys.exit(3)
        if how == "exits":
            os._exit(3)
        if how == "is killed":
            os.kill(os.getpid(), 9)
        if how == "returns what cannot be sent":
            return lambda: None
        if how == "sleeps":
            time.sleep(1000)
    dist.barrier()
    return None


def spin():
    while True:
        pass


GROUPS = range(1, 9)
LENGTHS = (0, 1, 2, 7, 9, 840, 1001)  # 840 is divisible by 1 … 8
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)


def check_collectives():
    """Every algorithm in groups of 1 … 8 ranks against torch.distributed → {(p, algorithm, n): Traffic}."""
    found, rank = {}, dist.get_rank()
    for p in GROUPS:
        group = dist.new_group(list(range(p)))
        if rank >= p:
            continue
        for algorithm in collectives.ALGORITHMS:
            for n, dtype in [(n, torch.float32) for n in LENGTHS] + [(101, dtype) for dtype in DTYPES]:
                torch.manual_seed(100 * rank + n)
                values = torch.randint(0, 9, (n,)).to(dtype)  # whole numbers: any order gives the same bits
                right, ours = values.clone(), values.clone()
                dist.all_reduce(right, group=group)
                traffic = collectives.all_reduce(ours, algorithm, group)
                assert torch.equal(ours, right), (p, algorithm, n, dtype)
                if dtype == torch.float32:
                    found[p, algorithm, n] = traffic
            check_any_floats(algorithm, p, group)
        check_parts(p, group)
    return found


def check_any_floats(algorithm, p, group):
    """A tensor that is not contiguous, of floats that round: near the truth, the same bits on all ranks."""
    base = torch.randn(6, 10, generator=torch.Generator().manual_seed(dist.get_rank()))
    tensor = base[:, ::2].T  # (5, 6), a view
    right, beside = tensor.contiguous(), base[:, 1::2].clone()
    dist.all_reduce(right, group=group)
    collectives.all_reduce(tensor, algorithm, group)
    torch.testing.assert_close(tensor, right, rtol=1e-5, atol=1e-5)
    assert torch.equal(base[:, 1::2], beside), "changed what does not belong to the view"
    everyone = [torch.empty(5, 6) for _ in range(p)]
    dist.all_gather(everyone, tensor.contiguous(), group=group)
    assert all(torch.equal(one, everyone[0]) for one in everyone)
    number = torch.tensor(float(dist.get_rank()))  # no axes at all
    collectives.all_reduce(number, algorithm, group)
    assert number == sum(range(p))


def check_parts(p, group):
    """broadcast, reduce_scatter and all_gather against what they should leave, and their traffic."""
    rank = dist.get_rank()
    for n in (0, 3, 840, 1001):
        for source in range(p):
            tensor = torch.arange(n) + 1000 * rank
            sent = collectives.broadcast(tensor, source, group)
            assert torch.equal(tensor, torch.arange(n) + 1000 * source)
            assert sent.bytes == sent.messages * n * 8
        tensor = torch.arange(n) + 1000 * rank
        collectives.reduce_scatter(tensor, group)
        right = p * torch.arange(n) + 1000 * sum(range(p))
        assert torch.equal(tensor.tensor_split(p)[rank], right.tensor_split(p)[rank])
        tensor = torch.arange(n) + 1000 * rank
        sent = collectives.all_gather(tensor, group)
        owner = torch.cat([torch.full_like(part, r) for r, part in enumerate(tensor.tensor_split(p))])
        assert torch.equal(tensor, torch.arange(n) + 1000 * owner)
        if n % p == 0:
            assert sent.bytes == (p - 1) * n // p * 8


def disagree():
    """Errors that every rank must see, and the group must survive → the messages."""
    rank, messages = dist.get_rank(), []
    for call in (
        lambda: collectives.all_reduce(torch.zeros(3 + rank)),
        lambda: collectives.all_reduce(torch.zeros(4).reshape((2, 2) if rank else (4,))),
        lambda: collectives.all_reduce(torch.zeros(3, dtype=torch.float64 if rank else torch.float32)),
        lambda: collectives.all_reduce(torch.zeros(3), "tree" if rank else "ring"),
        lambda: collectives.broadcast(torch.zeros(3), source=rank),
        lambda: collectives.all_reduce(torch.zeros(3, dtype=torch.bool)),
        lambda: collectives.all_reduce(torch.zeros(3), "fastest"),
        lambda: collectives.broadcast(torch.zeros(3), source=3),
        lambda: collectives.all_reduce([1.0, 2.0]),
    ):
        try:
            call()
        except (TypeError, ValueError) as error:
            messages.append(f"{type(error).__name__}: {error}")
        else:
            messages.append("no error")
    total = torch.ones(3)
    collectives.all_reduce(total)
    assert torch.equal(total, torch.full((3,), 3.0))
    return messages
