"""Codes and gradients against torch's own; a model of them; real products of bytes; the bytes counted."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.ao.quantization.observer import MinMaxObserver, PerChannelMinMaxObserver

from ed_lib import models
from ed_lib.precision import int8
from ed_lib.precision.quantization import (
    LARGEST,
    Grid,
    Quantized,
    StraightThrough,
    choose_grid,
    dequantize,
    quantize,
    quantize_model,
    sizes,
    stored_bytes,
    unpacked,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
fake_quantize, SCHEMES = StraightThrough.apply, ("symmetric", "asymmetric")
SHAPES = [(1,), (7,), (4097,), (3, 5), (5, 3, 2, 3), (2, 1, 9)]


@pytest.fixture
def random():
    return torch.Generator().manual_seed(0)


def tensors(shape, random):
    """Numbers of all sorts in this shape: small, large, one-sided, constant, zeros, extreme."""
    x = torch.randn(shape, generator=random)
    yield from (x, 1e-3 * x, 1e6 * x, x.abs(), -x.abs(), torch.zeros(shape), torch.full(shape, 2.5))
    yield from (torch.full(shape, -0.1), 1e-30 * x, x.sign() * 1e38, torch.full(shape, 1e-44))


def theirs(x, grid):
    """Codes and numbers by torch.quantize_per_tensor or per_channel, which know 8 bits only."""
    dtype = torch.qint8 if grid.low < 0 else torch.quint8
    if grid.axis is None:
        found = torch.quantize_per_tensor(x, float(grid.scale), int(grid.zero_point), dtype)
    else:
        found = torch.quantize_per_channel(x, grid.scale.double(), grid.zero_point.long(), grid.axis, dtype)
    return found.int_repr().clamp(grid.low, grid.high), found.dequantize()


def theirs_fake(x, grid):
    if grid.axis is None:
        return torch.fake_quantize_per_tensor_affine(
            x, float(grid.scale), int(grid.zero_point), grid.low, grid.high
        )
    return torch.fake_quantize_per_channel_affine(
        x, grid.scale, grid.zero_point, grid.axis, grid.low, grid.high
    )


@pytest.mark.oracle
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_codes_are_torchs_bit_for_bit(shape, scheme, random):
    """For codes of 8 bits; ``theirs`` clamps those of fewer, whose rounding is the same."""
    for x in tensors(shape, random):
        for axis in (None, *range(len(shape))):
            for bits in (8, 5, 2):
                grid = choose_grid(x, bits, scheme=scheme, axis=axis)
                beyond = 3 * x  # out of the grid's range
                for numbers in (x, beyond):
                    if numbers.abs().max() > 2**31 * grid.scale.min():
                        continue  # torch's own conversion to int32 overflows there
                    wanted, near = theirs(numbers, grid)
                    mine = quantize(numbers, grid)
                    assert mine.dtype == (torch.int8 if scheme == "symmetric" else torch.uint8)
                    assert torch.equal(mine, wanted) and mine.shape == x.shape
                    if bits == 8 and scheme == "asymmetric":
                        assert torch.equal(dequantize(mine, grid), near)


@pytest.mark.oracle
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", range(2, 9))
def test_fake_quantization_and_its_gradient_are_torchs_bit_for_bit(bits, scheme, random):
    for shape in SHAPES:
        for axis in (None, *range(len(shape))):
            x = torch.randn(shape, generator=random)
            grid = choose_grid(x, bits, scheme=scheme, axis=axis)
            incoming = torch.randn(shape, generator=random)
            for numbers in (x, 4 * x, torch.zeros(shape)):
                mine, other = (numbers.clone().requires_grad_() for _ in range(2))
                y, wanted = fake_quantize(mine, grid), theirs_fake(other, grid)
                assert torch.equal(y, wanted) and torch.equal(
                    y.detach(), dequantize(quantize(numbers, grid), grid)
                )
                y.backward(incoming)
                wanted.backward(incoming)
                assert torch.equal(mine.grad, other.grad)


@pytest.mark.oracle
@pytest.mark.parametrize("scheme", SCHEMES)
@settings(deadline=None)
@given(
    st.lists(st.floats(-LARGEST, LARGEST, width=32) | st.sampled_from([LARGEST, -LARGEST]), min_size=1),
    st.integers(2, 8),
)
@example([3.4e38, -3.4e38], 8)
def test_finite_numbers_stay_finite_and_are_torchs_where_its_own_are(scheme, x, bits):
    x = torch.tensor(x)
    grid = choose_grid(x, bits, scheme=scheme)
    found, wanted = fake_quantize(x, grid), theirs_fake(x, grid)
    assert torch.equal(found, wanted.clamp(-LARGEST, LARGEST))
    assert torch.equal(found, dequantize(quantize(x, grid), grid))


@pytest.mark.oracle
@pytest.mark.parametrize("zero_point", [0, 3, 128, 255])
def test_ties_go_to_the_even_code_as_torchs_do(zero_point):
    x = torch.arange(-1200, 1200) / 8  # every second one between two codes
    grid = Grid(torch.tensor(0.25), torch.tensor(zero_point, dtype=torch.int32), 0, 255)
    assert torch.equal(quantize(x, grid), theirs(x, grid)[0])
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    assert torch.equal(fake_quantize(mine, grid), theirs_fake(other, grid))
    fake_quantize(mine, grid).sum().backward()
    theirs_fake(other, grid).sum().backward()
    assert torch.equal(mine.grad, other.grad) and 0 < mine.grad.sum() < len(x)


@pytest.mark.oracle
def test_the_min_max_grid_is_that_of_torchs_observers(random):
    x = torch.randn(6, 35, generator=random) * torch.logspace(-3, 3, 6)[:, None] + 0.3
    for numbers in (x, x[:, :1].expand(6, 35).contiguous()):
        one = MinMaxObserver(dtype=torch.quint8, qscheme=torch.per_tensor_affine)
        each = PerChannelMinMaxObserver(0, torch.quint8, torch.per_channel_affine)
        for observer, axis in ((one, None), (each, 0)):
            observer(numbers)
            scale, zero_point = observer.calculate_qparams()
            grid = choose_grid(numbers, scheme="asymmetric", axis=axis)
            torch.testing.assert_close(grid.scale.view(-1), scale, rtol=1e-6, atol=0)
            assert torch.equal(grid.zero_point.view(-1), zero_point.int())


@pytest.mark.oracle
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_a_grid_promises(scheme, random):
    for bits in range(2, 9):
        for x in tensors((4, 51), random):
            for axis in (None, 0):
                grid = choose_grid(x, bits, scheme=scheme, axis=axis)
                assert grid.bits == bits and grid.high - grid.low in (2**bits - 1, 2**bits - 2)
                assert torch.isfinite(1 / grid.scale).all()
                zeros = quantize(torch.zeros_like(x), grid)
                assert not zeros.ne(grid.along(x)[1]).any()  # 0 is on the grid
                step = grid.along(x)[0].double()
                error = (dequantize(quantize(x, grid), grid).double() - x).abs()
                # Half a step, and as much again at most where the zero point had to be rounded.
                assert (error <= step * (1.0 if scheme == "asymmetric" else 0.5) * (1 + 1e-4)).all()


@pytest.mark.oracle
def test_the_span_with_the_least_squared_error(random):
    x = torch.randn(5, 400, generator=random)
    x[2, 7] = 40.0  # an outlier
    for bits in (2, 4, 8):
        for scheme in SCHEMES:
            error = {}
            for span in ("min-max", "mse"):
                grid = choose_grid(x, bits, scheme=scheme, axis=0, span=span)
                error[span] = (dequantize(quantize(x, grid), grid) - x).square().sum(dim=1)
            assert (error["mse"] <= error["min-max"]).all()
            assert bits > 4 or error["mse"][0] < error["min-max"][0]
            shares = [share / 100 for share in range(1, 101)]
            for row, mine in zip(x.double().numpy(), error["mse"].tolist(), strict=True):
                least = min(error_at(row, share, bits, scheme) for share in shares)
                assert np.isclose(mine, least, rtol=1e-3)
            whole = choose_grid(x[2], bits, scheme=scheme, span="mse")  # each row as if alone
            assert torch.equal(whole.scale, grid.scale[2]) and whole.scale.dim() == 0


def error_at(x, share, bits, scheme):
    """The squared error when a share of the range is not clipped, in float64."""
    least, most = share * min(x.min(), 0), share * max(x.max(), 0)
    if scheme == "symmetric":
        high, zero_point = 2 ** (bits - 1) - 1, 0
        low, scale = -high, max(-least, most) / high
    else:
        low, high, scale = 0, 2**bits - 1, (most - least) / (2**bits - 1)
        zero_point = np.round(-least / scale)
    codes = np.clip(np.round(x / scale) + zero_point, low, high)
    return np.square((codes - zero_point) * scale - x).sum()


@pytest.mark.oracle
def test_a_quantized_model_is_the_model_with_rounded_weights_and_inputs(random):
    model = models.lenet(3).eval()
    x = torch.rand(9, 1, 28, 28, generator=random)
    before = copy.deepcopy(model.state_dict())
    for bits in (2, 4, 8):
        quantized = quantize_model(model, bits)
        by_hand = copy.deepcopy(model)
        for layer in (by_hand[0], by_hand[3], by_hand[7], by_hand[9]):
            high = 2 ** (bits - 1) - 1
            scale = layer.weight.detach().flatten(1).abs().amax(dim=1) / high
            zeros = torch.zeros_like(scale, dtype=torch.int32)
            layer.weight.data = torch.fake_quantize_per_channel_affine(
                layer.weight.data, scale, zeros, 0, -high, high
            )
        assert torch.equal(quantized(x), by_hand(x)) and torch.equal(unpacked(quantized)(x), by_hand(x))
    full = quantize_model(model, inputs=8, images=x)
    y = x
    for own, layer in zip(full, quantize_model(model), strict=True):
        if isinstance(own, Quantized):
            given = model[: [*full].index(own)](x).detach()  # to the float32 layer in its place
            span = given.max() - given.min().clamp(max=0)
            assert np.isclose(float(own.inputs.scale), float(span) / 255, rtol=1e-6)
            y = theirs_fake(y, own.inputs)
        y = layer(y)
    assert torch.equal(full(x), y)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


ONEDNN = pytest.mark.skipif(not int8.available(), reason="no right products of 8 bits here")


@pytest.mark.oracle
@ONEDNN
def test_products_of_bytes_are_the_quantized_products(random):
    cases = [
        (models.lenet(2), torch.rand(11, 1, 28, 28, generator=random)),
        (models.mlp((19, 7, 5), 4), torch.randn(6, 19, generator=random)),
        (nn.Conv2d(3, 5, (2, 3), stride=2, padding=1, bias=False), torch.randn(4, 3, 9, 8, generator=random)),
    ]
    for model, x in cases:
        quantized = quantize_model(model, 8, inputs=8, images=x).eval()
        real = int8.to_int8(quantized)
        layers = [m for m in real.modules() if isinstance(m, int8.Int8)]
        owns = [m for m in quantized.modules() if isinstance(m, Quantized)]
        for layer, own in zip(layers, owns, strict=True):
            seen = []
            hook = own.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0]))
            with torch.no_grad():
                quantized(x)
                hook.remove()
                mine, wanted = layer(seen[0]), own(seen[0])  # layer by layer: the same codes, whole sums
            torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max().item())
        with torch.no_grad():  # and in all, where a rounding may fall to the other side
            assert (real(x) - quantized(x)).abs().max() < 0.02 * quantized(x).abs().max()


@ONEDNN
def test_a_saved_model_in_eight_bits_computes_the_same_when_it_is_loaded(random):
    net, x = models.mlp((16, 8, 2)), torch.randn(64, 16, generator=random)
    saved, other = (
        int8.to_int8(quantize_model(some, inputs=8, images=scale * x))
        for some, scale in ((net, 1), (models.mlp((16, 8, 2), seed=1), 100))
    )
    assert not torch.equal(other(x), saved(x))
    other.load_state_dict(saved.state_dict())
    assert torch.equal(other(x), saved(x)) and other(x[:0]).shape == saved(x)[:0].shape


@ONEDNN
def test_int8_says_what_it_cannot_do(monkeypatch):
    mlp, same = models.mlp((4, 2)), nn.Conv2d(1, 2, 3, padding="same")
    for message, model in {
        "has no quantized layer": mlp,
        "padding is 'same'": quantize_model(same, inputs=8, images=torch.rand(2, 1, 6, 6)),
    }.items():
        with pytest.raises(ValueError, match=message):
            int8.to_int8(model)
    monkeypatch.setattr(int8, "available", lambda: False)
    with pytest.raises(RuntimeError, match="no products of 8 bits"):
        int8.to_int8(quantize_model(mlp))


# Storage


@pytest.mark.oracle
@pytest.mark.parametrize("bits", [2, 4, 5, 8, 32])
def test_sizes_are_those_of_the_arrays_that_hold_the_weight(bits):
    from scipy.sparse import csr_matrix

    random = np.random.default_rng(0)
    for density in (0.0, 0.02, 0.5, 1.0):
        kind, shape = (np.float32, (17, 29)) if bits == 32 else (np.int8, (17, 29))
        numbers = (random.integers(1, 2, shape) * (random.random(shape) < density)).astype(kind)
        csr = csr_matrix(numbers)
        values = np.packbits(np.ones(csr.nnz * bits, bool)).nbytes
        assert (
            sizes(numbers, bits)
            == sizes(torch.from_numpy(numbers), bits)
            == {
                "dense": np.packbits(np.ones(numbers.size * bits, bool)).nbytes,
                "bitmap": np.packbits(numbers != 0).nbytes + values,
                "csr": csr.indptr.astype(np.uint32).nbytes + csr.indices.astype(np.uint16).nbytes + values,
            }
        )


@pytest.mark.oracle
def test_the_bytes_of_a_model():
    model = models.lenet()
    weights, biases, filters = [180, 25_000, 102_400, 1280], 4 * 208, 208
    assert stored_bytes(model) == 4 * 129_068
    assert stored_bytes(copy.deepcopy(model).half()) == 2 * 129_068
    assert stored_bytes(copy.deepcopy(model).bfloat16()) == 2 * 129_068
    quantized = quantize_model(model, 8)
    assert stored_bytes(quantized) == sum(weights) + 4 * filters + biases
    full = quantize_model(model, 8, inputs=8, images=torch.rand(2, 1, 28, 28))
    assert stored_bytes(full) == stored_bytes(quantized) + 4 * 5
    for bits in (3, 5):  # no zeros to speak of
        for module in (some := quantize_model(model, bits)):
            if isinstance(module, Quantized):
                weight = module.layer.weight.data
                weight[weight.abs() < module.weights.along(weight)[0]] = 9.0
        packed = sum(-(-n * bits // 8) for n in weights)
        assert stored_bytes(some) == packed + 4 * filters + biases
    normed = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4))
    assert stored_bytes(normed) == 4 * (12 + 8)


def test_a_model_that_is_one_layer():
    layer = nn.Linear(5, 3)
    x = torch.rand(2, 5)
    quantized = quantize_model(layer, 8)
    assert isinstance(quantized, Quantized) and isinstance(unpacked(quantized), nn.Linear)
    torch.testing.assert_close(quantized(x), layer(x), rtol=0, atol=0.02)
    assert torch.equal(unpacked(quantized)(x), quantized(x))


def test_a_saved_model_computes_the_same_when_it_is_loaded():
    draw = torch.Generator().manual_seed(0)
    net, x = models.mlp((4, 8, 2)), torch.randn(64, 4, generator=draw)
    saved = quantize_model(net, 4, inputs=8, images=x)
    other = quantize_model(models.mlp((4, 8, 2), seed=1), 8, inputs=4, images=100 * x)
    assert not torch.equal(other(x), saved(x))
    other.load_state_dict(saved.state_dict())
    assert torch.equal(other(x), saved(x)) and torch.equal(unpacked_codes(other), unpacked_codes(saved))
    with pytest.raises(RuntimeError, match="inputs.scale"):
        quantize_model(net).load_state_dict(saved.state_dict())


def unpacked_codes(model):
    return torch.cat([m.codes().flatten() for m in model.modules() if isinstance(m, Quantized)])
