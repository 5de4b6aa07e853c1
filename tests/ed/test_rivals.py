"""What the network is compared with does what it says: the article's formulas, backpropagation by
hand.
"""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.shared.networks import Ordinary
from ed_lib.ed import EDNetwork, rivals
from ed_lib.ed.rivals import Logged
from ed_lib.ed.space import to_numpy


def batch(rng, net, size=6):
    target = rng.integers(0, 2, (size, net.n_outputs))
    return net.asarray(rng.random((size, net.n_inputs))), net.asarray(target)


@pytest.mark.parametrize("depth", [1, 4])
def test_the_articles_network_is_ours(depth, rng):
    net = EDNetwork(7, 3, depth, rule="signed", init="half_normal", dtype="float64")
    listing = rivals.ArticleNetwork(net)
    for _ in range(3):
        x, target = batch(rng, net)
        output = listing.forward(x)
        listing.update(target - output)
        np.testing.assert_allclose(output, net.step(x, target), rtol=1e-12)
    for name, value in net.state_dict().items():
        wanted = value[:, 0] if name.startswith("hidden") else value[0]
        np.testing.assert_allclose(listing.state[name], wanted, atol=1e-13)


LAYER = ["matmul", "sum", "add", "multiply"]  # what the article's listing calls, in its order
LAYER += [
    "multiply",
    "minimum",
    "exp",
    "absolute",
    "negative",
    "exp",
    "add",
    "divide",
]  # the sigmoid
UPDATE = [
    "subtract",
    "multiply",
    "einsum",
    "einsum",
    "mean",
    "multiply",
    "add",
    "mean",
    "multiply",
    "add",
]


@pytest.mark.oracle
def test_the_articles_network_makes_the_listings_calls(rng):
    net = EDNetwork(7, 3, 2, rule="signed", dtype="float64")
    listing = rivals.ArticleNetwork(net)
    listing.state = {name: value.view(Logged) for name, value in listing.state.items()}
    Logged.calls.clear()
    output = listing.forward(batch(rng, net, size=5)[0].view(Logged))
    assert [
        name for name, _ in Logged.calls if name != "asarray"
    ] == 4 * LAYER  # two of them hidden ones
    assert Logged.calls[12:16] == [
        ("matmul", (2, 2, 5, 3)),
        *[(name, (2, 5, 3)) for name in LAYER[1:4]],
    ]
    error = (1 - output).view(Logged)
    for group in (listing.senders, listing.answers):
        group |= {name: np.asarray(array).view(Logged) for name, array in group.items()}
    Logged.calls.clear()
    listing.update(error)
    assert [name for name, _ in Logged.calls] == 3 * UPDATE
    largest = [shape for _, shape in Logged.calls if len(shape) == 6]
    assert largest == [
        (2, 2, 2, 5, 3, 3)
    ]  # all products of the hidden layers, with their batch axis


def loss_of(net, parameters, x, target, loss="squared"):
    """The loss of the folded weights, by PyTorch's own layers and losses, for autograd."""
    y = x.expand(net.n_outputs, *x.shape)  # (K, B, I)
    layers = [("input", ...), *[("hidden", d) for d in range(net.depth)], ("output", ...)]
    for name, at in layers:
        weight, bias = parameters[f"{name}.weight"][at], parameters[f"{name}.bias"][at]
        if name == "input":
            weight = weight[:, : net.n_inputs] + weight[:, net.n_inputs :]
        y = torch.sigmoid(2 / net.u0 * (y @ weight + bias))
    out = y[..., 0].T
    if loss == "squared":
        return F.mse_loss(out, target, reduction="sum") / (2 * len(x))
    return F.binary_cross_entropy(out, target, reduction="sum") / len(x)


@pytest.mark.oracle
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("depth, k", [(0, 1), (1, 3), (20, 2)])
def test_backpropagation_by_hand_and_the_loss_for_autograd_have_the_gradient(
    backend, depth, k, rng
):
    net = EDNetwork(7, 3, depth, k, init="fan_in", dtype="float64", backend=backend, path="layers")
    before = {
        name: torch.tensor(to_numpy(p), requires_grad=True) for name, p in net.parameters.items()
    }
    x, target = batch(rng, net)
    given = torch.as_tensor(x), torch.as_tensor(target)
    loss, ours = loss_of(net, before, *given), rivals.loss(rivals.by_layer(before), net.u0, *given)
    gradient = torch.autograd.grad(loss, list(before.values()), materialize_grads=True)
    assert loss.item() == pytest.approx(ours.item())
    found = torch.autograd.grad(ours, list(before.values()), materialize_grads=True)
    torch.testing.assert_close(found, gradient, rtol=1e-10, atol=1e-15)
    back, output = rivals.Backprop(net, rate=0.5), net.forward(x)
    back.chain(target - output)
    back.learn()
    assert loss.item() == pytest.approx(((target - output) ** 2).sum().item() / (2 * len(x)))
    for (name, value), slope in zip(net.parameters.items(), gradient, strict=True):
        wanted = before[name].detach() - 0.5 * slope
        np.testing.assert_allclose(to_numpy(value), wanted, rtol=1e-10, atol=1e-15, err_msg=name)


def test_a_rate_of_zero_moves_nothing_and_no_rate_means_the_own_one(rng):
    net = EDNetwork(7, 3, 2, init="fan_in", dtype="float64")
    back, (x, target) = rivals.Backprop(net, rate=0.5), batch(rng, net)
    back.chain(target - net.forward(x))
    before = {name: value.copy() for name, value in net.parameters.items()}
    back.learn(rate=0.0)
    for name, value in net.parameters.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    at_one = {name: np.zeros_like(value) for name, value in before.items()}
    back.learn(at_one, 1.0)
    back.learn()
    for name, value in net.parameters.items():
        wanted = before[name] + 0.5 * at_one[name]
        np.testing.assert_allclose(value, wanted, rtol=1e-12, atol=1e-15, err_msg=name)
    assert abs(at_one["hidden.weight"]).max() > 0


@pytest.mark.oracle
@pytest.mark.parametrize("optimizer, k", [("sgd", 3), ("adam", 1)])
def test_an_ordinary_network_is_torchs_own_loop(optimizer, k):
    torch.manual_seed(0)
    x = torch.rand(20, 5)
    labels = torch.randint(0, max(k, 2), (20,))
    target = F.one_hot(labels, k).float() if k > 1 else labels[:, None].float()
    ours = Ordinary((5, 7, k), optimizer, 0.05, steps=4, seed=3)
    theirs = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, k))
    theirs.load_state_dict(ours.layers.state_dict())
    steps = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer](
        theirs.parameters(), lr=0.05
    )
    for n in range(4):
        steps.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * n / 4)) / 2
        scores = theirs(x)
        loss = (
            F.cross_entropy(scores, labels)
            if k > 1
            else F.binary_cross_entropy(scores.sigmoid(), target)
        )
        chances = scores.softmax(1) if k > 1 else scores.sigmoid()
        torch.testing.assert_close(ours.step(x, target), chances.detach(), atol=1e-6, rtol=0)
        steps.zero_grad()
        loss.backward()
        steps.step()
    for mine, right in zip(ours.layers.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, right, atol=1e-6, rtol=1e-5)
