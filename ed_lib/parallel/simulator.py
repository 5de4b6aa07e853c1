"""A pipeline on a clock of its own: the instructions of a schedule, with the time that each of them takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ed_lib import check
from ed_lib.parallel.links import Link
from ed_lib.parallel.schedules import COMPUTING, Schedule

BACKWARD = ({"backward"}, {"backward_input", "backward_weight"})  # in one, or in two
FREES = {"backward", "backward_weight", "update"}  # after these, a micro-batch's activations are not needed


@dataclass(frozen=True)
class Event:
    """A computation: from ``start`` to ``end`` (seconds), the stage did ``op`` for a micro-batch."""

    stage: int
    op: str
    microbatch: int
    start: float
    end: float
    chunk: int = 0


@dataclass(frozen=True)
class Timeline:
    """What a simulation gave: its events; of each (what, sender, receiver) how many messages; and the most
    micro-batches whose activations each stage kept at once, ``live[s]``, counted once for each chunk."""

    events: list[Event]
    messages: dict[tuple[str, int, int], int]
    live: list[int]

    @property
    def stages(self) -> int:
        return len(self.live)

    @property
    def seconds(self) -> float:
        """When the last event ends."""
        return max(event.end for event in self.events)

    @property
    def busy(self) -> float:
        """The share of the time in which a stage computes, mean over the stages."""
        return sum(event.end - event.start for event in self.events) / (self.stages * self.seconds)

    def begins(self, stage: int, microbatch: int, op: str = "forward") -> float:
        """When a stage starts this computation."""
        wanted = stage, op, microbatch
        return next(e.start for e in self.events if (e.stage, e.op, e.microbatch) == wanted)


def simulate(
    schedule: Schedule,
    stages: int,
    microbatches: int,
    seconds: Mapping[str, float | Sequence[float]],
    link: Link | Callable[[int, int], Link | None] | None = None,
    sizes: Mapping[str, float] | None = None,
) -> Timeline:
    """Runs a schedule on ``stages`` simulated devices → :class:`Timeline`.

    seconds: {op: seconds}, for one micro-batch, where a list gives each stage its own; an op that is not
    named takes no time. link: of all messages, or a function of sender and receiver; None: they
    take no time. sizes: {what: bytes} of a message. A send does not hold its stage up; messages between two
    stages follow each other. ValueError for a schedule in which a stage waits for ever.
    """
    check.count("stages", stages)
    check.count("microbatches", microbatches)
    times = _times(seconds, stages)
    between = link if callable(link) else lambda *_: link
    programs = [list(schedule(stage, stages, microbatches)) for stage in range(stages)]
    place, clock = [0] * stages, [0.0] * stages
    arrived: dict[tuple, float] = {}  # {(what, sender, receiver, micro-batch, chunk): when}
    free: dict[tuple[int, int], float] = {}  # {(sender, receiver): when the link is}
    counts: dict[tuple[str, int, int], int] = {}
    events: list[Event] = []
    while any(place[s] < len(programs[s]) for s in range(stages)):
        before = list(place)
        for s, program in enumerate(programs):
            while place[s] < len(program):
                do = program[place[s]]
                if do.op == "receive":
                    message = do.what, do.peer, s, do.microbatch, do.chunk
                    if message not in arrived:
                        break
                    clock[s] = max(clock[s], arrived[message])
                elif do.op == "send":
                    route = do.what, s, do.peer
                    wire = between(s, do.peer)
                    took = wire.seconds((sizes or {}).get(do.what, 0)) if wire else 0.0
                    free[s, do.peer] = max(clock[s], free.get((s, do.peer), 0.0)) + took
                    arrived[(*route, do.microbatch, do.chunk)] = free[s, do.peer]
                    counts[route] = counts.get(route, 0) + 1
                else:
                    start, clock[s] = clock[s], clock[s] + times[do.op][s]
                    events.append(Event(s, do.op, do.microbatch, start, clock[s], do.chunk))
                place[s] += 1
        if place == before:
            stuck = {s: programs[s][place[s]] for s in range(stages) if place[s] < len(programs[s])}
            raise ValueError(f"schedule stops: no stage can go on. They wait for {stuck}")
    return Timeline(events, counts, _live(events, stages))


def check_schedule(schedule: Schedule, stages: int, microbatches: int, chunks: int = 1) -> None:
    """ValueError unless every stage does all micro-batches once with each of its chunks, no stage waits for
    ever, and messages of a kind are taken in the order in which they are sent.
    """
    wanted = sorted((i, c) for i in range(microbatches) for c in range(chunks))
    on_the_way: dict[tuple[str, int, int], dict[str, list]] = {}
    for stage in range(stages):
        done: dict[str, list] = {}
        for do in schedule(stage, stages, microbatches):
            if do.op in ("send", "receive"):
                route = (do.what, stage, do.peer) if do.op == "send" else (do.what, do.peer, stage)
                on_the_way.setdefault(route, {}).setdefault(do.op, []).append((do.microbatch, do.chunk))
            elif do.op != "step":
                done.setdefault(do.op, []).append((do.microbatch, do.chunk))
        whole = "forward" in done and set(done) - {"forward"} in BACKWARD
        if not whole or any(sorted(found) != wanted for found in done.values()):
            wanted_ = f"wanted each micro-batch forward and back once, with each of {chunks} chunks"
            raise ValueError(f"schedule has stage {stage} do {done}; {wanted_}")
    for (what, sender, receiver), messages in on_the_way.items():
        right = (what, sender, receiver) in routes(stages, chunks > 1)
        if not right or messages.get("send") != messages.get("receive"):
            sent, received = messages.get("send"), messages.get("receive")
            said = f"{sender} send {sent} ({what}) and {receiver} receive {received}"
            raise ValueError(f"schedule has {said}; wanted the same between neighbours, in the same order")
    simulate(schedule, stages, microbatches, {})  # ValueError if it stops


def routes(stages: int, wraps: bool) -> list[tuple[str, int, int]]:
    """[(what, sender, receiver)]: activations to the next stage, gradients to the one before."""
    pairs = [(s, (s + 1) % stages) for s in range(stages if wraps else stages - 1)]
    return [route for s, r in pairs for route in (("activation", s, r), ("gradient", r, s))]


def _times(seconds, stages):
    """{op: a list, one time for each stage}, 0 where none is named."""
    times = {op: [0.0] * stages for op in COMPUTING}
    for op, value in seconds.items():
        check.choice("seconds' op", op, COMPUTING)
        times[op] = list(value) if isinstance(value, (list, tuple)) else [value] * stages
        if len(times[op]) != stages:
            raise ValueError(f"seconds[{op!r}] is {value!r}; wanted one number, or one for each stage")
    return times


def _live(events, stages):
    """The most micro-batches that each stage has gone forward with, and not yet done with."""
    live, most = [0] * stages, [0] * stages
    for event in events:
        s = event.stage
        live[s] += (event.op == "forward") - (event.op in FREES)
        most[s] = max(most[s], live[s])
    return most
