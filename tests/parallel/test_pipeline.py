"""The pipeline on real ranks: against the unsplit model, the simulator, and torch.distributed.pipelining."""

import itertools

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ed_lib.parallel.model_parallel import schedules
from ed_lib.parallel.model_parallel.pipeline import Pipeline, balance, check_schedule, cut, one_batch
from ed_lib.parallel.model_parallel.schedules import SCHEDULES, Instruction
from ed_lib.parallel.model_parallel.simulator import simulate
from ed_lib.parallel.ranks.collectives import Traffic
from ed_lib.parallel.ranks.launcher import RankError, launch
from tests.parallel import ranks

NAMES = ("naive", "gpipe", "1f1b", "zb_h1", "zb_h2")
B = 7  # samples; no number of micro-batches below but 1 divides it
COUNTS = (1, 3, 4, 7)
TIMES = dict.fromkeys(("forward", "backward", "backward_input", "backward_weight"), 1)


@pytest.fixture(scope="module")
def worlds():
    """What the ranks of worlds of 1 … 4 found, from one launch."""
    return ranks.in_worlds(4, everything)


def everything():
    p = dist.get_world_size()
    found = {"schedules": every_schedule()}
    if p in (2, 3):
        found["pytorch"] = beside_pytorchs()
    if p == 2:
        found["errors"] = everything_wrong() | wrong_batches()
    return found


def images_model():
    """Convolutions, a change of shape, and layers without weights; between parts, shapes differ."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(3 * 4, 9)]
    return nn.Sequential(*layers, nn.Sigmoid(), nn.Linear(9, 5)).double()


def batch():
    torch.manual_seed(1)
    return torch.randn(B, 1, 7, 6, dtype=torch.float64), torch.randint(5, (B,))


# --- gradients, messages, live activations ------------------------------------------------------------------


def every_schedule():
    """On each rank: {(schedule, micro-batches): (report, {parameter: gradient}, Pipeline's samples)}."""
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
        worker = Pipeline(parts, nn.functional.cross_entropy, (B, 1, 7, 6), m, SCHEDULES[name], torch.float64)
        report = worker.run(x, t)
        again = worker.run(x, t)  # the same worker can go on; gradients add up
        assert again == report
        grads = {n: w.grad / 2 for n, w in model.named_parameters() if w.grad is not None}
        found[name, m] = report, grads, worker.samples
    return found


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
        for _, own, _ in found:
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


# --- against PyTorch's own ----------------------------------------------------------------------------------


def mlp():
    torch.manual_seed(3)
    layers = [nn.Linear(6, 11), nn.ReLU(), nn.Linear(11, 8), nn.ReLU(), nn.Linear(8, 4)]
    return nn.Sequential(*layers).double()


def beside_pytorchs():
    """The same batch through our worker and theirs: [(schedule, loss, gradients; theirs)] on each rank."""
    from torch.distributed import pipelining  # takes a second, in each rank

    rank, p = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    x, t = torch.randn(12, 6, dtype=torch.float64), torch.randn(12, 4, dtype=torch.float64)
    found = []
    theirs = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
    for name, m in (("gpipe", 4), ("1f1b", 4), ("gpipe", 6), ("1f1b", 6)):
        [(report, grads)] = one_batch(mlp(), nn.functional.mse_loss, x, t, m, [SCHEDULES[name]])
        other = cut(mlp(), p)[rank]
        stage = pipelining.PipelineStage(other, rank, p, torch.device("cpu"))
        schedule = theirs[name](stage, m, loss_fn=nn.functional.mse_loss)
        losses = []
        schedule.step(*([x] if rank == 0 else []), target=t if rank == p - 1 else None, losses=losses)
        their_loss = torch.stack(losses).mean().item() if rank == p - 1 else None
        pairs = zip(grads.values(), other.parameters(), strict=True)
        found.append((report.loss, their_loss, [(a, b.grad) for a, b in pairs]))
    return found


@pytest.mark.parametrize("p", [2, 3])
def test_losses_and_gradients_are_those_of_pytorchs_pipelining(worlds, p):
    for rank, found in enumerate(worlds[p]):
        for ours, theirs, pairs in found["pytorch"]:
            assert ours == (pytest.approx(theirs, rel=1e-13) if rank == p - 1 else None)
            for a, b in pairs:
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


# --- cutting ------------------------------------------------------------------------------------------------


@given(
    costs=st.lists(st.integers(0, 20), min_size=1, max_size=8),
    parts=st.integers(1, 8),
)
@settings(max_examples=150, deadline=None)
def test_the_largest_part_is_the_least_of_all_cuts(costs, parts):
    parts = min(parts, len(costs))
    ends = balance(costs, parts)
    assert len(ends) == parts and ends[-1] == len(costs) and sorted(set(ends)) == ends and ends[0] > 0

    def largest(ends):
        return max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *ends]))

    every = itertools.combinations(range(1, len(costs)), parts - 1)
    assert largest(ends) == min(largest([*cuts, len(costs)]) for cuts in every)


def test_the_parts_are_the_model_and_share_its_layers():
    model = images_model()
    for p in range(1, 8):
        parts = cut(model, p)
        assert [layer for part in parts for layer in part] == list(model) and len(parts) == p
    assert [len(part) for part in cut(model, 2, [9, 1, 1, 1, 8, 1, 1])] == [3, 4]
    assert [len(part) for part in cut(model, 3, [1, 1, 1, 1, 1, 1, 6])] == [3, 3, 1]


def tied():
    one = nn.Linear(3, 3)
    return nn.Sequential(one, nn.ReLU(), one)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ((nn.Linear(2, 2), 1), TypeError, "model is a Linear; wanted an nn.Sequential"),
        ((mlp(), 6), ValueError, "parts is 6; wanted at most 5, the number of layers"),
        ((mlp(), 0), ValueError, "parts is 0"),
        ((mlp(), 2, [1, 2]), ValueError, "costs is .* wanted 5 numbers"),
        ((mlp(), 2, [1, 2, -1, 0, 0]), ValueError, "costs is"),
        ((mlp(), 2, [1, 2, float("nan"), 0, 0]), ValueError, "costs is"),
        ((tied(), 2), ValueError, "a parameter in two of the parts"),
    ],
)
def test_cuts_that_cannot_be(arguments, error, message):
    with pytest.raises(error, match=message):
        cut(*arguments)


def test_layers_that_share_a_parameter_may_stay_together():
    assert len(cut(tied(), 1)) == 1


# --- schedules that a pipeline cannot run -------------------------------------------------------------------


def forgets_one(stage, stages, microbatches):
    yield from list(schedules.gpipe(stage, stages, microbatches))[: -1 - 2 * (stage == 0)]


def swaps_two(stage, stages, microbatches):
    program = list(schedules.gpipe(stage, stages, microbatches))
    if stage == 1:
        program = [do._replace(microbatch={0: 1, 1: 0}.get(do.microbatch, do.microbatch)) for do in program]
    yield from program


def both_wait(stage, stages, microbatches):
    """Stage 0 wants the gradient before it sends the activation."""
    program = list(schedules.naive(stage, stages, microbatches))
    if stage == 0 and stages > 1:
        program[1], program[2] = program[2], program[1]
    yield from program


def only_forward(stage, stages, microbatches):
    yield Instruction("forward", 0)


@pytest.mark.parametrize(
    "schedule, error, message",
    [
        (forgets_one, ValueError, "stage 0 do .*wanted each micro-batch forward and back once"),
        (swaps_two, ValueError, "0 send .* and 1 receive .*; wanted the same"),
        (both_wait, ValueError, "no stage can go on"),
        (only_forward, ValueError, "stage 0 do"),
        (schedules.ed, ValueError, "stage 0 do .*update"),
        (schedules.repeat(schedules.gpipe, 2), ValueError, "stage 0 do"),
        ("gpipe", TypeError, "schedule is 'gpipe'; wanted a function"),
    ],
)
def test_schedules_that_no_pipeline_can_run(schedule, error, message):
    with pytest.raises(error, match=message):
        check_schedule(schedule, 2, 3)


@pytest.mark.parametrize("name", NAMES)
def test_schedules_that_every_pipeline_can_run(name):
    for p, m in itertools.product(range(1, 7), range(1, 9)):
        check_schedule(SCHEDULES[name], p, m)


# --- what does not fit, on ranks ----------------------------------------------------------------------------


class NoTensor(nn.Module):
    def forward(self, x):
        return [x]


def everything_wrong():
    """What each rank is told, for calls that cannot work; the last one works, so the group is whole."""
    rank, told = dist.get_rank(), {}
    good = cut(mlp(), 2)
    misfit = [nn.Linear(6, 11), nn.Linear(10, 4)]
    in_place = [nn.Linear(6, 11), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(11, 4))]
    cases = {
        "too many parts": (cut(mlp(), 3), 4, schedules.gpipe),
        "a part is missing": ([None, None], 4, schedules.gpipe),
        "parts that don't fit": ([p.double() for p in misfit], 4, schedules.gpipe),
        "no tensor": ([NoTensor(), good[1]], 4, schedules.gpipe),
        "in place": ([p.double() for p in in_place], 4, schedules.gpipe),
        "inputs don't fit": ([good[1], good[1]], 4, schedules.gpipe),
        "too few samples": (good, 13, schedules.gpipe),
        "no micro-batch": (good, 0, schedules.gpipe),
        "a schedule that stops": (good, 4, both_wait),
        "different micro-batches": (good, 4 + rank, schedules.gpipe),
        "different schedules": (good, 4, (schedules.gpipe, schedules.naive)[rank]),
        "good": (good, 5, schedules.gpipe),
    }
    for name, (parts, m, schedule) in cases.items():
        try:
            Pipeline(parts, nn.functional.mse_loss, (12, 6), m, schedule, torch.float64)
            told[name] = "nothing"
        except (TypeError, ValueError) as error:
            told[name] = f"{type(error).__name__}: {error}"
    return told


def wrong_batches():
    """What the rank of a wrong batch is told. It is told before it sends, so the other need not take part."""
    rank, told = dist.get_rank(), {}
    x, t = torch.randn(12, 6, dtype=torch.float64), torch.randn(12, 4, dtype=torch.float64)
    batches = {"inputs": (0, x[:, :5], t), "dtype": (0, x.float(), t), "targets": (1, x, t[:11])}
    for name, (at, *batch) in batches.items():
        worker = Pipeline(cut(mlp(), 2), nn.functional.mse_loss, (12, 6), 4, schedules.gpipe, torch.float64)
        if rank == at:
            with pytest.raises(ValueError) as caught:
                worker.run(*batch)
            told[name] = f"ValueError: {caught.value}"
    return told


def test_what_does_not_fit_is_an_error_on_every_rank(worlds):
    wanted = {
        "too many parts": "ValueError: parts has 3 entries; wanted 2, one for each rank",
        "a part is missing": "TypeError: parts[{rank}] is a NoneType; wanted an nn.Module",
        "parts that don't fit": "ValueError: parts[1] gets (3, 11). It raises",
        "no tensor": "ValueError: parts[0] gets (3, 6). It gives <class 'list'>; wanted (3, …)",
        "in place": "ValueError: parts[1] gets (3, 11). It raises RuntimeError: a leaf Variable",
        "inputs don't fit": "ValueError: parts[0] gets (3, 6). It raises",
        "too few samples": "ValueError: microbatches is 13 and shape (12, 6); wanted at least 13 samples",
        "no micro-batch": "ValueError: microbatches is 0",
        "a schedule that stops": "ValueError: schedule stops: no stage can go on",
        "different micro-batches": "ValueError: the ranks call different things",
        "different schedules": "ValueError: the ranks call different things",
        "good": "nothing",
    }
    batches = (
        {
            "inputs": "ValueError: inputs has the shape (12, 5)",
            "dtype": "ValueError: inputs' dtype is torch.float32",
        },
        {"targets": "ValueError: targets has the shape (11,)"},
    )
    for rank, found in enumerate(worlds[2]):
        told, right = found["errors"], wanted | batches[rank]
        assert told.keys() == right.keys()
        for name, text in told.items():
            assert text.startswith(right[name].format(rank=rank)), name


def wrong_batch():
    worker = Pipeline(cut(mlp(), 2), nn.functional.mse_loss, (12, 6), 4, schedules.gpipe, torch.float64)
    worker.run(torch.randn(12, 6, dtype=torch.float64), torch.randn(11, 4, dtype=torch.float64))


def test_a_batch_of_another_shape_ends_the_launch_with_the_ranks_error():
    with pytest.raises(RankError, match=r"targets has the shape \(11,\)") as caught:
        launch(wrong_batch, 2, timeout=120)
    assert caught.value.rank == 1
