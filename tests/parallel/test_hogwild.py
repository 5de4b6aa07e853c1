"""Hogwild against serial SGD, least squares in closed form, and counts."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from ed_lib.parallel.asynchronous.hogwild import SparseSquares, train
from ed_lib.parallel.ranks.launcher import RankError

TIMEOUT = 120.0


@pytest.mark.oracle
def test_the_problem_is_least_squares():
    problem = SparseSquares.random(50, 12, 3, seed=2)
    dense = np.zeros((50, 12))
    for row in range(50):
        dense[row, problem.columns[row]] = problem.values[row]
    targets = problem.targets.numpy()
    solution = np.linalg.lstsq(dense, targets, rcond=None)[0]
    assert np.allclose(solution, problem.truth) and problem.loss(problem.truth) < 1e-30
    assert np.allclose((dense**2).sum(1), 1) and ((dense != 0).sum(1) == 3).all()
    w = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert problem.loss(w) == pytest.approx(np.square(dense @ w.numpy() - targets).mean() / 2)
    for row in (0, 31):  # a step is that of autograd
        x = torch.from_numpy(dense[row])
        leaf = w.clone().requires_grad_()
        ((x @ leaf - targets[row]) ** 2 / 2).backward()
        moved = w.clone()
        problem.descend(moved, row, 0.3)
        assert torch.allclose(moved, w - 0.3 * leaf.grad, rtol=1e-13, atol=1e-15)
        assert (moved != w).sum() == 3


@pytest.mark.oracle
def test_one_worker_is_serial_sgd_and_loses_nothing_also_after_a_run_that_raised():
    problem = SparseSquares.random(40, 9, 2, seed=1)
    broken = SparseSquares(problem.columns + 9, problem.values, problem.targets, problem.truth)
    with pytest.raises(RankError, match="IndexError"):
        train(broken, 2, 5, 0.1, timeout=TIMEOUT)
    params, moved = train(problem, 1, 101, 0.5, seed=4, timeout=TIMEOUT)
    serial, times = torch.zeros(9, dtype=torch.float64), torch.zeros(9, dtype=torch.float64)
    for row in np.random.default_rng(4).integers(40, size=101):
        problem.descend(serial, row, 0.5)
        times[problem.columns[row]] += 1
    assert torch.equal(params, serial) and torch.equal(moved, times) and moved.sum() == 202


def test_two_workers_on_a_sparse_problem_lose_little_and_converge():
    problem = SparseSquares.random(500, 100, 2)
    params, moved = train(problem, 2, 8001, 0.5, timeout=TIMEOUT)
    start = problem.loss(torch.zeros(100, dtype=torch.float64))
    assert problem.loss(params) < 1e-3 * start
    assert 0.75 * 16_002 < moved.sum() <= 16_002


@pytest.mark.oracle
def test_two_workers_that_never_meet_lose_nothing():
    """Row 0 touches one half of the parameters, row 1 the other, and each worker has one of them."""
    columns = torch.tensor([[0, 1], [2, 3]])
    values = torch.tensor([[0.6, 0.8], [0.8, -0.6]], dtype=torch.float64)
    truth = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    problem = SparseSquares(columns, values, (values * truth[columns]).sum(1), truth)
    steps = 6000
    params, moved = train(Apart(problem), 2, steps, 0.01, timeout=TIMEOUT)
    assert moved.tolist() == [3000.0] * 4
    serial = torch.zeros(4, dtype=torch.float64)
    for step in range(steps):
        problem.descend(serial, step % 2, 0.01)
    assert torch.equal(params, serial)


class Apart:
    """The problem, where the row of a step is the number of the worker that asks."""

    def __init__(self, problem):
        self.problem, self.truth, self.targets = problem, problem.truth, problem.targets
        self.columns = Columns(problem.columns)

    def descend(self, params, row, lr):
        self.problem.descend(params, torch.distributed.get_rank(), lr)


class Columns:
    def __init__(self, columns):
        self.columns = columns

    def __getitem__(self, row):
        return self.columns[torch.distributed.get_rank()]


class Alone(Apart):
    def descend(self, params, row, lr):
        assert not list(Path(os.environ["TMPDIR"]).glob("hogwild-*"))


def test_no_file_is_left_while_they_compute_for_they_may_be_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # which reads TMPDIR again
    train(Alone(SparseSquares.random(4, 2, 1)), 2, 4, 0.1, timeout=TIMEOUT)
