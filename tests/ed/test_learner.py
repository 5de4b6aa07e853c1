"""ED and backpropagation behind one interface: directions, PyTorch's optimizers, layers that freeze."""

import numpy as np
import pytest
import torch

from ed_lib.ed import EDNetwork, analysis, learner, rivals
from ed_lib.ed.learner import Learner, mask
from tests.ed.test_network import assert_state


def a_net(depth=2, k=3, **options):
    options = dict(dtype="float64", backend="torch", path="layers") | options
    return EDNetwork(7, 4, depth, k, init="fan_in", **options)


def batch(rng, net, size=6):
    return net.asarray(rng.random((size, 7))), net.asarray(rng.integers(0, 2, (size, net.n_outputs)))


@pytest.mark.parametrize(
    "rule, bias, depth", [("kaneko", "free", 2), ("kaneko", "cells", 20), ("signed", "cells", 0)]
)
def test_plain_ed_is_the_networks_own_step(rule, bias, depth, rng):
    options = dict(rule=rule, bias=bias, depth=depth, alpha=0.3)
    own, learner = a_net(**options), Learner(a_net(**options), "ed", "sgd", 0.3)
    for _ in range(3):
        x, target = batch(rng, own)
        torch.testing.assert_close(own.step(x, target), learner.step(x, target), rtol=1e-12, atol=1e-14)
    assert_state(own, learner.net.state_dict(), rtol=1e-11, atol=1e-13)


def test_under_kaneko_no_weight_changes_its_sign_on_negative_inputs():
    x, target = torch.tensor([[-1.0, -0.5, 0.3]]), torch.ones(1, 1)
    options = dict(backend="torch", rule="kaneko", alpha=5.0)
    own, learner = EDNetwork(3, 4, 1, **options), Learner(EDNetwork(3, 4, 1, **options), "ed", "sgd", 5.0)
    for _ in range(20):
        own.step(x, target), learner.step(x, target)
    assert learner.net.signs_hold()
    assert_state(own, learner.net.state_dict(), rtol=1e-5, atol=1e-6)


def loss_of(net, parameters, x, target, loss):
    """The loss of the folded weights, by PyTorch's own layers and losses, for autograd."""
    y = x.expand(net.n_outputs, *x.shape)  # (K, B, I)
    layers = [("input", ...), *[("hidden", d) for d in range(net.depth)], ("output", ...)]
    for name, at in layers:
        weight, bias = parameters[f"{name}.weight"][at], parameters[f"{name}.bias"][at]
        if name == "input":
            weight = weight[:, :7] + weight[:, 7:]
        y = torch.sigmoid(2 / net.u0 * (y @ weight + bias))
    out = y[..., 0].T
    if loss == "squared":
        return torch.nn.functional.mse_loss(out, target, reduction="sum") / (2 * len(x))
    return torch.nn.functional.binary_cross_entropy(out, target, reduction="sum") / len(x)


@pytest.mark.oracle
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("loss", rivals.LOSSES)
def test_backpropagation_takes_the_steps_of_autograd(loss, optimizer, rng):
    """Three steps against PyTorch's autograd with the same optimizer, minimizing."""
    learner = Learner(a_net(), loss, optimizer, 0.01)
    twin = {name: value.clone().requires_grad_() for name, value in learner.net.parameters.items()}
    theirs = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer](twin.values(), lr=0.01)
    for _ in range(3):
        x, target = batch(rng, learner.net)
        theirs.zero_grad()
        loss_of(learner.net, twin, x, target, loss).backward()
        theirs.step()
        learner.step(x, target)
        for name, value in twin.items():
            # The output's inhibitory cell has no gradient at all, where ours has one of zero
            torch.testing.assert_close(learner.net.parameters[name], value.detach(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method, optimizer", [("ed", "adam"), ("squared", "sgd")])
@pytest.mark.parametrize("names", [("input",), ("hidden",), ("output",), (0, 2), ("input", 3)])
def test_only_the_layers_named_learn(method, optimizer, names, rng):
    learner = Learner(a_net(), method, optimizer, 0.1, layers=mask(a_net(), *names))
    before = learner.net.state_dict()
    for _ in range(2):
        learner.step(*batch(rng, learner.net))
    after = learner.net.state_dict()
    learned = {"input": [0], "hidden": [1, 2], "output": [3]}
    learned = {layer for name in names for layer in learned.get(name, [name])}
    for part in ("weight", "bias"):
        pairs = zip(analysis.by_layer(before, part), analysis.by_layer(after, part), strict=True)
        assert {layer for layer, (old, new) in enumerate(pairs) if (old != new).any()} == learned


@pytest.mark.oracle
def test_the_rate_falls_along_half_a_cosine(rng):
    learner, rates = Learner(a_net(), rate=0.5, steps=8), []
    for _ in range(8):
        rates.append(learner.optimizer.inner.param_groups[0]["lr"])
        learner.step(*batch(rng, learner.net))
    np.testing.assert_allclose(rates, 0.25 * (1 + np.cos(np.pi * np.arange(8) / 8)))
    before = learner.net.state_dict()
    learner.step(*batch(rng, learner.net))  # the rate is zero now
    assert all((before[n] == w).all() for n, w in learner.net.state_dict().items())


def test_kanekos_rule_keeps_its_signs_under_adam(rng):
    learner = Learner(a_net(rule="kaneko"), "ed", "adam", 0.05)
    for _ in range(5):
        learner.step(*batch(rng, learner.net))
    assert learner.net.signs_hold()


def test_a_mask_names_layers():
    net = a_net(depth=2)
    assert mask(net, "input", "output").tolist() == [True, False, False, True]
    assert mask(net, "hidden").tolist() == mask(net, 1, 2).tolist() == [False, True, True, False]


@pytest.mark.oracle
def test_logistic_regression_comes_to_the_optimum_of_scikit_learn(rng):
    LogisticRegression = pytest.importorskip("sklearn.linear_model").LogisticRegression

    inputs = rng.standard_normal((300, 5)).astype("float32")
    for k in (1, 3):
        scores = inputs @ rng.standard_normal((5, k)) + rng.gumbel(size=(300, k))
        labels = (scores[:, 0] > 0).astype(int) if k == 1 else scores.argmax(axis=1)
        ours = rivals.Ordinary((5, k), "adam", 0.1, steps=60 * 10)
        learner.fit(ours, (inputs, labels), (inputs, labels), epochs=60, batch=30, every=10**6)
        theirs = LogisticRegression(C=np.inf, max_iter=1000).fit(inputs, labels).predict_proba(inputs)
        chances = ours.forward(ours.asarray(inputs)).detach().numpy()
        np.testing.assert_allclose(chances, theirs[:, 1:] if k == 1 else theirs, atol=0.02)
