"""Replicas on several ranks against serial training on the whole batch, and against PyTorch's own DDP.

Every launch holds many checks. What ranks return is compared here.
"""

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from ed_lib.parallel import launch, replica
from ed_lib.parallel.collectives import Traffic
from ed_lib.parallel.replica import Replica, accuracy, reduce_each, shard
from tests.parallel import ranks

SIZES = (1, 160, 10**9)  # bytes of a bucket: one for each parameter, some, one for all


def net(seed, dtype=torch.float64):
    """Odd sizes, and a parameter (its first) whose gradient comes last."""
    torch.manual_seed(seed)
    first, second, third = (torch.nn.Linear(*size) for size in ((5, 7), (7, 3), (3, 4)))
    return torch.nn.Sequential(first, torch.nn.Tanh(), second, torch.nn.Tanh(), third).to(dtype)


def batches(sizes, dtype=torch.float64):
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(size=(n, 5)), rng.integers(0, 4, n)) for n in sizes]
    return [(torch.tensor(x, dtype=dtype), torch.tensor(y)) for x, y in pairs]


def flat(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def serial(sizes, dtype=torch.float64, momentum=0.9):
    """The parameters after SGD on whole batches, on one rank's start, by torch alone."""
    module = net(0, dtype)
    optimizer = torch.optim.SGD(module.parameters(), 0.2, momentum=momentum)
    for x, y in batches(sizes, dtype):
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()
    return flat(module)


def parallel(replica, sizes, dtype=torch.float64, momentum=0.9):
    """The same on replicas."""
    optimizer = torch.optim.SGD(replica.module.parameters(), 0.2, momentum=momentum)
    for x, y in batches(sizes, dtype):
        replica.zero_grad()
        F.cross_entropy(replica(shard(x)), shard(y), reduction="sum").backward()
        replica.finish(len(x))
        optimizer.step()
    return flat(replica.module)


def naively(module, sizes):
    optimizer = torch.optim.SGD(module.parameters(), 0.2, momentum=0.9)
    traffic = []
    for x, y in batches(sizes):
        optimizer.zero_grad()
        F.cross_entropy(module(shard(x)), shard(y), reduction="sum").backward()
        traffic.append(reduce_each(module.parameters(), len(x)))
        optimizer.step()
    return flat(module), traffic


def by_ddp(sizes, dtype):
    """The same by DDP, which averages over ranks: losses are scaled so that uneven shards are right."""
    module = net(0, dtype)
    ddp = torch.nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.SGD(module.parameters(), 0.2, momentum=0.9)
    for x, y in batches(sizes, dtype):
        optimizer.zero_grad()
        loss = F.cross_entropy(ddp(shard(x)), shard(y), reduction="sum")
        (loss * dist.get_world_size() / len(x)).backward()
        optimizer.step()
    return flat(module)


def on_every_rank(sizes):
    """Everything that is compared with serial training, and the counts."""
    rank = dist.get_rank()
    found = {"runs": {}, "counts": {}}
    for overlap in (True, False):
        for size in SIZES:
            replica = Replica(net(rank), size, overlap)  # each rank starts from another seed
            found["runs"][overlap, size] = parallel(replica, sizes)
            found["counts"][overlap, size] = len(replica.buckets), replica.calls, replica.bytes
            places = [(b.flat.data_ptr(), b.bytes) for b in replica.buckets]
            for p in replica.module.parameters():
                assert any(a <= p.grad.data_ptr() < a + n for a, n in places)
    found["runs"]["naive"], found["traffic"] = naively(net(0), sizes)
    found["ddp"] = by_ddp(sizes, torch.float64)
    single = Replica(net(0, torch.float32), 60)
    found["single"] = parallel(single, sizes, torch.float32), by_ddp(sizes, torch.float32)
    found["unused"], found["partly"] = unused(rank), partly_used(rank)
    found["accuracy"] = [accuracy(net(0), *batches((n,))[0]) for n in (1, 3, 50)]
    return found


def unused(rank):
    """A parameter that got no gradient on rank 1, or on any rank, in a step."""
    module = net(0)
    replica = Replica(module, 1)
    replica.zero_grad()
    (x, _), p = batches((6,))[0], dist.get_world_size()
    first = module[:2](shard(x)).sum()  # the last layers have no part in it
    (first if rank == 1 else module(shard(x)).sum()).backward()
    replica.finish(6)
    return [t.grad.clone() for t in module.parameters()], p


def partly_used(rank):
    """What it should be, by one process: the last layers' gradients without rank 1's shard."""
    module = net(0)
    (x, _), p = batches((6,))[0], dist.get_world_size()
    for r in range(p):
        part = shard(x, r, p)
        (module[:2](part).sum() if r == 1 else module(part).sum()).backward()
    return [t.grad / 6 for t in module.parameters()]


UNEVEN = (11, 8, 3, 13)  # for every p > 1 at least once; for p = 4 one shard is empty


@pytest.fixture(scope="module")
def worlds():
    """What the ranks of worlds of 1 … 4 found, from one launch."""
    return ranks.in_worlds(range(1, 5), on_every_rank, UNEVEN)


@pytest.mark.oracle
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_p_ranks_train_as_one_does_on_the_whole_batch(worlds, p):
    results, wanted = worlds[p], serial(UNEVEN)
    n = wanted.numel()
    judged = [batches((m,))[0] for m in (1, 3, 50)]
    rates = [(net(0)(x).argmax(dim=1) == y).sum().item() / len(y) for x, y in judged]
    assert (wanted - flat(net(0))).abs().max() > 0.1
    for found in results:
        for how, weights in found["runs"].items():
            assert (weights - wanted).abs().max() < 1e-12, how
            assert torch.equal(weights, results[0]["runs"][how]), how
        assert (found["ddp"] - wanted).abs().max() < 1e-12
        ours, ddps = found["single"]
        assert torch.allclose(ours, ddps, atol=2e-6) and torch.equal(ours, results[0]["single"][0])
        for (overlap, size), (buckets, calls, count) in found["counts"].items():
            assert buckets == {1: 6, 160: 4, 10**9: 1}[size] and calls == 4 * buckets, overlap
            assert count == 4 * 8 * n
        for mine, right in zip(found["unused"][0], found["partly"], strict=True):
            assert (mine - right).abs().max() < 1e-13
        assert found["accuracy"] == rates
    for step in range(4):  # a ring sends each of the n numbers 2(p − 1) times, over all ranks
        sent = sum((found["traffic"][step] for found in results), Traffic())
        assert sent.bytes == 2 * (p - 1) * 8 * n
        lengths = [t.numel() for t in net(0).parameters()]
        assert sent.messages == 2 * (p - 1) * sum(min(p, length) for length in lengths)


def small_pieces():
    """Checks that need two ranks and no reference."""
    rank, texts = dist.get_rank(), {}
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    module[1].running_mean += rank
    module[0].bias.requires_grad_(False)
    module[0].weight.data = torch.full((3, 2), float(rank)).T  # not contiguous
    replica = Replica(module)
    assert (module[1].running_mean == 0).all() and (module[0].weight == 0).all()
    assert len(replica.buckets) == 1 and replica.buckets[0].flat.numel() == 6 + 2 + 2
    assert module[0].bias.grad is None
    half = torch.nn.ModuleList([torch.nn.Linear(2, 2).double(), torch.nn.Linear(2, 2)])
    assert [b.flat.dtype for b in Replica(half).buckets] == [torch.float32, torch.float64]

    def message(kind, call):
        try:
            call()
        except kind as error:
            return str(error)

    differing = torch.zeros(4 + 2 * rank, 3), torch.zeros(4 + 2 * rank).long()
    others = {
        "shape": lambda: Replica(torch.nn.Linear(3, 2 + rank)),
        "dtype": lambda: Replica(net(0, (torch.float32, torch.float64)[rank])),
        "count": lambda: Replica(torch.nn.Linear(3, 2, bias=bool(rank))),
        "fixed": lambda: Replica(torch.nn.Linear(3, 2).requires_grad_(bool(rank))),
        "bytes": lambda: Replica(torch.nn.Linear(3, 2), 100 + rank),
        "zero": lambda: Replica(torch.nn.Linear(3, 2), 0),
        "total": lambda: accuracy(lambda x: x, *differing),
    }
    texts |= {name: message(ValueError, call) for name, call in others.items()}
    replica = Replica(net(0), 1)
    x, _ = batches((6,))[0]
    replica(x).sum().backward()
    texts["twice"] = message(RuntimeError, lambda: replica(x).sum().backward())
    replica = Replica(net(0))
    replica.module.zero_grad()  # sets them to None
    replica(x).sum().backward()
    texts["replaced"] = message(RuntimeError, lambda: replica.finish(6))
    return texts, steps_apart(rank), ddp_bitwise((16, 8, 64))


def steps_apart(rank):
    """How far averaged models are from averaged gradients, after one step of SGD and after two."""
    gaps = []
    for steps in (1, 2):
        local = net(0)
        for x, y in batches((8, 8))[:steps]:
            local.zero_grad()
            F.cross_entropy(local(shard(x)), shard(y)).backward()  # its own mean: the shards are even
            with torch.no_grad():
                for p in local.parameters():
                    p -= 0.2 * p.grad
        averaged = flat(local)
        dist.all_reduce(averaged)
        together = parallel(Replica(net(rank)), (8, 8)[:steps], momentum=0)
        gaps.append(float((averaged / 2 - together).abs().max()))
    return gaps


@pytest.mark.oracle
def test_what_two_ranks_agree_on_refuse_and_note():
    for rank, found in enumerate(launch(small_pieces, 2, timeout=120.0)):
        texts, gaps, (ours, ddps) = found
        for name in ("shape", "dtype", "count", "fixed", "bytes"):
            assert texts[name].startswith("the ranks call different things"), name
            assert "rank 0: Replica(" in texts[name] and "rank 1: Replica(" in texts[name]
        assert "weight torch.float32 (2, 3) True, bias torch.float32 (2,) True" in texts["shape"]
        assert "weight torch.float32 (3, 3) True, bias torch.float32 (3,) True" in texts["shape"]
        assert texts["zero"] == "bucket_bytes is 0; wanted at least 1"
        assert texts["total"] == f"the ranks passed 5 samples in all; wanted the same {4 + 2 * rank} on each"
        assert "second backward pass before finish()" in texts["twice"]
        assert "use zero_grad() of the Replica" in texts["replaced"]
        assert gaps[0] < 1e-15 and gaps[1] > 1e-4
        assert torch.equal(ours, ddps) and not torch.equal(ours, flat(net(0, torch.float32)))


def ddp_bitwise(sizes):
    """Batches of powers of two, so that dividing before or after the sum gives the same bits."""
    return parallel(Replica(net(0, torch.float32)), sizes, torch.float32), by_ddp(sizes, torch.float32)


@pytest.mark.oracle
@pytest.mark.parametrize("n", [0, 1, 4, 11])
@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_the_shard_of_a_rank_is_tensor_split(n, p):
    rows = torch.arange(n)
    parts = [shard(rows, rank, p) for rank in range(p)]
    assert all(torch.equal(a, b) for a, b in zip(parts, rows.tensor_split(p), strict=True))
    assert [len(shard(list(range(n)), rank, p)) for rank in range(p)] == [len(part) for part in parts]


@pytest.mark.parametrize(
    ("limit", "lengths"),
    [(1, [1] * 6), (64, [2, 1, 1, 1, 1]), (96, [3, 1, 1, 1]), (160, [4, 1, 1]), (327, [5, 1]), (328, [6])],
)
def test_buckets_go_backwards_and_hold_no_more_than_they_may(limit, lengths):
    params = list(net(0, torch.float32).parameters())[::-1]  # of 16, 48, 12, 84, 28 and 140 bytes
    groups = replica.grouped(params, limit)
    assert [id(p) for group in groups for p in group] == [id(p) for p in params]
    assert [len(group) for group in groups] == lengths
