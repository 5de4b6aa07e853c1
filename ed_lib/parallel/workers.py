"""The servers of :mod:`ed_lib.parallel.asynchronous` with real workers: processes that may die.

The calling process is the server. It has a pipe to each worker, hands out tasks and parameters, and takes in
gradients, one message at a time. A worker that is gone is one whose pipe has ended; what it was working on
goes to another. Since a task is done only when its gradient has arrived whole, and is handed out again only
when its pipe has ended without that, each is applied exactly once, whenever a worker is killed.
"""

import contextlib
import pickle
import threading
import time
from multiprocessing import connection

import torch

from ed_lib import arrays
from ed_lib.parallel import processes
from ed_lib.parallel.asynchronous import Dispatcher, Run, Span


class WorkerError(RuntimeError):
    """A run that cannot go on: a worker raised, all of them died, or time is up."""


def train(server, gradient, n_tasks, n_workers, *, pause=0.0, timeout=60.0):
    """Runs tasks 0 … n_tasks − 1 in ``n_workers`` processes → a :class:`~ed_lib.parallel.asynchronous.Run`.

    gradient(params, task): params (P,) → the gradient (P,) and the loss; anything that can be called, and
    that another process can import. It is sent to each worker once. pause: seconds that a worker sleeps
    before each gradient, one number or one for each worker; it stands in for a device that computes. timeout:
    seconds for all of it, the start included. The clock of the Run starts when all workers have.

    :class:`WorkerError` if a worker raises (with its traceback; the task is not tried again, since it would
    raise again), if no worker is left, and at the timeout. What the server refuses is raised as it is. In
    every case no process is left. TypeError and ValueError for bad arguments, before anything starts.
    """
    n_workers = arrays.check_count("n_workers", n_workers)
    timeout = arrays.check_positive("timeout", timeout)
    pauses = [pause] * n_workers if isinstance(pause, (int, float)) else list(pause)
    if len(pauses) != n_workers or not all(0 <= seconds < timeout for seconds in pauses):
        raise ValueError(f"pause is {pause}; wanted {n_workers} numbers from 0 to below the timeout")
    payload, dispatcher = processes.pickled(gradient), Dispatcher(server, n_tasks)
    workers, end = [], time.monotonic() + timeout
    watchdog = threading.Timer(timeout, lambda: [worker.process.kill() for worker in workers])
    try:
        for number in range(n_workers):
            workers.append(_Worker(number, pauses[number]))
        watchdog.start()  # for a worker that stops in the middle of a message
        return serve(dispatcher, workers, payload, end)
    except WorkerError as error:
        if time.monotonic() < end:
            raise
        held = ", ".join(f"worker {number} held {task}" for number, (task, _) in dispatcher.held.items())
        late = f"{dispatcher.unfinished} of {n_tasks} tasks were not done within {timeout:g} s"
        raise WorkerError(f"{late}; {held or error}") from None
    finally:
        watchdog.cancel()
        for worker in workers:
            processes.stop(worker.process, worker.channel)


class _Worker:
    """A worker as the server sees it."""

    def __init__(self, number, pause):
        self.number, self.is_alive = number, True
        self.process, self.channel = processes.start(_work, pause, name=f"worker {number}")

    def send(self, message):
        """False if it is gone."""
        try:
            self.channel.send_bytes(message)
        except OSError:
            self.is_alive = False
        return self.is_alive

    def receive(self):
        """The next message, or None if it is gone, before a message or in the middle of one."""
        try:
            kind, value = pickle.loads(self.channel.recv_bytes())
        except (EOFError, OSError):
            self.is_alive = False
            return None
        if kind == "raised":
            raise WorkerError(f"worker {self.number} raised an error:\n{value}")
        return value


def serve(dispatcher, workers, payload, end):
    """The server's life → the :class:`Run`."""
    _wait_for_all(workers, payload, end)
    spans, lost, tasks, zero = [], [], {}, time.monotonic()  # tasks: worker → (task, start)

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
            if (answer := worker.receive()) is None:
                bury(worker)
            else:
                dispatcher.receive(worker.number, torch.from_numpy(answer[0]))
                task, start = tasks.pop(worker.number)
                spans.append(Span(worker.number, task, start, time.monotonic() - zero, answer[1]))
            start_the_idle()
    seconds = time.monotonic() - zero
    for worker in workers:
        worker.send(pickle.dumps(None))  # the sentinel: there is no more
    for worker in workers:
        worker.process.join(processes.GRACE)
    return Run(spans, lost, seconds)


def _wait_for_all(workers, payload, end):
    """Sends what they compute to all; returns when every worker is ready, or dead."""
    starting = {worker for worker in workers if worker.send(payload)}
    while starting:
        for worker in _ready(starting, end):
            worker.receive()
            starting.discard(worker)


def _ready(workers, end):
    """The workers, of those alive, from whom something has come, or nothing will. Waits for one."""
    channels = {worker.channel: worker for worker in workers if worker.is_alive}
    if not channels:
        endings = [f"worker {worker.number} {_how_it_ended(worker.process)}" for worker in workers]
        raise WorkerError("no worker is left: " + "; ".join(endings))
    ready = connection.wait(channels, max(0, end - time.monotonic()))
    if not ready:
        raise WorkerError("time is up")
    return [channels[channel] for channel in ready]


def _how_it_ended(process):
    process.join(processes.GRACE)
    return "closed its pipe" if process.exitcode is None else processes.ending(process.exitcode)


def _work(channel, pause):
    """What a worker does. Errors of what it computes are reported; without a server, it leaves."""
    with contextlib.suppress(EOFError, OSError):
        kind, gradient = _attempt(_prepared, channel.recv_bytes())
        channel.send_bytes(pickle.dumps((kind, gradient if kind == "raised" else "ready")))
        while (order := pickle.loads(channel.recv_bytes())) is not None:
            time.sleep(pause)
            channel.send_bytes(pickle.dumps(_attempt(_computed, gradient, *order)))


def _attempt(function, *args):
    """("done", what it returned), or ("raised", the traceback)."""
    try:
        return "done", function(*args)
    except BaseException as error:  # SystemExit as well
        return "raised", processes.error_text(error, __file__)


def _prepared(payload):
    """The function of the gradient, in a process with one thread."""
    processes.one_thread()
    return pickle.loads(payload)[0]


def _computed(gradient, task, params):
    found, loss = gradient(torch.from_numpy(params), task)
    return found.detach().numpy(), float(loss)
