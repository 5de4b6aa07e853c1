"""A reader's own step: what ``ed_lib.diagnose`` promises of a cure, and what the cure gains.

A row is a pair of training step and cure. The plain step and its cures first train a few times from
the same weights, and their losses are compared with those of the plain step in float64; what
deviates by more than its format explains is not timed. All versions of one step take turns.
"""

from functools import partial

import torch

from benchmarks.shared import formats, harness, steps
from benchmarks.shared.cures import (
    NAMES,
    autocast,
    channels_last,
    compiled,
    fused_attention,
    fused_optimizer,
    lacks,
    larger_batch,
    loader_workers,
    one_call,
)
from benchmarks.shared.harness import Size
from ed_lib import diagnose

# Losses that are compared: the second shows the first update, and the third what an optimizer
# remembers of it.
LOSSES = 3
# A rate so small that repetitions leave the network as it was: one that has learned its batch by
# heart has gradients that are denormal, and some processors take far longer for them.
RATE = 1e-12

# What may gain in nearly every step, and in one of images.
MOST = [larger_batch, compiled, fused_optimizer, autocast]
IMAGES = [*MOST, channels_last]
# {step: (what makes it, the cures that are tried)}. A loop that compiling unrolls takes minutes,
# and four times GPT-2's scores take gigabytes.
STEPS = {
    "LeNet, d2l's, batch 8": (partial(steps.lenet_of_d2l, images="few"), IMAGES),
    "LeNet, d2l's, batch 512": (partial(steps.lenet_of_d2l, images="many"), IMAGES),
    "LeNet, ReLU, batch 128": (steps.lenet, IMAGES),
    "MLP, slow loader": (steps.slow_loader, [loader_workers, compiled, fused_optimizer]),
    "ResNet-18": (steps.resnet, IMAGES),
    "encoder, attention by hand": (
        partial(steps.encoder, attention="eager"),
        [*MOST, fused_attention],
    ),
    "encoder, fused attention": (partial(steps.encoder, attention="sdpa"), MOST),
    "BERT": (steps.bert, [*MOST, fused_attention]),
    "GPT-2": (steps.gpt2, [compiled, fused_optimizer, autocast]),
    "LSTM cell by cell, batch 1": (
        partial(steps.cells, B=1),
        [one_call, larger_batch, fused_optimizer],
    ),
    "LSTM cell by cell, batch 32": (
        partial(steps.cells, B=32),
        [one_call, larger_batch, fused_optimizer],
    ),
    "MLP, 32 layers of 64": (steps.deep_mlp, MOST),
    "scale, shift and GELU": (steps.pointwise, [larger_batch, compiled]),
}
# steps: which. apart: those that are also tried in processes that get memory otherwise, so many of
# each kind.
# images: of a batch; loaded: batches of a pass through the loader; texts, tokens: of a batch;
# cells: time steps of the LSTM; deep, narrow: layers of the MLP and their width; rows: of the
# pointwise chain.
SIZE = Size(
    steps=list(STEPS), seconds=2.0, rounds=9,
    images={"few": 8, "some": 128, "many": 512}, loaded=32, side=64, channels=[64, 128, 256, 512],
    texts=8, tokens=128, hidden=256, layers=4, heads=4, words=8192, gpt2_words=50_257,
    cells=100, deep=32, narrow=64, rows=2**14,
    apart=[
        "LeNet, d2l's, batch 512", "encoder, attention by hand", "GPT-2", "scale, shift and GELU",
    ],
    processes=3,
)  # fmt: skip
TINY = SIZE(
    # every cure, and every kind of part
    steps=[
        "LeNet, ReLU, batch 128", "MLP, slow loader", "encoder, attention by hand",
        "LSTM cell by cell, batch 1", "scale, shift and GELU",
    ],
    seconds=0.001, rounds=1,
    images={"few": 2, "some": 3, "many": 4}, loaded=2, side=8, channels=[4, 4],
    texts=2, tokens=4, hidden=8, layers=1, heads=2, words=20, gpt2_words=20,
    cells=3, deep=2, narrow=8, rows=8, apart=["scale, shift and GELU"], processes=1,
)  # fmt: skip


def as_it_is(plain):
    """No cure."""
    return plain


def made(make, size, device, cure=as_it_is):
    """The training, from the same weights and the same batch each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = make(size)
    return cure(plain.to(device))


def losses(one):
    """Of the first steps. Floating-point inputs get the type of the model's parameters."""
    kind = next(one.model.parameters()).dtype
    found = []
    for _, batch in zip(range(LOSSES), one.loader or LOSSES * [one.batch], strict=False):
        typed = [each.to(kind) if each.is_floating_point() else each for each in batch]
        found.append(one(typed).item())
    return torch.tensor(found, dtype=torch.float64)


def exactly(make, size, device):
    """The losses of the plain step in float64."""
    plain = made(make, size, device)
    plain.model.double()
    return losses(plain)


def version(name, size, device, cure, exact):
    """A step with a cure as the harness times it, compared with the ``exact`` losses."""
    make, _ = STEPS[name]
    one = made(make, size, device, cure)
    error = formats.deviation([losses(one)], [exact])
    one.set_rate(RATE)
    format = "bfloat16" if cure is autocast else "float32"
    case = {"step": name, "cure": NAMES.get(cure)}
    # Examples of what is timed, to compare a larger batch with a smaller one.
    results = {"steps": one.steps, "examples": one.steps * len(one.batch[0])}
    return harness.Version(
        case, one.go, error=error, tolerance=formats.TOLERANCE[format], results=results
    )


def gains(size, device, name):
    """A row for each cure of a step: the seconds of the plain step, and how many times as fast it
    is with the cure, per example; from quartile to quartile, "at least" and "at most".
    """
    make, tried = STEPS[name]
    exact = exactly(make, size, device)
    versions = [version(name, size, device, as_it_is, exact)]
    for cure in tried:
        if lacking := lacks(cure, device):
            print(f"{name}, {NAMES[cure]}: left out, since this machine lacks {lacking}")
        else:
            versions.append(version(name, size, device, cure, exact))
    rows = harness.measure(versions, device, size.seconds, rounds=size.rounds)
    cured = {row["cure"]: row for row in rows}
    # Without it, since it deviates itself, there is nothing to compare with: a KeyError.
    plain = cured.pop(None)
    per_step = {key: plain[key] / plain["steps"] for key in ("seconds", "q1", "q3")}
    for row in cured.values():
        times = row["examples"] / plain["examples"]
        yield {
            "step": name,
            "cure": row["cure"],
            **per_step,
            "n": plain["n"],
            "gained": times * plain["seconds"] / row["seconds"],
            "at least": times * plain["q1"] / row["q3"],
            "at most": times * plain["q3"] / row["q1"],
            "error": row["error"],
        }


def of_memory(size, name):
    """Rows of what may spare fresh memory, in processes of each kind, in turns. What is promised
    is what a report on the plain process says of memory that is kept.
    """
    from benchmarks.shared import apart

    times = {cure: [] for cure in (None, *apart.CURES)}
    promised = {}
    for cure in size.processes * list(times):
        seconds, said = apart.tried(name, size=size, cure=cure)
        times[cure].append(seconds)
        promised |= said
    plain = harness.summary(times.pop(None))
    for cure, found in times.items():
        cured = harness.summary(found)
        yield {
            "step": name,
            "cure": cure,
            **plain,
            "gained": plain["seconds"] / cured["seconds"],
            "at least": plain["q1"] / cured["q3"],
            "at most": plain["q3"] / cured["q1"],
            **promised,
        }


def diagnosis(size, device, name):
    """The report on a plain step."""
    make, _ = STEPS[name]
    one = made(make, size, device)
    restore = [one.model, one.optimizer]
    return diagnose.step(one, batches=one.endless(), device=device, restore=restore)


def promise(report, cure):
    """What a report says: the largest part of the step, by the verdict, and the "second" one; by
    how much the cure makes it faster at most, and which "rank" it has among all cures. None for a
    cure that it does not name.
    """
    _, second, *_ = sorted(report.parts, key=report.parts.get, reverse=True)
    found = {"verdict": report.verdict, "second": second, "promised": None, "rank": None}
    for rank, each in enumerate(report.cures, start=1):
        if each.name == cure:
            found |= {"promised": each.bound, "rank": rank}
    return found


def pairs(size, device):
    """A row for each pair."""
    for name in size.steps:
        report = diagnosis(size, device, name)
        for row in gains(size, device, name):
            yield row | promise(report, row["cure"])


def parts(size, device):
    """A row for each step: its time, and of it each part's."""
    for name in size.steps:
        report = diagnosis(size, device, name)
        took = report.measured.timing
        times = {"seconds": took.median, "q1": took.q1, "q3": took.q3, "n": took.n}
        yield {"step": name} | times | {"verdict": report.verdict} | report.parts


def memory(size, device):
    """A row for each pair of a step and a cure of fresh memory."""
    for name in size.apart:
        yield from of_memory(size, name)


TABLES = {"parts": parts, "pairs": pairs, "memory": memory}
# fresh memory is a CPU's
ON_GPU = ("parts", "pairs")
TIMED = True
context = formats.restored
