"""Weights in few bits: grids, packing, GPTQ against its definition, AWQ, and the products that read
them.
"""

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ed_lib.precision import quantization, weight_only


def naive_gptq(weight, hessian, bits, group, damping=0.01):
    """Column after column, each with the inverse of what is left of the Hessian, as the paper
    defines it.
    """
    left, matrix = weight.double().clone(), hessian.double().clone()
    dead = matrix.diagonal() == 0
    left[:, dead] = 0
    matrix.diagonal()[dead] = 1
    matrix += damping * matrix.diagonal().mean() * torch.eye(len(matrix), dtype=torch.float64)
    codes = torch.zeros_like(left)
    for n in range(weight.shape[1]):
        if n % group == 0:
            scale, least = weight_only.grids(left[:, n : n + group].contiguous(), bits, group)
        inverse = torch.linalg.inv(matrix[n:, n:])
        codes[:, n : n + 1] = weight_only.encode(left[:, n : n + 1], scale, least, bits)
        error = (left[:, n : n + 1] - codes[:, n : n + 1] * scale - least) / inverse[0, 0]
        left[:, n:] -= error * inverse[0]
    return codes


def weight_and_inputs(rows=7, columns=32, samples=60, seed=0):
    draw = torch.Generator().manual_seed(seed)
    mixing = torch.randn(columns, columns, generator=draw)
    return torch.randn(rows, columns, generator=draw), torch.randn(
        samples, columns, generator=draw
    ) @ mixing


def output_error(few, weight, x, factors=1.0):
    return float((x @ (few.weight() / factors - weight).T).square().sum())


@pytest.mark.oracle
@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from([1, 2, 8, 32]), st.integers(2, 8))
def test_to_the_nearest_every_number_is_within_half_a_step(rows, groups, group, bits):
    weight = torch.randn(rows, groups * group, generator=torch.Generator().manual_seed(rows))
    few = weight_only.rtn(weight, bits, group)
    assert few.group == group and int(few.codes.max()) < 2**bits
    assert (
        few.bytes == -(-rows * groups * group * bits // 8) + 2 * 2 * rows * groups
    )  # packed; 16 bits each
    off = (few.weight() - weight).abs().view(rows, groups, group)
    assert (off <= few.scale[..., None] / 2 + 1e-6).all()


def test_numbers_that_are_all_equal_stay():
    weight = torch.full((3, 8), 0.7)
    weight[1] = 0
    for few in (weight_only.rtn(weight, 4, 4), weight_only.gptq(weight, torch.eye(8), 4, 4)):
        assert torch.allclose(few.weight(), weight)


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("columns", "group", "bits"), [(16, 8, 4), (24, 24, 3), (32, 4, 2), (12, 1, 4)]
)
def test_gptq_is_its_definition(columns, group, bits):
    weight, x = weight_and_inputs(columns=columns)
    x[:, 3] = 0  # an input that is never anything else
    hessian = weight_only.hessian(x)
    few = weight_only.gptq(weight, hessian, bits, group)
    assert torch.equal(few.codes.double(), naive_gptq(weight, hessian, bits, group))


@pytest.mark.parametrize("seed", range(10))
def test_gptq_and_awq_are_no_worse_than_the_nearest_on_their_inputs(seed):
    weight, x = weight_and_inputs(seed=seed)
    plain = output_error(weight_only.rtn(weight, 4, 8), weight, x)
    assert output_error(weight_only.gptq(weight, weight_only.hessian(x), 4, 8), weight, x) < plain
    few, factors = weight_only.awq(weight, x, 4, 8)
    assert output_error(few, weight, x, factors) <= plain * (
        1 + 1e-4
    )  # the power 0 is among those tried


@pytest.mark.oracle
@pytest.mark.parametrize("group", [32, 128])
def test_the_products_are_those_of_the_weight(group):
    weight, x = torch.randn(64, 256), torch.randn(1, 256)
    few, bias = weight_only.rtn(weight, 4, group), torch.randn(64)
    right = x @ few.weight().T
    theirs = weight_only.Linear4(few, bias)
    assert torch.allclose(theirs(x), right + bias, atol=1e-4)
    some = torch.randn(256, 3)
    assert torch.equal(theirs(some.T), theirs(some.T.contiguous())), "whatever its layout"
    for rows in (3, 0):
        assert theirs(torch.randn(2, rows, 256)).shape == (2, rows, 64)


@pytest.mark.oracle
def test_awqs_factors_divide_the_inputs():
    weight, x = weight_and_inputs(rows=64, columns=128)
    few, factors = weight_only.awq(weight, x, 4, 32)
    layer = weight_only.Linear4(few, factors=factors)
    assert torch.allclose(layer(x), (x / factors) @ few.weight().T, rtol=1e-3, atol=1e-2)


def test_awq_leaves_the_column_of_a_silent_input_as_it_is():
    for seed in range(40):
        weight, x = weight_and_inputs(columns=32, rows=64, seed=seed)
        x[:, :3] *= 10
        x[:, 0] = 0
        few, factors = weight_only.awq(weight, x, 4, 32)
        off, step = (few.weight() / factors - weight)[:, 0].abs(), few.scale[:, 0]
        assert factors[0] == 1 and (off <= step / 2 + 1e-6).all()
        new = torch.randn(
            300, 32, generator=torch.Generator().manual_seed(100 + seed)
        )  # with a voice
        new[:, 1:3] *= 10
        plain = output_error(weight_only.rtn(weight, 4, 32), weight, new)
        assert output_error(few, weight, new, factors) <= plain
    silent = weight_only.awq(weight, torch.zeros(4, 32), 4, 32)[1]
    assert torch.equal(silent, torch.ones(32))


def test_hessians_of_few_inputs_or_of_none():
    weight, x = weight_and_inputs()
    singular = weight_only.hessian(x[:2])  # of rank 2: the damping makes it invertible
    assert torch.isfinite(weight_only.gptq(weight, singular, 4, 8).weight()).all()
    with pytest.raises(ValueError, match="hessian holds NaN, infinity or a square below 0"):
        weight_only.gptq(weight, torch.ones(32, 32) - 2 * torch.eye(32), 4, 8)


def test_what_a_layer_keeps_is_saved_loaded_and_moved():
    weight, x = weight_and_inputs(rows=64, columns=128)
    both = (weight_only.rtn(w, 4, 32) for w in (weight, -2 * weight))
    saved, other = (
        weight_only.Linear4(few, few.least[:, 0], few.weight()[0].abs() + 1) for few in both
    )
    other.load_state_dict(saved.state_dict())
    assert torch.equal(other(x), saved(x))
    assert sorted(saved.state_dict()) == ["bias", "codes", "factors", "grids"]
    plain = [name for name, value in vars(saved).items() if isinstance(value, torch.Tensor)]
    assert plain == ["packed"], "neither saved nor moved: laid out anew from codes"
    assert {each.device.type for each in saved.to("meta").state_dict().values()} == {"meta"}


def test_a_layer_of_four_bits_can_be_copied_and_leaves_what_it_was_made_from():
    weight, x = weight_and_inputs(rows=16, columns=64)
    few, other = weight_only.rtn(weight, 4, 32), weight_only.rtn(-weight, 4, 32)
    codes, bias = few.codes.clone(), few.least[:, 0].clone()
    layer = weight_only.Linear4(few, bias)
    y, file = layer(x), io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    ways = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(file, weights_only=0)
    for each in ways:
        assert torch.equal(each(x), y) and torch.equal(each.packed, layer.packed)
        each.load_state_dict(weight_only.Linear4(other, bias + 1).state_dict())
        assert torch.equal(layer(x), y) and not torch.equal(each(x), y), "it is its own"
    layer.load_state_dict(weight_only.Linear4(other, bias + 1).state_dict())
    assert torch.equal(few.codes, codes) and torch.equal(bias, few.least[:, 0])


ELSEWHERE = """
import sys, torch
from ed_lib.precision import weight_only
theirs, x, right = torch.load(sys.argv[1], weights_only=False)
layer = weight_only.Linear4(weight_only.rtn(torch.ones(64, 256), 4, 32), torch.zeros(64))
layer.load_state_dict(theirs.state_dict())
assert "packed" not in layer.state_dict()
for name, found in {"state": layer(x), "layer": theirs(x)}.items():
    off = float((found - right).norm() / right.norm())
    assert off < 1e-5, f"a {name} from elsewhere is off by {off:.0%}"
torch.save((layer, torch.backends.cpu.get_cpu_capability()), sys.argv[2])
"""


HERE = torch.backends.cpu.get_cpu_capability().lower()


@pytest.mark.oracle
@pytest.mark.parametrize("capability", sorted({"default", "avx2"} - {HERE}))
def test_a_state_is_the_same_on_every_processor(capability, tmp_path):
    """Saved here and loaded where PyTorch takes the code of another kind of processor; and back."""
    draw = torch.Generator().manual_seed(0)
    weight, x = torch.randn(64, 256, generator=draw), torch.randn(3, 256, generator=draw)
    few, bias = weight_only.rtn(weight, 4, 32), torch.randn(64, generator=draw)
    layer, right = weight_only.Linear4(few, bias), x @ few.weight().T + bias
    there, back = tmp_path / "there", tmp_path / "back"
    torch.save((layer, x, right), there)
    run = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, there, back],
        env=os.environ | {"ATEN_CPU_CAPABILITY": capability}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    theirs, kind = torch.load(back, weights_only=False)
    assert kind.lower() == capability or "x86" not in os.uname().machine
    for name, value in layer.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], value), name
    torch.testing.assert_close(theirs(x), right, rtol=1e-4, atol=1e-4)


def test_what_is_made_of_a_layers_weight_keeps_no_graph():
    layer = nn.Linear(32, 7)
    x = torch.randn(20, 32, requires_grad=True)
    H = weight_only.hessian(x)
    few = [weight_only.rtn(layer.weight, 4, 8), weight_only.gptq(layer.weight, H, 4, 8)]
    best, factors = weight_only.awq(layer.weight, x, 4, 8)
    for one in (*few, best):
        one.scale.numpy()
        one.least.numpy()
        one.weight().numpy()
    factors.numpy()
    H.numpy()


def test_the_nearest_codes_of_the_smallest_and_the_largest_numbers():
    weight, _ = weight_and_inputs()
    for power in (-140, -130, 100, 124):
        few = weight_only.rtn(weight * 2.0**power, 4, 8)
        off = (few.weight() - weight * 2.0**power).abs().view(7, -1, 8).amax(2)
        half = few.scale * 0.5001 + 2.0**-146
        assert few.weight().isfinite().all() and (off <= half).all(), power


def test_columns_that_grow_beyond_float32_are_refused():
    """An input that says the same, a hundred times more softly, has to be multiplied by as much."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(50, 8, generator=draw)
    x[:, 4] = x[:, 0] / 100
    weight = 3e38 * torch.rand(16, 8, generator=draw)
    H = weight_only.hessian(x)
    with pytest.raises(ValueError, match="weight grows beyond float32"):
        weight_only.gptq(weight, H, 2, 4, damping=1e-9)
    assert weight_only.gptq(weight / 1e4, H, 2, 4, damping=1e-9).weight().isfinite().all()


@pytest.mark.oracle
@pytest.mark.parametrize(("bits", "group"), [(2, 8), (3, 32), (4, 32), (4, 96), (8, 96)])
def test_groups_and_their_codes_are_torchaos(bits, group):
    from torchao.quantization import quant_primitives as theirs

    weight, most = torch.randn(40, 96, generator=torch.Generator().manual_seed(bits)), 2**bits - 1
    few = weight_only.rtn(weight, bits, group)
    scale, middle = theirs._choose_qparams_affine_tinygemm(
        weight, theirs.MappingType.ASYMMETRIC, (1, group), torch.uint8, 0, most
    )
    assert torch.equal(scale.view_as(few.scale), few.scale)
    assert torch.equal(middle.view_as(few.scale), few.least + few.scale * 2 ** (bits - 1))
    codes = theirs._quantize_affine_tinygemm(
        weight, (1, group), scale, middle, torch.uint8, 0, most
    )
    off = (
        codes.int() - few.codes.int()
    ).abs()  # by another formula: halfway cases may fall to either side
    assert off.max() <= 1 and off.float().mean() < 1e-3


@pytest.mark.oracle
@pytest.mark.parametrize("bits", range(2, 9))
def test_symmetric_codes_by_row_are_torchaos(bits):
    from torchao.quantization import quant_primitives as theirs

    weight = torch.randn(40, 96, generator=torch.Generator().manual_seed(bits))
    mine, most = quantization.choose_scale(weight, bits), 2 ** (bits - 1) - 1  # (O, 1)
    symmetric = theirs.MappingType.SYMMETRIC
    scale, zeros = theirs.choose_qparams_affine(weight, symmetric, (1, 96), torch.int8, -most, most)
    torch.testing.assert_close(mine[:, 0], scale)
    codes = theirs.quantize_affine(weight, (1, 96), mine, zeros, torch.int8, -most, most)
    assert torch.equal(codes, quantization.quantize(weight, mine, bits))


@pytest.mark.oracle
def test_torchaos_layer_of_eight_bits_has_a_scale_a_row_of_max_over_127_and_a_half():
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    layer = nn.Linear(96, 40, bias=False).requires_grad_(False)
    step = layer.weight.abs().amax(1, keepdim=True) / 127.5
    codes = (layer.weight / step).round().clamp(-128, 127)
    quantize_(layer, Int8WeightOnlyConfig())
    found = (layer.weight.dequantize() / step).round()
    # Halfway cases may fall to either side.
    assert (found - codes).abs().max() <= 1 and (found == codes).float().mean() > 0.99


@pytest.mark.parametrize("dtype", weight_only.DTYPES, ids=str)
@pytest.mark.parametrize("bias", [None, torch.ones(64)], ids=["no bias", "bias"])
def test_a_layer_answers_in_the_dtype_of_what_it_is_given(dtype, bias):
    few = weight_only.rtn(torch.ones(64, 256), 4, 32)
    layer = weight_only.Linear4(few, bias)
    assert layer(torch.ones(3, 256, dtype=dtype)).dtype == dtype
