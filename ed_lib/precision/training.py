"""Training by an optimizer, in few bits too: what every experiment of part III goes through."""

import contextlib

import torch
import torch.nn.functional as F

from ed_lib import learning


def train(
    model,
    optimizer,
    images,
    labels,
    test=None,
    *,
    epochs=1,
    batch=128,
    seed=0,
    context=contextlib.nullcontext,
    scaler=None,
    loss_function=F.cross_entropy,
):
    """Trains ``model`` in place → ``learning.History``. One seed shows the same batches.

    images (N, …) float32 and labels (N,) int64, on the model's device; ``test``: a pair of such, or None, and
    then no accuracy is taken. context: called for each step, gives what the forward pass and the loss run
    in, such as ``lambda: torch.autocast("cpu")``. scaler: with torch.amp.GradScaler's interface, or None.
    loss_function(scores, labels) → the mean loss.

    ValueError for lengths that differ.
    """
    if len(images) != len(labels):
        raise ValueError(f"there are {len(images)} images and {len(labels)} labels; wanted a label for each")
    model.train()

    def one_step(rows):
        rows = torch.from_numpy(rows).to(images.device)
        with context():
            loss = loss_function(model(images[rows]), labels[rows])
        step(loss, optimizer, scaler)
        return loss.detach()

    def look():
        with context():
            return learning.accuracy(model, *test)

    look = None if test is None else look
    return learning.train(one_step, len(images), look, epochs=epochs, batch=batch, seed=1000 * seed)


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
