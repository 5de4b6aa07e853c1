"""Training in which no worker waits for another: the server of parameters, its rivals, and its tasks.

A *task* is the number of a batch: a worker pulls parameters and a task, computes the gradient of that batch
at those parameters, and pushes it. P parameters stand in one flat tensor. :func:`simulate` drives a server on
a virtual clock: gradients are really computed, the time that they take is made up, and the same arguments
give the same run, bit by bit. :mod:`ed_lib.parallel.workers` drives it with processes.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ed_lib import check


class Diverged(ValueError):
    """A gradient with NaN or infinity in it."""


@dataclass(frozen=True)
class Push:
    """A gradient that was applied: whose, for which task, at which version read, and at which applied."""

    worker: int
    task: int
    read: int
    applied: int

    @property
    def staleness(self) -> int:
        """τ: the updates made between reading the parameters and applying the gradient."""
        return self.applied - self.read


class ParameterServer:
    """Parameters that anyone may read, and move by a gradient, at any time: asynchronous SGD.

    params: (P,), floats, copied. ``version`` counts the updates; ``log`` has a :class:`Push` for each
    gradient. A gradient moves the parameters by lr, or, ``by_staleness``, by lr / max(1, τ): W. Zhang,
    S. Gupta, X. Lian and J. Liu, "Staleness-aware async-SGD for distributed deep learning" (2016).
    """

    per_step = 1  # gradients in an update

    def __init__(self, params: torch.Tensor, lr: float, *, by_staleness: bool = False):
        check.shape("params", tuple(params.shape), ("P",))
        self.params = params.detach().clone()
        self.lr, self.by_staleness = check.positive("lr", lr), by_staleness
        self.version = 0
        self.log: list[Push] = []

    def allows(self, task: int) -> bool:
        """Whether a worker may start this task now."""
        return True

    def pull(self, worker: int = 0) -> tuple[torch.Tensor, int]:
        """→ a copy of the parameters, (P,), and their version."""
        return self.params.clone(), self.version

    def push(self, gradient: torch.Tensor, read: int, worker: int = 0, task: int = 0) -> int:
        """Applies a gradient (P,) that was computed at the version ``read`` → its staleness τ.

        One that has NaN in it (:class:`Diverged`) or does not fit is refused, and nothing has changed.
        """
        self.require_fit(gradient, read)
        push = Push(worker, task, read, self.version)
        rate = self.lr / max(1, push.staleness) if self.by_staleness else self.lr
        self.params.add_(gradient.detach(), alpha=-rate)
        self.version += 1
        self.log.append(push)
        return push.staleness

    def require_fit(self, gradient: torch.Tensor, read: int) -> None:
        """Refuses a gradient that comes from a version that has not been yet, does not fit, or diverged."""
        if read > self.version:
            raise ValueError(f"read is version {read}; wanted at most {self.version}, the version now")
        check.shape("gradient", tuple(gradient.shape), tuple(self.params.shape))
        if not bool(torch.isfinite(gradient).all()):
            raise Diverged("gradient holds NaN or infinity; wanted finite numbers")


class SynchronousServer(ParameterServer):
    """The same with a barrier: a step waits for ``per_step`` gradients, and makes one update by their mean.

    Tasks 0 … per_step − 1 are the first step, and so on. The mean is formed in the order of the tasks, so no
    bit of the result depends on who was faster.
    """

    def __init__(self, params: torch.Tensor, lr: float, per_step: int):
        super().__init__(params, lr)
        self.per_step = check.count("per_step", per_step)
        self.arrived: dict[int, torch.Tensor] = {}  # task → its gradient, of this step

    def allows(self, task: int) -> bool:
        return task // self.per_step == self.version

    def push(self, gradient: torch.Tensor, read: int, worker: int = 0, task: int = 0) -> int:
        """As the asynchronous one; τ is 0. A task of another step, or one that came, is refused as well."""
        self.require_fit(gradient, read)
        if read != self.version or not self.allows(task) or task in self.arrived:
            raise ValueError(f"task is {task}, of version {read}; wanted a missing one of {self.version}")
        self.arrived[task] = gradient.detach().clone()
        self.log.append(Push(worker, task, read, self.version))
        if len(self.arrived) == self.per_step:
            ordered = torch.stack([self.arrived[task] for task in sorted(self.arrived)])  # (per_step, P)
            self.params.add_(ordered.mean(0), alpha=-self.lr)
            self.arrived.clear()
            self.version += 1
        return 0


class Dispatcher:
    """Hands tasks 0 … n_tasks − 1 to workers, so that each is applied to the server exactly once.

    A task waits, or is held by one worker, or is done: when its gradient has arrived, whole. The task of a
    worker that is gone waits again.
    """

    def __init__(self, server: ParameterServer, n_tasks: int):
        self.server = server
        self.waiting = list(range(check.count("n_tasks", n_tasks)))  # a heap: the smallest goes first
        self.held: dict[int, tuple[int, int]] = {}  # worker → (task, version read)
        if n_tasks % server.per_step:
            raise ValueError(f"n_tasks is {n_tasks}; wanted a multiple of {server.per_step}, a step's tasks")
        if server.version:
            raise ValueError(f"server has made {server.version} updates; wanted a new one")

    @property
    def unfinished(self) -> int:
        return len(self.waiting) + len(self.held)

    def assign(self, worker: int) -> tuple[int, torch.Tensor] | None:
        """→ a task and the parameters to compute it at, (P,); None when there is none to start now."""
        if worker in self.held:
            raise RuntimeError(f"worker {worker} asks for a task while it holds {self.held[worker][0]}")
        if not self.waiting or not self.server.allows(self.waiting[0]):
            return None
        params, version = self.server.pull(worker)
        self.held[worker] = heapq.heappop(self.waiting), version
        return self.held[worker][0], params

    def receive(self, worker: int, gradient: torch.Tensor) -> int:
        """Applies the gradient of the task that the worker holds → its staleness."""
        task, version = self.held[worker]
        staleness = self.server.push(gradient, version, worker, task)
        del self.held[worker]
        return staleness

    def lose(self, worker: int) -> int | None:
        """The worker is gone: its task, if it holds one, waits again → that task, or None."""
        if worker not in self.held:
            return None
        task, _ = self.held.pop(worker)
        heapq.heappush(self.waiting, task)
        return task


@dataclass(frozen=True)
class Span:
    """A worker at work on a task, in seconds since the start. ``loss`` is what it found; NaN if it died."""

    worker: int
    task: int
    start: float
    end: float
    loss: float = math.nan


@dataclass(frozen=True)
class Run:
    """What was done: ``spans`` as in the server's log, the ``lost`` ones of the dead; seconds."""

    spans: list[Span]
    lost: list[Span]
    seconds: float


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
    spans: list[Span] = []
    lost: list[Span] = []
    now = 0.0
    alive = set(range(len(seconds)))
    busy: dict[int, tuple] = {}  # worker → (task, params, start)
    serial = itertools.count()  # tells apart the events of a worker
    events: list[tuple] = [(time, worker, next(serial), None) for worker, time in (dies or {}).items()]
    heapq.heapify(events)
    while True:
        for worker in sorted(alive - set(busy)):
            if (order := dispatcher.assign(worker)) is not None:
                busy[worker] = (*order, now)
                takes = seconds[worker] * np.exp(spread * random.standard_normal())
                heapq.heappush(events, (now + takes, worker, next(serial), order[0]))
        if not dispatcher.unfinished:
            return Run(spans, lost, now)
        if not alive:
            raise RuntimeError(f"all workers are dead, with {dispatcher.unfinished} tasks left")
        now, worker, _, task = heapq.heappop(events)  # the next thing to happen, and time jumps to it
        if worker in alive and task is not None:
            task, params, start = busy.pop(worker)
            found, loss = gradient(params, task)
            dispatcher.receive(worker, found)
            spans.append(Span(worker, task, start, now, float(loss)))
        elif worker in alive:
            alive.discard(worker)
            if dispatcher.lose(worker) is not None:
                task, _, start = busy.pop(worker)
                lost.append(Span(worker, task, start, now))


def stable_rate(curvature: float, staleness: int) -> float:
    """The largest rate at which gradient descent with delayed gradients is stable on a quadratic.

    w ← w − lr·λ·w_old, with λ = ``curvature`` and w_old of τ = ``staleness`` steps ago, goes to 0 if and only
    if lr·λ < 2 sin(π / (2(2τ + 1))). For several curvatures the largest counts. (S. Levin and R. May, "A note
    on difference-delay equations", 1976.)
    """
    return 2 * math.sin(math.pi / (2 * (2 * staleness + 1))) / curvature


def local_sgd(
    start: torch.Tensor, gradient: Callable, workers: int, rounds: int, steps: int, inner: Callable,
    rate: float = 1.0, momentum: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """Workers that each take ``steps`` steps of their own, and then average by how far they moved → (P,).

    inner: from [params], a worker's optimizer, whose state stays. The mean move counts as a gradient for SGD
    at the rate ``rate`` with Nesterov's momentum: plain averages are local SGD (S. Stich, 2019); with AdamW
    inside and momentum it is DiLoCo (A. Douillard and others, 2023). Each batch goes to one worker, once.
    """
    params, copies = start.clone(), [start.clone() for _ in range(workers)]
    outer = torch.optim.SGD([params], rate, momentum, nesterov=momentum > 0)
    inners = [inner([copy]) for copy in copies]
    for first in range(0, rounds * steps * workers, steps * workers):
        for worker, (copy, optimizer) in enumerate(zip(copies, inners, strict=True)):
            copy.copy_(params)
            for task in range(first + worker, first + steps * workers, workers):
                copy.grad = gradient(copy, task)[0]
                optimizer.step()
        params.grad = params - torch.stack(copies).mean(0)  # (workers, P) → (P,)
        outer.step()
    return params
