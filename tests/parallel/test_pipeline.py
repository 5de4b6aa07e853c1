"""The pipeline on real ranks: against the unsplit model, the simulator, and
torch.distributed.pipelining.
"""

import contextlib
import itertools
from collections import defaultdict
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ed_lib.parallel import RankError, launch, schedules
from ed_lib.parallel.collectives import Traffic
from ed_lib.parallel.pipeline import Pipeline, cut
from ed_lib.parallel.schedules import SCHEDULES, Instruction
from ed_lib.parallel.simulator import check_schedule, simulate
from tests.parallel import ranks

NAMES = ("naive", "gpipe", "1f1b", "zb_h1", "zb_h2")
B = 7  # samples; no number of micro-batches below but 1 divides it
COUNTS = (1, 3, 4, 7)
TIMES = dict.fromkeys(("forward", "backward", "backward_input", "backward_weight"), 1)


@pytest.fixture(scope="module")
def worlds():
    """What the ranks of worlds of 1 … 4 found."""
    return ranks.in_worlds(range(1, 5), everything)


def everything():
    p = dist.get_world_size()
    found = {"schedules": every_schedule()}
    if p > 1:
        found["tags"] = [ignoring_tags(*case) for case in TAGGED]
    if p in (2, 3):
        found["pytorch"] = beside_pytorchs()
        found["interleaved"] = by_chunks()
        found["odd parts"] = [live(*case[:3]) for case in ODD]
    if p == 2:
        found["errors"] = everything_wrong()
    return found


class Gives(nn.Module):
    """A part that does not keep (b, …), or does."""

    def __init__(self, how):
        super().__init__()
        self.how, self.layer = how, nn.Linear(3, 3)

    def forward(self, x):
        y = self.layer(x)
        return {
            "what it should": lambda: y,
            "flat": lambda: y.flatten(0, 1),
            "a number": lambda: y.mean(),
            "a pair": lambda: (y, y),
            "whole numbers": lambda: y.long(),
            "a row a sample": lambda: y[:, : len(y)],
            "nothing of x": lambda: self.layer.weight.sum() + torch.zeros_like(y),
            "a constant": lambda: torch.zeros_like(y),
            "many axes": lambda: y.view(*y.shape, 1, 1, 1, 1, 1, 1, 1),
        }[self.how]()


ROWS = "; wanted (2, …)"
# The part that is wrong (−1: the last), what it gives, the schedule, and what is said of it.
# fmt: off
WRONG = [
    (0, "flat", "gpipe", "parts[0] gives the shape (10, 3) for 2 samples" + ROWS),
    (0, "flat", "1f1b", "parts[0] gives the shape (10, 3) for 2 samples" + ROWS),
    (0, "a number", "zb_h1", "parts[0] gives the shape () for 2 samples" + ROWS),
    (1, "flat", "1f1b", "parts[1] gives the shape (10, 3) for 2 samples" + ROWS),
    (-1, "a number", "zb_h2", "gives the shape () for 2 samples" + ROWS),
    (0, "a pair", "1f1b", "parts[0] gives a tuple; wanted a tensor"),
    (0, "whole numbers", "naive", "parts[0] gives the dtype torch.int64; wanted one of torch.float64"),
    (0, "a row a sample", "1f1b", "parts[0] gives the shape (1, 1, 3) and torch.float32; wanted a"),
    (0, "many axes", "gpipe", "parts[0] gives the shape (2, 5, 3, 1, 1, 1, 1, 1, 1, 1); wanted at most"),
    (0, "flat", "interleaved", "parts[0] gives the shape (10, 3) for 2 samples" + ROWS),
    (2, "flat", "interleaved", "parts[2] gives the shape (10, 3) for 2 samples" + ROWS),
    (-1, "a pair", "interleaved", "gives a tuple; wanted a tensor"),
]
# fmt: on
# The part that is odd, what it gives, and the schedule: nothing is wrong with it.
ODD = [
    (0, "what it should", "1f1b"),
    (1, "nothing of x", "1f1b"),
    (1, "a constant", "1f1b"),
    (1, "a constant", "zb_h1"),
    (1, "a constant", "interleaved"),
]


def live(odd, how, name):
    """Of a batch through parts of which one is odd, or wrong: what ``Report`` says of this rank."""
    p = dist.get_world_size()
    chunks = 2 if name == "interleaved" else 1
    schedule = schedules.interleaved(2) if chunks == 2 else SCHEDULES[name]
    parts = [Gives("what it should") for _ in range(p * chunks)]
    parts[odd] = Gives(how)
    m = 2 * p
    # The last micro-batch has one sample, all others two.
    x = torch.ones(2 * m - 1, 5, 3)
    worker = Pipeline(parts, lambda y, _: y.square().mean(), x.shape, m, schedule)
    return worker.run(x, x).live


@pytest.mark.parametrize("p", [2, 3])
def test_parts_that_use_nothing_of_their_input_or_have_no_gradient_run(worlds, p):
    for found in worlds[p]:
        assert len(found["odd parts"]) == len(ODD)
        assert all(count > 0 for count in found["odd parts"])


# Of two ranks each case; of three, where a part is in the middle, or the last.
CASES = [(2, *case) for case in WRONG] + [(3, *case) for case in WRONG if case[0] in (1, -1)]


@pytest.mark.parametrize("p, wrong, how, name, said", CASES)
def test_a_part_that_does_not_keep_its_samples_is_named_with_its_rank(p, wrong, how, name, said):
    with pytest.raises(RankError) as caught:
        launch(live, p, wrong, how, name, timeout=60.0)
    count = 2 * p if name == "interleaved" else p
    assert f"ValueError: parts[{wrong % count}] gives" in str(caught.value)
    assert said in str(caught.value)
    assert caught.value.rank == wrong % count % p


def flattened():
    """A part that makes 20 rows of four samples: no message of that size may be sent."""
    first = nn.Sequential(nn.Flatten(0, 1), nn.Linear(3, 3))
    x = torch.ones(4, 5, 3)
    worker = Pipeline([first, nn.Linear(3, 2)], lambda y, _: y.mean(), x.shape, 1, schedules.gpipe)
    worker.run(x, x)


def test_a_message_of_another_size_is_an_error_of_its_sender_and_aborts_no_receiver():
    with pytest.raises(RankError) as caught:
        launch(flattened, 2, timeout=60.0)
    assert "parts[0] gives the shape (20, 3) for 4 samples; wanted (4, …)" in str(caught.value)
    assert "SIGABRT" not in str(caught.value)


def images_model():
    """Convolutions, a change of shape, layers without weights, and two that work in place, which
    with three and four ranks begin a part; between parts, shapes differ.
    """
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(1, 3, 3),
        nn.AvgPool2d(2),
        nn.SiLU(inplace=True),
        nn.Flatten(),
        nn.Linear(3 * 4, 9),
    ]
    return nn.Sequential(*layers, nn.LeakyReLU(0.3, inplace=True), nn.Linear(9, 5)).double()


def batch():
    torch.manual_seed(1)
    return torch.randn(B, 1, 7, 6, dtype=torch.float64), torch.randint(5, (B,))


def by_chunks():
    """On each rank: (report, {parameter: gradient}) of two batches in two chunks; parts differ in
    shape.
    """
    p = dist.get_world_size()
    model, (x, t) = images_model(), batch()
    parts = cut(model, 2 * p)
    schedule = schedules.interleaved(2)
    worker = Pipeline(parts, nn.functional.cross_entropy, x.shape, 2 * p, schedule)
    first = worker.run(x, t)
    assert worker.run(x, t) == first
    return first, {n: w.grad / 2 for n, w in model.named_parameters() if w.grad is not None}


@pytest.mark.oracle
@pytest.mark.parametrize("p", [2, 3])
def test_interleaved_gradients_are_the_unsplit_models(worlds, p):
    model, (x, t) = images_model(), batch()
    loss = nn.functional.cross_entropy(model(x), t)
    loss.backward()
    found = [rank["interleaved"] for rank in worlds[p]]
    grads = {name: grad for _, own in found for name, grad in own.items()}
    for name, weight in model.named_parameters():
        torch.testing.assert_close(grads[name], weight.grad, rtol=0, atol=1e-14)
    assert [report.loss is None for report, _ in found] == [True] * (p - 1) + [False]
    assert abs(found[-1][0].loss - loss.item()) < 1e-14
    clock = simulate(schedules.interleaved(2), p, 2 * p, TIMES)
    counted = {
        route: traffic.messages for report, _ in found for route, traffic in report.sent.items()
    }
    assert counted == clock.messages
    assert [report.live for report, _ in found] == clock.live


# Schedules, and how many chunks a rank has.
TAGGED = [(SCHEDULES[name], 1) for name in NAMES]
TAGGED += [(schedules.interleaved(chunks), chunks) for chunks in (2, 3)]


@contextlib.contextmanager
def without_tags(posted):
    """Messages as NCCL has them, which ignores tags. What is posted is noted: {(group, its ranks):
    [(whether it is sent, shape, dtype)]}.
    """

    def ignoring(call, sends):
        def post(tensor, peer, group=None, tag=0):
            group = group or dist.group.WORLD
            members = tuple(dist.get_process_group_ranks(group))
            posted[group.group_name, members].append((sends, tensor.shape, tensor.dtype))
            return call(tensor, peer, group)

        return post

    send, receive = ignoring(dist.isend, True), ignoring(dist.irecv, False)
    with mock.patch.object(dist, "isend", send), mock.patch.object(dist, "irecv", receive):
        yield


def ignoring_tags(schedule, chunks):
    """On each rank: {parameter: gradient} of two batches as messages are, and if tags are ignored;
    and what was posted then. All messages have one size, so that mixed up they would still fit.
    """
    p, found = dist.get_world_size(), []
    posted = defaultdict(list)
    for how in (contextlib.nullcontext(), without_tags(posted)):
        model, (x, t) = alike()
        parts = cut(model, p * chunks)
        with how:
            worker = Pipeline(parts, nn.functional.mse_loss, x.shape, 2 * p, schedule)
            worker.run(x, t)
            worker.run(x.flip(0), t)
        found.append({n: w.grad for n, w in model.named_parameters() if w.grad is not None})
    return *found, dict(posted)


def alike():
    """A chain whose parts take and give as much, a batch for it, and targets."""
    torch.manual_seed(5)
    layers = [nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(12)]
    return nn.Sequential(*layers).double(), torch.randn(2, 16, 5, dtype=torch.float64)


@pytest.mark.oracle
@pytest.mark.parametrize("case", range(len(TAGGED)))
@pytest.mark.parametrize("p", [2, 3, 4])
def test_gradients_are_the_same_to_the_bit_if_tags_are_ignored_and_the_unsplit_models(
    worlds, p, case
):
    model, (x, t) = alike()
    for inputs in (x, x.flip(0)):
        nn.functional.mse_loss(model(inputs), t).backward()
    plain, ignored = {}, {}
    for rank in worlds[p]:
        with_tags, without, _ = rank["tags"][case]
        plain |= with_tags
        ignored |= without
    for name, weight in model.named_parameters():
        assert torch.equal(plain[name], ignored[name])
        torch.testing.assert_close(ignored[name], weight.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", range(len(TAGGED)))
@pytest.mark.parametrize("p", [2, 3, 4])
def test_a_group_has_the_messages_of_two_ranks_in_one_direction_and_in_one_order(worlds, p, case):
    """So NCCL, which runs a group's messages in the order in which each rank posts them, takes each
    for what it is, and none can hold up another one.
    """
    posted = [rank["tags"][case][2] for rank in worlds[p]]
    groups = {group for of_rank in posted for group in of_rank}
    assert len(groups) >= 2 * (p - 1)
    for group in groups:
        assert len(group[1]) == 2
        first, second = (posted[rank][group] for rank in group[1])
        sends = first[0][0]
        assert first == [(sends, *what) for _, *what in second]
        assert {sent for sent, *_ in second} == {not sends}


def every_schedule():
    """On each rank: {(schedule, micro-batches): (report, {parameter: gradient})}."""
    rank, found = dist.get_rank(), {}
    torch.manual_seed(100 + rank)  # nothing may depend on it
    for name, m in itertools.product(NAMES, COUNTS):
        model = images_model()
        parts = [p if r == rank else None for r, p in enumerate(cut(model, dist.get_world_size()))]
        x, t = batch()
        if rank > 0:
            x = None
        if rank < dist.get_world_size() - 1:
            t = None
        worker = Pipeline(parts, nn.functional.cross_entropy, (B, 1, 7, 6), m, SCHEDULES[name])
        report = worker.run(x, t)
        again = worker.run(x, t)  # the same worker can go on; gradients add up
        assert again == report
        grads = {n: w.grad / 2 for n, w in model.named_parameters() if w.grad is not None}
        found[name, m] = report, grads
    return found


@pytest.mark.oracle
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_the_gradients_are_the_unsplit_models_and_the_counts_the_simulators(worlds, p):
    model, (x, t) = images_model(), batch()
    loss = nn.functional.cross_entropy(model(x), t)
    loss.backward()
    wanted = {name: weight.grad for name, weight in model.named_parameters()}
    shapes = [part[0].shape[1:] for part in outputs(cut(model, p), x)]
    for name, m in itertools.product(NAMES, COUNTS):
        found = [rank["schedules"][name, m] for rank in worlds[p]]
        reports, grads = [report for report, *_ in found], {}
        for _, own in found:
            assert not grads.keys() & own.keys()
            grads |= own
        assert grads.keys() == wanted.keys()
        for key, gradient in grads.items():
            torch.testing.assert_close(gradient, wanted[key], rtol=1e-12, atol=1e-14)
        assert [r.loss for r in reports[:-1]] == [None] * (p - 1)
        assert reports[-1].loss == pytest.approx(loss.item(), rel=1e-13)
        timeline = simulate(SCHEDULES[name], p, m, TIMES)
        assert [r.live for r in reports] == timeline.live
        sent = {route: traffic for r in reports for route, traffic in r.sent.items()}
        assert {route: traffic.messages for route, traffic in sent.items()} == timeline.messages
        for (_, a, b), traffic in sent.items():  # all samples, once, whatever the micro-batches
            assert traffic == Traffic(m, B * shapes[min(a, b)].numel() * 8)


def outputs(parts, x):
    found = []
    for part in parts:
        x = part(x)
        found.append(x)
    return [(y,) for y in found]


def mlp():
    torch.manual_seed(3)
    layers = [nn.Linear(6, 11), nn.ReLU(), nn.Linear(11, 8), nn.ReLU(), nn.Linear(8, 4)]
    return nn.Sequential(*layers).double()


def beside_pytorchs():
    """The same batch through our worker and theirs: [(schedule, loss, gradients; theirs)] on each
    rank.
    """
    from torch.distributed import pipelining  # takes a second, in each rank

    rank, p = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    x, t = torch.randn(12, 6, dtype=torch.float64), torch.randn(12, 4, dtype=torch.float64)
    found = []
    theirs = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
    for name, m in (("gpipe", 4), ("1f1b", 4), ("gpipe", 6), ("1f1b", 6)):
        own, other = cut(mlp(), p), cut(mlp(), p)[rank]
        report = Pipeline(own, nn.functional.mse_loss, x.shape, m, SCHEDULES[name]).run(x, t)
        stage = pipelining.PipelineStage(other, rank, p, torch.device("cpu"))
        schedule = theirs[name](stage, m, loss_fn=nn.functional.mse_loss)
        losses = []
        schedule.step(
            *([x] if rank == 0 else []), target=t if rank == p - 1 else None, losses=losses
        )
        their_loss = torch.stack(losses).mean().item() if rank == p - 1 else None
        pairs = zip(own[rank].parameters(), other.parameters(), strict=True)
        found.append((report.loss, their_loss, [(a.grad, b.grad) for a, b in pairs]))
    return found


@pytest.mark.oracle
@pytest.mark.parametrize("p", [2, 3])
def test_losses_and_gradients_are_those_of_pytorchs_pipelining(worlds, p):
    for rank, found in enumerate(worlds[p]):
        for ours, theirs, pairs in found["pytorch"]:
            assert ours == (pytest.approx(theirs, rel=1e-13) if rank == p - 1 else None)
            for a, b in pairs:
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_the_parts_are_the_model_and_share_its_layers():
    model = images_model()
    for p in range(1, 8):
        parts = cut(model, p)
        assert [layer for part in parts for layer in part] == list(model) and len(parts) == p
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def sends_twice(stage, stages, microbatches):
    last = "send", microbatches - 1, "gradient"
    for do in schedules.gpipe(stage, stages, microbatches):
        yield from [do] * (2 if do[:3] == last else 1)


def forgets_one(stage, stages, microbatches):
    yield from list(schedules.gpipe(stage, stages, microbatches))[: -1 - (stage == 0)]


def swaps_two(stage, stages, microbatches):
    program = list(schedules.gpipe(stage, stages, microbatches))
    if stage == 1:
        program = [
            do._replace(microbatch={0: 1, 1: 0}.get(do.microbatch, do.microbatch)) for do in program
        ]
    yield from program


def updates(stage, stages, microbatches):
    for i in range(microbatches):
        yield from schedules.forward(stage, stages, i)
        yield Instruction("update", i)


def both_wait(stage, stages, microbatches):
    """Stage 0 wants the gradient before it sends the activation."""
    program = list(schedules.naive(stage, stages, microbatches))
    if stage == 0 and stages > 1:
        program[1], program[2] = program[2], program[1]
    yield from program


@pytest.mark.parametrize(
    "schedule, message",
    [
        (forgets_one, "stage 0 do .*wanted each micro-batch forward and back once"),
        (swaps_two, "stage 1 Instruction.*receive.*, and 0 send 0 first"),
        (both_wait, "no stage can go on"),
        (sends_twice, "schedule sends what nobody takes: .*gradient"),
        (updates, "stage 0 do .*update"),
        (schedules.repeat(schedules.gpipe, 2), "stage 0 do"),
    ],
)
def test_schedules_that_no_pipeline_can_run(schedule, message):
    with pytest.raises(ValueError, match=message):
        check_schedule(schedule, 2, 3)


@pytest.mark.parametrize("name", NAMES)
def test_schedules_that_every_pipeline_can_run(name):
    for p, m in itertools.product(range(1, 7), range(1, 9)):
        check_schedule(SCHEDULES[name], p, m)


def everything_wrong():
    """What each rank is told, for calls that cannot work; the last pipeline does, so the group is
    whole.
    """
    rank, told, good = dist.get_rank(), [], cut(mlp(), 2)
    x, t = torch.zeros(12, 6).double(), torch.zeros(12, 4).double()
    for parts, m, schedule, batch in (
        (cut(mlp(), 3), 4, schedules.gpipe, None),
        (good, 13, schedules.gpipe, None),
        (good, 0, schedules.gpipe, None),
        (good, 4, both_wait, None),
        (good, 4 + rank, schedules.gpipe, None),
        (good, 4, (schedules.gpipe, schedules.naive)[rank], None),
        (good, 5, schedules.gpipe, (None, None)),
        (good, 5, schedules.gpipe, (x[:, :5], t[:11])),
        (good, 5, schedules.gpipe, (x, t)),
    ):
        try:
            told.append(
                Pipeline(parts, nn.functional.mse_loss, x.shape, m, schedule).run(*batch).live
            )
        except ValueError as error:
            told.append(str(error))
    return told


def test_what_does_not_fit_is_an_error_on_every_rank(worlds):
    wanted = [
        "parts has 3 entries; wanted 2, one for each rank",
        "microbatches is 13 and shape (12, 6); wanted at least 13 samples",
        "microbatches is 0",
        "schedule stops: no stage can go on",
        "the ranks call different things",
        "the ranks call different things",
    ]
    ends = (
        [
            "inputs has the shape (); wanted (12, 6)",
            "inputs has the shape (12, 5); wanted (12, 6)",
            "5",
        ],
        [
            "targets has the shape (); wanted (12,)",
            "targets has the shape (11,); wanted (12,)",
            "5",
        ],
    )
    for rank, end in zip(worlds[2], ends, strict=True):
        pairs = zip(rank["errors"], wanted + end, strict=True)
        assert all(str(told).startswith(text) for told, text in pairs), rank["errors"]
