"""Workers on a virtual clock: the gradients are really computed, the time that they take is made up.

The next thing to happen is taken from a heap of things to come, and time jumps to it. The same arguments give
the same run, bit by bit.
"""

import heapq
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from ed_lib import check
from ed_lib.parallel.asynchronous.servers import Dispatcher, ParameterServer, Run, Span


def simulate(
    server: ParameterServer, gradient: Callable, n_tasks: int, seconds: Sequence[float], *,
    spread: float = 0.0, dies: dict[int, float] | None = None, seed: int = 0,
) -> Run:  # fmt: skip
    """Runs tasks 0 … n_tasks − 1 on a worker for each entry of ``seconds``, and a server → a :class:`Run`.

    gradient(params, task): params (P,) → the gradient (P,) and the loss. seconds: what a gradient takes each
    worker. spread: each takes that times exp(spread · z), with z normal. dies: {worker: the second at which
    it is killed}. Sending takes no time. Of things that happen at the same time, the smaller worker's is
    first. RuntimeError if all workers die before the tasks are done.
    """
    for value in seconds:
        check.positive("seconds", value)
    if not 0 <= spread < float("inf"):
        raise ValueError(f"spread is {spread}; wanted a finite number, at least 0")
    dispatcher, random = Dispatcher(server, n_tasks), np.random.default_rng(seed)
    spans, lost, now = [], [], 0.0
    alive = set(range(len(seconds)))
    busy: dict[int, tuple] = {}  # worker → (task, params, start)
    serial = itertools.count()  # tells apart the events of a worker
    events: list[tuple] = [(time, worker, next(serial), None) for worker, time in (dies or {}).items()]
    heapq.heapify(events)

    def start_the_idle():
        for worker in sorted(alive - set(busy)):
            if (order := dispatcher.assign(worker)) is not None:
                busy[worker] = (*order, now)
                takes = seconds[worker] * np.exp(spread * random.standard_normal())
                heapq.heappush(events, (now + takes, worker, next(serial), order[0]))

    start_the_idle()
    while dispatcher.unfinished:
        if not alive:
            raise RuntimeError(f"all workers are dead, with {dispatcher.unfinished} tasks left")
        now, worker, _, task = heapq.heappop(events)
        if worker not in alive:  # what a dead worker would have finished
            continue
        if task is None:
            alive.discard(worker)
            if dispatcher.lose(worker) is not None:
                task, _, start = busy.pop(worker)
                lost.append(Span(worker, task, start, now))
        else:
            task, params, start = busy.pop(worker)
            found, loss = gradient(params, task)
            dispatcher.receive(worker, found)
            spans.append(Span(worker, task, start, now, float(loss)))
        start_the_idle()
    return Run(spans, lost, now)
