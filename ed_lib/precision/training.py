"""Training by an optimizer, in few bits too: what every experiment of part III goes through."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ed_lib import learning


def train(
    model: nn.Module, optimizer: Any, images: torch.Tensor, labels: torch.Tensor,
    test: Sequence[torch.Tensor] | None = None, *, epochs: int = 1, batch: int = 128, seed: int = 0,
    context: Callable = contextlib.nullcontext, scaler: Any = None, loss_function: Callable = F.cross_entropy,
) -> learning.History:  # fmt: skip
    """Trains ``model`` in place → ``learning.History``. One seed shows the same batches.

    images (N, …) float32 and labels (N,) int64, on the model's device; ``test``: a pair of such, or None, and
    then no accuracy is taken. context: called for each step, gives what the forward pass and the loss run
    in, such as ``lambda: torch.autocast("cpu")``. scaler: with torch.amp.GradScaler's interface, or None.
    loss_function(scores, labels) → the mean loss. optimizer: torch's, or a MasterWeights.
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

    looks = look if test is not None else None
    return learning.train(one_step, len(images), looks, epochs=epochs, batch=batch, seed=1000 * seed)


def step(loss: torch.Tensor, optimizer: Any, scaler: Any = None) -> None:
    """Backward pass and update, through the ``scaler`` where there is one."""
    optimizer.zero_grad()
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
