"""Training in which no worker waits for another: the server of parameters, its rivals, and its tasks.

Nothing here knows about time or processes: ``virtual`` drives the servers on a clock, ``workers`` in real
processes. A *task* is the number of a batch: a worker pulls parameters and a task, computes the gradient of
that batch at those parameters, and pushes it. P parameters stand in one flat tensor.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass

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
        self.require_fit(gradient, read, self.version)
        push = Push(worker, task, read, self.version)
        rate = self.lr / max(1, push.staleness) if self.by_staleness else self.lr
        self.params.add_(gradient.detach(), alpha=-rate)
        self.version += 1
        self.log.append(push)
        return push.staleness

    def abandon(self, worker: int) -> None:
        """The worker is gone, and what it had pulled will not be pushed."""

    def require_fit(self, gradient: torch.Tensor, read: int, version: int) -> None:
        """Refuses a gradient that comes from a version that has not been yet, does not fit, or diverged."""
        if read > version:
            raise ValueError(f"read is version {read}; wanted at most {version}, the version now")
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
        self._inbox: dict[int, torch.Tensor] = {}  # task → its gradient, of this step

    def allows(self, task: int) -> bool:
        return task // self.per_step == self.version

    def push(self, gradient: torch.Tensor, read: int, worker: int = 0, task: int = 0) -> int:
        """As the asynchronous one; τ is 0. A task of another step, or one that came, is refused as well."""
        self.require_fit(gradient, read, self.version)
        if read != self.version or not self.allows(task) or task in self._inbox:
            raise ValueError(f"task is {task}, of version {read}; wanted a missing one of {self.version}")
        self._inbox[task] = gradient.detach().clone()
        self.log.append(Push(worker, task, read, self.version))
        if len(self._inbox) == self.per_step:
            ordered = torch.stack([self._inbox[task] for task in sorted(self._inbox)])  # (per_step, P)
            self.params.add_(ordered.mean(0), alpha=-self.lr)
            self._inbox.clear()
            self.version += 1
        return 0


class ModelQueue(ParameterServer):
    """A queue of models: a worker pops the next, improves it by one gradient, and pushes it back to the end.

    params: (P,), where all ``n_models`` start. Each moves by the gradients that were computed at it: nothing
    is ever stale, and nothing ever merges. ``seen[m]`` lists the tasks that model m has learnt from.
    """

    def __init__(self, params: torch.Tensor, lr: float, n_models: int):
        super().__init__(params, lr)
        self.models = [self.params.clone() for _ in range(check.count("n_models", n_models))]
        self.seen: list[list[int]] = [[] for _ in self.models]
        self.queue = deque(range(n_models))  # those that wait
        self.out: dict[int, int] = {}  # worker → the model that it has

    def allows(self, task: int) -> bool:
        return bool(self.queue)

    def pull(self, worker: int = 0) -> tuple[torch.Tensor, int]:
        """Pops the model that has waited longest."""
        model = self.out[worker] = self.queue.popleft()
        return self.models[model].clone(), len(self.seen[model])

    def push(self, gradient: torch.Tensor, read: int, worker: int = 0, task: int = 0) -> int:
        """Moves the worker's model by the gradient and puts it at the end of the queue → τ, which is 0."""
        model = self.out[worker]
        self.require_fit(gradient, read, len(self.seen[model]))
        self.models[model].add_(gradient.detach(), alpha=-self.lr)
        self.log.append(Push(worker, task, read, len(self.seen[model])))
        self.seen[model].append(task)
        self.queue.append(self.out.pop(worker))
        self.version += 1
        return self.log[-1].staleness

    def abandon(self, worker: int) -> None:
        """Puts the worker's model back, as it was, at the front."""
        if worker in self.out:
            self.queue.appendleft(self.out.pop(worker))

    def drain(self) -> torch.Tensor:
        """→ all models, (n_models, P), once all are back. RuntimeError while a worker holds one."""
        if self.out:
            raise RuntimeError(f"models are out: {self.out} (worker: model); wanted all of them back")
        return torch.stack(self.models)


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
        self.server.abandon(worker)
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
    """What a driver did: ``spans`` as in the server's log, the ``lost`` ones of the dead; seconds."""

    spans: list[Span]
    lost: list[Span]
    seconds: float


def stable_rate(curvature: float, staleness: int) -> float:
    """The largest rate at which gradient descent with delayed gradients is stable on a quadratic.

    w ← w − lr·λ·w_old, with λ = ``curvature`` and w_old of τ = ``staleness`` steps ago, goes to 0 if and only
    if lr·λ < 2 sin(π / (2(2τ + 1))). For several curvatures the largest counts. (S. Levin and R. May, "A note
    on difference-delay equations", 1976.)
    """
    return 2 * math.sin(math.pi / (2 * (2 * staleness + 1))) / curvature
