"""Modulo routing against plain loops, and against separate networks where the two are the same."""

import numpy as np
import pytest
import torch

from ed_lib.ed import EDNetwork
from ed_lib.ed.learner import Learner
from ed_lib.ed.routing import RoutedNetwork

OPTIONS = dict(dtype="float64", seed=3)


def batch(rng, net, size=5):
    return net.asarray(rng.random((size, 4))), net.asarray(np.eye(3)[rng.integers(0, 3, size)])


def sigma(u):
    return 1 / (1 + np.exp(-2 * u / 0.4))


@pytest.mark.oracle
@pytest.mark.parametrize("rule", ["kaneko", "signed"])
@pytest.mark.parametrize("centred", [False, True])
def test_a_step_agrees_with_loops_over_single_weights(rule, centred, rng):
    net = RoutedNetwork(4, 5, 1, 3, rule=rule, centred=centred, **OPTIONS)
    x, target = batch(rng, net)
    state = {name: value.numpy().copy() for name, value in net.parameters.items()}
    layers = [(state["input.weight"], state["input.bias"])]
    layers += [(state["hidden.weight"][0], state["hidden.bias"][0])]
    layers += [(state["output.weight"], state["output.bias"])]
    sent = [np.stack([x.numpy()] * 2)]
    for weight, bias in layers:
        sums = [
            (sent[-1][0] @ weight[p, 0] + sent[-1][1] @ weight[p, 1] + bias[p]) * (1, -1)[p] for p in (0, 1)
        ]
        sent.append(sigma(np.stack(sums)))
    output = Learner(net, "ed", "sgd", 0.5).step(x, target).numpy()
    np.testing.assert_allclose(output, sent[-1][0], rtol=1e-12)
    error = target.numpy() - output
    for n, (weight, bias) in enumerate(layers):
        for p, q, i, o in np.ndindex(weight.shape):
            change = 0.0
            for b in range(5):
                d = error[b, o % 3] - (error[:, o % 3].mean() if centred and n < 2 else 0)
                y = sent[n + 1][p, b, o]
                if rule == "signed" or (d > 0) == (q == 0):
                    change += d * y * (1 - y) * sent[n][q, b, i]
                if (q, i) == (0, 0):
                    bias[p, 0, o] += 0.5 / 5 * d * y * (1 - y)
            weight[p, q, i, o] += 0.5 / 5 * change
    for name, value in state.items():
        np.testing.assert_allclose(net.parameters[name].numpy(), value, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("rule", ["kaneko", "signed"])
def test_between_walls_they_are_separate_networks(rule, rng):
    """With cross weights at zero, outputs and the input layer's first step are those of three networks."""
    net = RoutedNetwork(4, 6, 0, 3, rule=rule, walls=True, **OPTIONS)
    apart = EDNetwork(4, 2, 0, 3, rule=rule, alpha=0.5, backend="torch", dtype="float64")
    state = apart.state_dict()
    for name in state:
        if name.startswith("hidden"):
            continue
        value = net.parameters[name].numpy()
        for k in range(3):  # cells k, k + 3 are those of class k
            if name.startswith("input"):
                state[name][k] = value[..., k::3]
            else:
                cells = slice(k, None, 3) if name == "output.weight" else slice(None)
                state[name][k] = value[:, :, cells, k : k + 1] if value.ndim == 4 else value[..., k : k + 1]
    apart.load_state_dict(state)
    x, target = batch(rng, net)
    learner = Learner(net, "ed", "sgd", 0.5)
    torch.testing.assert_close(learner.step(x, target), apart.step(x, target), rtol=1e-12, atol=1e-14)
    for k in range(3):
        mine = net.parameters["input.weight"].numpy()[..., k::3]
        theirs = apart.state_dict()["input.weight"][k]
        np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-13)


def test_without_walls_it_starts_like_other_networks():
    net = RoutedNetwork(4, 6, 2, 3, **OPTIONS)
    shared = EDNetwork(4, 6, 2, rule="signed", init="fan_in", **OPTIONS).state_dict()
    for name in ("input.weight", "input.bias"):
        np.testing.assert_array_equal(net.parameters[name].numpy(), shared[name][0])
    for name in ("hidden.weight", "hidden.bias"):
        np.testing.assert_array_equal(net.parameters[name].numpy(), shared[name][:, 0])
    weight = net.parameters["output.weight"].numpy()
    assert weight.shape == (2, 2, 6, 3) and (weight[:, 0] > 0).all() and (weight[:, 1] < 0).all()


BAD = [
    (lambda: RoutedNetwork(4, 0, 0, 3), "width is 0"),
    (lambda: RoutedNetwork(4, 6, 0, 0), "n_outputs is 0"),
    (lambda: RoutedNetwork(4, 6, 0, 3, rule="x"), "rule is 'x'"),
    (lambda: Learner(RoutedNetwork(4, 6, 0, 3)).step(torch.ones(5, 2), torch.ones(5, 3)), "x has the shape"),
    (lambda: Learner(RoutedNetwork(4, 6, 0, 3)).step(torch.ones(5, 4), torch.ones(5, 2)), "target has the"),
    (lambda: Learner(RoutedNetwork(4, 6, 0, 3), "squared"), "method is 'squared', and net is no EDNetwork"),
]


@pytest.mark.parametrize("call, message", BAD)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
