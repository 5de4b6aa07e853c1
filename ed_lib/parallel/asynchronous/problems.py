"""What the workers compute: gradients of a batch, as a function of one flat tensor of parameters.

Both can be called as gradient(params, task) → the gradient, (P,), and the loss, and can be sent to a process.
The batch depends on the task's number alone, not on the worker that gets it.
"""

import math

import numpy as np
import torch
from torch.nn import functional

from ed_lib import check


class Quadratic:
    """The loss ½ Σ λ w² of parameters w (P,), with curvatures λ (P,): its gradient is λ w, for every task."""

    def __init__(self, curvatures):
        self.curvatures = torch.as_tensor(curvatures)
        check.shape("curvatures", tuple(self.curvatures.shape), ("P",))

    def __call__(self, params, task):
        gradient = self.curvatures * params
        return gradient, float(gradient @ params) / 2


class Perceptron:
    """A network with one hidden layer on images: their mean cross-entropy over a batch, and its gradient.

    images: (N, I) floats; labels: (N,), from 0 to n_classes − 1. Task t is a batch drawn, with replacement,
    by a generator that starts from (seed, t).
    """

    def __init__(self, images, labels, hidden=32, batch=32, n_classes=10, seed=0):
        self.images = torch.as_tensor(images)  # (N, I)
        self.labels = torch.as_tensor(labels).long()  # (N,)
        check.shape("images", tuple(self.images.shape), (len(self.labels), "I"))
        sizes = [check.count(n, v) for n, v in {"hidden": hidden, "n_classes": n_classes}.items()]
        self.batch, self.seed = check.count("batch", batch), check.count("seed", seed, least=0)
        sent = self.images.shape[1]
        self.shapes = ((sizes[0], sent), (sizes[0],), (sizes[1], sizes[0]), (sizes[1],))

    def start(self):
        """Parameters to start from, (P,): uniform within 1/√(number of inputs), as torch.nn.Linear's."""
        generator = torch.Generator().manual_seed(self.seed)
        parts = []
        for shape, senders in zip(
            self.shapes, (self.shapes[0][1],) * 2 + (self.shapes[2][1],) * 2, strict=True
        ):
            part = torch.rand(math.prod(shape), generator=generator, dtype=self.images.dtype)
            parts.append((2 * part - 1) / senders**0.5)
        return torch.cat(parts)

    def logits(self, params, images):
        """params (P,), images (B, I) → (B, n_classes)."""
        sizes = [math.prod(shape) for shape in self.shapes]
        w1, b1, w2, b2 = (p.view(s) for p, s in zip(params.split(sizes), self.shapes, strict=True))
        return functional.linear(functional.linear(images, w1, b1).relu(), w2, b2)

    def rows(self, task):
        """The images of a task, (batch,)."""
        return np.random.default_rng((self.seed, task)).integers(len(self.labels), size=self.batch)

    def __call__(self, params, task):
        rows = self.rows(task)
        params = params.detach().requires_grad_()
        loss = functional.cross_entropy(self.logits(params, self.images[rows]), self.labels[rows])
        return torch.autograd.grad(loss, params)[0], loss.item()

    def accuracy(self, params, images, labels):
        """The share of images (M, I) whose largest logit is that of their label (M,)."""
        with torch.no_grad():
            answers = self.logits(params, torch.as_tensor(images)).argmax(1)  # (M,)
        return int((answers == torch.as_tensor(labels)).sum()) / len(answers)
