"""Replicas on several ranks against serial training on the whole batch, and against PyTorch's own
DDP.

There is one launch for each size of a world. What ranks return is compared here.
"""

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from ed_lib.parallel import replica
from ed_lib.parallel.collectives import Traffic, all_reduce
from ed_lib.parallel.replica import Replica, local_rows
from tests.parallel import ranks

SIZES = (1, 160, 10**9)  # bytes of a bucket: one for each parameter, some, one for all
UNEVEN = (11, 8, 3, 13)  # for every p > 1 at least once; for p = 4 one shard is empty


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


def trained(how, module, sizes=UNEVEN, momentum=0.9, size=1, overlap=True):
    """The parameters after SGD: "serial", on whole batches, by torch alone; or on this rank's
    shards.
    """
    dtype, calls, counts = module[0].weight.dtype, module, []
    if how == "replica":
        calls = Replica(module, size, overlap)
        places = [(b.flat.data_ptr(), b.flat.nbytes) for b in calls.buckets]
        counts = lambda: (len(calls.buckets), calls.calls, calls.bytes)  # noqa: E731
    elif how == "DDP":
        calls = torch.nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.SGD(module.parameters(), 0.2, momentum=momentum)
    for x, y in batches(sizes, dtype):
        (calls if how == "replica" else optimizer).zero_grad()
        mine = (x, y) if how == "serial" else (local_rows(x), local_rows(y))
        # DDP averages over the ranks, whose shards are uneven
        scale = {
            "serial": 1 / len(x),
            "DDP": dist.is_initialized() and dist.get_world_size() / len(x),
        }
        (F.cross_entropy(calls(mine[0]), mine[1], reduction="sum") * scale.get(how, 1)).backward()
        if how == "replica":
            calls.finish(len(x))
            grads = [p.grad.data_ptr() for p in module.parameters()]
            assert all(any(a <= g < a + n for a, n in places) for g in grads), (
                "a bucket has each gradient"
            )
        elif how == "naive":
            grads = [p.grad for p in module.parameters()]
            counts.append(sum(map(all_reduce, grads), Traffic()))
            torch._foreach_div_(grads, len(x))
        optimizer.step()
    return flat(module), counts() if callable(counts) else counts


def on_every_rank():
    """{what: what this rank found}: everything that is compared with serial training, and the
    counts.
    """
    rank, p, found = dist.get_rank(), dist.get_world_size(), {}
    for overlap, size in ((True, 1), (False, 1), (True, 160), (False, 10**9), (True, 10**9)):
        found[overlap, size] = trained(
            "replica", net(rank), size=size, overlap=overlap
        )  # from other seeds
    for how in ("naive", "DDP"):
        found[how] = trained(how, net(0))
    found["single"] = [
        trained(how, net(0, torch.float32), size=60)[0] for how in ("replica", "DDP")
    ]
    found["partly"] = partly_used(rank, p)
    return found | (small_pieces(rank) | raised(rank) if p == 2 else {})


def partly_used(rank, p):
    """How far gradients are from one process's when the last layers have no part in rank 1's
    loss.
    """
    module, alone, (x, _) = net(0), net(0), batches((6,))[0]
    shared = Replica(module, 1)
    (module[:2] if rank == 1 else module)(local_rows(x)).sum().backward()
    shared.finish(6)
    for r in range(p):
        ((alone[:2] if r == 1 else alone)(x.tensor_split(p)[r]).sum() / 6).backward()
    pairs = zip(module.parameters(), alone.parameters(), strict=True)
    return max((mine.grad - right.grad).abs().max() for mine, right in pairs)


def small_pieces(rank):
    """Checks that need two ranks and no reference → {"texts": of errors, …}."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    module[1].running_mean += rank
    module[0].bias.requires_grad_(False)
    module[0].weight.data = torch.full((3, 2), float(rank)).T  # not contiguous
    shared = Replica(module)
    assert (module[1].running_mean == 0).all() and (module[0].weight == 0).all()
    assert len(shared.buckets) == 1 and shared.buckets[0].flat.numel() == 6 + 2 + 2
    assert module[0].bias.grad is None
    half = torch.nn.ModuleList([torch.nn.Linear(2, 2).double(), torch.nn.Linear(2, 2)])
    assert [b.flat.dtype for b in Replica(half).buckets] == [torch.float32, torch.float64]
    texts, (x, _) = {}, batches((6,))[0]
    twice, replaced = Replica(net(0), 1), Replica(net(0))
    agreed = Replica(torch.nn.Linear(5, 1, bias=False).double())
    agreed(local_rows(x[:3])).sum().backward()
    twice(x).sum().backward()
    replaced.module.zero_grad()  # sets them to None
    replaced(x).sum().backward()
    for name, call in {
        "shape": lambda: Replica(torch.nn.Linear(3, 2 + rank)),
        "dtype": lambda: Replica(net(0, (torch.float32, torch.float64)[rank])),
        "count": lambda: Replica(torch.nn.Linear(3, 2, bias=bool(rank))),
        "fixed": lambda: Replica(torch.nn.Linear(3, 2).requires_grad_(bool(rank))),
        "bytes": lambda: Replica(torch.nn.Linear(3, 2), 100 + rank),
        "zero": lambda: Replica(torch.nn.Linear(3, 2), 0),
        "twice": lambda: twice(x).sum().backward(),
        "replaced": lambda: replaced.finish(6),
        "own rows": lambda: agreed.finish(2 + rank),
        "no samples": lambda: agreed.finish(0),
        "fewer than none": lambda: agreed.finish(-1),
        "half a sample": lambda: agreed.finish(0.5),
    }.items():
        with pytest.raises((TypeError, ValueError, RuntimeError)) as error:
            call()
        texts[name] = str(error.value)
    agreed.finish(3)
    right = (agreed.module.weight.grad - x[:3].mean(0)).abs().max()
    even = [
        trained(how, net(0, torch.float32), (16, 8, 64), size=10**9)[0]
        for how in ("replica", "DDP")
    ]
    return {"texts": texts, "even": even, "then": right}


def raised(rank):
    """{how: how far gradients are from one process's} after a backward pass that raised, and
    ``zero_grad()``; and the error where one rank has left a pass out.
    """
    found, (x, _) = {}, batches((6,))[0]

    def step(shared, *broken):
        """One on the whole batch; ``broken``: modules whose gradients raise."""
        hooks = [
            m.register_forward_hook(lambda _, __, h: h.register_hook(stop) and None) for m in broken
        ]
        try:
            shared(local_rows(x)).sum().backward()
        finally:
            for hook in hooks:
                hook.remove()
        shared.finish(6)

    (alone := net(0))(x).sum().div(6).backward()
    right = torch.cat([p.grad.flatten() for p in alone.parameters()])
    for how in ("before all", "halfway", "apart", "a second pass", "replaced"):
        shared = Replica(net(0), 1)
        layers = shared.module
        if how == "a second pass":
            shared(local_rows(x)).sum().backward()
            with pytest.raises(RuntimeError, match="a second backward pass"):
                shared(local_rows(x)).sum().backward()
        elif how == "replaced":
            layers.zero_grad()
            with pytest.raises(RuntimeError, match="a parameter's grad was replaced"):
                step(shared)
        else:
            # the last layer's gradients come first, and on one rank earlier than on the other
            where = {"before all": (4, 4), "halfway": (2, 2), "apart": (2, 0)}[how][rank]
            with pytest.raises(ArithmeticError):
                step(shared, layers[where])
        shared.zero_grad()
        step(shared)
        gradient = torch.cat([p.grad.flatten() for p in layers.parameters()])
        found[how] = (gradient - right).abs().max()
    # rank 0 raises before it has begun a sum, and rank 1 after: it is a pass behind then
    shared = Replica(net(0), 1)
    with pytest.raises(ArithmeticError):
        step(shared, shared.module[(4, 2)[rank]])
    shared.zero_grad()
    with pytest.raises(ValueError) as error:
        step(shared)
    if rank == 0:
        # it comes to the sums that the other has begun, which would wait for it for ever
        shared.zero_grad()
        shared(local_rows(x)).sum().backward()
    return {"raised": found, "a pass behind": str(error.value)}


def stop(gradient):
    raise ArithmeticError("on purpose")


@pytest.fixture(scope="module")
def worlds():
    """What the ranks of worlds of 1 … 4 found."""
    return ranks.in_worlds(range(1, 5), on_every_rank)


@pytest.mark.oracle
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_p_ranks_train_as_one_does_on_the_whole_batch(worlds, p):
    results, (wanted, _) = worlds[p], trained("serial", net(0))
    n = wanted.numel()
    assert (wanted - flat(net(0))).abs().max() > 0.1
    for found in results:
        for how in [key for key in found if isinstance(key, tuple)] + ["naive", "DDP"]:
            assert (found[how][0] - wanted).abs().max() < 1e-12, how
            assert torch.equal(found[how][0], results[0][how][0]), how
            if isinstance(how, tuple):
                buckets = {1: 6, 160: 4, 10**9: 1}[how[1]]
                assert found[how][1] == (buckets, 4 * buckets, 4 * 8 * n)
        ours, ddps = found["single"]
        assert torch.allclose(ours, ddps, atol=2e-6) and torch.equal(ours, results[0]["single"][0])
        assert found["partly"] < 1e-13
    for step in range(4):  # a ring sends each of the n numbers 2(p − 1) times, over all ranks
        sent = sum((found["naive"][1][step] for found in results), Traffic())
        assert sent.bytes == 2 * (p - 1) * 8 * n
        lengths = [t.numel() for t in net(0).parameters()]
        assert sent.messages == 2 * (p - 1) * sum(min(p, length) for length in lengths)


@pytest.mark.oracle
def test_what_two_ranks_agree_on_and_refuse(worlds):
    for found in worlds[2]:
        texts = found["texts"]
        for name in ("shape", "dtype", "count", "fixed", "bytes"):
            assert texts[name].startswith("the ranks call different things"), name
            assert "rank 0: Replica(" in texts[name] and "rank 1: Replica(" in texts[name]
        assert "weight torch.float32 (2, 3) True, bias torch.float32 (2,) True" in texts["shape"]
        assert "weight torch.float32 (3, 3) True, bias torch.float32 (3,) True" in texts["shape"]
        assert texts["zero"] == "bucket_bytes is 0; wanted at least 1"
        assert "second backward pass before finish()" in texts["twice"]
        assert "use zero_grad() of the Replica" in texts["replaced"]
        assert "rank 0: finish(2) after 1 sums; rank 1: finish(3) after 1 sums" in texts["own rows"]
        assert texts["no samples"] == "samples is 0; wanted at least 1"
        assert texts["fewer than none"] == "samples is -1; wanted at least 1"
        assert texts["half a sample"] == "samples is 0.5; wanted a whole number"
        assert found["then"] < 1e-15, "and the right number goes on"
        ours, ddps = found[
            "even"
        ]  # powers of two: dividing before or after the sum gives the same bits
        assert torch.equal(ours, ddps) and not torch.equal(ours, flat(net(0, torch.float32)))


@pytest.mark.oracle
def test_after_a_backward_pass_that_raised_the_next_is_one_processs(worlds):
    for found in worlds[2]:
        for how, far in found["raised"].items():
            assert far < 1e-14, how


def test_ranks_of_which_one_has_left_a_pass_out_get_an_error(worlds):
    for found in worlds[2]:
        told = found["a pass behind"]
        assert "rank 0: finish(6) after 6 sums; rank 1: finish(6) after 12 sums" in told


@pytest.mark.parametrize(
    ("limit", "lengths"),
    [
        (1, [1] * 6),
        (64, [2, 1, 1, 1, 1]),
        (96, [3, 1, 1, 1]),
        (160, [4, 1, 1]),
        (327, [5, 1]),
        (328, [6]),
    ],
)
def test_buckets_go_backwards_and_hold_no_more_than_they_may(limit, lengths):
    params = list(net(0, torch.float32).parameters())[::-1]  # of 16, 48, 12, 84, 28 and 140 bytes
    groups = replica.grouped(params, limit)
    assert [id(p) for group in groups for p in group] == [id(p) for p in params]
    assert [len(group) for group in groups] == lengths
