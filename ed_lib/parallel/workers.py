"""The servers of :mod:`ed_lib.parallel.asynchronous` with real workers: processes that may die.

The calling process is the server, with a pipe to each worker. A task is done when its gradient has arrived
whole, and is handed out again when the pipe of the worker that held it has ended without that: so each is
applied exactly once, whenever a worker is killed.
"""

import contextlib
import functools
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

import torch

from ed_lib import check
from ed_lib.parallel import launcher
from ed_lib.parallel.asynchronous import ParameterServer, Run


class WorkerError(RuntimeError):
    """A run that cannot go on: a worker raised, all of them died, or time is up."""


def train(
    server: ParameterServer, gradient: Callable, n_tasks: int, n_workers: int, *,
    pause: float | Sequence[float] = 0.0, timeout: float = 60.0,
) -> Run:  # fmt: skip
    """Runs tasks 0 … n_tasks − 1 in ``n_workers`` processes → the :class:`Run`.

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
    payload, run, end = launcher.pickled(gradient), Run(server, n_tasks), time.monotonic() + timeout
    pipes = [launcher.CONTEXT.Pipe() for _ in pauses]
    calls = [(theirs, seconds) for (_, theirs), seconds in zip(pipes, pauses, strict=True)]
    with launcher.team("worker", _work, calls) as processes:
        late = threading.Timer(end - time.monotonic(), lambda: [process.kill() for process in processes])
        late.start()  # so the server, which waits for workers, comes to an end
        try:
            serve(run, [Worker(n, process, *pipes[n]) for n, process in enumerate(processes)], payload)
        except WorkerError as error:
            if time.monotonic() < end:  # else it is the timer's doing
                raise
            undone = f"{run.unfinished} of {n_tasks} tasks were not done within {timeout:g} s"
            raise WorkerError(f"{undone}: {error}") from None
        finally:
            late.cancel()
    return run


class Worker:
    """A process as the server sees it, with this process's end of the pipe between them, and the other."""

    def __init__(self, number: int, process: Any, channel: Any, theirs: Any):
        self.number, self.process, self.channel, self.is_alive = number, process, channel, True
        theirs.close()  # so that ours ends when the process does

    def send(self, message: bytes) -> None:
        try:
            self.channel.send_bytes(message)
        except OSError:
            self.is_alive = False

    def receive(self) -> Any:
        """What its gradient gave, or None if it is gone, before its report or in the middle of one."""
        try:
            problem, value = pickle.loads(self.channel.recv_bytes())
        except (EOFError, OSError):
            self.is_alive = False
            return None
        if problem:
            raise WorkerError(f"worker {self.number} {problem}")
        return value


def serve(run: Run, workers: Sequence[Worker], payload: bytes) -> None:
    """The server's life, until all tasks are done."""
    for worker in workers:
        worker.send(payload)
    starting = list(workers)
    while starting := [worker for worker in starting if worker.is_alive]:
        for worker in _ready(starting):
            worker.receive()  # it is ready, or dead
            starting.remove(worker)
    zero = time.monotonic()
    while run.unfinished:
        for worker in workers:
            is_idle = worker.is_alive and worker.number not in run.held
            if is_idle and (order := run.assign(worker.number, time.monotonic() - zero)) is not None:
                worker.send(pickle.dumps((order[0], order[1].numpy())))
        gone = [worker for worker in workers if not worker.is_alive and worker.number in run.held]
        for worker in gone:
            run.lose(worker.number, time.monotonic() - zero)
        for worker in [] if gone else _ready(workers):  # if one is gone, another gets its task first
            if (answer := worker.receive()) is not None:
                gradient, loss = answer
                run.receive(worker.number, torch.from_numpy(gradient), loss, time.monotonic() - zero)


def _ready(workers):
    """The workers, of those alive, from whom something has come, or nothing will. Waits for one."""
    channels = {worker.channel: worker for worker in workers if worker.is_alive}
    if not channels:
        endings = [f"worker {worker.number} {launcher.ending(worker.process)}" for worker in workers]
        raise WorkerError("no worker is left: " + "; ".join(endings))
    return [channels[channel] for channel in connection.wait(channels)]


def _work(channel, pause):
    """What a worker does. Errors of what it computes are reported; without a server, it leaves."""
    launcher.one_thread()
    gradient = functools.cache(lambda: pickle.loads(channel.recv_bytes())[0])

    def ready():
        gradient()  # it can be imported

    def computed(task, params):
        time.sleep(pause)
        found, loss = gradient()(torch.from_numpy(params), task)
        return found.detach().numpy(), float(loss)

    with contextlib.suppress(EOFError, OSError):
        channel.send_bytes(launcher.attempt(ready))
        while True:
            channel.send_bytes(launcher.attempt(computed, *pickle.loads(channel.recv_bytes())))
