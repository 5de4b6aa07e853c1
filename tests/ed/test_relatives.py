"""The rules against autograd, and against each other where they have to agree; the network of vectors too."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ed_lib.ed.relatives import RULES, Perceptron, VectorPerceptron

WIDTHS = (6, 7, 20, 8, 3)


def network(rule="backprop", kind=Perceptron, **options):
    return kind(WIDTHS, rule, dtype=torch.float64, **options)


def batch(n=5):
    torch.manual_seed(3)
    x = torch.randn(n, WIDTHS[0], dtype=torch.float64)
    return x, F.one_hot(torch.arange(n) % WIDTHS[-1], WIDTHS[-1]).double()


def by_autograd(net, x, target):
    """−∂loss/∂W of the mean cross-entropy, layer by layer."""
    weights = [weight.clone().requires_grad_() for weight in net.weights]
    y = x
    for n, (weight, bias) in enumerate(zip(weights, net.biases, strict=True)):
        y = (y.relu() if n else y) @ weight + bias
    return [-grad for grad in torch.autograd.grad(F.cross_entropy(y, target), weights)]


def directions(net, x, target, rule=None):
    net.forward(x)
    return [given.T @ delta for given, delta in zip(net.given, net.deltas(target, rule), strict=True)]


@pytest.mark.oracle
def test_backprop_is_the_gradient():
    net, (x, target) = network(), batch()
    for ours, theirs in zip(directions(net, x, target), by_autograd(net, x, target), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


@pytest.mark.oracle
@pytest.mark.parametrize("rule", RULES)
def test_the_last_layer_has_its_gradient_under_every_rule(rule):
    net, (x, target) = network(), batch()
    torch.testing.assert_close(directions(net, x, target, rule)[-1], by_autograd(net, x, target)[-1])


@pytest.mark.oracle
def test_rules_that_are_given_the_transpose_are_backprop():
    net, (x, target) = network(), batch()
    wanted = by_autograd(net, x, target)
    net.transposes = [weight.T for weight in net.weights]
    for ours, theirs in zip(directions(net, x, target, "feedback"), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
    shallow = Perceptron((6, 7, 3), dtype=torch.float64)  # one hidden layer: told straight by the output's
    wanted = by_autograd(shallow, x, target)
    shallow.direct = [shallow.weights[1].T]
    torch.testing.assert_close(directions(shallow, x, target, "direct")[0], wanted[0], rtol=0, atol=1e-14)
    size = 1 / 3**0.5
    shallow.weights[1] = shallow.weights[1].sign() * size
    wanted = by_autograd(shallow, x, target)
    torch.testing.assert_close(directions(shallow, x, target, "sign")[0], wanted[0], rtol=0, atol=1e-14)


@pytest.mark.oracle
def test_broadcast_tells_each_cell_its_classs_error_with_its_sign():
    net, (x, target) = network("broadcast"), batch()
    net.forward(x)
    error = (target - net.probabilities) / len(x)
    told = net.deltas(target)[1]
    for cell in range(20):
        sign = 1 if (cell // 3) % 2 == 0 else -1
        wanted = sign * error[:, cell % 3] * (net.sums[1][:, cell] > 0)
        torch.testing.assert_close(told[:, cell], wanted)
    kinds = set(zip(net.classes[1].tolist(), net.signs[1].tolist(), strict=True))
    assert kinds == {(c, s) for c in range(3) for s in (1, -1)}


@pytest.mark.oracle
def test_local_is_the_gradient_of_each_layers_own_loss():
    net, (x, target) = network("local"), batch()
    net.forward(x)
    found = [given.T @ delta for given, delta in zip(net.given, net.deltas(target), strict=True)]
    for n, head in enumerate(net.heads):
        weight = net.weights[n].clone().requires_grad_()
        loss = F.cross_entropy((net.given[n] @ weight + net.biases[n]).relu() @ head, target)
        torch.testing.assert_close(found[n], -torch.autograd.grad(loss, weight)[0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("one_signed", [False, True])
def test_a_rule_learns_and_signs_are_kept(rule, one_signed):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 8)).astype(np.float32)
    kinds = x[:, :3].argmax(1)
    net = Perceptron((8, 60, 60, 3), rule, 0.003, one_signed=one_signed, steps=300)
    target = torch.eye(3)[kinds]
    for _ in range(300):
        net.step(net.asarray(x), target)
    assert (net.forward(net.asarray(x)).argmax(1).numpy() == kinds).mean() > 0.9
    if one_signed:
        for weight, sign in zip(net.weights[1:], net.products, strict=True):
            assert (weight * sign >= 0).all()


@pytest.mark.oracle
def test_a_cell_of_a_one_signed_network_raises_all_scores_or_lowers_all():
    net, (x, _) = network(one_signed=True), batch()
    net.forward(x)
    for n, signs in enumerate(net.signs):
        y = net.given[n + 1].clone().requires_grad_()
        scores = y
        for weight, bias in zip(net.weights[n + 1 : -1], net.biases[n + 1 : -1], strict=True):
            scores = (scores @ weight + bias).relu()
        scores = scores @ net.weights[-1]
        for k in range(WIDTHS[-1]):
            (slope,) = torch.autograd.grad(scores[:, k].sum(), y, retain_graph=True)
            assert (slope * signs >= 0).all() and (slope * signs > 0).any()


@pytest.mark.oracle
def test_without_hidden_layers_it_is_a_linear_model():
    net = Perceptron((6, 4), rule="backprop", rate=0.01, seed=0)
    x, target = torch.rand(5, 6), torch.eye(4)[[0, 1, 2, 3, 0]]
    weight = net.weights[0].clone().requires_grad_()
    F.cross_entropy(x @ weight + net.biases[0], target).backward()
    net.forward(x)
    ((change, _),) = net.directions(target)
    torch.testing.assert_close(-change, weight.grad)


def vectors_by_autograd(net, x, target):
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
def test_backprop_in_the_network_of_vectors_is_the_gradient():
    net, (x, target) = network(kind=VectorPerceptron), batch()
    net.forward(x)
    weights, biases, _ = vectors_by_autograd(net, x, target)
    for (change, told), weight, bias in zip(net.directions(target), weights, biases, strict=True):
        torch.testing.assert_close(change, weight, rtol=0, atol=1e-14)
        torch.testing.assert_close(told, bias, rtol=0, atol=1e-14)


@pytest.mark.oracle
def test_the_gradient_by_a_cell_is_the_error_times_a_number_not_negative():
    net, (x, target) = network("vector", VectorPerceptron), batch()
    error = (target - net.forward(x)) / len(x)
    pairs = zip(net.coefficients("backprop"), vectors_by_autograd(net, x, target)[2], strict=True)
    for coefficient, by_sums in pairs:
        assert (coefficient >= 0).all() and (coefficient > 0).any()
        torch.testing.assert_close(coefficient[:, :, None] * error[:, None], by_sums, rtol=0, atol=1e-14)


def test_the_vector_rule_has_the_gradients_signs_for_one_sample():
    """And so no weight of a hidden layer moves against its gradient, sample by sample."""
    net, (x, target) = network("vector", VectorPerceptron), batch(1)
    net.forward(x)
    pairs = zip(net.directions(target), net.directions(target, "backprop"), strict=True)
    for (ours, _), (theirs, _) in pairs:
        assert (ours * theirs >= 0).all() and (ours * theirs > 0).any()


def test_a_step_keeps_weights_from_going_below_zero():
    net, (x, target) = network("vector", VectorPerceptron, rate=1.0), batch()
    before = [weight.clone() for weight in net.weights]
    net.step(x, target)
    for n, (was, weight) in enumerate(zip(before, net.weights, strict=True)):
        assert not torch.equal(was, weight)
        assert n == 0 or weight.min() == 0
