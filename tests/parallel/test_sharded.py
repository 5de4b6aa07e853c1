"""ZeRO's stages against training on one process, against each other, and against PyTorch's own.

There is one launch for each size of a world. What ranks return is compared here.
"""

import gc
import itertools
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ed_lib.models import GPT
from ed_lib.parallel import ledger, zero
from ed_lib.parallel.collectives import Traffic
from ed_lib.parallel.replica import local_rows
from ed_lib.parallel.zero import STAGES, shard
from tests.parallel import ranks, sharded_ranks

ADAM, SGD = partial(torch.optim.Adam, lr=1e-2), partial(torch.optim.SGD, lr=1e-2)
SIZES = (7, 4, 2)  # sequences in each step: uneven shards, and for three ranks an empty one
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
        mine = [list(local_rows(rows).tensor_split(passes)) for rows in (x, wanted)]
        for part in zip(*mine, strict=True):
            summed(sharded(part[0]), part[1]).backward()
        sharded.step(wanted.numel())
    return weights(sharded)


def told(case):
    """What assert_close says, after the case."""
    return lambda numbers: f"{case}: {numbers}"


def weights(sharded):
    """All of a module's parameters."""
    with torch.no_grad():
        for unit in sharded.units:
            sharded.gather(unit)
    return flat(sharded.module)


def on_every_rank():
    """{what: what this rank found}."""
    found = {"stages": by_stages()}
    for sizes, call in {(1, 3): odd_ones, (3,): by_pytorch}.items():
        found |= {call.__name__: call()} if dist.get_world_size() in sizes else {}
    if dist.get_world_size() == 2:
        calls = [start_apart, in_turns, outside, disagree]
        calls += [sharded_ranks.tied, sharded_ranks.clipped, sharded_ranks.refused]
        calls += [sharded_ranks.unequal_passes, sharded_ranks.fused]
        calls += [sharded_ranks.forgotten]
        found |= {call.__name__: call() for call in calls}
    return found


@pytest.fixture(scope="module")
def found():
    """{p: what each rank of a world of p found}, of two and of three."""
    return ranks.in_worlds((2, 3), on_every_rank)


@pytest.fixture(scope="module")
def alone_and_four():
    """The same of one and of four."""
    return ranks.in_worlds((1, 4), on_every_rank)


@pytest.fixture(params=["found", pytest.param("alone_and_four", marks=pytest.mark.slow)])
def worlds(request):
    """The same, of some sizes."""
    return request.getfixturevalue(request.param)


def alive():
    """The bytes of all tensors that Python can reach."""
    gc.collect()
    tensors = [t for t in gc.get_objects() if issubclass(type(t), torch.Tensor)]
    return ledger.nbytes(tensors + [t.grad for t in tensors if t.is_leaf and t.grad is not None])


def by_stages():
    """{stage: parameters, traffic, what is held at last, gradients before the last step, and bytes
    that exist beyond those of before}.
    """
    gc.freeze()  # it need not look through the libraries again and again
    found = {}
    for stage in STAGES:
        before = alive()
        module = net()
        sharded = shard(module, ADAM, stage, list(module.blocks))
        end = train(sharded).clone()
        sent = sharded.wire.traffic
        for unit in sharded.units:
            if stage == 3:
                unit.free()
        held = sharded.held()
        found[stage] = end, sent, held, sharded.full["gradients"], alive() - before - end.nbytes
        del sharded, module, unit
    return found


@pytest.mark.oracle
def test_all_stages_end_with_the_same_bits_and_those_of_one_process_to_rounding(worlds):
    right = serial()
    for p, results in worlds.items():
        for rank in results:
            for stage, (end, *_) in rank["stages"].items():
                assert torch.equal(end, results[0]["stages"][0][0]), (p, stage)
                torch.testing.assert_close(end, right, rtol=0, atol=1e-9)


def test_what_is_sent_is_as_in_the_formulas(worlds):
    module = net()
    parts = zero.units_of(module, list(module.blocks))
    numbers = sum(unit.weights.numel() for unit in parts)
    for p, results in worlds.items():
        for stage in STAGES:
            sent = [rank["stages"][stage][1] for rank in results]
            extra = 8 * (p - 1) * numbers if stage == 3 else 0  # to look at all weights at the end
            wanted = len(SIZES) * p * 8 * ledger.sent(numbers, p, stage) + extra
            assert sum(sent, Traffic()).bytes == pytest.approx(wanted), (p, stage)
            halves = len(SIZES) * {0: 2, 1: 2, 2: 2, 3: 3}[stage] + (stage == 3)
            assert {each.messages for each in sent} == {halves * (p - 1) * len(parts)}


def test_what_is_held_is_as_in_the_ledger(worlds):
    numbers = sum(p.numel() for p in net().parameters())
    for p, results in worlds.items():
        for stage in STAGES:
            wanted = ledger.state(
                numbers, p, stage, ledger.Bytes(8, 0, 16)
            )  # gradients are given back
            of = [rank["stages"][stage] for rank in results]
            total = {what: sum(held[what] for _, _, held, _, _ in of) for what in wanted}
            assert total == {what: pytest.approx(p * bytes) for what, bytes in wanted.items()}, (
                p,
                stage,
            )
            copies = p if stage < 2 else 1  # from stage 2 on a rank keeps its part
            assert sum(gradients for _, _, _, gradients, _ in of) == copies * 8 * numbers
            for _, _, held, _, alive in of:
                assert abs(alive - sum(held.values())) < 1000, (
                    "what exists, but for a handful of numbers"
                )


def odd_ones():
    """Accumulation, recomputation, parameters that are used twice or not, units that are not
    used.
    """
    found = {}
    for stage in STAGES:
        module = net()
        sharded = shard(module, ADAM, stage, list(module.blocks))
        found["accumulated", stage] = train(sharded, passes=2).clone(), sharded.wire.traffic
        for how in ("selective", "full"):
            module = net(how)
            found[how, stage] = train(shard(module, ADAM, stage, list(module.blocks))).clone(), None
        module = Odd()
        sharded = shard(module, ADAM, stage, [module.twice, module.unused, module.tiny])
        for rows in (torch.ones(2, 3).double(), torch.zeros(2, 3).double()):
            for _ in range(2):
                sharded(local_rows(rows)).sum().backward()
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
@pytest.mark.parametrize("p, of", [
    (3, "found"), pytest.param(1, "alone_and_four", marks=pytest.mark.slow),
])  # fmt: skip
def test_odd_modules(p, of, request):
    right, numbers = serial(), sum(p.numel() for p in net().parameters())
    module = Odd()
    optimizer = ADAM(list(module.parameters()))
    for rows in (torch.ones(2, 3).double(), torch.zeros(2, 3).double()):
        optimizer.zero_grad()
        module(rows).sum().backward()
        optimizer.step()
    results = [rank["odd_ones"] for rank in request.getfixturevalue(of)[p]]
    for rank in results:
        for stage in STAGES:
            for what in ("accumulated", "selective", "full"):
                torch.testing.assert_close(rank[what, stage][0], right, rtol=0, atol=1e-9)
            torch.testing.assert_close(rank["odd", stage], flat(module), rtol=0, atol=1e-9)
    for stage in (0, 1, 2, 3):
        bytes = sum((rank["accumulated", stage][1] for rank in results), Traffic()).bytes
        extra = 8 * (p - 1) * numbers if stage == 3 else 0
        wanted = len(SIZES) * p * 8 * ledger.sent(numbers, p, stage, passes=2)
        assert bytes - extra == pytest.approx(wanted)


class Frozen(nn.Module):
    """A unit with a frozen layer and a buffer, one before an in-place ReLU that gives a dict, and a
    sparse embedding; with numbers of this rank's own.
    """

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
def test_all_start_from_rank_0s_frozen_weights_and_buffers_too(found):
    module = Frozen(0)
    optimizer = SGD([p for p in module.parameters() if p.requires_grad])
    for _ in range(2):
        module.zero_grad()
        module(torch.arange(4)).backward()
        optimizer.step()
    for rank in found[2]:
        for stage, state in rank["start_apart"].items():
            for name, right in module.state_dict().items():
                case = f"stage {stage}, {name}"
                torch.testing.assert_close(state[name], right, rtol=0, atol=1e-12, msg=told(case))


class Again(nn.Module):
    """Two units, of which the second may be left out, or raise on the way back; computed again,
    perhaps.
    """

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
    """{stage: weights} after steps that use other units in turn, and a backward pass that
    raises.
    """
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
def test_recomputed_left_out_and_broken_units_and_clipping_by_the_global_norm(found):
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
    for rank in found[2]:
        for stage, end in rank["in_turns"].items():
            case = told(f"stage {stage}")
            torch.testing.assert_close(end, flat(module), rtol=0, atol=1e-12, msg=case)


def by_pytorch():
    """The same training by FSDP2, and by DDP with PyTorch's sharded optimizer → parameters by
    each.
    """
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
        loss = summed(module(local_rows(x)), local_rows(wanted)) / wanted.numel()
        (loss * dist.get_world_size()).backward()
        optimizer.step()
    return None if not isinstance(module, nn.parallel.DistributedDataParallel) else flat(module)


@pytest.mark.oracle
def test_pytorchs_own_end_where_ours_do(found):
    for rank in found[3]:
        for end in rank["by_pytorch"]:
            torch.testing.assert_close(end, found[3][0]["stages"][3][0], rtol=0, atol=1e-9)


class Outside(nn.Module):
    """A unit whose weight another layer uses, by itself, or before or after the unit has computed;
    or hands a number of it on, "aside" from its outputs, which have no part in the loss.
    """

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(7)
        self.a, self.b, self.how = nn.Linear(3, 3).double(), nn.Linear(3, 3).double(), how
        self.alias = [self.a.weight]  # no parameter, as the module sees it
        if how == "aside":
            self.a.register_forward_hook(lambda *_: setattr(self, "sum", self.alias[0].sum()))

    def forward(self, x):
        if self.how == "aside":
            self.a(x)
            return self.b(x).square() + self.sum
        h = F.linear(self.b(self.a(x) if self.how == "after" else x), self.alias[0])
        return self.a(h) if self.how == "before" else h


WAYS = ("alone", "before", "after", "aside")


def outside():
    """{(how, stage): weights after a step, or None where there was none, and the error}."""
    found = {}
    for how, stage in itertools.product(WAYS, STAGES):
        module, end, error = Outside(how), None, ""
        sharded = shard(module, SGD, stage, [module.a, module.b])
        x = torch.eye(3).double()[dist.get_rank() :: 2]
        try:
            sharded(x).square().sum().backward()
            sharded.step(3)
            end = weights(sharded).clone()
        except RuntimeError as raised:
            error = str(raised)
        found[how, stage] = end, error
    return found


@pytest.mark.oracle
@pytest.mark.parametrize("how", WAYS)
def test_a_weight_used_outside_of_its_unit_works_or_is_an_error_that_names_it(found, how):
    module = Outside(how)
    optimizer = SGD(list(module.parameters()))
    (module(torch.eye(3).double()).square().sum() / 3).backward()
    optimizer.step()
    for rank in found[2]:
        for stage in (0, 1, 2):
            end, error = rank["outside"][how, stage]
            case = told(f"stage {stage}")
            torch.testing.assert_close(end, flat(module), rtol=0, atol=1e-12, msg=case)
            assert not error
        end, error = rank["outside"][how, 3]
        assert end is None
        assert error == "a.weight is used outside of its unit 'a'; " + WANTED


WANTED = "wanted it in no unit, and used while the whole module computes"


@pytest.mark.oracle
def test_a_head_tied_to_a_unit_is_an_error_at_its_first_use_in_stage_3_and_works_before(found):
    """The book's GPT, with the embedding, which is its head too, as a unit."""
    losses = []
    net = sharded_ranks.tied_gpt()
    optimizer = SGD(list(net.parameters()))
    for _ in range(2):
        optimizer.zero_grad()
        loss = sharded_ranks.tied_loss(net, *sharded_ranks.tied_batch())
        (loss / 4).backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    for stage in (0, 1, 2):
        both = torch.tensor([rank["tied"][stage, "losses"] for rank in found[2]]).sum(0)
        case = told(f"stage {stage}")
        torch.testing.assert_close(both.tolist(), losses, rtol=1e-5, atol=0, msg=case)
    for rank in found[2]:
        errors = rank["tied"]
        assert errors["head"] == "tokens.weight is used outside of its unit 'tokens'; " + WANTED
        assert errors["penalty"] == "weight is used outside of its unit ''; " + WANTED
        assert errors["view"].startswith("the unit '0' gives a view of its weights")
        # its weights are as they were, and a step goes on from there
        assert errors["after"] == errors["without"]


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", sharded_ranks.DTYPES, ids=str)
def test_clipping_is_pytorchs_in_every_dtype(found, dtype):
    """With a gradient whose square float16 does not hold, and with one that needs no clipping."""
    for gradient in sharded_ranks.GRADIENTS:
        p = nn.Parameter(torch.zeros(2, dtype=dtype))
        p.grad = torch.tensor([gradient, gradient / 2], dtype=dtype)
        nn.utils.clip_grad_norm_([p], 1.0)
        torch.optim.SGD([p], 0.1).step()
        for rank in found[2]:
            for stage in STAGES:
                end = rank["clipped"][dtype, gradient, stage]
                case = told(f"stage {stage}, gradient {gradient}")
                torch.testing.assert_close(end, p.detach(), msg=case)
                # of 300: 0.0 where the square was infinite
                assert end[0] < 0


def test_clipping_knows_a_norm_whose_square_no_float32_holds_and_a_factor_that_is_small(found):
    for rank in found[2]:
        for stage in STAGES:
            end = rank["clipped"]["1e20", stage]
            wanted = -0.1 * torch.tensor([2.0, 1.0]) / 5**0.5
            torch.testing.assert_close(end, wanted, msg=told(f"stage {stage}"))
            # the factor, 3e-8, is none of float16's numbers, and what it scales is
            end = rank["clipped"]["1e-5", stage].double()
            case = told(f"stage {stage}, a small norm")
            torch.testing.assert_close(end, 1e-5 * wanted.double(), rtol=0, atol=1.2e-7, msg=case)


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_that_ranks_do_not_agree_on_is_an_error_on_all_and_changes_nothing(found, stage):
    for rank in found[2]:
        refused = rank["refused"]
        for case, words in sharded_ranks.REFUSED.items():
            error, unchanged = refused[stage, case]
            assert words in error, (case, error)
            assert unchanged, case
        assert refused[stage, "then"] == [pytest.approx([-0.1, -0.2])] * 2


def test_ranks_in_other_stages_or_with_buffers_of_no_memory_get_an_error(found):
    for rank in found[2]:
        refused = rank["refused"]
        assert "rank 0: Stage0 of {" in refused["stages"]
        assert "rank 1: Stage2 of {" in refused["stages"]
        for door in ("shard", "Replica"):
            assert (
                refused[door, "sparse"]
                == "some has the layout torch.sparse_coo; wanted a dense one"
            )
            assert refused[door, "expanded"].startswith("some is expanded; wanted one with all its")


@pytest.mark.parametrize("stage", [2, 3])
def test_other_numbers_of_backward_passes_are_an_error_and_no_wait(found, stage):
    for rank in found[2]:
        assert "the ranks call different things" in rank["unequal_passes"][stage]


@pytest.mark.parametrize("stage", STAGES)
def test_a_backward_pass_that_one_rank_forgot_is_an_error_on_all_and_no_wait(found, stage):
    for rank in found[2]:
        error = rank["forgotten"][stage]
        assert "the ranks call different things" in error
        # in the other stages rank 0 is stopped within its backward pass
        if stage in (0, 1):
            assert "], gradients; rank 1: step(4, None)" in error
            assert error.endswith("], no gradients")
        assert rank["forgotten"]["then"] == pytest.approx([-0.1, -0.2])


@pytest.mark.oracle
def test_a_fused_optimizer_ends_with_the_same_numbers_to_rounding(found):
    """And not always with the same bits: it may compute a vector's last numbers otherwise."""
    for rank in found[2]:
        ends = rank["fused"]
        for stage in STAGES:
            torch.testing.assert_close(ends[stage], ends[0], rtol=0, atol=1e-15, msg=told(stage))


def disagree():
    """The errors that this rank gets where it is not at the others' place."""
    texts, rank, one, two = [], dist.get_rank(), net(), net()
    shard(two, ADAM, 3, list(two.blocks))
    for call in (
        lambda: shard(one if rank else nn.Linear(3, 3).double(), ADAM, 3),
        lambda: two.blocks[rank](torch.ones(1, LENGTH, 8).double()),  # another unit on each rank
    ):
        with pytest.raises(ValueError) as error:
            call()
        texts.append(str(error.value))
    return texts


def test_ranks_that_differ_get_an_error_and_do_not_hang(found):
    for rank in found[2]:
        model, unit = rank["disagree"]
        assert "the ranks call different things" in model
        assert "rank 0: the weights of 'blocks.0'; rank 1: the weights of 'blocks.1'" in unit
