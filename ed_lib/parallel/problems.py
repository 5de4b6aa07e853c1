"""What workers compute: a gradient of a small network, as a function of one flat tensor of parameters."""

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ed_lib import models


class Perceptron:
    """A network's mean cross-entropy over a batch, and its gradient: called as problem(params, task) → the
    gradient (P,) and the loss. Task t is a batch drawn, with replacement, by a generator of (seed, t).

    images: (N, I) floats; labels: (N,), from 0 to 9.
    """

    def __init__(self, images, labels, batch=32, seed=0, hidden=32):
        self.images, self.labels = torch.as_tensor(images), torch.as_tensor(labels).long()
        self.net = models.mlp((self.images.shape[1], hidden, 10), seed).to(self.images.dtype)
        self.batch, self.seed, self.first = batch, seed, parameters_to_vector(self.net.parameters()).detach()

    def start(self) -> torch.Tensor:
        """Parameters to start from, (P,)."""
        return self.first.clone()

    def at(self, params: torch.Tensor) -> torch.nn.Module:
        """The network with these parameters."""
        vector_to_parameters(params, self.net.parameters())
        return self.net

    def rows(self, task: int) -> np.ndarray:
        """The images of a task, (batch,)."""
        return np.random.default_rng((self.seed, task)).integers(len(self.labels), size=self.batch)

    def __call__(self, params, task):
        rows = self.rows(task)
        loss = F.cross_entropy(self.at(params)(self.images[rows]), self.labels[rows])
        return parameters_to_vector(torch.autograd.grad(loss, self.net.parameters())), loss.item()
