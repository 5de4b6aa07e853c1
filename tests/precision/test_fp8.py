"""FP8 products against float64 products of the same numbers, and against torch's own scaled product."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ed_lib import models
from ed_lib.precision import fp8
from ed_lib.precision.fp8 import E4M3, E5M2

LARGEST = {E4M3: 448.0, E5M2: 57344.0}  # the OCP specification's


def draw(*shape, seed=0, spread=1.0):
    return spread * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def meant(pair):
    """The numbers that a pair of to_float8 stands for, in float64."""
    return pair[0].double() * pair[1].double()


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize(
    ("kind", "spread"),
    [(kind, s) for kind in (torch.float32, torch.float64, torch.bfloat16) for s in (1e-32, 1.0, 1e30)]
    + [(torch.float16, s) for s in (1e-6, 1.0, 1e3)],
)
def test_the_largest_number_becomes_the_formats_largest(dtype, spread, kind):
    x = draw(5, 7, 3, spread=spread).to(kind)
    rounded, inverse = fp8.to_float8(x, dtype)
    assert fp8.to_float8(x.float(), dtype)[1] == inverse, "a scale is not rounded to the numbers' dtype"
    assert rounded.dtype == dtype and rounded.shape == x.shape
    assert inverse.shape == () and inverse.dtype == torch.float32
    assert rounded.float().abs().max() == LARGEST[dtype]
    mantissa = {E4M3: 3, E5M2: 2}[dtype]
    error = (meant((rounded, inverse)) - x.double()).abs()
    spacing = 2.0 ** -(mantissa + 1) * x.double().abs()  # half a unit in the last place, at the most
    least = torch.finfo(dtype).smallest_normal * 2.0**-mantissa * inverse.double()  # of the subnormal numbers
    assert (error <= (1 + 1e-5) * torch.maximum(spacing, least / 2)).all()


def test_zeros_stay_zeros_and_what_is_too_small_becomes_zero_but_not_nan():
    zeros, inverse = fp8.to_float8(torch.zeros(3, 4))
    assert inverse == 1 and not zeros.float().any()
    tiny, inverse = fp8.to_float8(torch.tensor([1e-42, 0.0]), E4M3)
    assert inverse.isfinite() and inverse > 0 and not tiny.float().any()


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("dtype", LARGEST)
def test_infinity_and_nan_are_not_lost(bad, dtype):
    x = draw(4, 32)
    x[2, 5] = bad
    assert fp8.to_float8(x, dtype)[0].float().isnan().all()
    layer = fp8.Float8Linear(32, 16)
    assert not layer(x).isfinite().any()
    g = torch.zeros(4, 16)
    g[1, 1] = bad
    layer(draw(4, 32)).backward(g)
    assert not layer.weight.grad.isfinite().any(), "a GradScaler would not see it"


@pytest.mark.oracle
@pytest.mark.parametrize(("M", "K", "N"), [(16, 16, 16), (32, 48, 80), (112, 64, 16)])
@pytest.mark.parametrize("kinds", [(E4M3, E4M3), (E5M2, E4M3)])
def test_a_product_is_that_of_the_rounded_numbers(M, K, N, kinds):
    a, b = fp8.to_float8(draw(M, K, seed=1), kinds[0]), fp8.to_float8(draw(N, K, seed=2), kinds[1])
    exact = meant(a) @ meant(b).T
    torch.testing.assert_close(fp8.product(a, b).double(), exact, rtol=1e-5, atol=1e-5)
    low = fp8.product(a, b, torch.bfloat16)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.double(), exact, rtol=2**-8, atol=1e-5)


@pytest.mark.oracle
def test_a_product_is_torchs_scaled_product():
    """Which a CPU has as well, in some versions of torch."""
    a, b = fp8.to_float8(draw(32, 64, seed=3), E5M2), fp8.to_float8(draw(48, 64, seed=4), E4M3)
    try:
        torchs = torch._scaled_mm(a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=torch.float32)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"torch._scaled_mm does not run here: {error}")
    torch.testing.assert_close(fp8.product(a, b), torchs, rtol=1e-5, atol=1e-4)


@pytest.mark.oracle
@pytest.mark.parametrize("shape", [(5, 32), (16, 32), (2, 3, 32), (1, 32), (32,)])
def test_the_layer_and_its_gradients_are_those_of_the_rounded_numbers(shape):
    """x and the weight in E4M3, the gradient of the scores in E5M2, everything else exact: by autograd."""
    layer = fp8.Float8Linear(32, 48)
    x = draw(*shape, seed=5).requires_grad_()
    g = draw(*shape[:-1], 48, seed=6, spread=1e-7)  # below what E5M2 reaches unscaled
    y = layer(x)
    y.backward(g)
    x8, w8, g8 = meant(fp8.to_float8(x.detach())), meant(fp8.to_float8(layer.weight.detach())), g
    x8.requires_grad_(), w8.requires_grad_()
    exact = F.linear(x8, w8, layer.bias.detach().double())
    assert y.dtype == torch.float32 and y.shape == exact.shape
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)
    g8 = meant(fp8.to_float8(g, E5M2))
    exact.backward(g8)
    torch.testing.assert_close(x.grad.double(), x8.grad, rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(layer.weight.grad.double(), w8.grad, rtol=1e-5, atol=1e-12)
    sums = g.reshape(-1, 48).sum(0)  # the bias is added outside the product: its gradient is not rounded
    torch.testing.assert_close(layer.bias.grad, sums, rtol=1e-5, atol=1e-12)
    assert layer.weight.grad.any() and x.grad.any()


def test_a_batch_of_no_rows_gives_none_and_no_gradient():
    layer = fp8.Float8Linear(32, 16)
    y = layer(torch.empty(2, 0, 32))
    y.sum().backward()
    assert y.shape == (2, 0, 16) and not layer.weight.grad.any()


def test_gradients_are_made_only_where_they_are_wanted():
    layer = fp8.Float8Linear(16, 16)
    layer.weight.requires_grad_(False)
    x = draw(4, 16)
    layer(x).sum().backward()
    assert x.grad is None and layer.weight.grad is None and layer.bias.grad is not None


def test_under_autocast_scores_are_of_its_dtype_and_products_stay_fp8():
    layer, x = fp8.Float8Linear(64, 16), draw(32, 64, seed=7)
    alone = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        within = layer(x)
    assert within.dtype == torch.bfloat16 and alone.dtype == torch.float32
    torch.testing.assert_close(within.float(), alone, rtol=2**-7, atol=2**-7)
    within.sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_layers_are_swapped_in_place_where_their_sizes_fit():
    net = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Sequential(nn.Linear(48, 16)), nn.Linear(16, 10))
    params = list(net.parameters())
    assert fp8.use_float8(net) == 2 and fp8.use_float8(net) == 0
    kinds = [type(m) for m in net.modules() if isinstance(m, nn.Linear)]
    assert kinds == [fp8.Float8Linear, fp8.Float8Linear, nn.Linear]
    assert all(a is b for a, b in zip(params, net.parameters(), strict=True))
    assert fp8.use_float8(models.lenet()) == 1
    assert fp8.use_float8(models.Encoder(layers=2, hidden=32, heads=2, vocabulary=20)) == 2 * 4 + 1


@pytest.mark.gpu
def test_no_gpu_below_ada_multiplies_fp8():
    assert not fp8.in_hardware("cpu")
    if torch.cuda.is_available():
        assert fp8.in_hardware("cuda") == (torch.cuda.get_device_capability() >= (8, 9))


@pytest.mark.oracle
def test_the_layer_is_the_same_with_torchs_scaled_product(monkeypatch):
    """The way a GPU goes, on a CPU that has the product too."""
    layer, x = fp8.Float8Linear(32, 48), draw(5, 32, seed=9).requires_grad_()
    g = draw(5, 48, seed=10)
    found = []
    for hardware in (False, True):
        monkeypatch.setattr(fp8, "in_hardware", lambda device, there=hardware: there)
        layer.zero_grad()
        x.grad = None
        try:
            y = layer(x)
            y.backward(g)
        except (RuntimeError, NotImplementedError) as error:
            pytest.skip(f"torch._scaled_mm does not run here: {error}")
        found.append([y.detach(), x.grad, layer.weight.grad.clone()])
    for ours, torchs in zip(*found, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-4)
