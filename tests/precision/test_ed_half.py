"""HalfED against EDNetwork, rounding against the formats, and what is lost against counting by hand."""

import numpy as np
import pytest
import torch

from ed_lib.ed import EDNetwork
from ed_lib.precision import ed_half, formats
from ed_lib.precision.ed_half import HalfED, round_stochastically

RNG = np.random.default_rng(3)


def network(rule="kaneko", depth=1, **options):
    return EDNetwork(5, 3, depth, 2, rule=rule, init="fan_in", alpha=0.7, seed=1, **options)


def batch(size=7):
    return tuple(torch.tensor(RNG.random((size, columns))).float() for columns in (5, 2))


def state(twin):
    """The twin's weights as EDNetwork.state_dict has them."""
    first, *hidden, last = (weight.numpy() for weight in twin.weights)
    shape = (len(hidden), *hidden[0].shape) if hidden else (0, 2, 2, 2, 3, 3)
    return {"input.weight": first, "hidden.weight": np.reshape(hidden, shape), "output.weight": last}


@pytest.mark.parametrize("rule", ["kaneko", "signed"])
@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("store", ["nearest", "master"])
def test_in_float32_it_is_the_network(rule, depth, store):
    net = network(rule, depth)
    twin = HalfED(net, "float32", store)
    for _ in range(5):
        x, target = batch()
        wanted = net.step(x.numpy(), target.numpy())
        np.testing.assert_allclose(twin.step(x, target), wanted, rtol=1e-5, atol=1e-6)
    for name, value in state(twin).items():
        np.testing.assert_allclose(value, net.state_dict()[name], rtol=1e-5, atol=1e-6)
    for name, value in zip(("input", "output"), (twin.biases[0], twin.biases[-1]), strict=True):
        np.testing.assert_allclose(value, net.state_dict()[f"{name}.bias"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("format", ["float16", "bfloat16"])
@pytest.mark.parametrize("store", ed_half.STORES)
def test_what_is_stored_has_the_format(format, store):
    twin = HalfED(network(), format, store)
    start = [weight.clone() for weight in twin.weights]
    for _ in range(4):
        output = twin.step(*batch())
    assert torch.equal(output, formats.round_to(output, format)) and output.shape == (7, 2)
    inside = all(torch.equal(weight, formats.round_to(weight, format)) for weight in twin.weights)
    assert inside == (store != "master")
    assert all(not torch.equal(a, b) for a, b in zip(start, twin.weights, strict=True))


def test_masters_start_with_the_networks_weights_and_compute_rounded():
    net, (x, _) = network(), batch()
    twin, rounded = HalfED(net, "bfloat16", "master"), HalfED(net, "bfloat16", "nearest")
    np.testing.assert_array_equal(twin.weights[0], net.state_dict()["input.weight"])
    assert torch.equal(twin.forward(x), rounded.forward(x))


@pytest.mark.parametrize("rule", ["kaneko", "signed"])
def test_lost_counts_the_updates_that_move_nothing(rule):
    net = network(rule, depth=0)
    twin, exact = HalfED(net, "bfloat16", "nearest"), HalfED(net, "float32")
    exact.weights = [weight.clone() for weight in twin.weights]  # the same start, of bfloat16
    before = [weight.clone() for weight in twin.weights]
    x, target = (formats.round_to(part, "bfloat16") for part in batch())
    twin.step(x, target)
    exact.step(x, target)
    for layer, lost in enumerate(twin.lost):
        moved = exact.weights[layer] != before[layer]
        still = twin.weights[layer] == before[layer]
        wanted = float((moved & still).sum() / moved.sum())
        assert abs(lost - wanted) < 0.06  # float32's answers are not rounded, so some updates differ a little
    tiny = HalfED(EDNetwork(5, 3, 0, 2, rule=rule, alpha=1e-6), "bfloat16")
    tiny.step(x, target)
    assert all(lost > 0.9 for lost in tiny.lost)
    masters = HalfED(EDNetwork(5, 3, 0, 2, rule=rule, init="fan_in", alpha=0.1), "bfloat16", "master")
    masters.step(x, target)
    assert all(lost == 0 for lost in masters.lost)


@pytest.mark.parametrize("format", ["float16", "bfloat16", "e4m3", "e5m2"])
def test_stochastic_rounding_takes_a_neighbour_and_is_right_on_average(format):
    f = formats.FORMATS[format]
    x = torch.tensor([0.3, -0.3, 1.0, 1 + f.epsilon / 8, -1.99, f.smallest_normal * 1.3, f.smallest / 4, 0.0])
    x = torch.cat([x, torch.from_numpy(RNG.normal(size=5).astype("float32"))])
    draws = round_stochastically(x.repeat(40_000, 1), format, torch.Generator().manual_seed(0))
    assert torch.equal(draws, formats.round_to(draws, format))
    powers = [max(2.0 ** np.floor(np.log2(abs(v))), f.smallest_normal) if v else 1 for v in x.tolist()]
    spacing = torch.tensor(powers) * f.epsilon
    assert ((draws - x).abs() < spacing).all()
    mean = ((draws - x) / spacing).double().mean(dim=0)
    assert mean.abs().max() < 0.0125  # five standard deviations of the mean, at most ½ / √40,000 each
    assert (draws[:, [2, 7]] == x[[2, 7]]).all()  # numbers of the format stay


def test_the_same_seed_rounds_alike():
    x, target = batch()
    runs = []
    for seed in (0, 0, 1):
        twin = HalfED(network(), "bfloat16", "stochastic", seed=seed)
        for _ in range(3):
            twin.step(x, target)
        runs.append(twin.weights[0])
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"format": "tf32"}, "format is 'tf32'; wanted"),
        ({"store": "up"}, "store is 'up'; wanted"),
        ({"seed": -1}, "seed is -1; wanted"),
        ({"net": network(bias="cells")}, "net.bias is 'cells'"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        HalfED(**{"net": network(), **arguments})


def test_bad_inputs_change_nothing():
    twin = HalfED(network())
    before = [weight.clone() for weight in twin.weights]
    x, target = batch()
    for bad in ((x[:, :4], target), (x, target[:, :1]), (x * torch.nan, target)):
        with pytest.raises(ValueError, match="x|target"):
            twin.step(*bad)
    assert all(torch.equal(a, b) for a, b in zip(before, twin.weights, strict=True))
