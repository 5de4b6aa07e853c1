"""Local SGD and DiLoCo against SGD on whole batches, and on ranks; failures against arithmetic."""

import numpy as np
import pytest
import torch

from ed_lib.parallel import launch
from ed_lib.parallel.asynchronous import failures, local
from ed_lib.parallel.asynchronous.problems import Perceptron, Quadratic
from ed_lib.parallel.ranks.collectives import Traffic


def problem():
    rng = np.random.default_rng(0)
    return Perceptron(rng.normal(size=(60, 5)), rng.integers(0, 3, 60), hidden=4, batch=6, n_classes=3)


def sgd(params):
    return torch.optim.SGD(params, 0.1)


def adamw(params):
    return torch.optim.AdamW(params, 0.01)


@pytest.mark.oracle
def test_meeting_after_each_step_is_a_large_batch():
    gradient = problem()
    start = gradient.start()
    found, whole = local.simulate(start, gradient, 3, 5, 1, sgd), start.clone()
    for step in range(5):
        whole -= 0.1 * sum(gradient(whole, 3 * step + n)[0] for n in range(3)) / 3
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)


@pytest.mark.oracle
def test_plain_outer_steps_average_the_models():
    gradient = problem()
    start = gradient.start()
    ends = []
    for n in range(2):
        params = start.clone()
        for task in local.tasks_of(n, 2, 0, 4):
            params -= 0.1 * gradient(params, task)[0]
        ends.append(params)
    found = local.simulate(start, gradient, 2, 1, 4, sgd)
    torch.testing.assert_close(found, sum(ends) / 2, rtol=0, atol=1e-12)


@pytest.mark.oracle
def test_nesterov_takes_the_mean_move_for_a_gradient():
    start = torch.tensor([1.0, -2.0]).double()
    half = Quadratic([0.5, 0.5])  # two steps at the rate 0.1 leave 0.95² of it
    found = local.simulate(start, half, 2, 2, 2, sgd, rate=0.7, momentum=0.9)
    params = torch.nn.Parameter(start.clone())
    outer = torch.optim.SGD([params], 0.7, 0.9, nesterov=True)
    for _ in range(2):
        params.grad = (1 - 0.95**2) * params.detach()
        outer.step()
    torch.testing.assert_close(found, params.detach(), rtol=0, atol=1e-12)


def on_ranks(start):
    return [
        local.train(start, problem(), 3, 4, inner, rate, momentum)
        for inner, rate, momentum in ((sgd, 1.0, 0.0), (adamw, 0.7, 0.9))
    ]


def test_ranks_compute_what_one_process_simulates():
    gradient = problem()
    start = gradient.start()
    for p in (1, 2, 3):
        results = launch(on_ranks, p, start)
        for found, (inner, rate, momentum) in zip(
            zip(*results, strict=True), ((sgd, 1.0, 0.0), (adamw, 0.7, 0.9)), strict=True
        ):
            right = local.simulate(start, gradient, p, 3, 4, inner, rate, momentum)
            for params, _ in found:
                assert torch.equal(params, found[0][0]), "all ranks have the same bits"
                torch.testing.assert_close(params, right, rtol=0, atol=1e-12)
            sent = sum((traffic for _, traffic in found), Traffic())
            assert sent.bytes == 3 * 2 * (p - 1) * start.nbytes, "an all-reduce a round, and nothing else"


def test_every_batch_goes_to_one_worker_once():
    tasks = [t for m in range(3) for n in range(4) for t in local.tasks_of(n, 4, m, 5)]
    assert sorted(tasks) == list(range(60))


def test_failures_by_hand(monkeypatch):
    class Draw:
        def exponential(self, between, number):
            return np.array([25.0, 9.0, 36.0])

    monkeypatch.setattr(failures.np.random, "default_rng", lambda seed: Draw())
    # 10 of work and 2 of saving: 2, 0 and 3 whole checkpoints in 70 seconds, and 3 restarts of 5
    assert failures.goodput(10, 2, 30, 5, failures=3) == 50 / 85


@pytest.mark.oracle
@pytest.mark.parametrize("save, between", [(10.0, 3_000.0), (60.0, 11_000.0)])
def test_the_formulas_interval_is_about_the_best(save, between):
    best = failures.best_interval(save, between)
    at = {factor: failures.goodput(factor * best, save, between, failures=20_000) for factor in (0.3, 1, 3)}
    assert at[1] > at[0.3] and at[1] > at[3]
    wide = [
        failures.goodput(factor * best, save, between, failures=20_000) for factor in np.geomspace(0.3, 3, 15)
    ]
    assert max(wide) - at[1] < 0.005
