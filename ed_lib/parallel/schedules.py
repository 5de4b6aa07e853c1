"""Schedules of a pipeline: in which order a stage works on its micro-batches, and how large the
bubble is.

A model is cut into a chain of p stages, one on each device, and a batch into m micro-batches. A
*schedule* is a generator: ``schedule(stage, stages, microbatches)`` yields the instructions of one
stage, in order. One worker executes them on real processes (:mod:`.pipeline`), a simulator on a
clock (:mod:`.simulator`).

Sources: Y. Huang et al., "GPipe" (2019); D. Narayanan et al., "PipeDream" (2019), "Memory-efficient
pipeline-parallel DNN training" (2021) for 1F1B, and "Efficient large-scale language model training
on GPU clusters using Megatron-LM" (2021) for interleaving; P. Qi et al., "Zero bubble pipeline
parallelism" (2024).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ed_lib import check

COMPUTING = ("forward", "backward", "backward_input", "backward_weight", "update", "step")


class Instruction(NamedTuple):
    """What a stage does next: ``op`` is one of COMPUTING, "send" or "receive".

    A message is ``what``, an "activation", "gradient" or "error" of a micro-batch, to or from the
    stage ``peer``. Where a device has several parts of the chain, ``chunk`` is which; of a message,
    its sender's.
    """

    op: str
    microbatch: int = -1
    what: str = ""
    peer: int = -1
    chunk: int = 0


Schedule = Callable[[int, int, int], Iterator[Instruction]]


def bubble(stages: int, microbatches: int, chunks: int = 1) -> float:
    """The share of the time in which a stage is idle, under GPipe and 1F1B, if all take as long:
    (p − 1) / (v m + p − 1). v: chunks, parts of the chain on a device, under :func:`interleaved`.

    It waits for p − 1 others, and works v m times. Sources: Y. Huang et al. (2019), section 2.3,
    without chunks; D. Narayanan et al. (2021), section 2.2, who divide by the work alone: (p − 1) /
    (v m).
    """
    check.count("stages", stages)
    works = check.count("microbatches", microbatches) * check.count("chunks", chunks)
    waits = stages - 1
    return waits / (works + waits)


def warmup(stage: int, stages: int, microbatches: int, chunks: int = 1) -> int:
    """Forward passes of a stage before its first backward pass, under 1F1B; of one chunk each.

    From then on it goes back whenever it has gone forward: so it keeps one more at most. With
    chunks as Megatron-LM has it, which runs plain 1F1B where a device has one chunk (D. Narayanan
    et al., 2021).
    """
    if chunks == 1:
        return min(microbatches, stages - 1 - stage)
    # All chunks but the last, for a group of micro-batches; then twice the way to the last stage,
    # since a gradient comes back as many turns after an activation has gone.
    wanted = (chunks - 1) * stages + 2 * (stages - 1 - stage)
    return min(microbatches * chunks, wanted)


def naive(stage: int, stages: int, microbatches: int) -> Iterator[Instruction]:
    """One micro-batch after the other goes all the way forward and back: one stage works at a
    time.
    """
    for i in range(microbatches):
        yield from forward(stage, stages, i)
        yield from backward(stage, stages, i)
    yield Instruction("step")


def gpipe(stage: int, stages: int, microbatches: int) -> Iterator[Instruction]:
    """All forward, then all backward. Keeps the activations of m micro-batches. Its :func:`bubble`
    is what :func:`.simulator.simulate` finds.
    """
    for i in range(microbatches):
        yield from forward(stage, stages, i)
    for i in range(microbatches):
        yield from backward(stage, stages, i)
    yield Instruction("step")


def one_f_one_b(stage: int, stages: int, microbatches: int) -> Iterator[Instruction]:
    """A stage takes a micro-batch back as soon as its gradient has arrived. So the stage keeps the
    activations of at most p − stage micro-batches.
    """
    ahead = warmup(stage, stages, microbatches)
    for i in range(ahead):
        yield from forward(stage, stages, i)
    for i in range(microbatches):
        if i + ahead < microbatches:
            yield from forward(stage, stages, i + ahead)
        yield from backward(stage, stages, i)
    yield Instruction("step")


def interleaved(chunks: int) -> Schedule:
    """1F1B in which a device has ``chunks`` parts of the chain: the stages s, s + p, s + 2p …

    A :func:`bubble` of (p − 1) / (v m) of the work in place of (p − 1) / m, for v times the
    messages. Micro-batches go in groups of p, so m has to be a multiple of p. With one chunk it is
    1F1B, for any m.
    """
    if check.count("chunks", chunks) == 1:
        return one_f_one_b

    def schedule(stage, stages, microbatches):
        if stages < 2 or microbatches % stages:
            came = f"microbatches is {microbatches}, stages {stages}"
            raise ValueError(f"{came}; wanted a multiple of at least two stages")
        # p micro-batches go through a chunk before they go through the next: (micro-batch, chunk).
        there = []
        back = []
        for start in range(0, microbatches, stages):
            group = range(start, start + stages)
            for chunk in range(chunks):
                there += [(i, chunk) for i in group]
                back += [(i, chunks - 1 - chunk) for i in group]
        first = warmup(stage, stages, microbatches, chunks)
        for i, chunk in there[:first]:
            yield from forward(stage, stages, i, chunk, chunks)
        for n, (i, chunk) in enumerate(back):
            if n + first < len(there):
                yield from forward(stage, stages, *there[n + first], chunks)
            yield from backward(stage, stages, i, chunk=chunk, chunks=chunks)
        yield Instruction("step")

    schedule.__name__ = f"interleaved({chunks})"
    return schedule


def zb_h1(stage: int, stages: int, microbatches: int) -> Iterator[Instruction]:
    """1F1B with the backward pass in two: the weights' gradients wait until there would be a
    bubble.
    """
    return _in_two(stage, stages, microbatches, ahead=stages - stage, late=stage)


def zb_h2(stage: int, stages: int, microbatches: int) -> Iterator[Instruction]:
    """More forward passes first, more weights' gradients last: no bubble, for about twice the
    activations.
    """
    return _in_two(stage, stages, microbatches, ahead=2 * (stages - stage) - 1, late=2 * stage)


def _in_two(stage, stages, microbatches, ahead, late):
    """So many forward passes first; the weights' gradients ``late`` micro-batches after the
    inputs'.
    """
    for i in range(min(ahead, microbatches)):
        yield from forward(stage, stages, i)
    for i in range(microbatches + late):
        if i < microbatches:
            yield from backward(stage, stages, i, "backward_input")
        if i >= late:
            yield Instruction("backward_weight", i - late)
        if i + ahead < microbatches:
            yield from forward(stage, stages, i + ahead)
    yield Instruction("step")


def repeat(schedule: Schedule, batches: int) -> Schedule:
    """A schedule for several batches, one after the other; micro-batches are numbered on."""

    def repeated(stage, stages, microbatches):
        for batch in range(batches):
            for do in schedule(stage, stages, microbatches):
                # A step belongs to no micro-batch, and keeps its −1.
                first = batch * microbatches if do.microbatch >= 0 else 0
                yield do._replace(microbatch=do.microbatch + first)

    return repeated


SCHEDULES: dict[str, Schedule] = {
    "naive": naive, "gpipe": gpipe, "1f1b": one_f_one_b, "zb_h1": zb_h1, "zb_h2": zb_h2,
}  # fmt: skip


def forward(
    stage: int, stages: int, i: int, chunk: int = 0, chunks: int = 1
) -> Iterator[Instruction]:
    """Micro-batch i forward through this stage: what comes in, the work, what goes out.

    Between two chunks the chain goes from the last device to the first.
    """
    if stage > 0 or chunk > 0:
        before = chunk if stage > 0 else chunk - 1
        yield Instruction("receive", i, "activation", (stage - 1) % stages, before)
    yield Instruction("forward", i, chunk=chunk)
    if stage < stages - 1 or chunk < chunks - 1:
        yield Instruction("send", i, "activation", (stage + 1) % stages, chunk)


def backward(
    stage: int, stages: int, i: int, op: str = "backward", chunk: int = 0, chunks: int = 1
) -> Iterator[Instruction]:
    """The same backward."""
    if stage < stages - 1 or chunk < chunks - 1:
        after = chunk if stage < stages - 1 else chunk + 1
        yield Instruction("receive", i, "gradient", (stage + 1) % stages, after)
    yield Instruction(op, i, chunk=chunk)
    if stage > 0 or chunk > 0:
        yield Instruction("send", i, "gradient", (stage - 1) % stages, chunk)
