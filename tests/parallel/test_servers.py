"""The servers, their tasks and the virtual clock, against torch.optim, linear algebra and a serial
loop.
"""

import itertools
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ed_lib.parallel.asynchronous import (
    ParameterServer,
    Run,
    Span,
    SynchronousServer,
    local_sgd,
    simulate_workers,
)
from ed_lib.training import TaskGradients


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def problem():
    random = np.random.default_rng(1)
    images, labels = random.random((97, 13)), random.integers(10, size=97)
    return TaskGradients(images, labels, hidden=7, batch=5, seed=3)


def rows(task):
    """The images of a task of the problem."""
    return np.random.default_rng((3, task)).integers(97, size=5)


def network(problem):
    """The same network, of PyTorch's own layers."""
    net = nn.Sequential(nn.Linear(13, 7), nn.ReLU(), nn.Linear(7, 10)).double()
    nn.utils.vector_to_parameters(problem.start(), net.parameters())
    return net


def serial(problem, tasks, lr):
    """torch.optim.SGD on the batches of the tasks → flat parameters."""
    params = nn.Parameter(problem.start())
    optimizer = torch.optim.SGD([params], lr=lr)
    for task in tasks:
        params.grad = problem(params, task)[0]
        optimizer.step()
    return params.detach()


@pytest.mark.oracle
@pytest.mark.parametrize("by_staleness", [False, True])
def test_one_worker_is_serial_sgd_bitwise(problem, by_staleness):
    server = ParameterServer(problem.start(), 0.3, by_staleness=by_staleness)
    run = simulate_workers(server, problem, 50, [2.0])
    assert torch.equal(server.params, serial(problem, range(50), 0.3))
    assert run.seconds == 100 and {span.staleness for span in run.spans} == {0}


@pytest.mark.oracle
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_even_workers_are_stale_by_p_minus_1(problem, p):
    server = ParameterServer(problem.start(), 0.01)
    run = simulate_workers(server, problem, 6 * p, [1.5] * p)
    staleness = [span.staleness for span in run.spans]
    assert staleness == [*range(p), *[p - 1] * (5 * p)]
    assert run.seconds == 9.0 and Counter(span.worker for span in run.spans) == {
        w: 6 for w in range(p)
    }


@pytest.mark.oracle
def test_staleness_of_a_slow_worker(problem):
    server = ParameterServer(problem.start(), 0.01)
    run = simulate_workers(server, problem, 320, [1, 1, 1, 5])
    of = {w: [span.staleness for span in run.spans if span.worker == w] for w in range(4)}
    assert set(of[3]) == {15} and len(of[3]) == 20  # three others, five gradients each
    assert all(set(of[w][1:]) == {2, 3} and len(of[w]) == 100 for w in range(3))
    assert run.seconds == 100


@pytest.mark.oracle
@pytest.mark.parametrize("by_staleness", [False, True])
def test_the_log_and_a_plain_loop_give_the_same_parameters(problem, by_staleness):
    server = ParameterServer(problem.start(), 0.2, by_staleness=by_staleness)
    run = simulate_workers(server, problem, 60, [1, 1.7, 0.3, 5], spread=0.4)
    versions = [problem.start()]  # what every version was
    for span in run.spans:
        rate = 0.2 / max(1, span.applied - span.read) if by_staleness else 0.2
        versions.append(versions[-1] - rate * problem(versions[span.read], span.task)[0])
    assert [span.applied for span in run.spans] == list(range(60))
    assert torch.allclose(server.params, versions[-1], rtol=1e-12, atol=1e-14)
    assert max(span.staleness for span in run.spans) > 5


@pytest.mark.oracle
def test_synchronous_steps_are_large_batches_whoever_is_slow(problem):
    servers = []
    # ten steps of three gradients: as long as the slowest takes; of two workers, the fast one does
    # two of the three while the slow one does the third
    for seconds, took in (([1, 1, 1], 10), ([5, 1, 2], 50), ([1, 3], 30)):
        servers.append(SynchronousServer(problem.start(), 0.3, per_step=3))
        run = simulate_workers(servers[-1], problem, 30, seconds)
        assert run.seconds == took
        assert {span.staleness for span in run.spans} == {0}
    assert all(torch.equal(servers[0].params, server.params) for server in servers)
    net = network(problem)  # three batches in one
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    for step in range(10):
        three = np.concatenate([rows(task) for task in range(3 * step, 3 * step + 3)])
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(problem.images[three]), problem.labels[three]).backward()
        optimizer.step()
    wanted = nn.utils.parameters_to_vector(net.parameters())
    assert torch.allclose(servers[0].params, wanted, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(
    ("gradient", "error", "message"),
    [
        ([0.0, 0.0, 0.0], ValueError, r"gradient has the shape \(3,\); wanted \(2,\)"),
        ([1.0, torch.nan], FloatingPointError, "gradient holds NaN or infinity"),
        ([1.0, torch.inf], FloatingPointError, "gradient holds NaN or infinity"),
    ],
)
@pytest.mark.parametrize("make", [ParameterServer, lambda w, lr: SynchronousServer(w, lr, 2)])
def test_a_push_that_is_refused_changes_nothing_and_the_task_is_not_done(
    make, gradient, error, message
):
    run = Run(make(torch.tensor([1.0, 2.0]), 0.1), 2)
    run.assign(0, 0.0)
    with pytest.raises(error, match=message):
        run.receive(0, torch.tensor(gradient), 0.0, 1.0)
    assert run.server.params.tolist() == [1, 2] and run.server.version == 0
    assert run.unfinished == 2 and run.spans == []


def test_what_a_server_gives_away_and_takes_in_is_copied():
    start, gradient = torch.zeros(2), torch.ones(2, requires_grad=True)
    for make in (ParameterServer, lambda w, lr: SynchronousServer(w, lr, 1)):
        server = make(start, 0.5)
        params, version = server.pull()
        params += 7
        server.push(gradient, version)
        assert server.pull()[0].tolist() == [-0.5, -0.5] and start.tolist() == [0, 0]
        assert not server.params.requires_grad


def test_a_run_knows_who_holds_what():
    run = Run(ParameterServer(torch.zeros(1), 0.1), 2)
    assert [run.assign(worker, 0.0) and run.held[worker][0] for worker in range(3)] == [0, 1, None]
    run.lose(2, 1.0), run.lose(0, 1.0)
    assert run.assign(2, 1.0)[0] == 0 and run.unfinished == 2
    run.receive(2, torch.ones(1), 0.5, 2.0), run.receive(1, torch.ones(1), 0.25, 3.0)
    assert (
        run.unfinished == 0
        and run.seconds == 3
        and repr(run.lost) == repr([Span(0, 0, 0, 0.0, 1.0)])
    )
    assert run.spans == [Span(2, 0, 0, 1.0, 2.0, 0, 0.5), Span(1, 1, 0, 0.0, 3.0, 1, 0.25)]
    assert [span.staleness for span in run.spans] == [0, 1]


def test_a_worker_that_holds_a_task_gets_no_other_and_one_without_brings_none():
    """Else task 0 would never be done."""
    run = Run(ParameterServer(torch.zeros(1), 0.1), 2)
    run.assign(0, 0.0)
    with pytest.raises(ValueError, match="worker is 0, which holds task 0; wanted an idle one"):
        run.assign(0, 0.0)
    with pytest.raises(ValueError, match="worker is 1, which holds no task; wanted one that does"):
        run.receive(1, torch.ones(1), 0.5, 1.0)
    assert run.held == {0: (0, 0, 0.0)} and run.waiting == [1] and run.server.version == 0


@pytest.mark.parametrize(
    ("brought", "task", "wanted"),
    [
        ([], 5, "from 0 to 1"),  # of another step
        ([], -1, "from 0 to 1"),
        ([0], 0, "from 0 to 1"),  # it has come
        ([0, 1], 1, "from 2 to 3"),
    ],
)
def test_a_step_takes_each_of_its_tasks_once_and_no_other(brought, task, wanted):
    server = SynchronousServer(torch.zeros(1), 1.0, 2)
    for each in brought:
        server.push(torch.ones(1), server.version, each)
    before = server.params.clone(), server.version, dict(server.arrived)
    with pytest.raises(ValueError, match=f"task is {task}; wanted one of this step's, {wanted}"):
        server.push(torch.ones(1), server.version, task)
    assert (server.params, server.version, server.arrived) == before
    first = 2 * server.version
    for each in range(first, first + 2):
        if each not in server.arrived:
            server.push(torch.ones(1), server.version, each)
    assert server.params.tolist() == [-server.version] and not server.arrived


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_gradient_is_applied_once_whoever_comes_when_and_dies(data):
    """Workers take tasks, bring gradients and die in any order; new ones come in their place."""
    per_step, start = data.draw(st.integers(1, 4), "per_step"), torch.zeros(48).double()
    n, now, lost = per_step * data.draw(st.integers(1, 12), "steps"), 0, 0
    server = (
        SynchronousServer(start, 0.5, per_step) if per_step > 1 else ParameterServer(start, 0.5)
    )
    run = Run(server, n)
    while run.unfinished:
        now += 1
        for worker in data.draw(st.permutations(range(6)), "who"):
            if worker not in run.held:
                run.assign(worker, now)
        worker = data.draw(st.sampled_from(sorted(run.held)), "next")
        task, read, start = run.held[worker]
        if lost < 20 and data.draw(st.booleans(), "dies"):
            run.lose(worker, now)
            lost += 1
            assert repr(run.lost[-1]) == repr(
                Span(worker, task, read, start, now)
            )  # its loss is NaN
        else:
            run.receive(
                worker, -torch.eye(48).double()[task], 0.0, now
            )  # task t leaves its mark at t only
    assert sorted(span.task for span in run.spans) == list(range(n)) and len(run.lost) == lost
    assert server.params.tolist() == pytest.approx([0.5 / per_step] * n + [0.0] * (48 - n))
    assert all(span.staleness == 0 for span in run.spans) or per_step == 1


SGD = partial(torch.optim.SGD, lr=0.1)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "workers, rounds, steps, rate, momentum",
    [
        (3, 5, 1, 1, 0),
        (2, 1, 4, 1, 0),
        (2, 3, 2, 0.7, 0.9),
    ],  # a large batch; averages; Nesterov's momentum
)
def test_meetings_are_plain_loops(problem, workers, rounds, steps, rate, momentum):
    params, velocity, tasks = problem.start(), 0, iter(range(99))
    for _ in range(rounds):
        copies = [params.clone() for _ in range(workers)]
        for _, copy in itertools.product(range(steps), copies):
            copy -= 0.1 * problem(copy, next(tasks))[0]
        move = params - sum(copies) / workers
        velocity = momentum * velocity + move
        params = params - rate * (move + momentum * velocity)
    found = local_sgd(problem.start(), problem, workers, rounds, steps, SGD, rate, momentum)
    torch.testing.assert_close(found, params, rtol=0, atol=1e-12)


def test_every_batch_goes_to_one_worker_once():
    seen = []
    local_sgd(torch.zeros(1), lambda w, task: (w.clone(), seen.append(task)), 4, 3, 5, SGD)
    assert sorted(seen) == list(range(60))
