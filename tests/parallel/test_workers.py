"""Real workers: the same results as on the virtual clock, and every gradient once, whoever is killed."""

import multiprocessing
import os
import random
import signal
import sys
import threading
import time

import numpy as np
import pytest
import torch

from ed_lib.parallel.asynchronous import ParameterServer, Perceptron, SynchronousServer, simulate
from ed_lib.parallel.workers import WorkerError, receive, train

TIMEOUT = 120.0
LARGE = 400_000  # parameters: a message of 1.6 MB, several times what a pipe holds


pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.fixture
def problem():
    random = np.random.default_rng(1)
    return Perceptron(random.random((97, 13)), random.integers(10, size=97), hidden=7, batch=5, seed=3)


def mark(params, task):
    """A gradient that says which task it was, at the place of the task."""
    gradient = torch.zeros(len(params))
    gradient[task] = -1
    return gradient, float(task)


def worker_number():
    return int(multiprocessing.current_process().name.split()[1])


def mark_and_die(params, task):
    """As ``mark``; worker 1 kills itself while it computes, worker 2 at some moment while it sends."""
    if worker_number() == 1 and task > 4:
        os.kill(os.getpid(), signal.SIGKILL)
    if worker_number() == 2 and task > 6:
        wait = random.Random(task).random() * 0.004
        threading.Timer(wait, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return mark(params, task)


def die(params, task):
    os.kill(os.getpid(), signal.SIGKILL)


def leave(params, task):
    sys.exit(3)


def lose_a_file(params, task):  # an OSError, which must not be taken for a broken pipe
    return mark(params, task) if task < 3 else open("/no/such/file")


def diverge(params, task):
    return torch.full_like(params, torch.nan), 0.0


def stop(params, task):
    """Worker 0 stops, neither dead nor alive, before it has sent its gradient."""
    if worker_number() == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGSTOP)).start()
        return SlowToSend(len(params)), 0.0
    return mark(params, task)


class SlowToSend:
    """A gradient whose conversion to bytes takes longer than its worker lives."""

    def __init__(self, size):
        self.size = size

    def detach(self):
        time.sleep(1)
        return torch.zeros(self.size)


@pytest.mark.oracle
def test_the_servers_with_two_processes(problem):
    server = SynchronousServer(problem.start(), 0.3, 3)
    run = train(server, problem, 12, [0, 0.01], timeout=TIMEOUT)
    twin = SynchronousServer(problem.start(), 0.3, 3)
    simulate(twin, problem, 12, [1, 1])
    assert torch.equal(server.params, twin.params)  # to the bit, in whatever order they came
    assert sorted(span.task for span in run.spans) == list(range(12)) and run.lost == []

    server = ParameterServer(problem.start(), 0.3, by_staleness=True)
    run = train(server, problem, 30, [0.002, 0.01], timeout=TIMEOUT)
    versions = [problem.start()]
    for span in run.spans:
        gradient, loss = problem(versions[span.read], span.task)
        versions.append(versions[-1] - 0.3 / max(1, span.staleness) * gradient)
        assert span.loss == pytest.approx(loss) and 0 <= span.start < span.end <= run.seconds
    assert torch.allclose(server.params, versions[-1], rtol=1e-12, atol=1e-14)
    assert {span.worker for span in run.spans} == {0, 1}


@pytest.mark.parametrize("make", [ParameterServer, lambda w, lr: SynchronousServer(w, lr, 4)])
def test_every_gradient_is_applied_once_though_two_workers_kill_themselves(make):
    server = make(torch.zeros(LARGE), 1.0)
    run = train(server, mark_and_die, 40, [0, 0, 0], timeout=TIMEOUT)
    assert sorted(span.task for span in run.spans) == list(range(40))
    assert server.params[:40].tolist() == [1 / server.per_step] * 40 and not server.params[40:].any()
    assert {span.worker for span in run.lost} <= {1, 2} and run.lost


@pytest.mark.parametrize("part", [b"", b"\0", b"\0\0\0\x64", b"\0\0\0\x64" + b"half of a message"])
def test_half_a_message_is_none(part):
    ours, theirs = multiprocessing.Pipe()
    os.write(theirs.fileno(), part)
    theirs.close()
    assert receive(alive := {0: ours}, 0) is None and not alive
    ours.close()


def test_all_workers_dead():
    server = ParameterServer(torch.zeros(9), 1.0)
    with pytest.raises(
        WorkerError, match="no worker is left: worker 0 was ended by the signal SIGKILL.*worker 1"
    ):
        train(server, die, 9, [0, 0], timeout=TIMEOUT)
    assert server.version == 0


@pytest.mark.parametrize(
    ("gradient", "error", "message"),
    [
        (lose_a_file, WorkerError, r"worker 0 raised an error:\n(?s:.)*lose_a_file(?s:.)*FileNotFoundError"),
        (leave, WorkerError, r"worker 0 raised an error:\n(?s:.)*SystemExit: 3"),
        (diverge, FloatingPointError, "gradient holds NaN"),
    ],
)
def test_errors_end_the_run_at_once(gradient, error, message):
    with pytest.raises(error, match=message):
        train(ParameterServer(torch.zeros(9), 1.0), gradient, 9, [0], timeout=TIMEOUT)


def test_the_deadline_holds_for_a_worker_that_stops():
    start = time.monotonic()
    with pytest.raises(WorkerError, match=r"[1-4] of 4 tasks were not done within 1 s"):
        train(ParameterServer(torch.zeros(LARGE), 1.0), stop, 4, [0, 0], timeout=1.0)
    assert 1 <= time.monotonic() - start < 20
