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

# What a stage does with each micro-batch: the backward pass in one, or in two.
WHOLE = ({"forward", "backward"}, {"forward", "backward_input", "backward_weight"})
# After these, a micro-batch's activations are not needed any more.
FREES = {"backward", "backward_weight", "update"}


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
        worked = sum(event.end - event.start for event in self.events)
        return worked / (len(self.live) * self.seconds)

    def begins(self, stage: int, microbatch: int, op: str = "forward") -> float:
        """When a stage starts this computation."""
        wanted = stage, op, microbatch
        return next(e.start for e in self.events if (e.stage, e.op, e.microbatch) == wanted)

    def draw(self, ax: Any, numbers: bool = True) -> None:
        """On Matplotlib's axes, a row for each stage, a box for each computation, with its
        micro-batch.
        """
        from ed_lib import figures  # here: ranks need no Matplotlib

        colours = {
            "forward": figures.BLUE,
            "backward": figures.ORANGE,
            "update": figures.GREEN,
            "backward_input": figures.ORANGE,
            "backward_weight": figures.PINK,
        }
        edge = {"ec": "white", "lw": 0.6}
        letters = {"ha": "center", "va": "center", "fontsize": 8.5, "color": "white"}
        for event in self.events:
            width = event.end - event.start
            if width == 0:
                continue
            ax.barh(event.stage, width, 0.86, event.start, color=colours[event.op], **edge)
            if numbers:
                middle = (event.start + event.end) / 2
                ax.text(middle, event.stage, str(event.microbatch), **letters)
        stages = len(self.live)
        # The first stage is the upper row.
        ax.set(ylim=(stages - 0.4, -0.6), xlim=(0, self.seconds), yticks=range(stages))
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
    programs = [deque(schedule(stage, stages, microbatches)) for stage in range(stages)]
    clock = _Clock(_times(seconds, stages), stages, link, sizes or {})
    while any(programs):
        left = sum(map(len, programs))
        for stage, program in enumerate(programs):
            # Each goes on for as long as it has what it wants to receive.
            while program and clock.does(stage, program[0]):
                program.popleft()
        if left == sum(map(len, programs)):
            stuck = {stage: program[0] for stage, program in enumerate(programs) if program}
            raise ValueError(f"schedule stops: no stage can go on. They wait for {stuck}")
    if lost := [route for route, inbox in clock.inboxes.items() if inbox]:
        raise ValueError(f"schedule sends what nobody takes: {lost}")
    return Timeline(clock.events, dict(clock.counts), clock.most)


class _Clock:
    """How far each stage is, and what is on its way to it."""

    def __init__(self, times, stages, link, sizes):
        self.times = times
        self.link = link
        self.sizes = sizes
        self.now = [0.0] * stages  # when a stage is done with what it has done
        self.free = defaultdict[tuple, float](float)  # {(sender, receiver): when their link is}
        # {(what, sender, receiver): (micro-batch, chunk, when it is there)}
        self.inboxes = defaultdict[tuple, deque](deque)
        self.counts = Counter[tuple[str, int, int]]()
        self.events: list[Event] = []
        self.live = [0] * stages  # gone forward with, and not yet done with
        self.most = [0] * stages

    def does(self, stage, do):
        """Whether a stage can do that now; if so, it has."""
        if do.op == "receive":
            return self.receive(stage, do)
        if do.op == "send":
            self.send(stage, do)
        else:
            self.compute(stage, do)
        return True

    def receive(self, stage, do):
        inbox = self.inboxes[do.what, do.peer, stage]
        if not inbox:
            return False
        microbatch, chunk, there = inbox.popleft()
        if (microbatch, chunk) != (do.microbatch, do.chunk):
            came = f"{do.peer} send {microbatch} first"
            raise ValueError(f"schedule has stage {stage} {do}, and {came}")
        self.now[stage] = max(self.now[stage], there)
        return True

    def send(self, stage, do):
        took = self.link.seconds(self.sizes.get(do.what, 0)) if self.link else 0.0
        # The link takes one message after the other; the stage goes on at once.
        starts = max(self.now[stage], self.free[stage, do.peer])
        self.free[stage, do.peer] = starts + took
        route = do.what, stage, do.peer
        self.inboxes[route].append((do.microbatch, do.chunk, starts + took))
        self.counts[route] += 1

    def compute(self, stage, do):
        start = self.now[stage]
        self.now[stage] = start + self.times[do.op][stage]
        event = Event(stage, do.op, do.microbatch, start, self.now[stage], do.chunk)
        self.events.append(event)
        self.live[stage] += (do.op == "forward") - (do.op in FREES)
        self.most[stage] = max(self.most[stage], self.live[stage])


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
