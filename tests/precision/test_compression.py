"""Smaller networks against masked ones, torch's pruning as the benchmark uses it, and a student's
loss.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune as theirs

from benchmarks.shared.smaller import cubic, prune_to, taught, weights_of
from ed_lib import models
from ed_lib.precision.compression import KEEP_ZEROS, keep_filters
from ed_lib.precision.quantization import quantize_model, stored_bytes

# Zeros


def test_pruning_again_takes_more_and_never_gives_back(random):
    x, y = torch.rand(16, 1, 28, 28, generator=random), torch.arange(16) % 10
    model = models.lenet(1)
    optimizer, gone = (
        torch.optim.Adam(model.parameters(), 1e-2),
        torch.zeros(128_860, dtype=torch.bool),
    )
    for step in range(1, 6):
        prune_to(model, cubic(step, 5, 0.95))
        last, gone = (
            gone,
            torch.cat([layer.weight.flatten() == 0 for layer, _ in weights_of(model)]),
        )
        assert int(gone.sum()) == round(cubic(step, 5, 0.95) * 128_860) and gone[last].all()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.oracle
def test_zhu_and_guptas_schedule():
    # Their equation: s_t = s_f + (s_i - s_f)(1 - (t - t_0) / (n Δt))³
    found = [cubic(step, 4, 0.9) for step in range(7)]
    wanted = [0, 0.9 - 0.9 * 27 / 64, 0.9 - 0.9 / 8, 0.9 - 0.9 / 64, 0.9, 0.9, 0.9]
    assert found == pytest.approx(wanted)


@pytest.mark.oracle
def test_the_bytes_of_a_pruned_model():
    model, total = models.lenet(1), 4 * 208
    theirs.global_unstructured(weights_of(model), theirs.L1Unstructured, amount=0.9)
    for layer, name in weights_of(model):
        theirs.remove(layer, name)
        rows, n, there = len(layer.weight), layer.weight.numel(), int((layer.weight != 0).sum())
        total += min(4 * n, -(-n // 8) + 4 * there, 4 * (rows + 1) + 6 * there)
    assert stored_bytes(model) == total
    for few, exact in zip(quantize_model(model, 4), model, strict=True):
        assert not hasattr(few, "codes") or not few.codes()[exact.weight == 0].any(), (
            "zeros stay zeros"
        )


# Filters taken out


def strongest(weight, amount):
    """The rows of a weight (n, …) that stay: all but so many of least norm."""
    return (
        weight.flatten(1)
        .norm(dim=1)
        .topk(len(weight) - round(amount * len(weight)))
        .indices.sort()
        .values
    )


def masked_filters(model, keep):
    """A copy with zeros for the filters that ``keep`` does not name: what keep_filters computes."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, indices in keep.items():
            layer = model.get_submodule(name)
            gone = torch.ones(len(layer.weight), dtype=torch.bool)
            gone[indices] = False
            layer.weight[gone] = 0
            if layer.bias is not None:
                layer.bias[gone] = 0
    return model


@pytest.mark.oracle
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_a_smaller_network_computes_what_the_masked_one_does(dtype, tolerance, random):
    model = models.lenet(2).to(dtype)
    x = torch.rand(5, 1, 28, 28, generator=random, dtype=dtype)
    for amounts in (
        {"0": 0.5, "3": 0.5, "7": 0.5},
        {"3": 0.9},
        {"0": 0.95, "7": 0.99},
        {"7": 0.1},
        {},
    ):
        keep = {
            name: strongest(model.get_submodule(name).weight, amount)
            for name, amount in amounts.items()
        }
        small, masked = keep_filters(model, keep), masked_filters(model, keep)
        torch.testing.assert_close(small(x), masked(x), rtol=0, atol=tolerance)
        assert not keep or (masked(x) - model(x)).abs().max() > 100 * tolerance
        sizes = [
            len(keep.get(name, range(width))) for name, width in (("0", 20), ("3", 50), ("7", 128))
        ]
        a, b, c = sizes
        wanted = (9 + 1) * a + (25 * a + 1) * b + (16 * b + 1) * c + (c + 1) * 10
        assert sum(p.numel() for p in small.parameters()) == wanted
        assert (small[0].out_channels, small[3].in_channels, small[7].in_features) == (a, a, 16 * b)
        F.cross_entropy(small(x), torch.arange(5)).backward()  # it trains like any other
        assert all(p.grad is not None for p in small.parameters())
    assert sum(p.numel() for p in model.parameters()) == 129_068


@pytest.mark.oracle
def test_filters_in_any_order_and_without_biases(random):
    conv = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False)
    model = nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(96, 5), nn.Linear(5, 2)).double()
    x = torch.rand(4, 3, 8, 8, generator=random).double()
    keep = {"0": [4, 1, 2], "3": torch.tensor([3])}
    small = keep_filters(model, keep)
    assert small[0].bias is None and small[0].stride == (2, 2)
    torch.testing.assert_close(small(x), masked_filters(model, keep)(x), rtol=0, atol=1e-12)


BETWEEN = {
    nn.MaxPool2d: (2,),
    nn.AvgPool2d: (3, 1, 1),
    nn.AdaptiveMaxPool2d: (4,),
    nn.AdaptiveAvgPool2d: (4,),
}


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KEEP_ZEROS, ids=lambda kind: kind.__name__)
def test_what_may_stand_between_two_layers_keeps_zeros(kind, random):
    """Between convolutions, in front of nn.Flatten, and between Linear layers."""
    between = kind(*BETWEEN.get(kind, ()))
    flat = between if kind not in BETWEEN else nn.ReLU()
    size = {nn.MaxPool2d: 4, nn.AdaptiveMaxPool2d: 4, nn.AdaptiveAvgPool2d: 4}.get(kind, 8)
    last = 4 // 2 if kind is nn.MaxPool2d else size
    layers = [nn.Conv2d(1, 4, 1), between, nn.Conv2d(4, 3, 1), between, nn.Flatten()]
    layers += [nn.Linear(3 * last**2, 5), flat, nn.Linear(5, 2)]
    model = nn.Sequential(*layers).double().eval()
    x = torch.randn(6, 1, 8, 8, generator=random, dtype=torch.float64)
    keep = {"0": [2, 0], "2": [1], "5": [4, 0, 1]}
    masked = masked_filters(model, keep)(x)
    torch.testing.assert_close(keep_filters(model, keep)(x), masked, rtol=0, atol=1e-12)


# A student


@pytest.mark.oracle
@pytest.mark.parametrize("temperature", [0.1, 1, 2.5, 20.0])
@pytest.mark.parametrize("alpha", [0, 0.3, 1])
def test_the_students_loss_and_its_gradient_are_those_of_the_definition(alpha, temperature, random):
    student, teacher = (
        5 * torch.randn(7, 10, generator=random, dtype=torch.float64) for _ in range(2)
    )
    labels, mine, other = torch.arange(7), *(student.clone().requires_grad_() for _ in range(2))
    p, q = ((z / temperature).softmax(1) for z in (teacher, other))
    wanted = alpha * temperature**2 * (p * (p / q).log()).sum(1).mean()
    wanted = wanted - (1 - alpha) * other.softmax(1)[torch.arange(7), labels].log().mean()
    found = taught(mine, torch.cat([teacher, labels[:, None]], dim=1), alpha, temperature)
    found.backward()
    wanted.backward()
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(mine.grad, other.grad, rtol=1e-8, atol=1e-9)


@pytest.mark.oracle
def test_a_hot_softmax_matches_scores(random):
    """Hinton et al., 2015, section 2.1: for high temperatures and scores of mean zero, the gradient
    of T² KL is (student − teacher) / classes.
    """
    draws = (5 * torch.randn(6, 10, generator=random, dtype=torch.float64) for _ in range(2))
    student, teacher = (z - z.mean(1, keepdim=True) for z in draws)
    targets, off = torch.cat([teacher, torch.zeros(6, 1)], dim=1), []
    for temperature in (1e1, 1e2, 1e3, 1e4):
        mine = student.clone().requires_grad_()
        taught(mine, targets, 1, temperature).backward()
        off.append(float((6 * mine.grad - (student - teacher) / 10).abs().max()))
    assert off[-1] < 3e-3 and all(
        after < before / 5 for before, after in zip(off[:-1], off[1:], strict=True)
    )


def test_what_is_frozen_stays_frozen():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).requires_grad_(False)
    model[2].bias.requires_grad_(True)
    small = keep_filters(model, {"0": [0, 2]})
    assert [p.requires_grad for p in small.parameters()] == [False, False, False, True]
