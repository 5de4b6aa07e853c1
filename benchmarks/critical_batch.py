"""How many steps a network takes to learn, by its batch: where larger batches stop saving any.

A perceptron on Fashion-MNIST is trained until it gets ``target`` of the test images right, at every
rate of a grid. Source: S. McCandlish and others, "An empirical model of large-batch training"
(2018).
"""

import itertools
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.shared.harness import Size, images, one_thread, runs
from ed_lib import data, models, timing, training

# The lowest rate; each other is twice the one before.
FIRST = {"SGD": 0.02, "Adam": 2.5e-4}
# For batches below FROM the rates fall as this power of the batch.
POWER = {"SGD": 1, "Adam": 0.5}
FROM = 32


# A run ends, without success, after so many samples or steps, whichever are more, or the most
# steps.
SIZE = Size(
    batches=(2, 4, 8, 16, 32, 128, 512, 2048, 8192),
    grid=8,
    target=0.8,
    widths=(784, 64, 10),
    looks=2000,
    samples=300_000,
    steps=300,
    most=20_000,
)
TINY = SIZE.rehearsal(
    batches=(8, 32),
    grid=4,
    target=0.3,
    widths=(784, 8, 10),
    looks=100,
    samples=600,
    steps=20,
    seeds=2,
)


def steps(size, device, optimizer):
    """A row for each batch and rate; results: "steps" of each seed, 0 if it never got there."""
    cases = []
    for batch in size.batches:
        first = FIRST[optimizer] * min(1, batch / FROM) ** POWER[optimizer]
        for n in range(size.grid):
            rate = float(f"{first * 2**n:.3g}")
            cases.append({"batch": batch, "rate": rate, "target": size.target})
    return runs(reach, cases, size, optimizer=optimizer)


def reach(batch, rate, target, seed, optimizer, size):
    """Trains until the target is reached → {"steps", "seconds"}."""
    (x, y), (test_x, test_y) = images("fashion-mnist", size.whole, data.tensors)
    net = torch.nn.Sequential(torch.nn.Flatten(), *models.mlp(size.widths, seed))
    update = getattr(torch.optim, optimizer)(net.parameters(), rate)
    start = timing.now()
    most = min(size.most, max(size.steps, size.samples // batch))
    epochs = (data.batches(len(x), batch, seed=1000 * seed + epoch) for epoch in itertools.count())
    batches = itertools.chain.from_iterable(epochs)
    for n, rows in enumerate(itertools.islice(batches, most), start=1):
        training.optimizer_step(F.cross_entropy(net(x[rows]), y[rows]), update)
        # The steps are told to two per cent.
        looks = n % max(1, n // 50) == 0
        if looks and training.accuracy(net, test_x[: size.looks], test_y[: size.looks]) >= target:
            break
    # It never got there.
    else:
        n = 0
    return {"steps": n, "seconds": timing.now() - start}


TABLES = {f"steps, {name}": partial(steps, optimizer=name) for name in FIRST}
context = one_thread
