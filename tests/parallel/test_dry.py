"""Dry runs of PyTorch's own classes: what they ask for is what the formulas say, in worlds of any size."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ed_lib.models import Block
from ed_lib.parallel import dry, ledger

WORLDS = (64, 1024)


@pytest.mark.oracle
@pytest.mark.parametrize("world", WORLDS)
def test_fully_shard_sends_what_stage_3_sends(world):
    numbers = []

    def run():
        mesh = init_device_mesh("cpu", (world,))
        with FakeTensorMode():
            blocks = nn.Sequential(*[Block(1024, 8) for _ in range(2)])
            for block in blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(blocks, mesh=mesh)
            blocks(torch.empty(1, 16, 1024)).sum().backward()
            numbers.append(sum(p.numel() for p in blocks.parameters()))

    seen = dry.count(world, run)
    assert [one.name for one in seen].count("all_gather") == 4
    assert {one.ranks for one in seen} == {world}
    assert sum(one.sent for one in seen) == 4 * ledger.sent(numbers[0], world, 3)
    assert not dist.is_initialized()


@pytest.mark.oracle
@pytest.mark.parametrize("world", WORLDS)
def test_tensor_parallel_layers_need_an_all_reduce_each_way(world):
    def run():
        mesh = init_device_mesh("cpu", (world // 8, 8), mesh_dim_names=("data", "tensor"))
        model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        model = fully_shard(parallelize_module(model, mesh["tensor"], plan), mesh=mesh["data"])
        model(torch.randn(16, 64, requires_grad=True)).sum().backward()

    seen = dry.count(world, run)
    activation = 16 * 64 * 4
    assert [one for one in seen if one.name == "all_reduce"] == [
        dry.Collective("all_reduce", activation, 8)
    ] * 2
    rest = [one for one in seen if one.name != "all_reduce"]
    assert {one.ranks for one in rest} == {world // 8}
    assert {one.name for one in rest} == {"all_gather", "reduce_scatter"}


def buckets_of(model, *inputs):
    """Bytes of DDP's buckets, which it sums in C++, where no mode sees it, but says to its hook. Of two steps
    the second, since the first shows DDP in which order gradients come.
    """
    ddp, buckets = torch.nn.parallel.DistributedDataParallel(model), []

    def hook(_, bucket):
        buckets.append(bucket.buffer().nbytes)
        done: torch.futures.Future = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    ddp.register_comm_hook(None, hook)
    for _ in range(2):
        buckets.clear()
        ddp(*inputs).sum().backward()
    return buckets


@pytest.mark.oracle
@pytest.mark.parametrize("world", WORLDS)
def test_ddp_sums_every_gradient_once_in_buckets(world):
    model, buckets = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)]), []
    dry.count(world, lambda: buckets.extend(buckets_of(model, torch.randn(2, 2048))))
    assert len(buckets) > 1
    assert sum(buckets) == 4 * sum(p.numel() for p in model.parameters())


def test_every_way_to_ask_for_a_collective_counts_alike_and_an_unknown_one_is_an_error():
    part, whole, parts = torch.zeros(7), torch.zeros(56), [torch.zeros(7) for _ in range(8)]
    asked = {
        "all_reduce": [lambda: dist.all_reduce(whole),
                       lambda: functional.all_reduce(whole, "sum", dist.group.WORLD)],
        "all_gather": [lambda: dist.all_gather(parts, part), lambda: dist.all_gather_into_tensor(whole, part),
                       lambda: functional.all_gather_tensor(part, 0, dist.group.WORLD)],
        "reduce_scatter": [lambda: dist.reduce_scatter(part, parts),
                           lambda: dist.reduce_scatter_tensor(part, whole),
                           lambda: functional.reduce_scatter_tensor(whole, "sum", 0, dist.group.WORLD)],
        "all_to_all": [lambda: dist.all_to_all_single(whole, whole)],
    }  # fmt: skip
    for name, calls in asked.items():
        for call in calls:
            assert dry.count(8, call) == [dry.Collective(name, 4 * 56, 8)]
    with pytest.raises(NotImplementedError, match="gather_.* is no collective whose bytes are known"):
        dry.count(8, lambda: dist.gather(part, parts))


def test_a_rank_of_another_group_is_an_error():
    def again():
        dry.count(2, lambda: None)

    with pytest.raises(RuntimeError, match="a rank already"):
        dry.count(4, again)
    assert not dist.is_initialized()  # and the first group is gone
