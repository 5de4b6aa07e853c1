"""Distillation: a small network, the student, learns from the scores of a large one, the teacher.

After Hinton, Vinyals and Dean (2015). A *temperature* T divides the scores before the softmax; above 1 it
evens the probabilities out, so that those of the wrong classes count.
"""

import torch
import torch.nn.functional as F

from ed_lib import check
from ed_lib.learning import CHUNK


def loss(student, teacher, labels, temperature=4.0, alpha=0.9):
    """α T² KL(softmax(teacher / T) ‖ softmax(student / T)) + (1 − α) · cross-entropy with the labels.

    student, teacher: scores (B, classes), real; labels (B,) int64. → the mean over the samples. The factor T²
    is there since the gradient of the first part shrinks as 1/T². None flows into the teacher.
    TypeError or ValueError for a temperature that is no finite number above 0, for alpha outside 0 to 1, and
    for shapes that differ, or are empty.
    """
    _check(temperature, alpha)
    if student.dim() != 2 or student.shape != teacher.shape or not student.numel():
        shapes = tuple(student.shape), tuple(teacher.shape)
        raise ValueError(
            f"student and teacher have the shapes {shapes[0]} and {shapes[1]}; wanted (B, classes)"
        )
    if labels.shape != student.shape[:1]:
        raise ValueError(f"labels has the shape {tuple(labels.shape)}; wanted ({len(student)},)")
    return alpha * temperature**2 * divergence(student, teacher, temperature) + (
        (1 - alpha) * F.cross_entropy(student, labels)
    )


def divergence(student, teacher, temperature):
    """KL(p ‖ q) = Σ p (log p − log q), the mean; p, q are the softmax of teacher / T, student / T.
    A class with p = 0, of the score −∞, adds 0.
    """
    log_p = torch.log_softmax(teacher.detach() / temperature, dim=1)  # (B, classes)
    log_q = torch.log_softmax(student / temperature, dim=1)
    p = log_p.exp()
    return (p * (log_p - log_q).masked_fill(p == 0, 0)).sum(dim=1).mean()  # (B, classes) → (B,) → ()


def targets(teacher, images, labels):
    """What :class:`Loss` learns from: the teacher's scores of each image, and in the last column its label.

    images (N, …), labels (N,) int64 → (N, classes + 1) float32. The teacher is asked once, before training.
    """
    if not len(images) or len(images) != len(labels):
        raise ValueError(f"there are {len(images)} images and {len(labels)} labels; wanted a label for each")
    training = teacher.training
    teacher.eval()
    with torch.no_grad():
        scores = torch.cat([teacher(x) for x in images.split(CHUNK)])  # (N, classes)
    teacher.train(training)
    return torch.cat([scores.float(), labels[:, None].float()], dim=1)


class Loss:
    """:func:`loss` as a training loop wants it: (scores (B, classes), rows of :func:`targets`) → ()."""

    def __init__(self, temperature=4.0, alpha=0.9):
        _check(temperature, alpha)
        self.temperature, self.alpha = temperature, alpha

    def __call__(self, scores, targets):
        return loss(scores, targets[:, :-1], targets[:, -1].long(), self.temperature, self.alpha)


def _check(temperature, alpha):
    check.positive("temperature", temperature)
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)):
        raise TypeError(f"alpha is {alpha!r}; wanted a number")
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha}; wanted 0 to 1")
