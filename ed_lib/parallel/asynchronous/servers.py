"""Training in which no worker waits for another: the server of parameters, its rivals, and its tasks.

Nothing here knows about time or processes. Two drivers run the same servers: ``virtual`` on a clock that is
computed, ``workers`` in real processes.

A *task* is the number of a batch. A worker pulls parameters and a task, computes the gradient of that batch
at those parameters, and pushes it. P is the number of parameters; all of them stand in one flat tensor.
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
    def staleness(self):
        """τ: the updates made between reading the parameters and applying the gradient."""
        return self.applied - self.read


class ParameterServer:
    """Parameters that anyone may read, and move by a gradient, at any time: asynchronous SGD.

    params: (P,), floats, copied. ``version`` counts the updates; ``log`` has a :class:`Push` for each
    gradient. A gradient moves the parameters by lr, or, ``by_staleness``, by lr / max(1, τ): W. Zhang,
    S. Gupta, X. Lian and J. Liu, "Staleness-aware async-SGD for distributed deep learning" (2016).

    TypeError or ValueError for parameters that are no flat tensor of finite floats, or a rate not above 0.
    """

    per_step = 1  # gradients in an update

    def __init__(self, params, lr, *, by_staleness=False):
        self.params = _check_flat("params", params).clone()
        self.lr, self.by_staleness = check.positive("lr", lr), by_staleness
        self.version, self.log = 0, []

    def allows(self, task):
        """Whether a worker may start this task now."""
        return True

    def pull(self, worker=0):
        """→ a copy of the parameters, (P,), and their version."""
        return self.params.clone(), self.version

    def push(self, gradient, read, worker=0, task=0):
        """Applies a gradient (P,) that was computed at the version ``read`` → its staleness τ.

        TypeError or ValueError, and nothing has changed, for a gradient that does not fit the parameters, and
        for a version that has not been yet; :class:`Diverged` if it holds NaN or infinity.
        """
        gradient = self._check(gradient, read, self.version)
        push = Push(worker, task, read, self.version)
        rate = self.lr / max(1, push.staleness) if self.by_staleness else self.lr
        self.params.add_(gradient, alpha=-rate)
        self.version += 1
        self.log.append(push)
        return push.staleness

    def abandon(self, worker):
        """The worker is gone, and what it had pulled will not be pushed."""

    def _check(self, gradient, read, version):
        if check.count("read", read, least=0) > version:
            raise ValueError(f"read is version {read}; wanted at most {version}, the version now")
        gradient = _check_flat("gradient", gradient, Diverged)
        if gradient.shape != self.params.shape or gradient.dtype != self.params.dtype:
            came, wanted = (f"{tuple(t.shape)} of {t.dtype}" for t in (gradient, self.params))
            raise ValueError(f"gradient is {came}; wanted {wanted}")
        return gradient


class SynchronousServer(ParameterServer):
    """The same with a barrier: a step waits for ``per_step`` gradients, and makes one update by their mean.

    Tasks 0 … per_step − 1 are the first step, and so on; no task of a step starts before the step before it
    is made. The mean is formed in the order of the tasks, so no bit of the result depends on who was faster.
    """

    def __init__(self, params, lr, per_step):
        super().__init__(params, lr)
        self.per_step = check.count("per_step", per_step)
        self._came = {}  # task → its gradient, of this step

    def allows(self, task):
        return task // self.per_step == self.version

    def push(self, gradient, read, worker=0, task=0):
        """As the asynchronous one; τ is 0. ValueError too for a task of another step, or one that came."""
        gradient = self._check(gradient, read, self.version)
        if read != self.version or not self.allows(task) or task in self._came:
            raise ValueError(
                f"task is {task}, read at version {read}; wanted a missing one of {self.version}"
            )
        self._came[task] = gradient.clone()
        self.log.append(Push(worker, task, read, self.version))
        if len(self._came) == self.per_step:
            ordered = torch.stack([self._came[task] for task in sorted(self._came)])  # (per_step, P)
            self.params.add_(ordered.mean(0), alpha=-self.lr)
            self._came.clear()
            self.version += 1
        return 0


class ModelQueue(ParameterServer):
    """A queue of models: a worker pops the next, improves it by one gradient, and pushes it back to the end.

    params: (P,), where all ``n_models`` start. There are as many parameters as models, and each of them moves
    by the gradients that were computed at it: nothing is ever stale, and nothing ever merges. In ``log``, the
    versions are of the model. ``seen[m]`` lists the tasks that model m has learnt from.
    """

    def __init__(self, params, lr, n_models):
        super().__init__(params, lr)
        self.models = [self.params.clone() for _ in range(check.count("n_models", n_models))]
        self.seen = [[] for _ in self.models]
        self.queue, self.out = deque(range(n_models)), {}  # those that wait, and worker → model

    def allows(self, task):
        return bool(self.queue)

    def pull(self, worker=0):
        """Pops the model that has waited longest. RuntimeError when there is none, or the worker has one."""
        if not self.queue or worker in self.out:
            raise RuntimeError(f"worker {worker} pops from a queue of {len(self.queue)}; it holds {self.out}")
        model = self.out[worker] = self.queue.popleft()
        return self.models[model].clone(), len(self.seen[model])

    def push(self, gradient, read, worker=0, task=0):
        """Moves the worker's model by the gradient and puts it at the end of the queue → τ, which is 0."""
        if worker not in self.out:
            raise ValueError(f"worker is {worker}, which holds no model; wanted one of {sorted(self.out)}")
        model = self.out[worker]
        gradient = self._check(gradient, read, len(self.seen[model]))
        self.models[model].add_(gradient, alpha=-self.lr)
        self.log.append(Push(worker, task, read, len(self.seen[model])))
        self.seen[model].append(task)
        self.queue.append(self.out.pop(worker))
        self.version += 1
        return self.log[-1].staleness

    def abandon(self, worker):
        """Puts the worker's model back, as it was, at the front."""
        if worker in self.out:
            self.queue.appendleft(self.out.pop(worker))

    def drain(self):
        """→ all models, (n_models, P), once all are back. RuntimeError while a worker holds one."""
        if self.out:
            raise RuntimeError(f"models are out: {self.out} (worker: model); wanted all of them back")
        return torch.stack(self.models)


class Dispatcher:
    """Hands tasks 0 … n_tasks − 1 to workers, so that each is applied to the server exactly once.

    A task waits, or is held by one worker, or is done. It is done when its gradient has arrived, whole. The
    task of a worker that is gone waits again. Whoever calls must not pass on what arrives from a worker after
    :meth:`lose`.
    """

    def __init__(self, server, n_tasks):
        self.server = server
        self.waiting = list(range(check.count("n_tasks", n_tasks)))  # a heap: the smallest goes first
        self.held = {}  # worker → (task, version read)
        if n_tasks % server.per_step:
            raise ValueError(f"n_tasks is {n_tasks}; wanted a multiple of {server.per_step}, a step's tasks")
        if server.version:
            raise ValueError(f"server has made {server.version} updates; wanted a new one")

    @property
    def unfinished(self):
        return len(self.waiting) + len(self.held)

    def assign(self, worker):
        """→ a task and the parameters to compute it at, (P,); None when there is none to start now."""
        if worker in self.held:
            raise RuntimeError(f"worker {worker} asks for a task while it holds {self.held[worker][0]}")
        if not self.waiting or not self.server.allows(self.waiting[0]):
            return None
        params, version = self.server.pull(worker)
        self.held[worker] = heapq.heappop(self.waiting), version
        return self.held[worker][0], params

    def receive(self, worker, gradient):
        """Applies the gradient of the task that the worker holds → its staleness. Errors as ``push``."""
        if worker not in self.held:
            raise RuntimeError(f"worker {worker} sends a gradient and holds no task")
        task, version = self.held[worker]
        staleness = self.server.push(gradient, version, worker, task)
        del self.held[worker]
        return staleness

    def lose(self, worker):
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
    """What a driver did: ``spans`` in the order in which the gradients were applied, as in the server's log,
    the ``lost`` ones of workers that died over them, and the ``seconds`` that all of it took.
    """

    spans: list
    lost: list
    seconds: float


def stable_rate(curvature, staleness):
    """The largest rate at which gradient descent with delayed gradients is stable on a quadratic.

    w ← w − lr·λ·w_old, with λ = ``curvature`` and w_old of τ = ``staleness`` steps ago, goes to 0 if and only
    if lr·λ < 2 sin(π / (2(2τ + 1))). For several curvatures the largest counts. (S. Levin and R. May, "A note
    on difference-delay equations", 1976.)
    """
    check.positive("curvature", curvature)
    check.count("staleness", staleness, least=0)
    return 2 * math.sin(math.pi / (2 * (2 * staleness + 1))) / curvature


def _check_flat(name, tensor, error=ValueError):
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        came = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TypeError(f"{name} is of {came}; wanted a torch.Tensor of floats")
    check.shape(name, tuple(tensor.shape), ("P",))
    if not bool(torch.isfinite(tensor).all()):
        raise error(f"{name} holds NaN or infinity; wanted finite numbers")
    return tensor.detach()
