"""Hogwild: processes that move the same parameters, in the same memory, without locks.

To add to a number in memory is to read it, add, and write it back; when two processes do so at once, one
update is lost. F. Niu, B. Recht, C. Ré and S. Wright, "Hogwild!: a lock-free approach to parallelizing
stochastic gradient descent" (2011): if each touches few of many parameters, little is lost.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from ed_lib import check
from ed_lib.parallel.ranks.launcher import launch


@dataclass(frozen=True)
class SparseSquares:
    """Least squares with few non-zeros a row: the loss is ½ mean (x·w − y)² over rows x, with y = x·truth.

    columns, values: (N, k), where each row's k non-zeros are, and what; targets: (N,); truth: (P,).
    """

    columns: torch.Tensor
    values: torch.Tensor
    targets: torch.Tensor
    truth: torch.Tensor

    @classmethod
    def random(cls, n_rows: int, n_params: int, nonzeros: int, seed: int = 0) -> "SparseSquares":
        """Rows of length 1 with their non-zeros in random places; float64. The loss can reach 0."""
        random = np.random.default_rng(seed)
        places = [random.choice(n_params, nonzeros, replace=False) for _ in range(n_rows)]
        columns = np.stack(places)  # (N, k)
        values = random.standard_normal((n_rows, nonzeros))
        values /= np.linalg.norm(values, axis=1, keepdims=True)
        truth = random.standard_normal(n_params)
        targets = (values * truth[columns]).sum(1)  # (N,)
        return cls(*map(torch.from_numpy, (columns, values, targets, truth)))

    def loss(self, params: torch.Tensor) -> float:
        """params (P,) → ½ mean (x·w − y)²."""
        return float(((self.values * params[self.columns]).sum(1) - self.targets).square().mean() / 2)

    def descend(self, params: torch.Tensor, row: int, lr: float) -> None:
        """One step of SGD on one row, in place: only its k parameters are read and written."""
        columns, values = self.columns[row], self.values[row]  # (k,) each
        error = values @ params[columns] - self.targets[row]
        params[columns] -= lr * error * values


def train(
    problem: SparseSquares, n_workers: int, steps: int, lr: float, *, seed: int = 0, timeout: float = 60.0
) -> tuple[torch.Tensor, ...]:
    """``steps`` steps of SGD, shared by processes on one memory, without locks → parameters (P,), and counts.

    The second tensor counts how often each parameter was moved, by adding 1 without a lock as well: what its
    sum lacks of steps · k was lost. Worker r takes the steps r, r + n_workers, …, on rows in an order that
    ``seed`` sets. One worker loses none, and is serial SGD.
    """
    check.count("steps", steps)
    check.positive("lr", lr)
    with tempfile.TemporaryDirectory(prefix="hogwild-") as folder:
        memory = shared(folder, len(problem.truth))
        launch(work, n_workers, folder, problem, steps, lr, seed, timeout=timeout)
        return tuple(tensor.clone() for tensor in memory)


def work(folder: str, problem: SparseSquares, steps: int, lr: float, seed: int) -> None:
    """What each rank does; nothing is sent."""
    params, moved = shared(folder, len(problem.truth))
    order = np.random.default_rng(seed).integers(len(problem.targets), size=steps)
    dist.barrier()  # so that they run at the same time
    shutil.rmtree(folder, ignore_errors=True)  # all have mapped its files: nothing is left, whoever is killed
    for row in order[dist.get_rank() :: dist.get_world_size()]:
        problem.descend(params, row, lr)
        moved[problem.columns[row]] += 1


def shared(folder: str | Path, size: int) -> list[torch.Tensor]:
    """Two tensors of float64, (size,), in memory that all processes share which map the same folder; zeros at
    first."""
    paths = (str(Path(folder) / name) for name in ("params", "moved"))
    return [torch.from_file(path, shared=True, size=size, dtype=torch.float64) for path in paths]
