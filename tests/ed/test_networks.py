"""Networks that only records need: deep ones against EDNetwork and autograd, routed ones against loops."""

import numpy as np
import pytest
import torch

from benchmarks.networks import ResidualNetwork, RoutedNetwork
from ed_lib.ed import EDNetwork, layout
from ed_lib.ed.learner import Learner

INPUTS, W, D = 5, 4, 3


def example(n=6, **options):
    """A deep network, and n samples with their targets."""
    rng, net = np.random.default_rng(0), ResidualNetwork(INPUTS, W, D, dtype="float64", **options)
    return net, net.asarray(rng.normal(size=(n, INPUTS))), net.asarray(rng.integers(0, 2, (n, 1)))


def test_without_skips_and_means_it_is_an_ed_network():
    mine, x, _ = example(start="fan_in", residual=False, centred=False, seed=3)
    ed = EDNetwork(INPUTS, W, D, init="fan_in", seed=3, backend="torch", dtype="float64")
    torch.testing.assert_close(mine.forward(x), ed.forward(x), rtol=0, atol=1e-14)


@pytest.mark.oracle
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("start", ["fan_in", "gain_one", "permutation"])
def test_the_output_grows_with_every_cell_as_its_coefficient_says(residual, centred, start):
    net, x, target = example(start=start, residual=residual, centred=centred)
    for _ in range(3):
        net.step(x, target)
    net.forward(x)
    for n, c in enumerate(net.coefficients("backprop")):
        z = after = net.z[n].clone().requires_grad_()
        for d in range(n, D):
            v = after @ net.parameters["hidden.weight"][d] - net.means[d] + net.parameters["hidden.bias"][d]
            f = torch.sigmoid(v * 2 / net.u0) - net.inhibitory
            after = after + f / D**0.5 if residual else f
        (slope,) = torch.autograd.grad((after @ net.parameters["output.weight"]).sum(), z)
        torch.testing.assert_close(c * torch.ones_like(slope), slope, rtol=0, atol=1e-12)
        assert (slope > 0).all()


@pytest.mark.oracle
def test_backprop_is_the_gradient_and_one_samples_ed_direction_has_its_signs():
    net, x, target = example(1, centred=False)
    leaf = {name: p.clone().requires_grad_() for name, p in net.parameters.items()}
    sigma = lambda v: torch.sigmoid(v * 2 / net.u0)  # noqa: E731
    z = sigma(x @ leaf["input.weight"] + leaf["input.bias"]) - net.inhibitory
    for weight, bias in zip(leaf["hidden.weight"], leaf["hidden.bias"], strict=True):
        z = z + (sigma(z @ weight + bias) - net.inhibitory) / D**0.5
    output = sigma(z @ leaf["output.weight"] + leaf["output.bias"])
    torch.testing.assert_close(output, net.forward(x), rtol=0, atol=1e-14)
    (((target - output) ** 2).sum() / 2).backward()
    grads = [leaf["input.weight"].grad, *leaf["hidden.weight"].grad, leaf["output.weight"].grad]
    pairs = zip(net.directions(target, "backprop"), net.directions(target, "ed"), grads, strict=True)
    for (gradient, _), (ed, _), grad in pairs:
        factor = -grad.abs().sum() / gradient.abs().sum()
        torch.testing.assert_close(gradient * factor, grad, rtol=0, atol=1e-14)
        assert torch.equal(ed.sign(), gradient.sign())


@pytest.mark.oracle
@pytest.mark.parametrize("centred", [False, True])
def test_a_routed_step_agrees_with_loops_over_single_weights(centred, rng):
    net = RoutedNetwork(4, 5, 1, 3, centred=centred, seed=3, dtype="float64")
    x, target, layers = rng.random((5, 4)), np.eye(3)[rng.integers(0, 3, 5)], unfolded(net)
    sent = [np.stack([x] * 2)]
    for w, bias in layers:
        sums = [(sent[-1][0] @ w[p, 0] + sent[-1][1] @ w[p, 1] + bias[p]) * (1, -1)[p] for p in (0, 1)]
        sent.append(1 / (1 + np.exp(-2 * np.stack(sums) / 0.4)))
    output = Learner(net, "ed", "sgd", 0.5).step(net.asarray(x), net.asarray(target)).numpy()
    np.testing.assert_allclose(output, sent[-1][0], rtol=1e-12)
    error = target - output
    for n, (weight, bias) in enumerate(layers):
        for p, q, i, o, b in np.ndindex(*weight.shape, 5):
            d = error[b, o % 3] - (error[:, o % 3].mean() if centred and n < 2 else 0)
            y = sent[n + 1][p, b, o]
            weight[p, q, i, o] += 0.5 / 5 * d * y * (1 - y) * sent[n][q, b, i]
            bias[p, 0, o] += (0.5 / 5 * d * y * (1 - y)) if (q, i) == (0, 0) else 0
    for found, right in zip(sum(unfolded(net), ()), sum(layers, ()), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-10, atol=1e-13)


def unfolded(net):
    """Each layer's weight [p, q, i, o] and bias [p, 0, o], copied."""
    layers = [[value.numpy() for value in layer] for layer in net.layers(net.parameters)]
    return [(layout.unfold(w).copy(), layout.unfold(b, types=1)[:, 0].copy()) for w, b in layers]
