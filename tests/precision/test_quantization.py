"""Codes and gradients against torch's own; a model of them; real products of bytes; the bytes
counted.
"""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.ao.quantization.observer import PerChannelMinMaxObserver

from benchmarks.shared.smaller import unpacked
from ed_lib import models
from ed_lib.precision import quantization
from ed_lib.precision.quantization import (
    LARGEST,
    W8A8,
    Quantized,
    StraightThrough,
    choose_scale,
    dequantize,
    quantize,
    quantize_model,
    sizes,
    stored_bytes,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
BITS = range(2, 9)
SHAPES = [(1, 1), (7, 5), (3, 4097), (5, 3, 2, 3)]
VNNI = pytest.mark.skipif(not quantization.has_vnni(), reason="no right products of 8 bits here")


def high(bits):
    return 2 ** (bits - 1) - 1


def tensors(shape, random):
    """Numbers of all sorts in this shape: small, large, one-sided, constant, zeros, extreme."""
    x = torch.randn(shape, generator=random)
    yield from (x, 1e-3 * x, 1e6 * x, x.abs(), torch.zeros(shape), torch.full(shape, -0.1))
    yield from (1e-30 * x, x.sign() * 1e38, torch.full(shape, 1e-44))


def theirs(x, scale, bits):
    """torch's own rounding to codes and back, of each row."""
    zeros = torch.zeros(len(x), dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(
        x, scale.flatten(), zeros, 0, -high(bits), high(bits)
    )


@pytest.mark.oracle
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_codes_are_torchs_bit_for_bit(shape, random):
    """torch.quantize_per_channel knows 8 bits only: clamped for fewer, whose rounding is the
    same.
    """
    for x in tensors(shape, random):
        for bits in (8, 5, 2):
            scale = choose_scale(x, bits)
            for numbers in (x, 3 * x):  # the second out of the codes' range
                if numbers.abs().max() > 2**31 * scale.min():
                    continue  # torch's own conversion to int32 overflows there
                zeros = torch.zeros(len(x), dtype=torch.long)
                wanted = torch.quantize_per_channel(
                    numbers, scale.flatten().double(), zeros, 0, torch.qint8
                )
                mine = quantize(numbers, scale, bits)
                assert mine.dtype == torch.int8 and mine.shape == x.shape
                assert torch.equal(mine, wanted.int_repr().clamp(-high(bits), high(bits)))


@pytest.mark.oracle
@pytest.mark.parametrize("bits", BITS)
def test_rounding_and_its_gradient_are_torchs_bit_for_bit(bits, random):
    ties = torch.arange(-1200, 1200).float()[None] / 8  # every second one between two codes
    cases = [(ties, torch.tensor([[0.25]]))]
    for shape in SHAPES:
        x = torch.randn(shape, generator=random)
        cases += [(numbers, choose_scale(x, bits)) for numbers in (x, 4 * x, torch.zeros(shape))]
    for numbers, scale in cases:
        mine, other = (numbers.clone().requires_grad_() for _ in range(2))
        y, wanted = StraightThrough.apply(mine, scale, bits), theirs(other, scale, bits)
        assert torch.equal(y, wanted)
        assert torch.equal(y.detach(), dequantize(quantize(numbers, scale, bits), scale))
        incoming = torch.randn(numbers.shape, generator=random)
        y.backward(incoming)
        wanted.backward(incoming)
        assert torch.equal(mine.grad, other.grad)


@pytest.mark.oracle
@settings(deadline=None)
@given(
    st.lists(
        st.floats(-LARGEST, LARGEST, width=32) | st.sampled_from([LARGEST, -LARGEST]), min_size=1
    ),
    st.sampled_from(BITS),
)
@example([3.4e38, -3.4e38], 8)
def test_finite_numbers_stay_finite_and_are_torchs_where_its_own_are(x, bits):
    x = torch.tensor(x)[None]
    scale = choose_scale(x, bits)
    found = StraightThrough.apply(x, scale, bits)
    assert torch.equal(found, theirs(x, scale, bits).clamp(-LARGEST, LARGEST))
    assert torch.equal(found, dequantize(quantize(x, scale, bits), scale))


@pytest.mark.oracle
@pytest.mark.parametrize("bits", BITS)
def test_the_min_max_scale_is_that_of_torchs_observer(bits, random):
    x = torch.randn(6, 35, generator=random) * torch.logspace(-3, 3, 6)[:, None] + 0.3
    span = {"quant_min": -high(bits), "quant_max": high(bits)}
    observer = PerChannelMinMaxObserver(0, torch.qint8, torch.per_channel_symmetric, **span)
    observer(x)
    wanted, _ = observer.calculate_qparams()
    torch.testing.assert_close(choose_scale(x, bits).flatten(), wanted, rtol=1e-6, atol=0)


@pytest.mark.oracle
def test_no_number_is_off_by_more_than_half_a_step(random):
    for bits in BITS:
        for x in tensors((4, 51), random):
            scale = choose_scale(x, bits)
            error = (dequantize(quantize(x, scale, bits), scale).double() - x).abs()
            assert (
                torch.isfinite(1 / scale).all() and (error <= scale.double() / 2 * (1 + 1e-4)).all()
            )


@pytest.mark.oracle
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_span_with_the_least_squared_error(bits, random):
    x = torch.randn(5, 400, generator=random)
    x[2, 7] = 40.0  # an outlier
    error = {}
    for span in ("min-max", "mse"):
        scale = choose_scale(x, bits, span)
        error[span] = (dequantize(quantize(x, scale, bits), scale) - x).square().sum(dim=1)
    assert (error["mse"] <= error["min-max"]).all()
    assert bits > 4 or error["mse"][0] < error["min-max"][0]
    for row, mine in zip(x.double().numpy(), error["mse"].tolist(), strict=True):
        steps = [share / 100 * np.abs(row).max() / high(bits) for share in range(1, 101)]
        codes = (np.clip(np.round(row / step), -high(bits), high(bits)) for step in steps)
        errors = [
            np.square(each * step - row).sum() for each, step in zip(codes, steps, strict=True)
        ]
        assert np.isclose(mine, min(errors), rtol=1e-3)
    assert torch.equal(choose_scale(x[2:3], bits, "mse"), scale[2:3])  # each row as if alone


@pytest.mark.parametrize("power", [-112, -80, -40, 40, 80, 110])
def test_the_best_span_does_not_hang_on_the_size_of_a_row(power, random):
    """Where squares of float32 numbers would be 0 or infinite, too."""
    x = torch.randn(5, 400, generator=random)
    for bits in (2, 4):
        wanted = choose_scale(x, bits, "mse")
        assert torch.equal(choose_scale(x * 2.0**power, bits, "mse"), wanted * 2.0**power)
        assert (wanted < choose_scale(x, bits)).all(), "it clips"


@pytest.mark.oracle
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_quantized_model_is_the_model_with_rounded_weights(bits, random):
    model, x = models.lenet(3), torch.rand(9, 1, 28, 28, generator=random)
    before, by_hand = copy.deepcopy(model.state_dict()), copy.deepcopy(model)
    for layer in (by_hand[0], by_hand[3], by_hand[7], by_hand[9]):
        scale = layer.weight.detach().flatten(1).abs().amax(dim=1) / high(bits)
        layer.weight.data = theirs(layer.weight.data, scale, bits)
    quantized = quantize_model(model, bits)
    assert torch.equal(quantized(x), by_hand(x)) and torch.equal(unpacked(quantized)(x), by_hand(x))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_saved_model_computes_the_same_when_it_is_loaded(random):
    x = torch.randn(64, 4, generator=random)
    saved, other = (
        quantize_model(models.mlp((4, 8, 2)), 4),
        quantize_model(models.mlp((4, 8, 2), seed=1), 8),
    )
    assert not torch.equal(other(x), saved(x))
    other.load_state_dict(saved.state_dict())
    assert torch.equal(other(x), saved(x)) and torch.equal(other[0].codes(), saved[0].codes())


def test_a_layer_in_several_places_is_quantized_in_all_and_stays_one(random):
    shared = nn.Linear(3, 3)
    inside = nn.Sequential(shared, nn.ReLU())
    model = nn.Sequential(shared, nn.Identity(), shared, inside, inside)
    few = quantize_model(model, 2)
    assert few[0] is few[2] is few[3][0] is few[4][0] and isinstance(few[0], Quantized)
    by_hand = copy.deepcopy(model)
    by_hand[0].weight.data = dequantize(few[0].codes(), few[0].scale)
    x = torch.randn(5, 3, generator=random)
    assert torch.equal(few(x), by_hand(x)) and not torch.equal(few(x), model(x))
    assert stored_bytes(model) == 4 * (9 + 3), "stored once"
    assert stored_bytes(few) == 3 + 4 * 3 + 4 * 3, "codes, scales, biases"


def copies(thing):
    """A thing as it comes back from each way to copy it."""
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    yield "deepcopy", copy.deepcopy(thing)
    yield "pickle", pickle.loads(pickle.dumps(thing))
    yield "torch.save", torch.load(file, weights_only=False)


def test_a_quantized_model_can_be_copied(random):
    model, x = quantize_model(models.mlp((4, 8, 2)), 4), torch.randn(5, 4, generator=random)
    for way, other in copies(model):
        assert torch.equal(other(x), model(x)), way


# W8A8


@pytest.mark.oracle
@VNNI
@pytest.mark.parametrize("shape", [(1, 64), (11, 64), (2, 3, 64), (0, 64)], ids=str)
def test_products_of_bytes_are_the_sums_of_whole_numbers(shape, random):
    weight, bias = torch.randn(48, 64, generator=random), torch.randn(48, generator=random)
    x = torch.randn(shape, generator=random) * 10
    x[..., :1, :] = 0  # a token that is silent
    layer = W8A8(weight, bias)
    step = x.abs().amax(-1, keepdim=True).double().clamp(min=1e-30) / 127
    sums = (x / step).round().long() @ layer.codes.long().T
    wanted = sums * step * layer.scale.double() + bias
    assert layer(x).shape == (*shape[:-1], 48)
    torch.testing.assert_close(layer(x), wanted.float(), rtol=1e-5, atol=1e-4)
    assert (layer(x) - (x @ weight.T + bias)).norm() <= 0.02 * wanted.norm()


@VNNI
def test_a_saved_layer_of_bytes_computes_the_same_when_it_is_loaded(random):
    weight, x = torch.randn(16, 64, generator=random), torch.randn(5, 64, generator=random)
    saved, other = W8A8(weight, weight[:, 0]), W8A8(-2 * weight, weight[:, 1])
    other.load_state_dict(saved.state_dict())
    assert torch.equal(other(x), saved(x))
    plain = [name for name, value in vars(saved).items() if isinstance(value, torch.Tensor)]
    assert plain == ["packed"], "neither saved nor moved: laid out anew from codes"


@pytest.mark.skipif(
    not hasattr(torch.ops.onednn, "qlinear_prepack"), reason="no operation for 8 bits"
)
def test_a_model_that_holds_a_layer_of_bytes_can_be_copied(random, monkeypatch):
    """Without VNNI its sums are wrong; they are equally wrong in a copy."""
    monkeypatch.setattr(quantization, "has_vnni", lambda: True)
    weight, x = torch.randn(16, 64, generator=random), torch.randn(5, 64, generator=random)
    bias = weight[:, 0].clone()
    model = nn.Sequential(W8A8(weight, bias), nn.ReLU())
    y = model(x)
    for way, other in copies(model):
        assert torch.equal(other(x), y), way
        other.load_state_dict(nn.Sequential(W8A8(-weight, bias + 1)).state_dict())
        assert torch.equal(model(x), y) and not torch.equal(other(x), y), f"{way}: it is its own"
    model.load_state_dict(nn.Sequential(W8A8(-weight, bias + 1)).state_dict())
    assert torch.equal(bias, weight[:, 0]), "what it was made from stays"
    saved = pickle.dumps(model)
    monkeypatch.setattr(quantization, "has_vnni", lambda: False)
    with pytest.raises(RuntimeError, match="wanted a CPU of x86 with VNNI"):
        pickle.loads(saved)  # as on another machine


def test_bytes_are_refused_where_their_sums_are_wrong(monkeypatch):
    monkeypatch.setattr(quantization, "has_vnni", lambda: False)
    with pytest.raises(RuntimeError, match="wanted a CPU of x86 with VNNI"):
        W8A8(torch.ones(16, 64))


# Storage


@pytest.mark.oracle
@pytest.mark.parametrize("bits", [2, 4, 5, 8, 32])
def test_sizes_are_those_of_the_arrays_that_hold_the_weight(bits):
    from scipy.sparse import csr_matrix

    random = np.random.default_rng(0)
    for density in (0.0, 0.02, 0.5, 1.0):
        numbers = (random.random((17, 29)) < density).astype(np.float32 if bits == 32 else np.int8)
        csr = csr_matrix(numbers)
        values = np.packbits(np.ones(csr.nnz * bits, bool)).nbytes
        found = {
            "dense": np.packbits(np.ones(numbers.size * bits, bool)).nbytes,
            "bitmap": np.packbits(numbers != 0).nbytes + values,
            "csr": csr.indptr.astype(np.uint32).nbytes
            + csr.indices.astype(np.uint16).nbytes
            + values,
        }
        assert sizes(numbers, bits) == sizes(torch.from_numpy(numbers), bits) == found


@pytest.mark.oracle
def test_the_bytes_of_a_model():
    model = models.lenet()
    weights, biases, filters = [180, 25_000, 102_400, 1280], 4 * 208, 208
    assert stored_bytes(model) == 4 * 129_068
    assert stored_bytes(copy.deepcopy(model).bfloat16()) == 2 * 129_068
    assert stored_bytes(quantize_model(model, 8)) == sum(weights) + 4 * filters + biases
    for bits in (3, 5):  # no zeros to speak of
        for module in (some := quantize_model(model, bits)):
            if isinstance(module, Quantized):
                weight = module.layer.weight.data
                weight[weight.abs() < module.scale] = 9.0
        packed = sum(-(-n * bits // 8) for n in weights)
        assert stored_bytes(some) == packed + 4 * filters + biases
    normed = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4))
    assert stored_bytes(normed) == 4 * (12 + 8)
