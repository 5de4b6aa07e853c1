"""A training loop for images that every experiment of part III goes through, and the accuracy it leads to."""

import contextlib
import time
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from ed_lib import arrays, data, timing
from ed_lib.notebook import progress

CHUNK = 1000  # test images that go through the network at a time


@dataclass
class History:
    """A training run: the loss of each step; after each epoch test accuracy, and the seconds it trained."""

    loss: list = field(default_factory=list)
    accuracy: list = field(default_factory=list)
    seconds: list = field(default_factory=list)


def train(
    model,
    optimizer,
    images,
    labels,
    test,
    *,
    epochs=1,
    batch=128,
    seed=0,
    context=contextlib.nullcontext,
    scaler=None,
    loss_function=F.cross_entropy,
):
    """Trains ``model`` in place → :class:`History`. One and the same seed shows the same batches.

    images (N, …) float32 and labels (N,) int64, ``test`` a pair of such, all on the model's device.
    context: called for each step, gives what the forward pass and the loss run in, such as
    ``lambda: torch.autocast("cpu")``. scaler: with torch.amp.GradScaler's interface, or None.
    loss_function(scores, labels) → the mean loss.

    ValueError for lengths that differ, epochs or batch below 1.
    """
    epochs, batch = arrays.check_count("epochs", epochs), arrays.check_count("batch", batch)
    if len(images) != len(labels):
        raise ValueError(f"there are {len(images)} images and {len(labels)} labels; wanted a label for each")
    history = History()
    for epoch in progress(range(epochs), "epochs"):
        model.train()
        losses = []
        timing.synchronize()
        start = time.perf_counter()
        for rows in data.batches(len(images), batch, seed=1000 * seed + epoch):
            rows = torch.from_numpy(rows).to(images.device)
            with context():
                loss = loss_function(model(images[rows]), labels[rows])
            step(loss, optimizer, scaler)
            losses.append(loss.detach())
        timing.synchronize()
        history.seconds.append(time.perf_counter() - start)
        history.loss += torch.stack(losses).tolist()
        with context():
            history.accuracy.append(accuracy(model, *test))
    return history


def step(loss, optimizer, scaler=None):
    """Backward pass and update, through the ``scaler`` where there is one."""
    optimizer.zero_grad()
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def accuracy(model, images, labels):
    """The share of images (N, …) whose class, the largest score, is the label (N,). Leaves the mode as is."""
    training = model.training
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in zip(images.split(CHUNK), labels.split(CHUNK), strict=True):
            right += int((model(x).argmax(dim=1) == y).sum())  # (chunk, classes) → (chunk,) → ()
    model.train(training)
    return right / len(images)
