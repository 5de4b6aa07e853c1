"""The servers of :mod:`ed_lib.parallel.asynchronous` with real workers: processes that may die.

The calling process is the server, with a pipe to each worker. A task is done when its gradient has arrived
whole, and is handed out again when the pipe of the worker that held it has ended without that: so each is
applied exactly once, whenever a worker is killed.
"""

import contextlib
import pickle
import threading
import time
from collections.abc import Callable, Collection, Sequence
from multiprocessing import connection
from typing import Any

import torch

from ed_lib import check
from ed_lib.parallel import launcher
from ed_lib.parallel.asynchronous import Dispatcher, ParameterServer, Run, Span


class WorkerError(RuntimeError):
    """A run that cannot go on: a worker raised, all of them died, or time is up."""


def train(
    server: ParameterServer, gradient: Callable, n_tasks: int, n_workers: int, *,
    pause: float | Sequence[float] = 0.0, timeout: float = 60.0,
) -> Run:  # fmt: skip
    """Runs tasks 0 … n_tasks − 1 in ``n_workers`` processes → a :class:`Run`.

    gradient(params, task): params (P,) → the gradient (P,) and the loss; another process must be able to
    import it. pause: seconds that a worker sleeps before each gradient, one number or one for each worker; it
    stands in for a device that computes. timeout: seconds for all of it. The Run's clock starts when all
    workers have. :class:`WorkerError` if a worker raises, if none is left, and at the timeout. What the
    server refuses is raised as it is. In every case no process is left.
    """
    check.count("n_workers", n_workers), check.positive("timeout", timeout)
    pauses = [pause] * n_workers if isinstance(pause, (int, float)) else list(pause)
    if len(pauses) != n_workers or not all(0 <= seconds < timeout for seconds in pauses):
        raise ValueError(f"pause is {pause}; wanted {n_workers} numbers from 0 to below the timeout")
    payload, dispatcher = launcher.pickled(gradient), Dispatcher(server, n_tasks)
    end, pipes = time.monotonic() + timeout, [launcher.CONTEXT.Pipe() for _ in pauses]
    calls = [(theirs, seconds) for (_, theirs), seconds in zip(pipes, pauses, strict=True)]
    try:
        with launcher.team("worker", _work, calls) as processes:
            workers = [Worker(n, process, *pipes[n]) for n, process in enumerate(processes)]
            late = threading.Timer(timeout, lambda: [process.kill() for process in processes])
            late.start()  # for a worker that stops in the middle of a message
            try:
                return serve(dispatcher, workers, payload, end)
            finally:
                late.cancel()
    except WorkerError as error:
        if time.monotonic() < end:
            raise
        held = ", ".join(f"worker {number} held {task}" for number, (task, _) in dispatcher.held.items())
        undone = f"{dispatcher.unfinished} of {n_tasks} tasks were not done within {timeout:g} s"
        raise WorkerError(f"{undone}; {held or error}") from None


class Worker:
    """A process as the server sees it, with this process's end of the pipe between them, and the other."""

    def __init__(self, number: int, process: Any, channel: Any, theirs: Any):
        self.number, self.process, self.channel, self.is_alive = number, process, channel, True
        theirs.close()  # so that ours ends when the process does

    def send(self, message: bytes) -> bool:
        """False if it is gone."""
        try:
            self.channel.send_bytes(message)
        except OSError:
            self.is_alive = False
        return self.is_alive

    def receive(self) -> Any:
        """What its gradient gave, or None if it is gone, before its report or in the middle of one."""
        try:
            kind, value = pickle.loads(self.channel.recv_bytes())
        except (EOFError, OSError):
            self.is_alive = False
            return None
        if kind == "raised":
            raise WorkerError(f"worker {self.number} {value[1]}")
        return value


def serve(dispatcher: Dispatcher, workers: Collection[Worker], payload: bytes, end: float) -> Run:
    """The server's life → the :class:`Run`."""
    starting = {worker for worker in workers if worker.send(payload)}
    while starting:
        for worker in _ready(starting, end):
            worker.receive()  # it is ready, or dead
            starting.discard(worker)
    spans, lost, zero = [], [], time.monotonic()
    tasks: dict[int, tuple[int, float]] = {}  # worker → (task, start)

    def start_the_idle():
        for worker in workers:
            is_idle = worker.is_alive and worker.number not in tasks
            if is_idle and (order := dispatcher.assign(worker.number)) is not None:
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
            if (answer := worker.receive()) is None:
                bury(worker)
            else:
                dispatcher.receive(worker.number, torch.from_numpy(answer[0]))
                task, start = tasks.pop(worker.number)
                spans.append(Span(worker.number, task, start, time.monotonic() - zero, answer[1]))
            start_the_idle()
    return Run(spans, lost, time.monotonic() - zero)


def _ready(workers, end):
    """The workers, of those alive, from whom something has come, or nothing will. Waits for one."""
    alive = [worker for worker in workers if worker.is_alive]
    if not alive:
        endings = [f"worker {worker.number} {launcher.ending(worker.process)}" for worker in workers]
        raise WorkerError("no worker is left: " + "; ".join(endings))
    channels = {worker.channel: worker for worker in alive}
    if not (ready := connection.wait(channels, max(0, end - time.monotonic()))):
        raise WorkerError("time is up")
    return [channels[channel] for channel in ready]


def _work(channel, pause):
    """What a worker does. Errors of what it computes are reported; without a server, it leaves."""
    launcher.one_thread()
    gradient = []

    def prepare(payload):
        gradient.append(pickle.loads(payload)[0])

    def computed(task, params):
        time.sleep(pause)
        found, loss = gradient[0](torch.from_numpy(params), task)
        return found.detach().numpy(), float(loss)

    with contextlib.suppress(EOFError, OSError):
        channel.send_bytes(launcher.attempt(prepare, channel.recv_bytes()))
        while True:
            channel.send_bytes(launcher.attempt(computed, *pickle.loads(channel.recv_bytes())))
