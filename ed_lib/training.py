"""The training loop of networks that backpropagate, the share that they get right, and gradients by
the number of a batch.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ed_lib import check, data, models, timing

# Test images that go through a network at a time, so that their activations fit into memory
CHUNK = 1000


@dataclass
class History:
    """The ``loss`` of each step, before its update; for each look at the test set the ``steps`` and
    samples ``seen`` before it, the ``seconds`` of training since the look before, and the
    ``accuracy``.
    """

    loss: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)


def loop(
    step: Callable[[np.ndarray], float | torch.Tensor],
    n: int,
    look: Callable[[], float] | None = None,
    *,
    batch: int,
    epochs: int = 1,
    every: int | None = None,
    seed: int = 0,
) -> History:
    """Goes through ``n`` samples in batches, ``epochs`` times; epoch e is shuffled by ``seed`` + e.

    step(rows) learns from the samples of these numbers, (batch,) int64, and gives their mean loss
    before it. look() gives an accuracy: before the first step, after ``every`` steps (None: each
    epoch), at the end.
    """
    from tqdm.std import tqdm

    check.count("n", n)
    check.count("batch", batch)
    check.count("epochs", epochs)
    per_epoch = -(-n // batch)
    last = epochs * per_epoch
    every = check.count("every", per_epoch if every is None else every)
    look = unknown if look is None else look
    history = History(steps=[0], seen=[0], seconds=[0.0], accuracy=[look()])
    order = (rows for epoch in range(epochs) for rows in data.batches(n, batch, seed=seed + epoch))
    bar: dict = {"desc": "training", "total": last, "leave": False}
    if os.environ.get("RANK", "0") != "0":
        # Of several ranks one draws it.
        bar["disable"] = True
    losses: list = []  # of the steps since the last look
    seen = 0
    start = timing.now()
    for number, rows in enumerate(tqdm(order, **bar), start=1):
        losses.append(step(rows))
        seen += len(rows)
        if number % every == 0 or number == last:
            history.seconds.append(timing.now() - start)
            history.steps.append(number)
            history.seen.append(seen)
            # Numbers only now: a loss on a GPU, made a number in each step, would make it wait.
            history.loss += map(float, losses)
            losses.clear()
            history.accuracy.append(look())
            # The look is not part of the training's time.
            start = timing.now()
    return history


def unknown() -> float:
    """The accuracy where nobody looks."""
    return float("nan")


def train(
    model: torch.nn.Module,
    optimizer: Any,
    images: torch.Tensor,
    labels: torch.Tensor,
    test: Sequence[torch.Tensor] | None = None,
    *,
    epochs: int = 1,
    batch: int = 128,
    seed: int = 0,
    context: Callable = contextlib.nullcontext,
    scaler: Any = None,
    loss_function: Callable = F.cross_entropy,
) -> History:
    """Trains ``model`` in place by :func:`loop`; one seed shows the same batches.

    images (N, …), labels (N,) int64, or a row for each image of what ``loss_function`` takes, on
    the model's device; ``test``: images and labels (N,), for the accuracy. context(): what a step's
    forward pass and loss run in, such as ``torch.autocast("cpu")``. scaler: like
    torch.amp.GradScaler. loss_function(scores, labels) → the mean. optimizer: torch's, or like it.
    """
    if len(images) != len(labels):
        raise ValueError(
            f"there are {len(images)} images and {len(labels)} labels; wanted a label for each"
        )
    model.train()

    def step(numbers):
        rows = torch.from_numpy(numbers).to(images.device)
        with context():
            loss = loss_function(model(images[rows]), labels[rows])
        optimizer_step(loss, optimizer, scaler)
        return loss.detach()

    def look():
        with context():
            return float("nan") if test is None else accuracy(model, *test)

    return loop(step, len(images), look, batch=batch, epochs=epochs, seed=1000 * seed)


def optimizer_step(loss: torch.Tensor, optimizer: Any, scaler: Any = None) -> None:
    """Backward pass and update, through the ``scaler`` where there is one."""
    optimizer.zero_grad()
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def accuracy(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of images (N, …) whose largest score is that of the label (N,). Leaves its mode as
    it is. ValueError unless there is a label for each image, and a row of scores.
    """
    check.count("len(images)", len(images))
    # A column of labels, or a single one, would be compared with all predictions, by broadcasting.
    check.shape("labels", tuple(labels.shape), (len(images),))
    training = model.training
    # Counted on the device, which is asked for the number once, at the end.
    right = torch.zeros((), dtype=torch.int64, device=labels.device)
    model.eval()
    try:
        with torch.no_grad():
            for x, y in zip(images.split(CHUNK), labels.split(CHUNK), strict=True):
                scores = model(x)
                check.shape("what model gives", tuple(scores.shape), (len(x), "classes"))
                right += (scores.argmax(dim=1) == y).sum()
    finally:
        model.train(training)
    return int(right) / len(images)


class TaskGradients:
    """A perceptron's mean cross-entropy over a batch, and its gradient, by the batch's number, the
    *task*: for those who train together, and send each other parameters and gradients.

    It is called as gradients(params, task): params (P,) → the gradient (P,), and the loss. The
    batch of task t is drawn, with replacement, by a generator of (``seed``, t): so the same task is
    the same batch for everybody, in any process and in any order.

    images: (N, I) floats; labels: (N,), from 0 to 9. hidden: the width of the one hidden layer.
    seed: of the first weights too. ValueError unless there is a label for each image.
    """

    def __init__(
        self,
        images: np.ndarray | torch.Tensor,
        labels: np.ndarray | torch.Tensor,
        batch: int = 32,
        seed: int = 0,
        hidden: int = 32,
    ):
        if len(images) != len(labels):
            raise ValueError(
                f"there are {len(images)} images and {len(labels)} labels; wanted a label for each"
            )
        self.images = torch.as_tensor(images)
        self.labels = torch.as_tensor(labels).long()
        self.batch = check.count("batch", batch)
        self.seed = check.count("seed", seed, least=0)
        widths = (self.images.shape[1], hidden, 10)
        self.net = models.mlp(widths, seed).to(self.images.device, self.images.dtype)
        self.first = parameters_to_vector(self.net.parameters()).detach()  # (P,)

    def start(self) -> torch.Tensor:
        """Parameters to start from, (P,)."""
        return self.first.clone()

    def at(self, params: torch.Tensor) -> torch.nn.Module:
        """The network with these parameters, (P,)."""
        vector_to_parameters(params, self.net.parameters())
        return self.net

    def __call__(self, params: torch.Tensor, task: int) -> tuple[torch.Tensor, float]:
        draw = np.random.default_rng((self.seed, task))
        rows = draw.integers(len(self.labels), size=self.batch)
        loss = F.cross_entropy(self.at(params)(self.images[rows]), self.labels[rows])
        gradients = torch.autograd.grad(loss, list(self.net.parameters()))
        return parameters_to_vector(gradients), loss.item()
