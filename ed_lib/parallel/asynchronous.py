"""Training without a barrier, and with one: parameter servers, a run's log, a virtual clock, local
SGD.

A *task* is the number of a batch: a worker pulls parameters and a task, computes the gradient of
that batch at those parameters, and pushes it. P parameters stand in one flat tensor.
:func:`simulate_workers` drives a server on a virtual clock: gradients are really computed, the time
that they take is made up, and the same arguments give the same run, bit by bit.
*When a device dies* drives a server with processes.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ed_lib import check


@dataclass(frozen=True)
class Span:
    """A worker at work on a task, in seconds since the start, and its gradient's way: the version
    of the parameters that it ``read``, and the version to which it was ``applied``. ``loss`` is
    what it found.
    """

    worker: int
    task: int
    read: int
    start: float
    end: float
    # -1 for one that died
    applied: int = -1
    loss: float = math.nan

    @property
    def staleness(self) -> int:
        """τ: the updates made between reading the parameters and applying the gradient."""
        return self.applied - self.read


class ParameterServer:
    """Parameters that anyone may read, and move by a gradient, at any time: asynchronous SGD.

    params: (P,), floats, copied. ``version`` counts the updates. A gradient moves the parameters by
    lr, or, ``by_staleness``, by lr / max(1, τ): W. Zhang and others, "Staleness-aware async-SGD …"
    (2016).
    """

    # gradients in an update
    per_step = 1

    def __init__(self, params: torch.Tensor, lr: float, *, by_staleness: bool = False):
        check.shape("params", tuple(params.shape), ("P",))
        self.params = params.detach().clone()
        self.lr, self.by_staleness = check.positive("lr", lr), by_staleness
        self.version = 0

    def allows(self, task: int) -> bool:
        """Whether a worker may start this task now."""
        return True

    def pull(self) -> tuple[torch.Tensor, int]:
        """→ a copy of the parameters, (P,), and their version."""
        return self.params.clone(), self.version

    def push(self, gradient: torch.Tensor, read: int, task: int = 0) -> None:
        """Applies a task's gradient (P,), which was computed at the version ``read``. ValueError
        for one of another shape, FloatingPointError for one with NaN or infinity in it; then
        nothing has changed.
        """
        check.shape("gradient", tuple(gradient.shape), tuple(self.params.shape))
        if not torch.isfinite(gradient).all():
            raise FloatingPointError("gradient holds NaN or infinity; wanted finite numbers")
        self.apply(gradient.detach(), self.version - read, task)

    def apply(self, gradient: torch.Tensor, staleness: int, task: int) -> None:
        rate = self.lr / max(1, staleness) if self.by_staleness else self.lr
        self.params.add_(gradient, alpha=-rate)
        self.version += 1


class SynchronousServer(ParameterServer):
    """The same with a barrier: a step waits for ``per_step`` gradients, and makes one update by
    their mean.

    Tasks 0 … per_step − 1 are the first step, and so on; τ is 0. The mean is formed in the order of
    the tasks, so no bit of the result depends on who was faster. ValueError for a task of another
    step, or one that has come; then nothing has changed.
    """

    def __init__(self, params: torch.Tensor, lr: float, per_step: int):
        super().__init__(params, lr)
        self.per_step = check.count("per_step", per_step)
        # task → its gradient, of this step
        self.arrived: dict[int, torch.Tensor] = {}

    def allows(self, task: int) -> bool:
        return task // self.per_step == self.version

    def apply(self, gradient: torch.Tensor, staleness: int, task: int) -> None:
        first = self.version * self.per_step
        last = first + self.per_step - 1
        if not first <= task <= last or task in self.arrived:
            wanted = f"one of this step's, from {first} to {last}, that has not come"
            raise ValueError(f"task is {task}; wanted {wanted}")
        self.arrived[task] = gradient.clone()
        if len(self.arrived) == self.per_step:
            ordered = [self.arrived[task] for task in sorted(self.arrived)]
            # (per_step, P) → (P,)
            mean = torch.stack(ordered).mean(0)
            self.params.add_(mean, alpha=-self.lr)
            self.arrived.clear()
            self.version += 1


class Run:
    """Tasks 0 … n_tasks − 1, each applied to the server exactly once, and who did what when.

    A task waits, or is held by one worker, or is done: when its gradient has arrived, whole. The
    task of a worker that is gone waits again. ``spans`` are the log of the gradients that were
    applied, ``lost`` the spans of the dead; ``seconds``: when the last gradient came.
    """

    def __init__(self, server: ParameterServer, n_tasks: int):
        self.server = server
        self.seconds = 0.0
        # a heap: the smallest goes first, so that a step's tasks are done before the next step's
        self.waiting = list(range(check.count("n_tasks", n_tasks)))
        # worker → (task, version read, start)
        self.held: dict[int, tuple[int, int, float]] = {}
        self.spans: list[Span] = []
        self.lost: list[Span] = []
        if n_tasks % server.per_step:
            raise ValueError(
                f"n_tasks is {n_tasks}; wanted a multiple of {server.per_step}, a step's tasks"
            )
        if server.version:
            raise ValueError(f"server has made {server.version} updates; wanted a new one")

    @property
    def unfinished(self) -> int:
        return len(self.waiting) + len(self.held)

    def assign(self, worker: int, now: float) -> tuple[int, torch.Tensor] | None:
        """→ a task for an idle worker, and the parameters (P,) for it; None when none may start
        now. ValueError for a worker that holds one.
        """
        if worker in self.held:
            raise ValueError(
                f"worker is {worker}, which holds task {self.held[worker][0]}; wanted an idle one"
            )
        if not self.waiting or not self.server.allows(self.waiting[0]):
            return None
        params, version = self.server.pull()
        task = heapq.heappop(self.waiting)
        self.held[worker] = (task, version, now)
        return task, params

    def receive(self, worker: int, gradient: torch.Tensor, loss: float, now: float) -> None:
        """Applies the gradient of the task that the worker holds; one that the server refuses is
        not done. ValueError for a worker that holds none.
        """
        if worker not in self.held:
            raise ValueError(f"worker is {worker}, which holds no task; wanted one that does")
        task, read, start = self.held[worker]
        applied = self.server.version
        self.server.push(gradient, read, task)
        del self.held[worker]
        self.spans.append(Span(worker, task, read, start, now, applied, float(loss)))
        self.seconds = now

    def lose(self, worker: int, now: float) -> None:
        """The worker is gone: its task, if it holds one, waits again."""
        if worker in self.held:
            task, read, start = self.held.pop(worker)
            heapq.heappush(self.waiting, task)
            self.lost.append(Span(worker, task, read, start, now))


def simulate_workers(
    server: ParameterServer,
    gradient: Callable,
    n_tasks: int,
    seconds: Sequence[float],
    spread: float = 0.0,
    seed: int = 0,
) -> Run:
    """Runs tasks 0 … n_tasks − 1 on a worker for each entry of ``seconds``, and a server → the
    :class:`Run`.

    gradient(params, task): params (P,) → the gradient (P,) and the loss. seconds: what a gradient
    takes each worker. spread: each takes that times exp(spread · z), with z normal. Sending takes
    no time. Of gradients that come at the same time, the smaller worker's is first.
    """
    if len(seconds) == 0:
        raise ValueError(f"seconds is {seconds}; wanted a number for at least one worker")
    for value in seconds:
        check.positive("seconds", value)
    if not 0 <= spread < float("inf"):
        raise ValueError(f"spread is {spread}; wanted a finite number, at least 0")
    run = Run(server, n_tasks)
    draw = np.random.default_rng(seed)
    now = 0.0
    # a heap of the gradients under way: (when it comes, worker, task, params)
    under_way: list[tuple] = []
    while run.unfinished:
        idle = set(range(len(seconds))) - run.held.keys()
        for worker in sorted(idle):
            order = run.assign(worker, now)
            # it waits at the barrier, or all tasks are given out
            if order is None:
                continue
            takes = seconds[worker] * np.exp(spread * draw.standard_normal())
            heapq.heappush(under_way, (now + takes, worker, *order))
        # nothing happens before the next one comes: time jumps to it
        now, worker, task, params = heapq.heappop(under_way)
        found, loss = gradient(params, task)
        run.receive(worker, found, loss, now)
    return run


def local_sgd(
    start: torch.Tensor, gradient: Callable, workers: int, rounds: int, steps: int, inner: Callable,
    rate: float = 1.0, momentum: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """Workers that take ``steps`` steps each from the same parameters, which then move by the mean
    of the workers' moves → (P,).

    inner: from [params], a worker's optimizer, whose state stays. The mean move counts as a
    gradient for SGD at the rate ``rate`` with Nesterov's momentum: plain averages are local SGD (S.
    Stich, 2019); with AdamW inside and momentum it is DiLoCo (A. Douillard and others, 2023). Each
    batch goes to one worker, once.
    """
    check.count("workers", workers)
    check.count("rounds", rounds, least=0)
    check.count("steps", steps)
    params = start.clone()
    copies = [start.clone() for _ in range(workers)]
    inners = [inner([copy]) for copy in copies]
    outer = torch.optim.SGD([params], rate, momentum, nesterov=momentum > 0)
    per_round = workers * steps
    for first in range(0, rounds * per_round, per_round):
        for worker in range(workers):
            copy = copies[worker]
            copy.copy_(params)
            # every workers-th batch of the round is this worker's
            for task in range(first + worker, first + per_round, workers):
                copy.grad = gradient(copy, task)[0]
                inners[worker].step()
        # how far the workers have moved, on average, points away from where the loss is lower,
        # as a gradient does: (workers, P) → (P,)
        params.grad = params - torch.stack(copies).mean(0)
        outer.step()
    return params
