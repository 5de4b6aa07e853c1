"""Distillation: a small network, the student, learns from the scores of a large one, the teacher.

After Hinton, Vinyals and Dean (2015). A *temperature* T divides the scores before the softmax; above 1 it
evens the probabilities out, so that those of the wrong classes count.
"""

import torch


def divergence(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """KL(p ‖ q) = Σ p (log p − log q), the mean; p, q are the softmax of teacher / T, student / T.
    A class with p = 0, of the score −∞, adds 0.
    """
    log_p = torch.log_softmax(teacher.detach() / temperature, dim=1)  # (B, classes)
    log_q = torch.log_softmax(student / temperature, dim=1)
    p = log_p.exp()
    return (p * (log_p - log_q).masked_fill(p == 0, 0)).sum(dim=1).mean()  # (B, classes) → (B,) → ()
