"""The loss against F.kl_div and F.cross_entropy, in float64, with gradients; and a student that copies."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks.precision_accuracy import taught
from ed_lib.precision.compression import divergence


@pytest.fixture
def random():
    return torch.Generator().manual_seed(0)


def scores(random, *shape):
    return 5 * torch.randn(shape, generator=random, dtype=torch.float64)


def loss(student, teacher, labels, temperature, alpha):
    """The benchmark's."""
    return taught(student, torch.cat([teacher, labels[:, None]], dim=1), alpha, temperature)


@pytest.mark.oracle
@pytest.mark.parametrize("temperature", [0.1, 1, 2.5, 20.0])
@pytest.mark.parametrize("alpha", [0, 0.3, 1])
@pytest.mark.parametrize("shape", [(1, 2), (7, 10), (33, 3)])
def test_loss_and_gradient_are_torchs(shape, alpha, temperature, random):
    student, teacher = scores(random, *shape), scores(random, *shape).requires_grad_()
    labels = torch.randint(shape[1], shape[:1], generator=random)
    mine, other = (student.clone().requires_grad_() for _ in range(2))
    log_p, log_q = (F.log_softmax(z / temperature, dim=1) for z in (teacher.detach(), other))
    soft = F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
    wanted = alpha * temperature**2 * soft + (1 - alpha) * F.cross_entropy(other, labels)
    found = loss(mine, teacher, labels, temperature, alpha)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    found.backward()
    wanted.backward()
    torch.testing.assert_close(mine.grad, other.grad, rtol=1e-10, atol=1e-12)
    assert teacher.grad is None or not teacher.grad.any(), "nothing flows into the teacher"
    assert abs(float(divergence(student, student, temperature))) < 1e-12


def test_scores_that_saturate_stay_finite():
    student = torch.tensor([[1000.0, -1000.0, 0.0]], requires_grad=True)
    found = divergence(student, torch.tensor([[-1000.0, 1000.0, 0.0]]), 1.0)
    found.backward()
    assert torch.isfinite(found) and torch.isfinite(student.grad).all()


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_score_of_minus_infinity_is_a_class_that_is_left_out(dtype, random):
    student, teacher = (scores(random, 6, 5).to(dtype) for _ in range(2))
    out = torch.rand(6, 5, generator=random) < 0.4
    out[:, 0] = False
    # The teacher's alone: as in F.kl_div, whose target is probabilities.
    masked = teacher.masked_fill(out, -torch.inf)
    mine, other = (student.clone().requires_grad_() for _ in range(2))
    found = divergence(mine, masked, 2.0)
    wanted = F.kl_div(F.log_softmax(other / 2, dim=1), F.softmax(masked / 2, dim=1), reduction="batchmean")
    found.backward()
    wanted.backward()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(mine.grad, other.grad)
    assert torch.isfinite(mine.grad).all()
    # The student's too: as without these classes.
    mine, other = student.clone().requires_grad_(), student[:, :3].clone().requires_grad_()
    hidden = torch.tensor([0.0, 0.0, 0.0, -torch.inf, -torch.inf])
    found, wanted = divergence(mine + hidden, teacher + hidden, 4.0), divergence(other, teacher[:, :3], 4.0)
    found.backward()
    wanted.backward()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(mine.grad, F.pad(other.grad, (0, 2)))


@pytest.mark.oracle
def test_a_hot_softmax_matches_scores(random):
    """Hinton et al., 2015, section 2.1: for high temperatures and scores of mean zero, the gradient of T² KL
    is (student − teacher) / classes."""
    student, teacher = (z - z.mean(1, keepdim=True) for z in (scores(random, 6, 10), scores(random, 6, 10)))
    off = []
    for temperature in (1e1, 1e2, 1e3, 1e4):
        mine = student.clone().requires_grad_()
        (temperature**2 * divergence(mine, teacher, temperature)).backward()
        off.append(float((6 * mine.grad - (student - teacher) / 10).abs().max()))
    assert off[-1] < 3e-3 and all(after < before / 5 for before, after in zip(off[:-1], off[1:], strict=True))
