"""Layers cut over ranks: against serial layers, parallelize_module, and convolutions with groups."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ed_lib.parallel import links
from ed_lib.parallel.collectives import Traffic
from ed_lib.parallel.tensor_parallel import (
    ParallelMLP,
    branch,
    merge,
    one_block,
)
from tests.parallel import ranks

SHAPES = [  # in, hidden, out, bias, shape of x without its features
    (5, 8, 3, True, (4,)),
    (1, 7, 6, True, (2, 3)),  # 7 is divided by none of the numbers of ranks
    (4, 4, 1, False, (1,)),  # with 4 ranks, one hidden cell each
    (6, 11, 5, True, (3,)),
]


@pytest.fixture(scope="module")
def worlds():
    """What the ranks of worlds of 1 … 4 found."""
    return ranks.in_worlds(range(1, 5), everything)


def everything():
    p = dist.get_world_size()
    return block(), beside_pytorchs() if p in (2, 3) else None, errors() if p == 2 else None


def serial(shape):
    n_in, hidden, n_out, bias, rest = shape
    torch.manual_seed(sum(shape[:3]))
    first, second = nn.Linear(n_in, hidden, bias), nn.Linear(hidden, n_out, bias)
    x, slope = torch.randn(*rest, n_in), torch.randn(*rest, n_out)
    return first.double(), second.double(), x.double(), slope.double()


def names(first, second):
    layers = {"first": first, "second": second}
    return {f"{key}.{n}": w for key, layer in layers.items() for n, w in layer.named_parameters()}


def block():
    """On each rank, for each shape: what a block computes, its gradients, its weights, what it sent."""
    found = []
    for shape in SHAPES:
        first, second, x, slope = serial(shape)
        torch.manual_seed(dist.get_rank())  # nothing may depend on it
        result = one_block(first, second, x, slope)
        leaf = ParallelMLP(first, second)
        leaf(x).backward(slope)  # an x that needs no gradient
        assert all(torch.equal(w.grad, result[2][name]) for name, w in leaf.named_parameters())
        found.append((*result, leaf.sent))
    return found


@pytest.mark.oracle
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_a_block_is_the_serial_one_with_one_all_reduce_each_way(worlds, p):
    for n, shape in enumerate(SHAPES):
        first, second, x, slope = serial(shape)
        x.requires_grad_()
        y = second(torch.relu(first(x)))
        y.backward(slope)
        wanted = names(first, second)
        found = [blocks[n] for blocks, _, _ in worlds[p]]
        for output, gradient, *_ in found:
            torch.testing.assert_close(output, y.detach(), rtol=1e-13, atol=1e-14)
            torch.testing.assert_close(gradient, x.grad, rtol=1e-13, atol=1e-14)
            assert torch.equal(output, found[0][0]) and torch.equal(gradient, found[0][1])
        for key, gradient in merge([grads for _, _, grads, *_ in found]).items():
            torch.testing.assert_close(gradient, wanted[key].grad, rtol=1e-13, atol=1e-14)
        merged = merge([state for *_, state, _, _ in found])  # bitwise
        assert merged.keys() == wanted.keys()
        assert all(torch.equal(merged[key], wanted[key]) for key in merged)
        for *_, sent, leaf in found:
            assert [len(sent[way]) for way in ("forward", "backward")] == [1, 1]
            assert len(leaf["forward"]) == 1 and not leaf["backward"]
        for way, tensor in (("forward", y), ("backward", x)):
            if tensor.numel() >= p:  # the formula is for no empty messages
                total = sum((sent[way][0] for *_, sent, _ in found), Traffic())
                assert total == links.traffic("ring", tensor.numel() * 8, p)


def beside_pytorchs():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # slow

    rank, found = dist.get_rank(), []
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for shape in ((5, 6, 3, True, (4,)), (4, 12, 5, True, (2,))):  # theirs takes even slices only
        first, second, x, slope = serial(shape)
        ours = ParallelMLP(first, second, torch.relu)
        theirs = nn.Sequential(first, nn.ReLU(), second)
        parallelize_module(theirs, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, z = ours(a), theirs(b)
        y.backward(slope)
        z.backward(slope)
        grads = {name: weight.grad for name, weight in ours.named_parameters()}
        all_grads = [None] * dist.get_world_size()
        dist.all_gather_object(all_grads, grads)
        their_grads = {k: w.grad.full_tensor() for k, w in names(theirs[0], theirs[2]).items()}
        found.append(((y.detach(), z.detach()), (a.grad, b.grad), (merge(all_grads), their_grads)))
    return found if rank == 0 else None


@pytest.mark.oracle
@pytest.mark.parametrize("p", [2, 3])
def test_it_is_parallelize_modules_block(worlds, p):
    for pairs in worlds[p][0][1]:
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def errors():
    """What a rank is told of a block that cannot be cut, and of batches that differ."""
    told, (first, second) = [], (nn.Linear(3, 2), nn.Linear(2, 3))
    for call in (
        lambda: ParallelMLP(nn.Linear(3, 1), nn.Linear(1, 3)),
        lambda: ParallelMLP(first, nn.Linear(3, 3)),
        lambda: ParallelMLP(first, second)(torch.ones(2 + dist.get_rank(), 3)),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        told.append(str(caught.value))
    return told


def test_what_does_not_fit_is_an_error_on_every_rank(worlds):
    for _, _, (few, misfit, different) in worlds[2]:
        assert few.startswith("first gives 1 features and second takes 1; wanted")
        assert misfit.startswith("first gives 2 features and second takes 3")
        assert different.startswith("the ranks call different things")


@pytest.mark.oracle
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, dict(stride=2, padding=1), dict(bias=False, dilation=2)])
def test_branches_side_by_side_are_a_convolution_with_groups(groups, options):
    torch.manual_seed(groups)
    conv = nn.Conv2d(6, 12, 3, groups=groups, **options).double()
    x = torch.randn(2, 6, 9, 8, dtype=torch.float64, requires_grad=True)
    branches = [branch(conv, index) for index in range(groups)]
    y = torch.cat([one(part) for one, part in zip(branches, x.chunk(groups, 1), strict=True)], 1)
    wanted = conv(x)
    assert torch.equal(y, wanted)  # bitwise
    slope = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(wanted, x, slope, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y, x, slope)[0], gradient, rtol=1e-12, atol=1e-14)
    assert sum(w.numel() for one in branches for w in one.parameters()) == sum(
        w.numel() for w in conv.parameters()
    )
