"""Fine-tuning the pretrained encoder on pairs of sentences as BERT's authors do: AdamW, warm-up, decay."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ed_lib import training
from ed_lib.data import Pairs
from ed_lib.models import Encoder
from ed_lib.precision import minilm


@dataclass(frozen=True)
class Examples:
    """N pairs of sentences as numbers: ``tokens`` and ``segments``, tensors (T,) each; ``labels`` (N,)."""

    tokens: list[Tensor]
    segments: list[Tensor]
    labels: Tensor

    def __len__(self):
        return len(self.labels)

    def batch(self, rows: Sequence[int], device: Any = "cpu") -> list[Tensor]:
        """Tokens, segments and mask, each (B, longest T), and labels (B,), of these pairs."""
        tokens, mask = minilm.padded([self.tokens[row] for row in rows])
        segments, _ = minilm.padded([self.segments[row] for row in rows])
        return [each.to(device) for each in (tokens, segments, mask, self.labels[torch.as_tensor(rows)])]


def examples(pairs: Pairs, tokenizer: Any) -> Examples:
    """The pairs through a tokenizer."""
    return Examples(*minilm.encode(tokenizer, pairs.first, pairs.second), torch.tensor(pairs.labels))


def finetune(
    net: Encoder, train: Examples, test: Examples | None = None, *, rate: float = 5e-5, epochs: int = 3,
    batch: int = 32, warmup: float = 0.1, decay: float = 0.01, seed: int = 0,
    context: Callable = contextlib.nullcontext, scaler: Any = None,
) -> training.History:  # fmt: skip
    """Trains ``net`` in place by AdamW → ``training.History``; looks at ``test`` at the end of each epoch.

    The rate rises over the first ``warmup`` of all steps and falls linearly to 0. context, scaler: as
    :func:`ed_lib.training.train` has them. ValueError for a label that is no class of ``net``.
    """
    classes, found = net.classes.out_features, {0, *train.labels.tolist()}
    if not 0 <= min(found) <= max(found) < classes:
        raise ValueError(f"labels run from {min(found)} to {max(found)}; wanted 0 to {classes - 1}")
    total = epochs * -(-len(train) // batch)
    matrices = [p for p in net.parameters() if p.dim() > 1]  # biases and layer norms do not decay
    others = [p for p in net.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, rate, fused=True)
    rising = max(round(warmup * total), 1)
    shape = lambda n: min((n + 1) / rising, (total - n) / max(total - rising, 1))  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, shape)

    def one_step(rows):
        *inputs, labels = train.batch(rows, net.classes.weight.device)
        with context():
            loss = F.cross_entropy(net(*inputs), labels)
        before = scaler.get_scale() if scaler else 0
        training.optimizer_step(loss, optimizer, scaler)
        fell = scaler and scaler.get_scale() < before  # torch's scaler says no more
        if not getattr(scaler, "skipped", fell):
            schedule.step()
        return loss.detach()

    look = partial(accuracy, net, test, context) if test else None
    return training.loop(one_step, len(train), look, epochs=epochs, batch=batch, seed=seed)


@torch.no_grad()
def accuracy(
    net: Encoder, test: Examples, context: Callable = contextlib.nullcontext, batch: int = 64
) -> float:
    """The share of pairs whose largest score is that of their label."""
    right = 0
    for rows in minilm.alike(test.tokens, batch):
        *inputs, labels = test.batch(rows, net.classes.weight.device)
        with context():
            right += int((net(*inputs).argmax(1) == labels).sum())
    return right / len(test)
