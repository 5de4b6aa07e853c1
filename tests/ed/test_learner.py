"""ED and backpropagation behind one interface: directions, PyTorch's optimizers, layers that
freeze; and training on images.
"""

import copy
import pickle

import numpy as np
import pytest
import torch

from benchmarks.shared.networks import Ordinary
from ed_lib import data
from ed_lib.ed import EDNetwork, learner, rivals
from ed_lib.ed.learner import Learner
from tests.ed.test_network import assert_state, signs_hold
from tests.ed.test_rivals import loss_of

PLAIN = [
    ("kaneko", "free", 2),
    ("kaneko", "cells", 20),
    ("signed", "cells", 0),
]  # rule, bias, depth


def a_net(depth=2, k=3, **options):
    options = dict(dtype="float64", backend="torch", path="layers") | options
    return EDNetwork(7, 4, depth, k, init="fan_in", **options)


def batch(rng, net, size=6):
    return net.asarray(rng.random((size, 7))), net.asarray(
        rng.integers(0, 2, (size, net.n_outputs))
    )


@pytest.mark.parametrize("rule, bias, depth", PLAIN)
def test_plain_ed_is_the_networks_own_step(rule, bias, depth, rng):
    options = dict(rule=rule, bias=bias, depth=depth, alpha=0.3)
    own, learner = a_net(**options), Learner(a_net(**options), "ed", "sgd", 0.3)
    for _ in range(3):
        x, target = batch(rng, own)
        torch.testing.assert_close(
            own.step(x, target), learner.step(x, target), rtol=1e-12, atol=1e-14
        )
    assert_state(own, learner.net.state_dict(), rtol=1e-11, atol=1e-13)


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
            torch.testing.assert_close(
                learner.net.parameters[name], value.detach(), rtol=1e-9, atol=1e-11
            )


@pytest.mark.parametrize("method, optimizer", [("ed", "adam"), ("squared", "sgd")])
@pytest.mark.parametrize("names", [("input",), ("hidden",), ("output",), ("input", "hidden")])
def test_only_the_layers_named_learn(method, optimizer, names, rng):
    learner = Learner(a_net(), method, optimizer, 0.1, layers=names)
    before = learner.net.state_dict()
    for _ in range(2):
        learner.step(*batch(rng, learner.net))
    after = learner.net.state_dict()
    wanted = {f"{name}.{part}" for name in names for part in ("weight", "bias")}
    assert {name for name in before if (before[name] != after[name]).any()} == wanted
    each = (before["hidden.weight"] != after["hidden.weight"]).any(axis=(1, 2, 3, 4, 5))
    assert each.all() == each.any() == ("hidden" in names)


EACH = pytest.mark.parametrize(
    "method, optimizer", [("ed", "sgd"), ("ed", "adam"), ("squared", "sgd"), ("squared", "adam")]
)


@EACH
def test_a_learner_goes_on_with_a_state_that_is_loaded(method, optimizer, rng):
    """As one that was made after it, whatever the size of the batches."""
    state = a_net(seed=5).state_dict()
    net, fresh = a_net(), a_net()
    before = Learner(net, method, optimizer, 0.1)
    before.net.forward(batch(rng, net, 9)[0])  # so that there is room for another size
    for each in (net, fresh):
        each.load_state_dict(state)
    after = Learner(fresh, method, optimizer, 0.1)
    for size in (6, 4):
        x, target = batch(rng, net, size)
        torch.testing.assert_close(before.step(x, target), after.step(x, target), rtol=0, atol=0)
    assert_state(net, fresh.state_dict(), rtol=0, atol=0)
    assert any((value != state[name]).any() for name, value in net.state_dict().items())


@pytest.mark.parametrize("method", ["ed", "squared"])
def test_two_learners_of_one_network_take_turns_as_one_would_go_on(method, rng):
    net, alone = a_net(), a_net()
    first, second = (Learner(net, method, "sgd", 0.2) for _ in range(2))
    one = Learner(alone, method, "sgd", 0.2)
    for each in (first, second, second, first):
        x, target = batch(rng, net)
        before = net.state_dict()["hidden.weight"]
        each.step(x, target)
        one.step(x, target)
        assert (net.state_dict()["hidden.weight"] != before).any()
    assert_state(net, alone.state_dict(), rtol=0, atol=0)


@EACH
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_a_learner_learns_and_so_does_one_whose_gradients_were_let_go(
    method, optimizer, copied, rng
):
    learner = Learner(a_net(), method, optimizer, 0.1)
    learner.step(*batch(rng, learner.net))
    other, (x, target) = copied(learner), batch(rng, learner.net)
    learner.optimizer.zero_grad()
    before = learner.net.state_dict()
    other.step(x, target)
    assert_state(learner.net, before, rtol=0, atol=0)
    learner.step(x, target)
    assert_state(other.net, learner.net.state_dict(), rtol=0, atol=0)
    assert (before["hidden.weight"] != learner.net.state_dict()["hidden.weight"]).any()


@pytest.mark.oracle
def test_the_rate_falls_along_half_a_cosine(rng):
    learner, rates = Learner(a_net(), rate=0.5, steps=8), []
    for _ in range(8):
        rates.append(learner.optimizer.param_groups[0]["lr"])
        learner.step(*batch(rng, learner.net))
    np.testing.assert_allclose(rates, 0.25 * (1 + np.cos(np.pi * np.arange(8) / 8)))
    before = learner.net.state_dict()
    learner.step(*batch(rng, learner.net))  # the rate is zero now
    assert all((before[n] == w).all() for n, w in learner.net.state_dict().items())


def test_kanekos_rule_keeps_its_signs_under_adam(rng):
    learner = Learner(a_net(rule="kaneko"), "ed", "adam", 0.05)
    for _ in range(5):
        learner.step(*batch(rng, learner.net))
    assert signs_hold(learner.net)


@pytest.mark.oracle
def test_logistic_regression_comes_to_the_optimum_of_scikit_learn(rng):
    LogisticRegression = pytest.importorskip("sklearn.linear_model").LogisticRegression

    inputs = rng.standard_normal((300, 5)).astype("float32")
    for k in (1, 3):
        scores = inputs @ rng.standard_normal((5, k)) + rng.gumbel(size=(300, k))
        labels = (scores[:, 0] > 0).astype(int) if k == 1 else scores.argmax(axis=1)
        ours = Ordinary((5, k), "adam", 0.1, steps=60 * 10)
        learner.fit(ours, (inputs, labels), (inputs, labels), epochs=60, batch=30, every=10**6)
        theirs = (
            LogisticRegression(C=np.inf, max_iter=1000).fit(inputs, labels).predict_proba(inputs)
        )
        chances = ours.forward(ours.asarray(inputs)).detach().numpy()
        np.testing.assert_allclose(chances, theirs[:, 1:] if k == 1 else theirs, atol=0.02)


def test_training_on_images_learns_and_writes_down_how(capsys, backend):
    digits = data.load()
    train = data.as_inputs(digits.train_images[:1437]), digits.train_labels[:1437]
    test = data.as_inputs(digits.test_images[:360]), digits.test_labels[:360]
    net = EDNetwork(784, 16, 0, 10, init="fan_in", alpha=0.05, **backend)
    history = learner.fit(net, train, test, epochs=6, every=40)
    assert (
        history.seen[0] == 0 and history.seen[-1] == 6 * 1437 and history.seen[1] == 1437 + 17 * 64
    )
    assert len(history.seen) == len(history.accuracy) == len(history.steps)
    assert history.accuracy[-1] > 0.8 > 0.3 > history.accuracy[0]
    assert sum(history.loss[-23:]) < sum(history.loss[:23]), "the last pass and the first"
    assert signs_hold(net)


def test_one_output_learns_the_label_itself(capsys):
    digits = data.load()
    images, labels = data.pick(digits.train_images[:1437], digits.train_labels[:1437], [0, 1])
    few = data.as_inputs(images), labels
    net = EDNetwork(784, 8, 1, init="fan_in", alpha=0.2)
    assert learner.fit(net, few, few, epochs=20).accuracy[-1] > 0.99
    right = (net.forward(few[0])[:, 0] > 0.5) == few[1]
    assert learner.accuracy(net, *few, batch=7) == right.mean()


def test_the_rate_stays_at_zero_once_it_has_fallen():
    net = EDNetwork(3, 2, 0, backend="torch")
    pupil = Learner(net, rate=0.1, steps=2)
    rates = []
    for _ in range(5):
        rates.append(pupil.optimizer.param_groups[0]["lr"])
        pupil.step(torch.ones(1, 3), torch.ones(1, 1))
    assert rates == pytest.approx([0.1, 0.05, 0, 0, 0])
