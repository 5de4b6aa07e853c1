"""Masks against torch.nn.utils.prune; smaller networks against masked ones; masks under training."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune as theirs

from benchmarks.precision_accuracy import cubic, sparse_linears
from ed_lib import models
from ed_lib.precision.compression import (
    keep_filters,
    permanent,
    prune,
    smallest,
    strongest,
)
from ed_lib.precision.quantization import LAYERS, quantize_model, stored_bytes

AMOUNTS = (0, 0.1, 0.33, 0.5, 0.9, 0.98, 1, 1.0)


@pytest.fixture
def random():
    return torch.Generator().manual_seed(0)


def weights(random, shape):
    """Numbers in this shape, and whole numbers, many of which are equal."""
    yield torch.randn(shape, generator=random)
    yield torch.randint(-2, 3, shape, generator=random).float()
    yield torch.zeros(shape)


def layer_with(weight):
    layer = nn.Linear(1, 1)
    layer.weight = nn.Parameter(weight.clone())
    return layer


@pytest.mark.oracle
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (20, 1, 3, 3), (13, 4, 5)], ids=str)
def test_masks_of_a_layer_are_torchs(shape, random):
    for weight in weights(random, shape):
        for amount in AMOUNTS:
            layer = theirs.l1_unstructured(layer_with(weight), "weight", float(amount))
            mask = smallest(weight, amount)
            assert mask.dtype == torch.bool and torch.equal(mask, layer.weight_mask.bool())
            assert int((~mask).sum()) == round(amount * weight.numel())


@pytest.mark.oracle
def test_masks_of_all_layers_are_torchs(random):
    shapes = [(4, 3), (5, 2, 3, 3), (1, 7)]
    for columns in zip(*(weights(random, shape) for shape in shapes), strict=True):
        for amount in AMOUNTS:
            layers = [layer_with(weight) for weight in columns]
            pairs = [(layer, "weight") for layer in layers]
            theirs.global_unstructured(pairs, theirs.L1Unstructured, amount=float(amount))
            masks = prune(nn.Sequential(*map(layer_with, columns)), amount)
            for mask, layer in zip(masks.values(), layers, strict=True):
                assert torch.equal(mask, layer.weight_mask.bool())


@pytest.mark.oracle
def test_the_filters_that_stay_are_torchs(random):
    for shape in ((8, 3), (20, 1, 3, 3), (50, 20, 5, 5)):
        for weight in weights(random, shape):
            for amount in (0, 0.2, 0.5, 0.75):
                layer = theirs.ln_structured(layer_with(weight), "weight", float(amount), n=2, dim=0)
                rows = layer.weight_mask.flatten(1).bool().all(dim=1).nonzero().flatten()
                assert torch.equal(strongest(weight, amount), rows)


@pytest.mark.oracle
def test_a_pruned_model_is_torchs_and_its_masks_hold(random):
    x, y = torch.rand(16, 1, 28, 28, generator=random), torch.arange(16) % 10
    model, other = models.lenet(1), models.lenet(1)
    layers = [layer for layer in other if isinstance(layer, LAYERS)]
    pairs = [(layer, "weight") for layer in layers]
    theirs.global_unstructured(pairs, theirs.L1Unstructured, amount=0.8)
    masks = prune(model, 0.8)
    assert list(masks) == ["0", "3", "7", "9"]
    for some in (model, other):  # with momentum, which goes on moving what has no gradient
        optimizer = torch.optim.Adam(some.parameters(), 1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(some(x), y).backward()
            optimizer.step()
    torch.testing.assert_close(model(x), other(x), rtol=1e-5, atol=1e-5)
    for name, mask in masks.items():
        weight = model.get_submodule(name).weight
        assert not weight[~mask].any() and weight[mask].all()
    done = permanent(model)
    assert torch.equal(done(x), model(x)) and {*done.state_dict()} == {*models.lenet().state_dict()}
    assert not any(hasattr(layer, "parametrizations") for layer in done)


def test_pruning_again_takes_more_and_never_gives_back(random):
    x, y = torch.rand(16, 1, 28, 28, generator=random), torch.arange(16) % 10
    model = models.lenet(1)
    optimizer, gone = torch.optim.Adam(model.parameters(), 1e-2), torch.zeros(128_860, dtype=torch.bool)
    for step in range(1, 6):
        prune(model, cubic(step, 5, 0.95))
        last, weights = gone, [model.get_submodule(name).weight for name in ("0", "3", "7", "9")]
        gone = torch.cat([weight.flatten() == 0 for weight in weights])
        assert int(gone.sum()) == round(cubic(step, 5, 0.95) * 128_860) and gone[last].all()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert step == 5 and len(list(model.parameters())) == 8  # one mask on each weight, and no more
    assert all(len(layer.parametrizations.weight) == 1 for layer in model if isinstance(layer, LAYERS))


@pytest.mark.oracle
def test_zhu_and_guptas_schedule():
    # Their equation: s_t = s_f + (s_i - s_f)(1 - (t - t_0) / (n Δt))³
    found = [cubic(step, 4, 0.9) for step in range(7)]
    wanted = [0, 0.9 - 0.9 * 27 / 64, 0.9 - 0.9 / 8, 0.9 - 0.9 / 64, 0.9, 0.9, 0.9]
    assert found == pytest.approx(wanted)


# Filters taken out


def masked_filters(model, keep):
    """A copy with zeros for the filters that ``keep`` does not name: what keep_filters computes."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, indices in keep.items():
            layer = model.get_submodule(name)
            gone = torch.ones(len(layer.weight), dtype=torch.bool, device=layer.weight.device)
            gone[indices] = False
            layer.weight[gone] = 0
            if layer.bias is not None:
                layer.bias[gone] = 0
    return model


@pytest.mark.oracle
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_a_smaller_network_computes_what_the_masked_one_does(dtype, tolerance, random):
    model = models.lenet(2).to(dtype)
    x = torch.rand(5, 1, 28, 28, generator=random, dtype=dtype)
    for amounts in ({"0": 0.5, "3": 0.5, "7": 0.5}, {"3": 0.9}, {"0": 0.95, "7": 0.99}, {"7": 0.1}, {}):
        keep = {name: strongest(model.get_submodule(name).weight, amount) for name, amount in amounts.items()}
        small, masked = keep_filters(model, keep), masked_filters(model, keep)
        torch.testing.assert_close(small(x), masked(x), rtol=0, atol=tolerance)
        assert not keep or (masked(x) - model(x)).abs().max() > 100 * tolerance
        sizes = [len(keep.get(name, range(width))) for name, width in (("0", 20), ("3", 50), ("7", 128))]
        a, b, c = sizes
        wanted = (9 + 1) * a + (25 * a + 1) * b + (16 * b + 1) * c + (c + 1) * 10
        assert sum(p.numel() for p in small.parameters()) == wanted
        assert (small[0].out_channels, small[3].in_channels, small[7].in_features) == (a, a, 16 * b)
        F.cross_entropy(small(x), torch.arange(5)).backward()  # it trains like any other
        assert all(p.grad is not None for p in small.parameters())
    assert sum(p.numel() for p in model.parameters()) == 129_068


@pytest.mark.oracle
def test_filters_in_any_order_and_without_biases(random):
    conv = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False)
    model = nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(96, 5), nn.Linear(5, 2)).double()
    x = torch.rand(4, 3, 8, 8, generator=random).double()
    keep = {"0": [4, 1, 2], "3": torch.tensor([3])}
    small = keep_filters(model, keep)
    assert small[0].bias is None and small[0].stride == (2, 2)
    torch.testing.assert_close(small(x), masked_filters(model, keep)(x), rtol=0, atol=1e-12)


@pytest.mark.oracle
def test_sparse_products_are_the_dense_ones(random):
    model = models.lenet(3)
    prune(model, 0.9)
    sparse = sparse_linears(model)
    for size in (1, 7):
        x = torch.rand(size, 1, 28, 28, generator=random)
        torch.testing.assert_close(sparse(x), model(x), rtol=1e-5, atol=1e-6)
    there = int((model[7].weight != 0).sum())
    assert sparse[7].weight.layout == torch.sparse_csr and sparse[7].weight.values().numel() == there


# With quantization, and stored


@pytest.mark.oracle
def test_the_bytes_of_a_pruned_model():
    model = models.lenet(1)
    masks = prune(model, 0.9)
    for name, mask in masks.items():
        codes = quantize_model(model, 4).get_submodule(name).codes()
        assert not codes[~mask].any() and codes[mask].any()
    total = 4 * 208
    for mask in masks.values():
        rows, n, there = len(mask), mask.numel(), int(mask.sum())
        total += min(4 * n, -(-n // 8) + 4 * there, 4 * (rows + 1) + 6 * there)
    assert stored_bytes(model) == stored_bytes(permanent(model)) == total
