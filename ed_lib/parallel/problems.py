"""What the workers compute: gradients of a batch, as a function of one flat tensor of parameters.

Both are called as gradient(params, task) → the gradient, (P,), and the loss; the batch depends on the task.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from ed_lib.arrays import Array


class Quadratic:
    """The loss ½ Σ λ w² of parameters w (P,), with curvatures λ (P,): its gradient is λ w, for every task."""

    def __init__(self, curvatures: Sequence[float] | torch.Tensor):
        self.curvatures = torch.as_tensor(curvatures)

    def __call__(self, params, task):
        gradient = self.curvatures * params
        return gradient, float(gradient @ params) / 2


class Perceptron:
    """A network with one hidden layer on images: their mean cross-entropy over a batch, and its gradient.

    images: (N, I) floats; labels: (N,), from 0 to n_classes − 1. Task t is a batch drawn, with replacement,
    by a generator that starts from (seed, t).
    """

    def __init__(
        self, images: Array, labels: Array, hidden: int = 32, batch: int = 32, n_classes: int = 10,
        seed: int = 0,
    ):  # fmt: skip
        self.images = torch.as_tensor(images)  # (N, I)
        self.labels = torch.as_tensor(labels).long()  # (N,)
        self.batch, self.seed = batch, seed
        self.shapes = ((hidden, self.images.shape[1]), (hidden,), (n_classes, hidden), (n_classes,))
        self.sizes = [math.prod(shape) for shape in self.shapes]

    def start(self) -> torch.Tensor:
        """Parameters to start from, (P,): uniform within 1/√(number of inputs), as torch.nn.Linear's."""
        generator = torch.Generator().manual_seed(self.seed)
        (hidden, sent), *_ = self.shapes
        parts = []
        for size, senders in zip(self.sizes, (sent, sent, hidden, hidden), strict=True):
            part = torch.rand(size, generator=generator, dtype=self.images.dtype)
            parts.append((2 * part - 1) / senders**0.5)
        return torch.cat(parts)

    def logits(self, params: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """params (P,), images (B, I) → (B, n_classes)."""
        w1, b1, w2, b2 = (p.view(s) for p, s in zip(params.split(self.sizes), self.shapes, strict=True))
        return functional.linear(functional.linear(images, w1, b1).relu(), w2, b2)

    def rows(self, task: int) -> np.ndarray:
        """The images of a task, (batch,)."""
        return np.random.default_rng((self.seed, task)).integers(len(self.labels), size=self.batch)

    def __call__(self, params, task):
        rows = self.rows(task)
        params = params.detach().requires_grad_()
        loss = functional.cross_entropy(self.logits(params, self.images[rows]), self.labels[rows])
        return torch.autograd.grad(loss, params)[0], loss.item()

    def accuracy(self, params: torch.Tensor, images: Array, labels: Array) -> float:
        """The share of images (M, I) whose largest logit is that of their label (M,)."""
        with torch.no_grad():
            answers = self.logits(params, torch.as_tensor(images)).argmax(1)  # (M,)
        return int((answers == torch.as_tensor(labels)).sum()) / len(answers)
