"""The servers of :mod:`ed_lib.parallel.asynchronous.servers` with real workers: processes that may die.

The calling process is the server. It has a pipe to each worker, hands out tasks and parameters, and takes in
gradients, one message at a time. A worker that is gone is one whose pipe has ended; what it was working on
goes to another. Since a task is done only when its gradient has arrived whole, and is handed out again only
when its pipe has ended without that, each is applied exactly once, whenever a worker is killed.
"""

import contextlib
import pickle
import time
from collections.abc import Callable, Sequence

import torch

from ed_lib import check
from ed_lib.parallel.asynchronous.servers import Dispatcher, ParameterServer, Run, Span
from ed_lib.parallel.ranks import processes


class WorkerError(RuntimeError):
    """A run that cannot go on: a worker raised, all of them died, or time is up."""


def train(
    server: ParameterServer,
    gradient: Callable,
    n_tasks: int,
    n_workers: int,
    *,
    pause: float | Sequence[float] = 0.0,
    timeout: float = 60.0,
) -> Run:
    """Runs tasks 0 … n_tasks − 1 in ``n_workers`` processes → a :class:`Run`.

    gradient(params, task): params (P,) → the gradient (P,) and the loss; anything that can be called, and
    that another process can import. It is sent to each worker once. pause: seconds that a worker sleeps
    before each gradient, one number or one for each worker; it stands in for a device that computes. timeout:
    seconds for all of it, the start included. The clock of the Run starts when all workers have.

    :class:`WorkerError` if a worker raises (with its traceback; the task is not tried again, since it would
    raise again), if no worker is left, and at the timeout. What the server refuses is raised as it is. In
    every case no process is left.
    """
    n_workers = check.count("n_workers", n_workers)
    timeout = check.positive("timeout", timeout)
    pauses = [pause] * n_workers if isinstance(pause, (int, float)) else list(pause)
    if len(pauses) != n_workers or not all(0 <= seconds < timeout for seconds in pauses):
        raise ValueError(f"pause is {pause}; wanted {n_workers} numbers from 0 to below the timeout")
    payload, dispatcher = processes.pickled(gradient), Dispatcher(server, n_tasks)
    end = time.monotonic() + timeout
    try:
        with processes.team("worker", _work, [(seconds,) for seconds in pauses], end) as workers:
            return serve(dispatcher, workers, payload, end)
    except WorkerError as error:
        if time.monotonic() < end:
            raise
        held = ", ".join(f"worker {number} held {task}" for number, (task, _) in dispatcher.held.items())
        late = f"{dispatcher.unfinished} of {n_tasks} tasks were not done within {timeout:g} s"
        raise WorkerError(f"{late}; {held or error}") from None


def serve(dispatcher: Dispatcher, workers: list[processes.Child], payload: bytes, end: float) -> Run:
    """The server's life → the :class:`Run`."""
    _wait_for_all(workers, payload, end)
    spans, lost, zero = [], [], time.monotonic()
    tasks: dict[int, tuple[int, float]] = {}  # worker → (task, start)

    def start_the_idle():
        for worker in workers:
            if not worker.is_alive or worker.number in tasks:
                continue
            if (order := dispatcher.assign(worker.number)) is not None:
                tasks[worker.number] = order[0], time.monotonic() - zero
                if not worker.send(pickle.dumps((order[0], order[1].numpy()))):
                    bury(worker)

    def bury(worker):
        dispatcher.lose(worker.number)
        if worker.number in tasks:
            task, start = tasks.pop(worker.number)
            lost.append(Span(worker.number, task, start, time.monotonic() - zero))

    start_the_idle()
    while dispatcher.unfinished:
        for worker in _ready(workers, end):
            if (answer := _answer(worker)) is None:
                bury(worker)
            else:
                dispatcher.receive(worker.number, torch.from_numpy(answer[0]))
                task, start = tasks.pop(worker.number)
                spans.append(Span(worker.number, task, start, time.monotonic() - zero, answer[1]))
            start_the_idle()
    seconds = time.monotonic() - zero
    for worker in workers:
        worker.send(pickle.dumps(None))  # the sentinel: there is no more
    return Run(spans, lost, seconds)


def _wait_for_all(workers, payload, end):
    """Sends what they compute to all; returns when every worker is ready, or dead."""
    starting = {worker for worker in workers if worker.send(payload)}
    while starting:
        for worker in _ready(starting, end):
            _answer(worker)
            starting.discard(worker)


def _ready(workers, end):
    """The workers, of those alive, from whom something has come, or nothing will. Waits for one."""
    alive = [worker for worker in workers if worker.is_alive]
    if not alive:
        endings = [f"worker {worker.number} {worker.ending()}" for worker in workers]
        raise WorkerError("no worker is left: " + "; ".join(endings))
    if not (ready := processes.ready(alive, end)):
        raise WorkerError("time is up")
    return ready


def _answer(worker):
    """What a worker sent, or None if it is gone."""
    kind, value = worker.receive() or ("ended", None)
    if kind == "raised":
        raise WorkerError(f"worker {worker.number} raised an error:\n{value[1]}")
    return value


def _work(channel, pause):
    """What a worker does. Errors of what it computes are reported; without a server, it leaves."""
    with contextlib.suppress(EOFError, OSError):
        gradient = []
        channel.send_bytes(processes.attempt(_prepare, gradient, channel.recv_bytes()))
        while (order := pickle.loads(channel.recv_bytes())) is not None:
            time.sleep(pause)
            channel.send_bytes(processes.attempt(_computed, *gradient, *order))


def _prepare(gradient, payload):
    """Puts the function of the gradient into a list, in a process with one thread."""
    processes.one_thread()
    gradient.append(pickle.loads(payload)[0])


def _computed(gradient, task, params):
    found, loss = gradient(torch.from_numpy(params), task)
    return found.detach().numpy(), float(loss)
