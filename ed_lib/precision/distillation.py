"""Distillation: a small network, the student, learns from the scores of a large one, the teacher.

After Hinton, Vinyals and Dean (2015). A *temperature* T divides the scores before the softmax; above 1 it
evens the probabilities out, so that those of the wrong classes count.
"""

import torch
import torch.nn.functional as F
from torch import nn

from ed_lib import check
from ed_lib.learning import CHUNK


def loss(
    student: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor, temperature: float = 4.0,
    alpha: float = 0.9,
) -> torch.Tensor:  # fmt: skip
    """α T² KL(softmax(teacher / T) ‖ softmax(student / T)) + (1 − α) · cross-entropy with the labels.

    student, teacher: scores (B, classes), real; labels (B,) int64. → the mean over the samples. The factor T²
    is there since the gradient of the first part shrinks as 1/T². None flows into the teacher. A part of the
    weight 0 is left out: where a score is −∞ it may be infinite, and 0 · ∞ is NaN.
    """
    total = torch.zeros((), dtype=student.dtype, device=student.device)
    if alpha > 0:
        total = total + alpha * temperature**2 * divergence(student, teacher, temperature)
    if alpha < 1:
        total = total + (1 - alpha) * F.cross_entropy(student, labels)
    return total


def divergence(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """KL(p ‖ q) = Σ p (log p − log q), the mean; p, q are the softmax of teacher / T, student / T.
    A class with p = 0, of the score −∞, adds 0.
    """
    log_p = torch.log_softmax(teacher.detach() / temperature, dim=1)  # (B, classes)
    log_q = torch.log_softmax(student / temperature, dim=1)
    p = log_p.exp()
    return (p * (log_p - log_q).masked_fill(p == 0, 0)).sum(dim=1).mean()  # (B, classes) → (B,) → ()


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
    """:func:`loss` as a training loop wants it: (scores (B, classes), rows of :func:`targets`) → ()."""

    def __init__(self, temperature: float = 4.0, alpha: float = 0.9):
        check.positive("temperature", temperature)
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha is {alpha}; wanted 0 to 1")
        self.temperature, self.alpha = temperature, alpha

    def __call__(self, scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss(scores, targets[:, :-1], targets[:, -1].long(), self.temperature, self.alpha)
