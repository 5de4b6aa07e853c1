"""A pipeline on a clock of its own: the instructions of a schedule, with the time that each of them
takes.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ed_lib import check
from ed_lib.parallel.links import Link
from ed_lib.parallel.schedules import COMPUTING, Schedule

WHOLE = (
    {"forward", "backward"},
    {"forward", "backward_input", "backward_weight"},
)  # what a stage does
FREES = {
    "backward",
    "backward_weight",
    "update",
}  # after these, a micro-batch's activations are not needed


class Event(NamedTuple):
    """A computation: from ``start`` to ``end`` (seconds), the stage did ``op`` for a
    micro-batch.
    """

    stage: int
    op: str
    microbatch: int
    start: float
    end: float
    chunk: int = 0


@dataclass(frozen=True)
class Timeline:
    """What a simulation gave: its events; of each (what, sender, receiver) how many messages; and
    the most micro-batches whose activations each stage kept at once, ``live[s]``, counted once for
    each chunk.
    """

    events: list[Event]
    messages: dict[tuple[str, int, int], int]
    live: list[int]

    @property
    def seconds(self) -> float:
        """When the last event ends."""
        return max(event.end for event in self.events)

    @property
    def busy(self) -> float:
        """The share of the time in which a stage computes, mean over the stages."""
        return sum(event.end - event.start for event in self.events) / (
            len(self.live) * self.seconds
        )

    def begins(self, stage: int, microbatch: int, op: str = "forward") -> float:
        """When a stage starts this computation."""
        wanted = stage, op, microbatch
        return next(e.start for e in self.events if (e.stage, e.op, e.microbatch) == wanted)

    def draw(self, ax: Any, numbers: bool = True) -> None:
        """On Matplotlib's axes, a row for each stage, a box for each computation, with its
        micro-batch.
        """
        from ed_lib import figures  # here: ranks need no Matplotlib

        split = {"backward_input": figures.ORANGE, "backward_weight": figures.PINK}
        colours = {
            "forward": figures.BLUE,
            "backward": figures.ORANGE,
            "update": figures.GREEN,
        } | split
        for event in self.events:
            if not (width := event.end - event.start):
                continue
            ax.barh(
                event.stage, width, 0.86, event.start, color=colours[event.op], ec="white", lw=0.6
            )
            if numbers:
                place = (event.start + event.end) / 2, event.stage
                ax.text(
                    *place,
                    str(event.microbatch),
                    ha="center",
                    va="center",
                    fontsize=8.5,
                    color="white",
                )
        ax.set(
            ylim=(len(self.live) - 0.4, -0.6), xlim=(0, self.seconds), yticks=range(len(self.live))
        )
        ax.grid(False)


def simulate(
    schedule: Schedule,
    stages: int,
    microbatches: int,
    seconds: Mapping[str, float | Sequence[float]],
    link: Link | None = None,
    sizes: Mapping[str, float] | None = None,
) -> Timeline:
    """Runs a schedule on ``stages`` simulated devices → :class:`Timeline`.

    seconds: {op: seconds}, for one micro-batch, where a list gives each stage its own; an op that
    is not named takes no time. link: of all messages, which take no time if it is None; sizes:
    {what: their bytes}. A send does not hold its stage up; messages of a kind between two stages
    are taken in the order in which they are sent. ValueError for a schedule that wants another
    order, or in which a stage waits for ever.
    """
    check.count("stages", stages)
    check.count("microbatches", microbatches)
    times = _times(seconds, stages)
    programs = [deque(schedule(stage, stages, microbatches)) for stage in range(stages)]
    clock, free = (
        [0.0] * stages,
        defaultdict[tuple, float](float),
    )  # when a stage, and when a link, is free
    inboxes = defaultdict[tuple, deque](
        deque
    )  # {(what, sender, receiver): (micro-batch, chunk, when)}
    counts, events = Counter[tuple[str, int, int]](), []
    live, most = [0] * stages, [0] * stages  # gone forward with, and not yet done with
    while any(programs):
        left = sum(map(len, programs))
        for s, program in enumerate(programs):
            while program:
                do = program[0]
                if do.op == "receive":
                    if not (inbox := inboxes[do.what, do.peer, s]):
                        break  # the next stage's turn
                    i, chunk, there = inbox.popleft()
                    if (i, chunk) != (do.microbatch, do.chunk):
                        raise ValueError(
                            f"schedule has stage {s} {do}, and {do.peer} send {i} first"
                        )
                    clock[s] = max(clock[s], there)
                elif do.op == "send":
                    route = do.what, s, do.peer
                    took = link.seconds((sizes or {}).get(do.what, 0)) if link else 0.0
                    free[s, do.peer] = max(clock[s], free[s, do.peer]) + took
                    inboxes[route].append((do.microbatch, do.chunk, free[s, do.peer]))
                    counts[route] += 1
                else:
                    start, clock[s] = clock[s], clock[s] + times[do.op][s]
                    events.append(Event(s, do.op, do.microbatch, start, clock[s], do.chunk))
                    live[s] += (do.op == "forward") - (do.op in FREES)
                    most[s] = max(most[s], live[s])
                program.popleft()
        if left == sum(map(len, programs)):
            stuck = {s: program[0] for s, program in enumerate(programs) if program}
            raise ValueError(f"schedule stops: no stage can go on. They wait for {stuck}")
    if lost := [route for route, inbox in inboxes.items() if inbox]:
        raise ValueError(f"schedule sends what nobody takes: {lost}")
    return Timeline(events, dict(counts), most)


def check_schedule(schedule: Schedule, stages: int, microbatches: int, chunks: int = 1) -> None:
    """ValueError unless :func:`simulate` can run it: each chunk once forward and back a
    micro-batch.
    """
    wanted = Counter((i, c) for i in range(microbatches) for c in range(chunks))
    done: dict[int, dict[str, Counter]] = {stage: {} for stage in range(stages)}
    for event in simulate(schedule, stages, microbatches, {}).events:
        if event.op != "step":
            done[event.stage].setdefault(event.op, Counter())[event.microbatch, event.chunk] += 1
    for stage, ops in done.items():
        if set(ops) not in WHOLE or any(each != wanted for each in ops.values()):
            said = f"wanted each micro-batch forward and back once, with each of {chunks} chunks"
            raise ValueError(f"schedule has stage {stage} do {ops}; {said}")


def _times(seconds, stages):
    """{op: a list, one time for each stage}, 0 where none is named."""
    times = {op: [0.0] * stages for op in COMPUTING}
    for op, value in seconds.items():
        check.choice("seconds' op", op, COMPUTING)
        times[op] = list(value) if isinstance(value, (list, tuple)) else [value] * stages
        if len(times[op]) != stages:
            raise ValueError(
                f"seconds[{op!r}] is {value!r}; wanted one number, or one for each stage"
            )
    return times
