"""Deep networks against EDNetwork and autograd, and the argument that the output grows with every cell."""

import numpy as np
import pytest
import torch

from ed_lib.ed.network import EDNetwork
from ed_lib.ed.residual import STARTS, ResidualNetwork

INPUTS, W, D = 5, 4, 3
EXACT = {"dtype": "float64"}


def batch(n=6):
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.normal(size=(n, INPUTS))), torch.from_numpy(
        rng.integers(0, 2, (n, 1)).astype(float)
    )


def test_without_skips_and_means_it_is_an_ed_network():
    """The same outputs; and a step of its direction is that of the signed rule, but for a factor by layer."""
    mine = ResidualNetwork(INPUTS, W, D, start="fan_in", residual=False, centred=False, seed=3, **EXACT)
    ed = EDNetwork(INPUTS, W, D, rule="signed", init="fan_in", alpha=1.0, seed=3, backend="torch", **EXACT)
    x, target = batch()
    before, output = ed.state_dict(), mine.forward(x)
    torch.testing.assert_close(output, ed.step(x, target), rtol=0, atol=1e-14)
    after = ed.state_dict()
    change = {name: after[name] - before[name] for name in after}
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
    for d, (weight, bias) in enumerate(mine.directions(target)[1:-1]):
        ours = weight.view(2, W, 2, W) * signs[:, None, None, None]  # [q, i, p, o], of W as of M
        theirs = torch.from_numpy(change["hidden.weight"][d, 0]).permute(1, 2, 0, 3)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
        theirs = torch.from_numpy(change["hidden.bias"][d, 0].reshape(-1))
        torch.testing.assert_close(bias, theirs, rtol=0, atol=1e-14)


@pytest.mark.oracle
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("start", STARTS)
def test_the_output_grows_with_every_cell_as_its_coefficient_says(residual, centred, start):
    net = ResidualNetwork(INPUTS, W, D, start=start, residual=residual, centred=centred, **EXACT)
    x, target = batch()
    for _ in range(3):
        net.step(x, target)
    net.forward(x)
    for n, c in enumerate(net.coefficients("backprop")):
        z = net.z[n].clone().requires_grad_()
        after = z
        for d in range(n, D):
            v = after @ net.parameters["hidden.weight"][d] - net.means[d] + net.parameters["hidden.bias"][d]
            f = torch.sigmoid(v * 2 / net.u0) - net.inhibitory
            after = after + f / D**0.5 if residual else f
        (slope,) = torch.autograd.grad((after @ net.parameters["output.weight"]).sum(), z)
        torch.testing.assert_close(c * torch.ones_like(slope), slope, rtol=0, atol=1e-12)
        assert (slope > 0).all()


@pytest.mark.oracle
def test_backprop_is_the_gradient_and_one_samples_ed_direction_has_its_signs():
    net, (x, target) = ResidualNetwork(INPUTS, W, D, centred=False, **EXACT), batch(1)
    leaves = {name: p.clone().requires_grad_() for name, p in net.parameters.items()}
    z = torch.sigmoid((x @ leaves["input.weight"] + leaves["input.bias"]) * 2 / net.u0) - net.inhibitory
    for weight, bias in zip(leaves["hidden.weight"], leaves["hidden.bias"], strict=True):
        z = z + (torch.sigmoid((z @ weight + bias) * 2 / net.u0) - net.inhibitory) / D**0.5
    output = torch.sigmoid((z @ leaves["output.weight"] + leaves["output.bias"]) * 2 / net.u0)
    torch.testing.assert_close(output, net.forward(x), rtol=0, atol=1e-14)
    (((target - output) ** 2).sum() / 2).backward()
    grads = [leaves["input.weight"].grad, *leaves["hidden.weight"].grad, leaves["output.weight"].grad]
    pairs = zip(net.directions(target, "backprop"), net.directions(target, "ed"), grads, strict=True)
    for (gradient, _), (ed, _), grad in pairs:
        factor = -grad.abs().sum() / gradient.abs().sum()
        torch.testing.assert_close(gradient * factor, grad, rtol=0, atol=1e-14)
        assert torch.equal(ed.sign(), gradient.sign())


def test_sums_are_centred_by_a_running_mean():
    net, (x, target) = ResidualNetwork(INPUTS, W, D, rate=1e-9, **EXACT), batch()
    net.step(x, target)
    first = net.means[0].clone()
    torch.testing.assert_close(first, (net.z[0] @ net.parameters["hidden.weight"][0]).mean(0))
    net.forward(x + 1)
    assert torch.equal(net.means[0], first)
    net.step(x + 1, target)
    now = (net.z[0] @ net.parameters["hidden.weight"][0]).mean(0)
    torch.testing.assert_close(net.means[0], 0.9 * first + 0.1 * now, rtol=0, atol=1e-8)


@pytest.mark.parametrize("start", ["gain_one", "permutation"])
def test_a_start_of_gain_one_keeps_the_size_of_a_common_change(start):
    net = ResidualNetwork(INPUTS, W, D, start=start, **EXACT)
    sums = net.parameters["hidden.weight"].sum(1) / (2 * net.u0)
    assert torch.allclose(sums.mean(1), torch.ones(D).double(), atol=1e-12)
    largest = net.parameters["hidden.weight"].amax(1) / net.parameters["hidden.weight"].sum(1)
    assert (largest > 0.85).all() == (start == "permutation")


@pytest.mark.parametrize("rule", ["ed", "backprop"])
@pytest.mark.parametrize("stack", [False, True])
def test_it_learns_and_only_what_may_moves(rule, stack):
    net, (x, _) = ResidualNetwork(INPUTS, 8, 6, rule, 0.01, stack=stack, steps=200), batch(50)
    x, target = x.float(), (x[:, :1] > 0).float()
    before = net.parameters["hidden.weight"].clone()
    for _ in range(200):
        net.step(x, target)
    assert ((net.forward(x) > 0.5) == (target > 0.5)).float().mean() > 0.95
    assert torch.equal(before, net.parameters["hidden.weight"]) != stack
    assert all((net.parameters[name] >= 0).all() for name in ("hidden.weight", "output.weight"))


@pytest.mark.parametrize(
    "change", [{"rule": "guess"}, {"start": "cold"}, {"rate": 0}, {"width": 0}, {"depth": -1}]
)
def test_what_is_wrong_is_named(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        ResidualNetwork(**{"n_inputs": 3, "width": 2, "depth": 1} | change)
