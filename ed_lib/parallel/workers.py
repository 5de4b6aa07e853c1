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
    calls = [(theirs, seconds, payload) for (_, theirs), seconds in zip(pipes, pauses, strict=True)]
    with launcher.team("worker", _work, calls) as processes:
        for _, theirs in pipes:
            theirs.close()  # so that ours ends when the process does
        late = threading.Timer(end - time.monotonic(), lambda: [process.kill() for process in processes])
        late.start()  # so the server, which waits for workers, comes to an end
        try:
            _serve(run, {n: ours for n, (ours, _) in enumerate(pipes)})
        finally:
            late.cancel()
        if run.unfinished:
            undone = f"{run.unfinished} of {n_tasks} tasks were not done within {timeout:g} s: "
            endings = [f"worker {n} {launcher.ending(process)}" for n, process in enumerate(processes)]
            is_late = time.monotonic() >= end  # then it was the timer
            raise WorkerError(f"{undone if is_late else ''}no worker is left: {'; '.join(endings)}")
    return run


def _serve(run: Run, alive: dict[int, Any]) -> None:
    """The server's life, until all tasks are done or all workers gone. alive: {worker: the server's end of
    its pipe}, of those whose pipe has not ended.
    """
    for worker in [*alive]:
        receive(alive, worker)  # it is ready, or dead
    zero = time.monotonic()
    while run.unfinished and alive:
        for worker in sorted(alive.keys() - run.held.keys()):
            if (order := run.assign(worker, time.monotonic() - zero)) is not None:
                send(alive, worker, pickle.dumps((order[0], order[1].numpy())))
        if gone := run.held.keys() - alive.keys():
            for worker in gone:
                run.lose(worker, time.monotonic() - zero)
            continue  # another gets its task first
        ready = connection.wait(alive.values())  # something has come from these, or nothing will
        for worker in [worker for worker, channel in alive.items() if channel in ready]:
            if (answer := receive(alive, worker)) is not None:
                run.receive(worker, torch.from_numpy(answer[0]), answer[1], time.monotonic() - zero)


def send(alive: dict[int, Any], worker: int, message: bytes) -> None:
    """Sends bytes to a worker; one that is gone is taken out of ``alive``."""
    try:
        alive[worker].send_bytes(message)
    except OSError:
        del alive[worker]


def receive(alive: dict[int, Any], worker: int) -> Any:
    """What a worker's gradient gave, or None if it is gone, before its report or in the middle of one."""
    try:
        problem, value = pickle.loads(alive[worker].recv_bytes())
    except (EOFError, OSError):
        del alive[worker]
        return None
    if problem:
        raise WorkerError(f"worker {worker} {problem}")
    return value


def _work(channel, pause, payload):
    """What a worker does. Errors of what it computes are reported; without a server, it leaves."""
    launcher.one_thread()
    gradient = functools.cache(lambda: pickle.loads(payload)[0])

    def computed(task, params):
        time.sleep(pause)
        found, loss = gradient()(torch.from_numpy(params), task)
        return found.detach().numpy(), float(loss)

    with contextlib.suppress(EOFError, OSError):
        channel.send_bytes(launcher.attempt(lambda: gradient() is None))  # it can be imported
        while True:
            channel.send_bytes(launcher.attempt(computed, *pickle.loads(channel.recv_bytes())))
