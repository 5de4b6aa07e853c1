"""Training loops: logic tasks until they are solved, and images in batches, by ED or by backpropagation."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ed_lib import arrays, check, data, learning

Images = tuple[np.ndarray, np.ndarray]  # inputs (N, n_inputs), labels (N,)


def parity(bits: int) -> tuple[np.ndarray, np.ndarray]:
    """All inputs of the parity task: x (2**bits, bits) and target (2**bits, 1), float64; two bits make XOR.

    Rows in Kaneko's order, the first input changing fastest; the target is 1 where the number of ones is odd.
    """
    x = (np.arange(2**bits)[:, None] >> np.arange(bits)) & 1  # (2**bits, bits)
    return x.astype(float), (x.sum(axis=1, keepdims=True) % 2).astype(float)


# A step's matrix products are too small to share: a second BLAS thread gains nothing on an idle machine, and
# makes each step several times slower on a busy one.
one_thread = threadpool_limits.wrap(limits=1, user_api="blas")


@one_thread
def epochs_to_solve(
    net: Any, x: np.ndarray, target: np.ndarray, *, tolerance: float = 0.1, max_epochs: int = 10_000
) -> np.ndarray:
    """How many epochs each of the K networks needs: (K,) float, NaN where ``max_epochs`` did not do.

    x (N, n_inputs), target (N, 1), the same for all K, one pattern at a time. Kaneko's rule for stopping:
    solved in the first epoch whose errors, each taken before its update, have magnitudes that sum to less
    than ``tolerance``.
    """
    check.shape("x", np.shape(x), ("N", net.n_inputs))
    check.shape("target", np.shape(target), (len(x), 1))
    target = np.repeat(target, net.n_outputs, axis=1)  # (N, 1) → (N, K)
    patterns = [(net.asarray(x[i : i + 1]), net.asarray(target[i : i + 1])) for i in range(len(x))]
    epochs = np.full(net.n_outputs, np.nan)
    for epoch in range(1, check.count("max_epochs", max_epochs) + 1):
        missed = sum(np.abs(arrays.to_numpy(t - net.step(a, t)))[0] for a, t in patterns)  # (K,)
        epochs[np.isnan(epochs) & (missed < tolerance)] = epoch
        if not np.isnan(epochs).any():
            break
    return epochs


def predict(net: Any, inputs: np.ndarray, batch: int = 2000) -> np.ndarray:
    """The class of each row, (N, n_inputs) → (N,) int: output > ½ for one output, the largest for more."""
    parts = []
    for start in range(0, len(inputs), batch):
        out = arrays.to_numpy(net.forward(net.asarray(inputs[start : start + batch])))  # (batch, K)
        parts.append(out[:, 0] > 0.5 if out.shape[1] == 1 else out.argmax(axis=1))
    return np.concatenate(parts).astype(int)


def accuracy(net: Any, inputs: np.ndarray, labels: np.ndarray) -> float:
    """The share of rows of inputs (N, n_inputs) whose predicted class is the label (N,)."""
    return float((predict(net, inputs) == labels).mean())


@one_thread
def train(
    learner: Any, train_set: Images, test_set: Images, *,
    epochs: int = 1, batch: int = 64, every: int = 50, seed: int = 0,
) -> learning.History:  # fmt: skip
    """Trains a network in batches and looks at the test set on the way → ``learning.History``.

    learner: an EDNetwork, or a :class:`~ed_lib.ed.learner.Learner` of one. Each set is (inputs (N, n_inputs),
    labels (N,)). One output learns the label itself (0 or 1), K outputs learn one class each. The loss is
    ½ Σ_k (t − o)², a mean over the batch. Learners with one ``seed`` see the same batches in the same order.
    """
    net = getattr(learner, "net", learner)
    for name, images in {"train_set": train_set, "test_set": test_set}.items():
        check_images(name, net, images)
    inputs, labels = train_set
    targets = labels[:, None] if net.n_outputs == 1 else data.one_hot(labels, net.n_outputs)  # (N, K)

    def step(rows: np.ndarray) -> float:
        target = net.asarray(targets[rows])  # (B, K)
        error = target - learner.step(net.asarray(inputs[rows]), target)
        return (error**2).sum() / (2 * len(rows))

    look = lambda: accuracy(net, *test_set)  # noqa: E731
    return learning.train(step, len(inputs), look, epochs=epochs, batch=batch, every=every, seed=seed)


def search_rate(
    make: Callable[[float], Any], rates: Iterable[float], train_set: Images, *,
    held_out: float = 1 / 6, **options: int,
) -> dict[float, float]:  # fmt: skip
    """The accuracy that each of these rates reaches on images held out from training: {rate: accuracy}.

    ``make(rate)`` returns a new learner. The last share ``held_out`` of the training set judges the others,
    so that the test set has no part in the choice. ``options`` are those of ``train``.
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out is {held_out}; wanted a share between 0 and 1")
    inputs, labels = train_set
    kept = round(len(inputs) * (1 - held_out))
    learn, judge = (inputs[:kept], labels[:kept]), (inputs[kept:], labels[kept:])
    options = {"every": 10**9} | options  # one look at the end is enough
    return {rate: train(make(rate), learn, judge, **options).accuracy[-1] for rate in rates}


def check_images(name: str, net: Any, images: Images) -> None:
    """ValueError unless these are images for this network, each with a class that it can tell."""
    inputs, labels = images
    check.shape(f"{name}'s inputs", np.shape(inputs), ("N", net.n_inputs))
    check.shape(f"{name}'s labels", np.shape(labels), (len(inputs),))
    if np.min(labels) < 0 or np.max(labels) >= max(net.n_outputs, 2):
        wanted = f"0 to {max(net.n_outputs, 2) - 1}"
        raise ValueError(f"{name}'s labels run from {np.min(labels)} to {np.max(labels)}; wanted {wanted}")
