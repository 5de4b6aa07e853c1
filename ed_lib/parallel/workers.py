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

from ed_lib import check
from ed_lib.parallel import launcher
from ed_lib.parallel.asynchronous import ParameterServer, Run


class WorkerError(RuntimeError):
    """A run that cannot go on: a worker raised, all of them died, or time is up."""


def train(
    server: ParameterServer, gradient: Callable, n_tasks: int, pauses: Sequence[float], timeout: float = 60.0
) -> Run:
    """Runs tasks 0 … n_tasks − 1 in a process for each entry of ``pauses`` → the :class:`Run`.

    gradient(params, task): params (P,) → the gradient (P,) and the loss; another process must be able to
    import it. pauses: seconds that each worker sleeps before a gradient, in place of a device that computes.
    timeout: seconds for all of it. The Run's clock starts when all workers have. :class:`WorkerError` if a
    worker raises, if none is left, and at the timeout. What the server refuses is raised as it is. In every
    case no process is left.
    """
    end = time.monotonic() + check.positive("timeout", timeout)
    if not pauses or not all(0 <= seconds < timeout for seconds in pauses):
        raise ValueError(f"pauses is {pauses}; wanted a number for each worker, from 0 to below the timeout")
    payload, run = launcher.pickled(gradient), Run(server, n_tasks)
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
    start = time.monotonic()
    while run.unfinished and alive:
        for worker in sorted(alive.keys() - run.held.keys()):
            if (order := run.assign(worker, time.monotonic() - start)) is not None:
                with contextlib.suppress(OSError):  # of one that is gone, as its pipe will say
                    alive[worker].send_bytes(pickle.dumps(order))
        ready = connection.wait(alive.values())  # something has come from these, or nothing will
        for worker in [worker for worker, pipe in alive.items() if pipe in ready]:
            answer, now = receive(alive, worker), time.monotonic() - start
            if answer:
                found, loss = answer
                run.receive(worker, found, loss, now)
            else:
                run.lose(worker, now)


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


def _work(pipe, pause, payload):
    """What a worker does. Errors of what it computes are reported; without a server, it leaves."""
    launcher.one_thread()
    gradient = functools.cache(lambda: pickle.loads(payload)[0])

    def computed(task, params):
        time.sleep(pause)
        found, loss = gradient()(params, task)
        return found.detach(), float(loss)

    with contextlib.suppress(EOFError, OSError):
        pipe.send_bytes(launcher.attempt(lambda: gradient() is None))  # it can be imported
        while True:
            pipe.send_bytes(launcher.attempt(computed, *pickle.loads(pipe.recv_bytes())))
