"""The model of a step against what it is made of, the simulator, and published runs; and what is exact."""

import dataclasses
import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from ed_lib.parallel import ledger
from ed_lib.parallel.model_parallel import schedules
from ed_lib.parallel.model_parallel.simulator import simulate
from ed_lib.parallel.ranks.costs import Link, all_reduce
from ed_lib.parallel.scale import context, published
from ed_lib.parallel.scale.mesh import Efficiency, Layout, Machine, Model, layer, memory, rate, step
from tests.parallel import ranks

SMALL = Model(8, 64, 4, 16, 100, 256, kv_heads=4)
FAST = Link(0.0, 1e-12)
PLAIN = Machine("plain", 1e9, 1e9, 1e9, FAST, FAST)


@pytest.mark.oracle
def test_parameters_and_flops_are_the_publications():
    """Narayanan et al. (2021), equations 2 and 3: P = 12 L H² (1 + 13/12H + (V + T)/12LH), and FLOPs."""
    for run in published.MEGATRON:
        m = run.model
        L, H, V, T = m.layers, m.hidden, m.vocabulary, m.tokens
        theirs = 12 * L * H**2 * (1 + 13 / (12 * H) + (V + T) / (12 * L * H))
        assert math.isclose(m.parameters, theirs, rel_tol=4e-3)
        assert math.isclose(float(run.name.split()[1][:-1]) * 1e9, theirs, rel_tol=0.03)
        flops = 96 * T * L * H**2 * (1 + T / (6 * H) + V / (16 * L * H))
        assert math.isclose(T * m.flops(4), flops, rel_tol=1e-12)
    assert math.isclose(published.llama().parameters, 405e9, rel_tol=0.01)


@pytest.mark.oracle
def test_weights_are_those_of_a_block():
    from ed_lib.models import Block

    matrices = [p.numel() for p in Block(64, 4).parameters() if p.dim() == 2]
    assert SMALL.weights == sum(matrices)


def test_an_ideal_machine_reaches_its_rate():
    """Nothing but products: the model's FLOP/s are the machine's, however the products are split."""
    machine = Machine("ideal", 1e15, 1e30, 1e12, Link(0, 1e-30), Link(0, 1e-30))
    for layout in (Layout(1, 1, 1, 4), Layout(8, 4, 1, 4), Layout(8, 2, 1, 4, recompute=True)):
        reached = rate(SMALL, layout, sum(step(SMALL, machine, layout).values()))
        assert math.isclose(reached, 1e15, rel_tol=1e-12)


def test_which_links_an_all_reduce_takes():
    inside, between = Link(1e-6, 1e-9), Link(1e-5, 1e-8)
    machine = Machine("m", 1, 1, 1, inside, between)
    n = 1e6
    assert machine.all_reduce(n, 8, 1) == all_reduce("ring", n, 8, inside)
    assert machine.all_reduce(n, 4, 2) == all_reduce("ring", n, 4, inside)
    assert machine.all_reduce(n, 16, 8) == all_reduce("ring", n, 16, between)
    both = all_reduce("ring", n, 8, inside) + all_reduce("ring", n / 8, 2, between)
    assert math.isclose(machine.all_reduce(n, 16, 1), both)
    assert machine.all_reduce(n, 1, 1) == 0


@given(p=st.integers(1, 6), m=st.integers(1, 12), extra=st.integers(0, 50), per=st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_stages_and_bubble_are_the_simulators(p, m, extra, per):
    """1F1B with a last stage that takes longer, as the one with the vocabulary does."""
    model = dataclasses.replace(SMALL, layers=p * per, vocabulary=extra)
    layout = Layout(p, 1, p, m)
    machine = Machine("m", 1e9, 1e9, 1e9, Link(0, 0), Link(0, 0))
    parts = step(model, machine, layout)
    one = per * sum(layer(model, machine, layout).values())
    head = (step(model, machine, layout)["vocabulary"]) / m
    seconds = [one] * (p - 1) + [one + head]
    times = {"forward": [s / 4 for s in seconds], "backward": [3 * s / 4 for s in seconds]}
    clock = simulate(schedules.one_f_one_b, p, m, times)
    without = sum(parts.values()) - parts["gradients"] - parts["optimizer"]
    assert math.isclose(clock.seconds, without, rel_tol=1e-9)


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (4, 2, 8), (4, 3, 4)])
def test_interleaving_divides_the_bubble(p, v, m):
    model = dataclasses.replace(SMALL, layers=p * v, vocabulary=0)
    layout = Layout(p, 1, p, m, chunks=v, overlap=True)
    parts, one = step(model, PLAIN, layout), sum(layer(model, PLAIN, layout).values())
    clock = simulate(schedules.interleaved(v), p, m, {"forward": one / 4, "backward": 3 * one / 4})
    without = sum(parts.values()) - parts["gradients"] - parts["optimizer"]
    assert math.isclose(clock.seconds, without, rel_tol=1e-9)


def test_a_link_for_each_pair_on_the_clock():
    """Two servers of two stages: only the message between the servers takes time."""

    def link(sender, receiver):
        return Link(0.0, 1.0) if {sender, receiver} == {1, 2} else None

    clock = simulate(schedules.gpipe, 4, 1, {"forward": 1, "backward": 2}, link, {"activation": 5.0})
    assert clock.seconds == 4 * 3 + 5


def test_the_state_is_the_ledgers():
    for sharded, stage in ((False, 0), (True, 1)):
        layout = Layout(64, 4, 2, 64, sharded=sharded)
        found = memory(SMALL, layout)
        own = (4 * SMALL.weights + SMALL.vocabulary * SMALL.hidden) / 4  # of stage 0, with the embedding
        wanted = ledger.state(own, layout.data, stage)
        assert {name: found[name] for name in wanted} == pytest.approx(wanted)


@pytest.mark.oracle
@pytest.mark.parametrize("first", [0, 1])
def test_half_of_a_table_predicts_the_other_better_than_one_utilisation_does(first):
    fitted, held = published.MEGATRON[first::2], published.MEGATRON[1 - first :: 2]
    fit, one = published.fit(fitted), published.utilisation(fitted)
    assert all(0.3 < share <= 1 for share in dataclasses.astuple(fit))
    for runs, worst in ((held, 0.07), (published.LLAMA, 0.17)):
        ours = [run.predicted(fit) / run.published - 1 for run in runs]
        theirs = [one * published.PEAKS[run.machine.name] / run.published - 1 for run in runs]
        assert max(map(abs, ours)) < worst
        assert sum(e**2 for e in ours) < sum(e**2 for e in theirs)


def test_a_fit_finds_shares_that_are_known():
    known = Efficiency(0.7, 0.5, 0.6)
    runs = [dataclasses.replace(run, published=run.predicted(known)) for run in published.MEGATRON]
    found = published.fit(runs[1::2])
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(known), rel=1e-4)


@pytest.fixture(scope="module")
def worlds():
    """What the ranks of worlds of 1 … 4 found."""
    return ranks.in_worlds(range(1, 5), exact)


def exact():
    return attention(), tokens_to_experts()


def attention():
    """This rank's part of attention and of its gradients, and what was sent."""
    rank, p = dist.get_rank(), dist.get_world_size()
    whole, gradient = sequence()
    mine = [x.chunk(p, dim=2)[rank].clone().requires_grad_() for x in whole]
    y, traffic = context.ring_attention(*mine)
    y.backward(gradient.chunk(p, dim=2)[rank])
    return y.detach(), [x.grad for x in mine], traffic


def sequence():
    torch.manual_seed(0)
    q, k, v, gradient = torch.randn(4, 2, 3, 24, 5, dtype=torch.float64)  # b, a, T, d
    return (q, k, v), gradient


@pytest.mark.oracle
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_ring_attention_is_exact_with_its_gradients(worlds, p):
    whole, gradient = sequence()
    whole = [x.requires_grad_() for x in whole]
    y = F.scaled_dot_product_attention(*whole, is_causal=True)
    y.backward(gradient)
    found = [rank[0] for rank in worlds[p]]
    torch.testing.assert_close(torch.cat([r[0] for r in found], dim=2), y, rtol=0, atol=1e-13)
    for n, x in enumerate(whole):
        torch.testing.assert_close(torch.cat([r[1][n] for r in found], dim=2), x.grad, rtol=0, atol=1e-13)
    for _, _, traffic in found:  # forward: keys and values of p − 1 of the p parts, in float64
        assert traffic.bytes == (p - 1) * 2 * (2 * 3 * 24 * 5 // p) * 8
        assert traffic.messages == p - 1


def tokens_to_experts():
    """This rank's tokens after their experts, and what was sent."""
    rank, p = dist.get_rank(), dist.get_world_size()
    x, chosen = tokens(rank, p)
    return context.experts(x, chosen, expert(rank))


def tokens(rank, p):
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(11, 6, generator=generator, dtype=torch.float64)
    chosen = torch.randint(p, (11,), generator=generator)
    return x, torch.zeros_like(chosen) if rank == 1 else chosen  # rank 1's all go to one


def expert(rank):
    torch.manual_seed(50 + rank)
    return nn.Linear(6, 6).double().requires_grad_(False)


@pytest.mark.oracle
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_each_token_meets_its_expert(worlds, p):
    for rank, (_, (y, traffic)) in enumerate(worlds[p]):
        x, chosen = tokens(rank, p)
        wanted = torch.stack([expert(int(e))(row) for row, e in zip(x, chosen, strict=True)])
        torch.testing.assert_close(y, wanted, rtol=0, atol=1e-13)
        away = int((chosen != rank).sum())
        came = sum(int((tokens(other, p)[1] == rank).sum()) for other in range(p) if other != rank)
        assert traffic.bytes == (away + came) * 6 * 8  # there, and others' back
