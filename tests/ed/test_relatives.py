"""The rules against autograd, and against each other where they have to agree; the network of
vectors too.
"""

import itertools

import pytest
import torch
from torch.nn import functional as F

from benchmarks.shared.networks import VectorPerceptron
from ed_lib.ed.relatives import RULES, Perceptron, signs

WIDTHS = (6, 7, 20, 8, 3)


def network(rule="backprop", kind=Perceptron, widths=WIDTHS, **options):
    return kind(widths, rule, dtype=torch.float64, **options)


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
    """Of the weights."""
    net.rule = rule or net.rule
    net.forward(x)
    return net.directions(target)[: len(net.weights)]


@pytest.mark.oracle
@pytest.mark.parametrize("widths", [WIDTHS, (6, 3)])  # without hidden layers it is a linear model
@pytest.mark.parametrize("rule", RULES)
def test_backprop_is_the_gradient_and_the_last_layer_has_it_under_every_rule(rule, widths):
    net, (x, target) = Perceptron(widths, rule, dtype=torch.float64), batch()
    pairs = list(zip(directions(net, x, target), by_autograd(net, x, target), strict=True))
    for ours, theirs in pairs if rule == "backprop" else pairs[-1:]:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


@pytest.mark.oracle
def test_rules_that_are_given_the_transpose_are_backprop():
    net, (x, target) = network(), batch()
    wanted = by_autograd(net, x, target)
    net.transposes = [weight.T for weight in net.weights]
    for ours, theirs in zip(directions(net, x, target, "feedback"), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
    shallow = Perceptron(
        (6, 7, 3), dtype=torch.float64
    )  # one hidden layer: told straight by the output's
    wanted = by_autograd(shallow, x, target)
    shallow.direct = [shallow.weights[1].T]
    torch.testing.assert_close(
        directions(shallow, x, target, "direct")[0], wanted[0], rtol=0, atol=1e-14
    )
    size = 1 / 3**0.5
    shallow.weights[1] = shallow.weights[1].sign() * size
    wanted = by_autograd(shallow, x, target)
    torch.testing.assert_close(
        directions(shallow, x, target, "sign")[0], wanted[0], rtol=0, atol=1e-14
    )


@pytest.mark.oracle
def test_broadcast_tells_each_cell_its_classs_error_with_its_sign():
    net, (x, target) = network("broadcast"), batch()
    error = (target - net.forward(x)) / len(x)
    told = net.told(1, None, error, target)
    for cell in range(20):
        sign = 1 if (cell // 3) % 2 == 0 else -1
        torch.testing.assert_close(told[:, cell], sign * error[:, cell % 3])
    gated = net.given[1].T @ (told * (net.sums[1] > 0))
    torch.testing.assert_close(net.directions(target)[1], gated)


@pytest.mark.oracle
def test_local_is_the_gradient_of_each_layers_own_loss():
    net, (x, target) = network("local"), batch()
    found = directions(net, x, target)
    heads = net.directions(target)[-len(net.heads) :]
    for n, head in enumerate(net.heads):
        weight, own = net.weights[n].clone().requires_grad_(), head.clone().requires_grad_()
        loss = F.cross_entropy((net.given[n] @ weight + net.biases[n]).relu() @ own, target)
        for ours, theirs in zip(
            (found[n], heads[n]), torch.autograd.grad(loss, (weight, own)), strict=True
        ):
            torch.testing.assert_close(ours, -theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("network, rule", [
    *itertools.product(("free", "one-signed"), RULES), *(("vectors", rule) for rule in VectorPerceptron.rules)
])  # fmt: skip
def test_a_rule_learns_and_signs_are_kept(network, rule):
    x = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    kinds, widths = x[:, :3].argmax(1), (8, 60, 60, 3)
    if network == "vectors":
        net = VectorPerceptron(widths, rule, 0.003, steps=300)
    else:
        net = Perceptron(widths, rule, 0.003, one_signed=network == "one-signed", steps=300)
    before = [weight.detach().clone() for weight in net.weights]
    for _ in range(300):
        net.step(x, torch.eye(3)[kinds])
    moved = [not torch.equal(*pair) for pair in zip(before, net.weights, strict=True)]
    assert moved == [rule != "frozen", rule != "frozen", True], "the last layer always"
    assert (net.forward(x).argmax(1) == kinds).float().mean() > (0.7 if rule == "frozen" else 0.9)
    kept = {"free": (), "one-signed": getattr(net, "kept", ()), "vectors": (1, 1)}[network]
    signed = [weight * sign for weight, sign in zip(net.weights[1:], kept, strict=False)]
    assert all((one >= 0).all() for one in signed)
    assert not signed or rule == "frozen" or any((one == 0).any() for one in signed), (
        "some were put back"
    )


@pytest.mark.oracle
def test_a_cell_of_a_one_signed_network_raises_all_scores_or_lowers_all():
    net, (x, _) = network(one_signed=True), batch()
    net.forward(x)
    for n, cells in enumerate(WIDTHS[1:-1]):
        y = net.given[n + 1].clone().requires_grad_()
        scores = y
        for weight, bias in zip(net.weights[n + 1 : -1], net.biases[n + 1 : -1], strict=True):
            scores = (scores @ weight + bias).relu()
        scores = scores @ net.weights[-1]
        for k in range(WIDTHS[-1]):
            (slope,) = torch.autograd.grad(scores[:, k].sum(), y, retain_graph=True)
            kinds = signs(cells, WIDTHS[-1])
            assert (slope * kinds >= 0).all() and (slope * kinds > 0).any()


def vectors_by_autograd(net, x, target):
    """−∂loss/∂ of each layer's weights, biases and sums (of the mean cross-entropy), by a loop over
    cells.
    """
    leaves = [[p.clone().requires_grad_() for p in each] for each in (net.weights, net.biases)]
    y, sums = x, []
    for n, (weight, bias) in enumerate(zip(*leaves, strict=True)):
        a = (
            torch.einsum("bi,iok->bok", y, weight)
            if n == 0
            else torch.einsum("bik,io->bok", y, weight)
        )
        sums.append(a + bias)
        if n < len(net.sides):
            side = torch.einsum("bok,ok->bo", sums[-1], net.sides[n])
            y = torch.where(side[:, :, None] > 0, sums[-1], 0)
    loss = F.cross_entropy(sums[-1][:, 0], target)
    found = torch.autograd.grad(loss, [*leaves[0], *leaves[1], *sums])
    return [
        [-each for each in found[n::1][: len(WIDTHS) - 1]]
        for n in range(0, len(found), len(WIDTHS) - 1)
    ]


@pytest.mark.oracle
def test_the_gradient_by_a_cell_is_the_error_times_a_number_not_negative_and_backprop_follows_it():
    net, (x, target) = network("backprop", VectorPerceptron), batch()
    error = ((target - net.forward(x)) / len(x))[:, None]  # (B, 1, K)
    weights, biases, sums = vectors_by_autograd(net, x, target)
    for ours, theirs in zip(net.directions(target), [*weights, *biases], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
    for by_sums, gate in zip(sums, [*net.gates, torch.ones(len(x), 1)], strict=True):
        c = (by_sums * error).sum(2) / (error * error).sum(2)  # (B, O)
        torch.testing.assert_close(by_sums, c[:, :, None] * error, rtol=0, atol=1e-14)
        assert (c >= -1e-14).all() and (c > 1e-9).any() and (c[gate == 0] == 0).all()


@pytest.mark.oracle
def test_the_vector_rule_is_what_came_in_times_the_error_where_the_gate_is_open():
    net, (x, target) = network("vector", VectorPerceptron), batch()
    error = (target - net.forward(x)) / len(x)
    y = x
    for n, (weight, ours) in enumerate(zip(net.weights, directions(net, x, target), strict=True)):
        gate = net.gates[n] if n < len(net.gates) else torch.ones(len(x), 1, dtype=torch.float64)
        by_hand = "bi,bo,bk->iok" if n == 0 else "bik,bo,bk->io"
        torch.testing.assert_close(ours, torch.einsum(by_hand, y, gate, error), rtol=0, atol=1e-14)
        y = (net.sums[n] * gate[:, :, None]).detach()
        assert weight.shape == ours.shape
