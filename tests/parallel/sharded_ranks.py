"""What two ranks do in test_sharded: clip, tie, and call for what is refused."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ed_lib.models import GPT
from ed_lib.parallel.replica import Replica
from ed_lib.parallel.zero import STAGES, shard

SGD = partial(torch.optim.SGD, lr=0.1)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
GRADIENTS = (300.0, 0.5)


class Weight(nn.Module):
    """Numbers whose gradients are what one asks for."""

    def __init__(self, *values, dtype=torch.float32):
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values, dtype=dtype))

    def forward(self, *gradient):
        return (self.values * torch.tensor(gradient, dtype=self.values.dtype)).sum()


def whole(sharded):
    """All the numbers of a module, of one unit, as they are now."""
    sharded.gather(sharded.units[0])
    return sharded.units[0].weights.detach().clone()


def tied_gpt():
    return GPT(11, 5, 8, 2, 2, seed=1)


def tied_batch():
    draw = torch.Generator().manual_seed(3)
    return torch.randint(11, (2, 4, 5), generator=draw)


def tied_loss(model, x, wanted):
    return F.cross_entropy(model(x).flatten(0, 1), wanted.flatten(), reduction="sum")


def tied():
    """{(stage, "losses"): of two steps; "head", "penalty", "view": the errors of stage 3; …}."""
    found, rank = {}, dist.get_rank()
    x, wanted = (rows[2 * rank : 2 * rank + 2] for rows in tied_batch())
    for stage in (0, 1, 2):
        net = tied_gpt()
        sharded, losses = shard(net, partial(torch.optim.SGD, lr=1e-2), stage, units_of(net)), []
        for _ in range(2):
            loss = tied_loss(sharded, x, wanted)
            loss.backward()
            sharded.step(4)
            losses.append(loss.item())
        found[stage, "losses"] = losses
    net = tied_gpt()
    sharded = shard(net, SGD, 3, units_of(net))
    with pytest.raises(RuntimeError) as error:
        tied_loss(sharded, x, wanted)
    found["head"] = str(error.value)

    net, ends = nn.Linear(2, 1), {}
    nn.init.zeros_(net.weight)
    sharded = shard(net, SGD, 3, [net])
    with pytest.raises(RuntimeError) as error:
        sharded(torch.ones(1, 2)).sum() + sum(p.square().sum() for p in net.parameters())
    found["penalty"] = str(error.value)
    for name, each in {"after": sharded, "without": shard(net_like(net), SGD, 3)}.items():
        each.zero_grad()
        each(torch.ones(1, 2)).sum().backward()
        each.step(2)
        ends[name] = whole(each).tolist()[:2]

    net = nn.Sequential(Transposed(), nn.Flatten())
    with pytest.raises(RuntimeError) as error:
        shard(net, SGD, 3, [net[0]])(torch.ones(1, 2))
    return found | ends | {"view": str(error.value)}


def units_of(net):
    return [net.tokens, *net.blocks]


def net_like(net):
    """The same, with weights of zero."""
    net = nn.Linear(net.in_features, net.out_features)
    nn.init.zeros_(net.weight)
    return net


class Transposed(nn.Linear):
    """It hands its weight on, beside its outputs, where a copy is wanted."""

    def __init__(self):
        super().__init__(2, 2)

    def forward(self, x):
        return super().forward(x), self.weight.T


def clipped():
    """{(dtype, gradient, stage): two weights after a clipped step from zero}."""
    found = {}
    for stage in STAGES:
        for dtype in DTYPES:
            for gradient in GRADIENTS:
                sharded = shard(Weight(0.0, 0.0, dtype=dtype), SGD, stage)
                # half of it on each rank
                sharded(gradient / 2, gradient / 4).backward()
                sharded.step(1, max_norm=1.0)
                found[dtype, gradient, stage] = whole(sharded)
        sharded = shard(Weight(0.0, 0.0), SGD, stage)
        sharded(1e20, 0.5e20).backward()
        sharded.step(1, max_norm=1.0)
        found["1e20", stage] = whole(sharded)
        sharded = shard(Weight(0.0, 0.0, dtype=torch.float16), SGD, stage)
        sharded(150.0, 75.0).backward()
        sharded.step(1, max_norm=1e-5)
        found["1e-5", stage] = whole(sharded)
    return found


REFUSED = {  # what a rank asks for, and words of the error
    "own rows": "rank 0: step(2, None) of SGD [{",
    "own norms": "rank 1: step(4, 2.0) of SGD [{",
    "own rates": "'lr': 1.1",
    "no samples": "samples is 0; wanted at least 1",
    "fewer than none": "samples is -1; wanted at least 1",
    "half a sample": "samples is 0.5; wanted a whole number",
    "no norm": "max_norm is 0; wanted a finite number above 0",
    "a norm below 0": "max_norm is -1; wanted a finite number above 0",
    "no number": "max_norm is nan; wanted a finite number above 0",
}


def refused():
    """{(stage, case): an error, and whether weights are as before; "then": weights after steps}."""
    found, rank = {}, dist.get_rank()
    cases = {
        "own rows": (2 + rank,),
        "own norms": (4, 1.0 + rank),
        "no samples": (0,),
        "fewer than none": (-1,),
        "half a sample": (0.5,),
        "no norm": (4, 0),
        "a norm below 0": (4, -1),
        "no number": (4, float("nan")),
    }
    for stage in STAGES:
        sharded = shard(Weight(0.0, 0.0), SGD, stage)
        sharded(2.0, 4.0).backward()
        for case, arguments in cases.items():
            found[stage, case] = error_of(sharded, *arguments)
        sharded.optimizer.param_groups[0]["lr"] += rank
        found[stage, "own rates"] = error_of(sharded, 4)
        sharded.optimizer.param_groups[0]["lr"] = 0.1
        # the gradients are still there, and a right call goes on
        sharded.step(4)
        ends = [whole(sharded).tolist()]
        sharded(2.0, 4.0).backward()
        sharded.step(10**9)
        found[stage, "then"] = [*ends, whole(sharded).tolist()]
    with pytest.raises(ValueError) as error:
        shard(Weight(0.0), SGD, 2 * rank)
    found["stages"] = str(error.value)
    doors = {"shard": lambda module: shard(module, SGD), "Replica": Replica}
    buffers = {"sparse": torch.eye(3).to_sparse(), "expanded": torch.ones(1).expand(3)}
    for door, call in doors.items():
        for kind, buffer in buffers.items():
            module = Weight(0.0)
            module.register_buffer("some", buffer)
            with pytest.raises(ValueError) as error:
                call(module)
            found[door, kind] = str(error.value)
    return found


def error_of(sharded, *arguments):
    with pytest.raises((TypeError, ValueError)) as error:
        sharded.step(*arguments)
    if sharded.units[0].is_here:
        unchanged = not sharded.units[0].weights.any()
    else:
        unchanged = not sharded.units[0].kept.any()
    return str(error.value), unchanged


def unequal_passes():
    """{stage: the error where rank 1 goes backward twice}."""
    found = {}
    for stage in (2, 3):
        sharded = shard(Weight(0.0, 0.0), SGD, stage)
        with pytest.raises(ValueError) as error:
            for _ in range(1 + dist.get_rank()):
                sharded(1.0, 1.0).backward()
            sharded.step(3)
        found[stage] = str(error.value)
    return found


def forgotten():
    """{stage: the error where rank 1 forgets the backward pass, "then": weights after a step}."""
    found = {}
    for stage in STAGES:
        sharded = shard(Weight(0.0, 0.0), SGD, stage)
        with pytest.raises(ValueError) as error:
            if dist.get_rank() == 0:
                sharded(2.0, 4.0).backward()
            sharded.step(4)
        found[stage] = str(error.value)
        if stage == 0:
            # nothing has changed: once rank 1 has its gradients too, the step is a right one
            if dist.get_rank() == 1:
                sharded(2.0, 4.0).backward()
            sharded.step(4)
            found["then"] = whole(sharded).tolist()
    return found


def fused():
    """{stage: weights after steps of the fused Adam in float64}."""
    found = {}
    for stage in STAGES:
        torch.manual_seed(0)
        net = nn.Linear(7, 9).double()
        sharded = shard(net, partial(torch.optim.Adam, lr=0.01, fused=True), stage)
        for _ in range(5):
            x = torch.randn(3, 7, dtype=torch.float64)
            sharded(x).square().sum().backward()
            sharded.step(6)
        found[stage] = whole(sharded)
    return found
