"""ED and backpropagation on equal terms, with the same optimizers; training on images."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from ed_lib import check, data, training
from ed_lib.ed import rivals
from ed_lib.ed.network import LAYERS, check_target
from ed_lib.ed.space import to_numpy

METHODS = ("ed", *rivals.LOSSES)
Images = tuple[np.ndarray, np.ndarray]  # inputs (N, n_inputs), labels (N,)


class Learner:
    """Trains an EDNetwork of the backend "torch", or a network like it, one batch at a time, by
    ``step``.

    method: "ed", the direction of the network's rule; "squared" or "cross_entropy", the negative
    gradient of that loss by backpropagation, see :class:`ed_lib.ed.rivals.Backprop`. optimizer:
    "sgd" (with "ed" and α = ``rate`` this is ``net.step``) or "adam", both PyTorch's. rate: the
    step. steps: after so many steps the rate has fallen to zero, along half a cosine; None: it is
    constant. layers: which of LAYERS learn.
    """

    def __init__(
        self,
        net: Any,
        method: str = "ed",
        optimizer: str = "sgd",
        rate: float = 0.1,
        *,
        steps: int | None = None,
        layers: Sequence[str] = LAYERS,
    ):
        check.choice("method", method, METHODS)
        if net.space.backend != "torch":
            raise ValueError(f"net is of the backend {net.space.backend!r}; wanted 'torch'")
        for name in layers:
            check.choice("layers", name, LAYERS)
        self.net = net
        self.backprop = None if method == "ed" else rivals.Backprop(net, loss=method)
        learning = [p for name, p in net.parameters.items() if layer_of(name) in layers]
        # Maximized, since a direction is where to go, and a gradient where not to.
        self.optimizer = rivals.optimizer(learning, optimizer, rate, steps, maximize=True)

    def step(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """x (B, n_inputs), target (B, K) in [0, 1] → the outputs before the step, (B, K)."""
        output = self.net.forward(x)
        error = check_target(self.net, target, len(x)) - output  # (B, K)
        directions = self.no_directions()
        # Directions at the rate 1; the optimizer has the rate.
        if self.backprop:
            self.backprop.chain(error)
            self.backprop.learn(directions, 1.0)
        else:
            self.net.add_direction(directions, error, 1.0)
        self.optimizer.step()
        return output

    def no_directions(self) -> dict[str, torch.Tensor]:
        """The ``grad`` of each parameter, which the optimizer reads, set to zero."""
        directions = {}
        for name, parameter in self.net.parameters.items():
            # Looked up in each step: another learner of this network uses the same arrays, and a
            # copy of this one, or ``zero_grad``, may have left none.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            directions[name] = parameter.grad.zero_()
        return directions


def layer_of(name: str) -> str:
    """Of LAYERS, the one that a parameter belongs to."""
    return name.partition(".")[0]


# A step's products are too small to share: a second BLAS thread makes each slower on a busy
# machine.
one_thread = threadpool_limits.wrap(limits=1, user_api="blas")


def accuracy(net: Any, inputs: np.ndarray, labels: np.ndarray, batch: int = 2000) -> float:
    """The share of rows of inputs (N, n_inputs) whose predicted class is the label (N,): whether
    the output is above ½, or which of several is the largest.
    """
    check.count("len(inputs)", len(inputs))
    check.count("batch", batch)
    # A column of labels, or a single one, would be compared with all predictions, by broadcasting.
    check.shape("labels", tuple(np.shape(labels)), (len(inputs),))
    parts = []
    for start in range(0, len(inputs), batch):
        some = net.asarray(inputs[start : start + batch])
        parts.append(to_numpy(net.forward(some)))
    out = np.concatenate(parts)  # (N, K)
    predicted = out[:, 0] > 0.5 if out.shape[1] == 1 else out.argmax(axis=1)  # (N,)
    return float(np.mean(predicted == np.asarray(labels)))


@one_thread
def fit(
    learner: Any,
    train_set: Images,
    test_set: Images,
    *,
    epochs: int = 1,
    batch: int = 64,
    every: int = 50,
    seed: int = 0,
) -> training.History:
    """Trains a network in batches and looks at the test set on the way → ``training.History``.

    learner: an EDNetwork, or a :class:`Learner` of one. Each set is (inputs (N, n_inputs), labels
    (N,)). One output learns the label itself (0 or 1), K outputs one class each. The loss is ½ Σ_k
    (t − o)², a mean over the batch. Learners with one ``seed`` see the same batches in the same
    order.
    """
    net = getattr(learner, "net", learner)
    for name, images in {"train_set": train_set, "test_set": test_set}.items():
        check.shape(f"{name}'s inputs", np.shape(images[0]), ("N", net.n_inputs))
        check.shape(f"{name}'s labels", np.shape(images[1]), (len(images[0]),))
    inputs, labels = train_set
    if net.n_outputs == 1:
        targets = labels[:, None]  # (N, 1)
    else:
        targets = data.one_hot(labels, net.n_outputs)  # (N, K)

    def step(rows: np.ndarray) -> float:
        target = net.asarray(targets[rows])  # (B, K)
        error = target - learner.step(net.asarray(inputs[rows]), target)
        return (error**2).sum() / (2 * len(rows))

    look = partial(accuracy, net, *test_set)
    order = {"epochs": epochs, "batch": batch, "every": every, "seed": seed}
    return training.loop(step, len(inputs), look, **order)
