"""The network of vectors against autograd: the gradient by a cell is the error times a number ≥ 0."""

import pytest
import torch
from torch.nn import functional as F

from ed_lib.ed.relatives import VectorPerceptron

WIDTHS = (6, 7, 5, 3)


def network(rule="backprop", **options):
    return VectorPerceptron(WIDTHS, rule, dtype=torch.float64, **options)


def batch(n=4):
    torch.manual_seed(1)
    x = torch.randn(n, WIDTHS[0], dtype=torch.float64)
    return x, F.one_hot(torch.arange(n) % WIDTHS[-1], WIDTHS[-1]).double()


def by_autograd(net, x, target):
    """−∂loss/∂ of each layer's weights, biases and sums (of the mean cross-entropy), by a loop over cells."""
    leaves = [[p.clone().requires_grad_() for p in each] for each in (net.weights, net.biases)]
    y, sums = x, []
    for n, (weight, bias) in enumerate(zip(*leaves, strict=True)):
        a = torch.einsum("bi,iok->bok", y, weight) if n == 0 else torch.einsum("bik,io->bok", y, weight)
        sums.append(a + bias)
        if n < len(net.sides):
            side = torch.einsum("bok,ok->bo", sums[-1], net.sides[n])
            y = torch.where(side[:, :, None] > 0, sums[-1], 0)
    loss = F.cross_entropy(sums[-1][:, 0], target)
    found = torch.autograd.grad(loss, [*leaves[0], *leaves[1], *sums])
    return [[-each for each in found[n::1][: len(WIDTHS) - 1]] for n in range(0, len(found), len(WIDTHS) - 1)]


@pytest.mark.oracle
def test_backprop_is_the_gradient():
    net, (x, target) = network(), batch()
    net.forward(x)
    weights, biases, _ = by_autograd(net, x, target)
    for (change, told), weight, bias in zip(net.directions(target), weights, biases, strict=True):
        torch.testing.assert_close(change, weight, rtol=0, atol=1e-14)
        torch.testing.assert_close(told, bias, rtol=0, atol=1e-14)


@pytest.mark.oracle
def test_the_gradient_by_a_cell_is_the_error_times_a_number_not_negative():
    net, (x, target) = network("vector"), batch()
    error = (target - net.forward(x)) / len(x)
    for coefficient, by_sums in zip(
        net.coefficients("backprop"), by_autograd(net, x, target)[2], strict=True
    ):
        assert (coefficient >= 0).all() and (coefficient > 0).any()
        torch.testing.assert_close(coefficient[:, :, None] * error[:, None], by_sums, rtol=0, atol=1e-14)


def test_the_vector_rule_has_the_gradients_signs_for_one_sample():
    """And so no weight of a hidden layer moves against its gradient, sample by sample."""
    net, (x, target) = network("vector"), batch(1)
    net.forward(x)
    for (ours, _), (theirs, _) in zip(
        net.directions(target), net.directions(target, "backprop"), strict=True
    ):
        assert (ours * theirs >= 0).all() and (ours * theirs > 0).any()


def test_a_step_keeps_weights_from_going_below_zero():
    net, (x, target) = network("vector", rate=1.0), batch()
    before = [weight.clone() for weight in net.weights]
    net.step(x, target)
    for n, (was, weight) in enumerate(zip(before, net.weights, strict=True)):
        assert not torch.equal(was, weight)
        assert n == 0 or weight.min() == 0
