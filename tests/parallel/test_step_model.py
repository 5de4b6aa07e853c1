"""The model of a step against sums by hand, the simulator and formulas; published runs are in its
chapter.
"""

import math
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from ed_lib.models import Block
from ed_lib.parallel import ledger, schedules, step_model
from ed_lib.parallel.links import Link, all_reduce_seconds
from ed_lib.parallel.simulator import simulate
from ed_lib.parallel.step_model import (
    Layout,
    Machine,
    Model,
    device_memory,
    exposed,
    layer_seconds,
    step_seconds,
)

SMALL = Model(8, 64, 4, 16, 100, 256, kv_heads=4)
FREE, NEVER = Link(0.0, 0.0), 1e30
PLAIN = Machine(1e9, 1e9, 1e9, FREE, FREE)


@pytest.mark.oracle
def test_weights_are_those_of_a_block():
    matrices = [p.numel() for p in Block(64, 4).parameters() if p.dim() == 2]
    assert SMALL.weights == sum(matrices)


@pytest.mark.parametrize(
    "layout", [Layout(1, batch=4), Layout(8, 4, batch=4), Layout(8, 2, batch=4, recompute=True)]
)
def test_an_ideal_machine_reaches_its_rate(layout):
    """Nothing but products: seconds are FLOPs over the rate, however the products are split."""
    seconds = sum(step_seconds(SMALL, Machine(1e15, NEVER, 1, FREE, FREE), layout).values())
    once = 2 * SMALL.weights + SMALL.attention  # of a token in a layer
    flops = (3 + layout.recompute) * 8 * once + 6 * SMALL.hidden * SMALL.vocabulary
    assert math.isclose(4 * 16 * flops / seconds / layout.devices, 1e15, rel_tol=1e-12)


def test_which_links_a_collective_takes():
    inside, between, n = Link(1e-6, 1e-9), Link(1e-5, 1e-8), 1e6
    machine = Machine(1, 1, 1, inside, between)
    for ranks, stride, link in ((8, 1, inside), (4, 2, inside), (16, 8, between)):
        found = machine.all_reduce(n, ranks, machine.together(ranks, stride, ranks * stride))
        assert found == all_reduce_seconds(n, ranks, link)
    both = all_reduce_seconds(n, 8, inside) + all_reduce_seconds(n / 8, 2, between)
    assert math.isclose(machine.all_reduce(n, 16, machine.together(16, 1, 16)), both)
    assert machine.all_reduce(n, 1, 1) == 0
    rack = replace(machine, server=72)
    assert rack.all_reduce(n, 64, rack.together(64, 1, 64)) == all_reduce_seconds(n, 64, inside)


@pytest.mark.parametrize(
    ("ranks", "stride", "devices", "together"),
    [
        (3, 1, 24, 1),  # 6, 7 and 8 are in two servers
        (3, 1, 6, 3),  # there is but one server
        (4, 1, 24, 4),  # 4 divides 8
        (8, 3, 24, 2),  # of 0, 3, … 21 servers have three, three and two
        (2, 4, 24, 2),  # 0 and 4, …
        (12, 1, 24, 4),  # 0 to 11: eight and four; 12 to 23: four and eight
        (16, 1, 32, 8),
        (4, 16, 64, 1),
    ],
)
def test_groups_that_straddle_servers_of_eight(ranks, stride, devices, together):
    """By hand: the fewest that a server has of a group, whichever group and server."""
    assert replace(PLAIN, server=8).together(ranks, stride, devices) == together


def test_a_copy_that_straddles_servers_sends_between_them():
    """Copies of three stages: the third one's are 6, 7 and 8, and its last message leaves the
    server, for which all copies wait.
    """
    machine = Machine(NEVER, NEVER, 1, Link(0, 1e-9), Link(0, 1e-3), 8)
    assert machine.link(3, 24) == machine.between and machine.link(4, 24) == machine.inside
    assert machine.link(3, 6) == machine.link(3, 3) == machine.inside
    model = replace(SMALL, layers=9)
    for devices, link in ((24, machine.between), (6, machine.inside)):
        layout = Layout(devices, 1, 3, 8)
        message = 2 * 16 * 64 * link.beta
        found = step_seconds(model, machine, layout)["stages"]
        assert math.isclose(found, layout.microbatches * 2 * message)
    sums = step_seconds(replace(SMALL, layers=9, heads=3, kv_heads=3), machine, Layout(24, 3, 1, 8))
    wanted = 9 * 4 * all_reduce_seconds(2 * 16 * 64, 3, machine.between)
    assert math.isclose(sums["tensor"], wanted)


@pytest.mark.parametrize(
    ("t", "c", "server", "inside"), [(1, 8, 8, 1), (1, 16, 8, 0), (8, 2, 8, 0), (8, 2, 16, 1)]
)
def test_a_ring_of_keys_takes_the_link_that_it_crosses(t, c, server, inside):
    """Sixteen neighbours leave a server of eight, though each is next to the one before it."""
    slow, fast = Link(0, 1e-3), Link(0, 1e-9)
    machine = Machine(NEVER, NEVER, 1, fast, slow, server)
    model = replace(SMALL, heads=8, kv_heads=8)
    keys = 2 * 2 * (16 // c) * model.keys / t
    found = layer_seconds(model, machine, Layout(t * c, t, batch=1, context=c))["context"]
    assert math.isclose(found, 2 * (c - 1) * keys * (fast if inside else slow).beta)


@pytest.mark.parametrize(("p", "each"), [(1, 4), (2, 2)])
def test_gradients_of_copies_and_of_parts_of_a_sequence_meet_in_servers_where_they_stand(p, each):
    """Context 2, two copies, in a server of four: with a pipeline between them, copies are in two
    servers.
    """
    inside, between = Link(0, 1e-9), Link(0, 1e-6)
    machine = Machine(NEVER, NEVER, 1, inside, between, 4)
    found = step_seconds(SMALL, machine, Layout(4 * p, 1, p, 2, context=2))["copies"]
    one = machine.all_reduce(2 * SMALL.parameters / p / (8 // p), 4, each)
    assert math.isclose(found, 8 // p * one)


@given(p=st.integers(1, 6), m=st.integers(1, 12), extra=st.integers(0, 50), per=st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_stages_and_bubble_are_the_simulators(p, m, extra, per):
    """1F1B with a last stage that takes longer, as the one with the vocabulary does."""
    model = replace(SMALL, layers=p * per, vocabulary=extra)
    parts = step_seconds(model, PLAIN, Layout(p, 1, p, m))
    one = per * sum(layer_seconds(model, PLAIN, Layout(p, 1, p, m)).values())
    seconds = [one] * (p - 1) + [one + parts["vocabulary"] / m]
    times = {"forward": [s / 4 for s in seconds], "backward": [3 * s / 4 for s in seconds]}
    clock = simulate(schedules.one_f_one_b, p, m, times)
    assert math.isclose(clock.seconds, sum(parts.values()) - parts["optimizer"], rel_tol=1e-9)


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (4, 2, 8), (4, 3, 4)])
def test_interleaving_divides_the_bubble(p, v, m):
    model, layout = (
        replace(SMALL, layers=p * v, vocabulary=0),
        Layout(p, 1, p, m, chunks=v, overlap=True),
    )
    parts, one = (
        step_seconds(model, PLAIN, layout),
        sum(layer_seconds(model, PLAIN, layout).values()),
    )
    clock = simulate(schedules.interleaved(v), p, m, {"forward": one / 4, "backward": 3 * one / 4})
    assert math.isclose(clock.seconds, sum(parts.values()) - parts["optimizer"], rel_tol=1e-9)


@given(p=st.integers(2, 6), v=st.integers(1, 4), groups=st.integers(1, 4))
def test_activations_are_kept_for_as_many_micro_batches_as_the_simulators_first_stage(p, v, groups):
    m = p * groups
    model = replace(SMALL, layers=p * v, vocabulary=0)
    one = device_memory(replace(model, layers=1), Layout(1))["activations"]
    kept = device_memory(model, Layout(p, 1, p, m, chunks=v))["activations"]
    clock = simulate(schedules.interleaved(v), p, m, {"forward": 1, "backward": 2})
    assert kept == pytest.approx(one * clock.live[0])


@pytest.mark.oracle
@given(message=st.floats(0, 9), computing=st.floats(0, 9), often=st.integers(1, 20))
def test_what_computing_does_not_hide(message, computing, often):
    """Played message by message: each may go once its piece is computed, and the one before has
    gone.
    """
    free = 0.0
    for piece in range(1, often + 1):
        free = max(free, piece * computing) + message
    assert math.isclose(exposed(message, computing, often), free - often * computing, abs_tol=1e-9)


@pytest.mark.oracle
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("m", [1, 4])
def test_copies_send_what_each_stage_of_zero_sends(stage, m):
    """With nothing hidden, seconds are the ledger's numbers: 2 Ψ, or 3 Ψ of FSDP, for every
    micro-batch.
    """
    machine = Machine(NEVER, NEVER, 1, FREE, Link(0, 1e-9), 1)
    found = step_seconds(SMALL, machine, Layout(4, batch=4 * m, stage=stage))["copies"]
    assert math.isclose(found, 2 * ledger.sent(SMALL.parameters, 4, stage, m) * 1e-9)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("chunks", [1, 4])
def test_the_state_is_the_ledgers(stage, chunks):
    layout = Layout(64, 4, 2, 64, chunks=chunks, stage=stage)
    own = (
        4 * SMALL.weights + SMALL.vocabulary * SMALL.hidden
    ) / 4  # of stage 0, with the embedding
    wanted = ledger.state(own, layout.data, stage)
    if stage > 1:  # the piece at work is whole
        wanted["gradients"] += 2 * own / 4
    if stage > 2:
        wanted["weights"] += 2 * 2 * own / 4
    found = device_memory(SMALL, layout)
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)


@pytest.mark.oracle
def test_activations_are_the_publications_where_they_keep_the_same():
    """Korthikanti et al. (2022), equations 1 to 4: of their 34 bytes a token and H, 4 are inputs of
    norms, which only sequence parallelism cuts, 6 Q, K and V, 2 attention's output, 8 one wide
    activation; the other 14 are masks, and what is computed again here.
    """
    whole = device_memory(replace(SMALL, vocabulary=0), Layout(1))["activations"]
    assert whole == 8 * 16 * 2 * (2 * 64 + 4 * 64 + 256)
    tiny = replace(SMALL, vocabulary=0)
    cut = [device_memory(tiny, Layout(4, 4, sequence=s))["activations"] for s in (False, True)]
    assert cut[1] == whole / 4 and cut[0] == (whole - 8 * 16 * 2 * 2 * 64) / 4 + 8 * 16 * 2 * 2 * 64


@pytest.mark.oracle
def test_few_tokens_take_the_time_of_reading_the_weights():
    machine = Machine(1e12, 1e9, 1, FREE, FREE)
    found = [layer_seconds(SMALL, machine, Layout(t, t))["products"] for t in (1, 2)]
    attention = 3 * 16 * SMALL.attention / 1e12
    assert found[0] == pytest.approx(3 * 2 * SMALL.weights / 1e9 + attention)
    assert found[1] == pytest.approx(found[0] / 2)


def test_a_slower_machine_is_slower_in_what_it_says():
    machine = step_model.H100.slower(0.5, 0.25, 0.1)
    assert machine.rate == step_model.H100.rate / 2 and machine.memory == step_model.H100.memory / 4
    assert machine.between.beta == pytest.approx(10 / 50e9) and machine.inside.alpha == 5e-6
    assert replace(step_model.H100, rate=1) == replace(step_model.H100.slower(0.3), rate=1)


@pytest.mark.oracle
def test_ddp_sums_every_gradient_once_in_buckets():
    """What stage 0 counts. DDP sums in C++, where no mode sees it, but says so to its hook; of two
    steps the second, since the first shows DDP in which order gradients come.
    """
    dist.init_process_group("fake", rank=0, world_size=64, store=FakeStore())
    try:
        model, buckets = nn.Sequential(*[nn.Linear(1448, 1448) for _ in range(4)]), []
        ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=8)

        def hook(_, bucket):
            buckets.append(bucket.buffer().nbytes)
            done: torch.futures.Future = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        ddp.register_comm_hook(None, hook)
        for _ in range(2):
            buckets.clear()
            ddp(torch.randn(2, 1448)).sum().backward()
    finally:
        dist.destroy_process_group()
    assert len(buckets) > 1
    assert sum(buckets) == 4 * sum(p.numel() for p in model.parameters())
