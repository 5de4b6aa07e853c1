"""ZeRO's stages against training on one process, against each other, and against PyTorch's own.

Every launch holds many checks. What ranks return is compared here.
"""

from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ed_lib.models import GPT
from ed_lib.parallel import RankError, launch, ledger, zero
from ed_lib.parallel.collectives import Traffic
from ed_lib.parallel.replica import shard as rows_of
from ed_lib.parallel.zero import STAGES, shard
from tests.parallel import ranks

ADAM, SGD = partial(torch.optim.Adam, lr=1e-2), partial(torch.optim.SGD, lr=1e-2)
SIZES = (7, 4, 3)  # sequences in each step: uneven shards, and for four ranks an empty one
VOCABULARY, LENGTH = 11, 5


def net(recompute="none"):
    return GPT(VOCABULARY, LENGTH, 8, 2, 3, recompute, seed=1).double()


def batches():
    draw = torch.Generator().manual_seed(2)
    tokens = [torch.randint(VOCABULARY, (n, LENGTH + 1), generator=draw) for n in SIZES]
    return [(t[:, :-1], t[:, 1:]) for t in tokens]


def summed(scores, wanted):
    return F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction="sum")


def flat(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def serial(optimizer=ADAM):
    """The parameters after steps on whole batches, by torch alone."""
    module = net()
    optimizer = optimizer(list(module.parameters()))
    for x, wanted in batches():
        optimizer.zero_grad()
        (summed(module(x), wanted) / wanted.numel()).backward()
        optimizer.step()
    return flat(module)


def train(sharded, passes=1):
    """The same in several processes, perhaps in several backward passes a step → the parameters."""
    for x, wanted in batches():
        mine = [list(rows_of(rows).tensor_split(passes)) for rows in (x, wanted)]
        for part in zip(*mine, strict=True):
            summed(sharded(part[0]), part[1]).backward()
        sharded.step(wanted.numel())
    return weights(sharded)


def weights(sharded):
    """All of a module's parameters."""
    with torch.no_grad():
        for unit in sharded.units:
            if not unit.is_here:
                unit.make_room()
                sharded.fetch(unit)
    return flat(sharded.module)


def by_stages(recompute):
    """{stage: parameters, traffic, what is held, tensors that exist beyond those of before}."""
    found = {}
    for stage in STAGES:
        before = ledger.alive()
        module = net(recompute)
        sharded = shard(module, ADAM, stage, list(module.blocks))
        end = train(sharded).clone()
        sent = sharded.wire.traffic
        for unit in sharded.units:
            if stage == 3:
                unit.free()
        held = sharded.held()
        found[stage] = end, sent, held, ledger.alive() - before - end.nbytes
        del sharded, module, unit
    return found


@pytest.fixture(scope="module")
def found():
    return ranks.in_worlds((1, 3, 4), by_stages, "none")


@pytest.mark.oracle
def test_all_stages_end_with_the_same_bits_and_those_of_one_process_to_rounding(found):
    right = serial()
    for p, results in found.items():
        for rank in results:
            for stage, (end, *_) in rank.items():
                assert torch.equal(end, results[0][0][0]), (p, stage)
                torch.testing.assert_close(end, right, rtol=0, atol=1e-9)


def test_what_is_sent_is_as_in_the_formulas(found):
    module = net()
    parts = zero.cut(module, list(module.blocks))
    for p, results in found.items():
        for stage in STAGES:
            numbers = sum(unit.size for unit in parts)
            bytes = sum(rank[stage][1].bytes for rank in results)
            extra = 8 * (p - 1) * numbers if stage == 3 else 0  # to look at all weights at the end
            assert bytes - extra == pytest.approx(len(SIZES) * p * 8 * ledger.sent(numbers, p, stage)), (
                p,
                stage,
            )
            halves = len(SIZES) * {0: 2, 1: 2, 2: 2, 3: 3}[stage] + (stage == 3)
            for rank in results:
                assert rank[stage][1].messages == halves * (p - 1) * len(parts)


def test_what_is_held_is_as_in_the_ledger(found):
    numbers = sum(p.numel() for p in net().parameters())
    for p, results in found.items():
        for stage in STAGES:
            wanted = ledger.state(numbers, p, stage, ledger.Bytes(8, 0, 16))  # gradients are given back
            total = {what: sum(rank[stage][2][what] for rank in results) for what in wanted}
            assert total == {what: pytest.approx(p * bytes) for what, bytes in wanted.items()}, (p, stage)
            for rank in results:
                mine, alive = sum(rank[stage][2].values()), rank[stage][3]
                assert mine <= alive < mine + 1000, "tensors that exist, but for a handful of numbers"


def gradients_held():
    held = {}
    for stage in (0, 1, 2, 3):
        module = net()
        sharded = shard(module, ADAM, stage, list(module.blocks))
        x, wanted = (rows_of(rows) for rows in batches()[0])
        summed(sharded(x), wanted).backward()
        held[stage] = sharded.held()["gradients"]
    return held


def test_from_stage_2_on_a_rank_keeps_its_part_of_the_gradients():
    numbers = sum(p.numel() for p in net().parameters())
    first, second = launch(gradients_held, 2)
    for stage, wanted in ((0, 2), (1, 2), (2, 1), (3, 1)):
        assert first[stage] + second[stage] == wanted * 8 * numbers


def odd_ones():
    """Accumulation, recomputation, parameters that are used twice or not, units that are not used."""
    found = {}
    for stage in STAGES:
        module = net()
        sharded = shard(module, ADAM, stage, list(module.blocks))
        found["accumulated", stage] = train(sharded, passes=2).clone(), sharded.wire.traffic
        for how in ("selective", "full"):
            module = net(how)
            found[how, stage] = train(shard(module, ADAM, stage, list(module.blocks))).clone()
        module = Odd()
        sharded = shard(module, ADAM, stage, [module.twice, module.unused, module.tiny])
        for rows in (torch.ones(2, 3).double(), torch.zeros(2, 3).double()):
            for _ in range(2):
                sharded(rows_of(rows)).sum().backward()
            sharded.step(2)
        found["odd", stage] = weights(sharded).clone()
    return found


class Odd(nn.Module):
    """A unit that is used twice, one that is not used, one of a single number, and half of one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.twice, self.unused = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
        self.tiny, self.partly = nn.Linear(1, 1, bias=False).double(), nn.Linear(3, 3).double()
        self.left = nn.Parameter(torch.ones(5).double())

    def forward(self, x):
        h = self.twice(self.twice(x).tanh())
        return self.tiny(h[:, :1]) * F.linear(h, self.partly.weight)


@pytest.mark.oracle
def test_odd_modules():
    for p in (1, 3):
        results = launch(odd_ones, p, timeout=240.0)
        right, numbers = serial(), sum(p.numel() for p in net().parameters())
        module = Odd()
        optimizer = ADAM(list(module.parameters()))
        for rows in (torch.ones(2, 3).double(), torch.zeros(2, 3).double()):
            optimizer.zero_grad()
            module(rows).sum().backward()
            optimizer.step()
        for rank in results:
            for stage in STAGES:
                end, traffic = rank["accumulated", stage]
                torch.testing.assert_close(end, right, rtol=0, atol=1e-9)
                torch.testing.assert_close(rank["odd", stage], flat(module), rtol=0, atol=1e-9)
                for how in ("selective", "full"):
                    torch.testing.assert_close(rank[how, stage], right, rtol=0, atol=1e-9)
        for stage in (0, 1, 2, 3):
            bytes = sum((rank["accumulated", stage][1] for rank in results), Traffic()).bytes
            extra = 8 * (p - 1) * numbers if stage == 3 else 0
            wanted = len(SIZES) * p * 8 * ledger.sent(numbers, p, stage, passes=2)
            assert bytes - extra == pytest.approx(wanted)


class Frozen(nn.Module):
    """A unit with a frozen layer and a buffer, one before an in-place ReLU that gives a dict, and a sparse
    embedding; with numbers of this rank's own."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).double()
        self.first[0].requires_grad_(False)
        self.register_buffer("seen", torch.tensor([bool(seed)]))
        self.table = nn.Embedding(5, 4, sparse=True).double()
        self.second = Named(nn.Linear(4, 4).double())

    def forward(self, rows):
        return self.second(self.first(self.table(rows)))["h"].relu_().sum()


class Named(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return {"h": self.layer(x), "x": x.detach()}


def start_apart():
    """{stage: all that a module is after a step} of modules that differ by rank before."""
    found = {}
    for stage in STAGES:
        module = Frozen(dist.get_rank())
        sharded = shard(module, SGD, stage, [module.first, module.second])
        for _ in range(2):
            sharded(torch.arange(4)).backward()
            sharded.step(dist.get_world_size())
        weights(sharded)
        found[stage] = {name: t.clone() for name, t in module.state_dict().items()}
    return found


@pytest.mark.oracle
def test_all_start_from_rank_0s_frozen_weights_and_buffers_too():
    module = Frozen(0)
    optimizer = SGD([p for p in module.parameters() if p.requires_grad])
    for _ in range(2):
        module.zero_grad()
        module(torch.arange(4)).backward()
        optimizer.step()
    for rank in launch(start_apart, 2, timeout=240.0):
        for stage, state in rank.items():
            for name, right in module.state_dict().items():
                torch.testing.assert_close(state[name], right, rtol=0, atol=1e-12, msg=f"{stage} {name}")


class Again(nn.Module):
    """Two units, of which the second may be left out, or raise on the way back; computed again, perhaps."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.a, self.b = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()

    def forward(self, x, how):
        h = self.a(x)
        if how == "again":
            h = checkpoint(self.b, checkpoint(self.a, h, use_reentrant=False), use_reentrant=False)
        if how in ("both", "breaks"):
            h = self.b(h)
        if how == "breaks":
            h.register_hook(broken)
        return h.square().sum()


def broken(gradient):
    raise ArithmeticError("on purpose")


HOWS = ["again", "a", "both", "again", "breaks", "both"]


def in_turns():
    """{stage: weights} after steps that use other units in turn, and a backward pass that raises."""
    found, x = {}, torch.eye(3).double()[dist.get_rank() : dist.get_rank() + 1]
    for stage in STAGES:
        module = Again()
        sharded = shard(module, ADAM, stage, [module.a, module.b])
        for how in HOWS:
            loss = sharded(x, how)
            if how == "breaks":
                with pytest.raises(ArithmeticError):
                    loss.backward()
                sharded.zero_grad()
            else:
                loss.backward()
                sharded.step(2, max_norm=0.3)
        with pytest.raises(RuntimeError, match=r"step\(\) came before a backward pass"):
            sharded.step(2)
        found[stage] = weights(sharded).clone()
    return found


@pytest.mark.oracle
def test_recomputed_left_out_and_broken_units_and_clipping_by_the_global_norm():
    module = Again()
    optimizer, x = ADAM(list(module.parameters())), torch.eye(3).double()[:2]
    for how in HOWS:
        if how != "breaks":
            optimizer.zero_grad()
            (module(x, how) / 2).backward()
            for p in module.b.parameters():  # a step without it counts as a gradient of 0
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            norm = nn.utils.clip_grad_norm_(module.parameters(), 0.3)
            assert norm > 0.3
            optimizer.step()
    for rank in launch(in_turns, 2, timeout=240.0):
        for stage, end in rank.items():
            torch.testing.assert_close(end, flat(module), rtol=0, atol=1e-12, msg=str(stage))


def by_pytorch():
    """The same training by FSDP2, and by DDP with PyTorch's sharded optimizer → parameters by each."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    p, module = dist.get_world_size(), net()
    mesh = dist.init_device_mesh("cpu", (p,))
    for block in module.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    found = [theirs(module, torch.optim.Adam(module.parameters(), 1e-2))]
    found[0] = torch.cat([t.full_tensor().flatten() for t in module.parameters()]).detach()
    ddp = nn.parallel.DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=1e-2)
    return [*found, theirs(ddp, optimizer)]


def theirs(module, optimizer):
    """Losses are scaled, since PyTorch averages over the ranks."""
    for x, wanted in batches():
        optimizer.zero_grad()
        loss = summed(module(rows_of(x)), rows_of(wanted)) / wanted.numel()
        (loss * dist.get_world_size()).backward()
        optimizer.step()
    return None if not isinstance(module, nn.parallel.DistributedDataParallel) else flat(module)


@pytest.mark.oracle
def test_pytorchs_own_end_where_ours_do(found):
    for rank in launch(by_pytorch, 3):
        for end in rank:
            torch.testing.assert_close(end, found[3][0][3][0], rtol=0, atol=1e-9)


def disagree(how):
    module = net()
    if how == "another model":
        module = net() if dist.get_rank() else nn.Linear(3, 3).double()
        shard(module, ADAM, 3)
    sharded = shard(module, ADAM, 3, list(module.blocks))
    if how == "step before a backward pass":
        sharded.step(1)
    block = sharded.module.blocks[dist.get_rank()]  # another one on each rank
    block(torch.ones(1, LENGTH, 8).double())


@pytest.mark.parametrize(
    "how, message",
    [
        ("another model", "the ranks call different things"),
        ("another unit", r"rank 0: the weights of 'blocks\.0'; rank 1: the weights of 'blocks\.1'"),
        ("step before a backward pass", r"step\(\) came before a backward pass"),
    ],
)
def test_ranks_that_differ_get_an_error_and_do_not_hang(how, message):
    with pytest.raises(RankError, match=message):
        launch(disagree, 2, how)
