"""Workers that meet seldom: each takes some steps of its own, and then their moves are averaged.

With plain averages this is local SGD (S. Stich, 2019); with AdamW inside and Nesterov's momentum on the mean
moves it is DiLoCo (A. Douillard and others, 2023). p workers, P parameters in one vector.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from ed_lib.parallel.ranks import collectives

Optimizer = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


class Worker:
    """A copy of the parameters and an optimizer, whose state stays from round to round."""

    def __init__(self, start: torch.Tensor, gradient: Callable, optimizer: Optimizer):
        self.params, self.gradient = start.clone(), gradient
        self.optimizer = optimizer([self.params])

    def move(self, start: torch.Tensor, tasks: Sequence[int]) -> torch.Tensor:
        """Takes a step for each task, from ``start`` on → by how much it moved, (P,): start minus end."""
        self.params.copy_(start)
        for task in tasks:
            self.params.grad = self.gradient(self.params, task)[0]
            self.optimizer.step()
        return start - self.params


class Outer:
    """What all workers start a round from: a mean move counts as a gradient of ``params`` (P,)."""

    def __init__(self, start: torch.Tensor, rate: float = 1.0, momentum: float = 0.0):
        self.params = start.clone()
        self.optimizer = torch.optim.SGD([self.params], rate, momentum, nesterov=momentum > 0)

    def meet(self, moves: torch.Tensor, workers: int) -> None:
        """A round's end: ``moves`` (P,) is the sum over all workers."""
        self.params.grad = moves / workers
        self.optimizer.step()


def tasks_of(worker: int, workers: int, meeting: int, steps: int) -> range:
    """The batches of a worker in a round: in all rounds together each batch goes to one worker, once."""
    first = meeting * steps * workers + worker
    return range(first, first + steps * workers, workers)


def simulate(
    start: torch.Tensor, gradient: Callable, workers: int, rounds: int, steps: int, inner: Optimizer,
    rate: float = 1.0, momentum: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """Trains with so many workers in this process → the parameters (P,)."""
    outer, every = Outer(start, rate, momentum), [Worker(start, gradient, inner) for _ in range(workers)]
    for meeting in range(rounds):
        moves = torch.zeros_like(start)
        for n, worker in enumerate(every):
            moves += worker.move(outer.params, tasks_of(n, workers, meeting, steps))
        outer.meet(moves, workers)
    return outer.params


def train(
    start: torch.Tensor, gradient: Callable, rounds: int, steps: int, inner: Optimizer,
    rate: float = 1.0, momentum: float = 0.0,
) -> tuple[torch.Tensor, collectives.Traffic]:  # fmt: skip
    """The same with a worker on each rank → the parameters (P,), and what this rank sent."""
    rank, p = dist.get_rank(), dist.get_world_size()
    outer, worker = Outer(start, rate, momentum), Worker(start, gradient, inner)
    traffic = collectives.Traffic()
    for meeting in range(rounds):
        moves = worker.move(outer.params, tasks_of(rank, p, meeting, steps))
        traffic += collectives.all_reduce(moves)
        outer.meet(moves, p)
    return outer.params, traffic
