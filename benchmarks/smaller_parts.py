"""What only the benchmark of smaller models needs: gradual pruning, matrices that skip zeros, and a
student's loss as a training loop wants it.
"""

import warnings
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from ed_lib.precision.distillation import divergence
from ed_lib.precision.pruning import permanent, prune
from ed_lib.precision.quantization import replaced
from ed_lib.training import CHUNK


def cubic(step: int, steps: int, end: float, start: float = 0.0) -> float:
    """The share that is pruned at ``step`` of ``steps``, from ``start`` to ``end``, fast at first:
    end + (start − end)(1 − step / steps)³ (Zhu and Gupta, 2017, equation 1). After the last step, end.
    """
    return end + (start - end) * (1 - min(step, steps) / steps) ** 3


def gradually(model: nn.Module, amount: float, steps: int) -> Iterator[int]:
    """Prunes a model globally in ``steps`` steps along :func:`cubic`, and yields the number of each, from 1,
    for some training after it: ``for step in gradually(model, 0.9, 10): train(…)``.
    """
    for step in range(1, steps + 1):
        prune(model, cubic(step, steps, amount))
        yield step


class SparseLinear(nn.Module):
    """A Linear layer with its weight in compressed rows (CSR): (B, n_in) → (B, n_out). It skips zeros."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that CSR tensors are "in beta state"
            self.weight, self.bias = layer.weight.detach().to_sparse_csr(), layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (self.weight @ x.T).T  # (n_out, n_in) @ (n_in, B) → (n_out, B) → (B, n_out)
        return y if self.bias is None else y + self.bias


def sparse_linears(model: nn.Module) -> nn.Module:
    """A copy of a pruned model that skips the zeros of its Linear layers. Convolutions stay dense: PyTorch
    has no sparse ones.
    """
    model = permanent(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            model = replaced(model, name, SparseLinear(module))
    return model


def targets(teacher: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What :class:`Loss` learns from: the teacher's scores of each image, and in the last column its label.

    images (N, …), labels (N,) int64 → (N, classes + 1) float32. The teacher is asked once, before training.
    """
    training = teacher.training
    teacher.eval()
    with torch.no_grad():
        scores = torch.cat([teacher(x) for x in images.split(CHUNK)])  # (N, classes)
    teacher.train(training)
    return torch.cat([scores.float(), labels[:, None].float()], dim=1)


class Loss:
    """α T² KL(softmax(teacher / T) ‖ softmax(student / T)) + (1 − α) · cross-entropy with the labels: (scores
    (B, classes), rows of :func:`targets`) → (). T² is there since the first part's gradient shrinks as 1/T².
    """

    def __init__(self, temperature: float, alpha: float):
        self.temperature, self.alpha = temperature, alpha

    def __call__(self, scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        taught = divergence(scores, targets[:, :-1], self.temperature)
        labels = F.cross_entropy(scores, targets[:, -1].long())
        return self.alpha * self.temperature**2 * taught + (1 - self.alpha) * labels
