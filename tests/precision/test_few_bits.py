"""Products of few bits against formats' exact rounding, ml_dtypes, autograd, and what the recipes promise."""

import ml_dtypes
import numpy as np
import pytest
import torch

from ed_lib.precision import few_bits, formats
from ed_lib.precision.few_bits import (
    RECIPES,
    Bfloat16Weights,
    Recipe,
    Scaling,
    low_bits,
    mixed,
    nearest,
    scaled,
)

EIGHT = ["e5m2", "e4m3", "e3m2", "e2m3", "e2m1"]


def draw(*shape, seed=0, powers=False):
    """Normal numbers; with ``powers`` of very different sizes."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=random)
    return x * torch.exp2(torch.randint(-24, 12, shape, generator=random).float()) if powers else x


@pytest.mark.parametrize("name", EIGHT)
def test_nearest_is_the_formats_own_rounding(name):
    every = torch.from_numpy(formats.values(name)).float()
    halves = (every[1:] + every[:-1]) / 2
    x = torch.cat(
        [every, halves, draw(20_000, powers=True), torch.tensor([1e30, 3e38, torch.inf, torch.nan])]
    )
    x = torch.cat([x, -x])
    torch.testing.assert_close(
        nearest(x, name), formats.round_to(x, name, saturate=True), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("name", "theirs"), [("e2m1", ml_dtypes.float4_e2m1fn), ("e4m3", ml_dtypes.float8_e4m3fn)]
)
def test_nearest_is_what_ml_dtypes_has(name, theirs):
    x = draw(20_000).clamp(-6, 6)
    np.testing.assert_array_equal(nearest(x, name).numpy(), x.numpy().astype(theirs).astype(np.float32))


@pytest.mark.oracle
@pytest.mark.parametrize("name", EIGHT)
def test_stochastic_rounding_goes_to_a_neighbour_and_is_right_in_the_mean(name):
    low, high = formats.values(name)[[3, 4]]
    x = torch.full((200_000,), float(low + 0.3 * (high - low)))
    found = nearest(x, name, torch.Generator().manual_seed(0))
    assert set(found.tolist()) == {float(low), float(high)}
    share = float((found == high).float().mean())
    assert abs(share - 0.3) < 5 * (0.3 * 0.7 / len(x)) ** 0.5  # five standard errors
    top = formats.FORMATS[name].largest
    assert (nearest(torch.full((1000,), 2 * top), name, torch.Generator()) == top).all()


@pytest.mark.oracle
def test_stochastic_rounding_to_bfloat16_is_right_in_the_mean_too():
    x = torch.full((200_000,), -1 - 0.3 * 2**-7)
    found = few_bits.stochastic_bfloat16(x, torch.Generator().manual_seed(0))
    assert set(found.tolist()) == {-1.0, -1 - 2**-7}
    assert abs(float((found != -1).float().mean()) - 0.3) < 5 * (0.3 * 0.7 / len(x)) ** 0.5
    exact = draw(1000).bfloat16().float()
    assert torch.equal(few_bits.stochastic_bfloat16(exact, torch.Generator()), exact)


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "scale"), [("mxfp8", "floor"), ("mxfp8", "ceil"), ("mxfp4", "floor")])
def test_blocks_of_32_are_the_mx_formats(name, scale):
    x, element = draw(6, 96, powers=True), formats.BLOCK_FORMATS[name].element.name
    theirs = formats.round_blocks(x, name, up=scale == "ceil")
    assert torch.equal(scaled(x, Scaling(element, (1, 32), scale)), theirs)


@pytest.mark.oracle
def test_two_levels_of_scales_are_nvfp4():
    x = draw(64, 96)  # float32 where formats has float64: another last bit, and another choice at a tie
    found, theirs = scaled(x, Scaling("e2m1", (1, 16), "two-level")), formats.round_blocks(x, "nvfp4")
    assert ((found - theirs).abs() > 1e-5).float().mean() < 1e-3


def test_blocks_lie_along_the_axis_that_is_summed_over():
    x = draw(64, 32)
    for how in (Scaling(block=(1, 32)), Scaling("e2m1", (1, 16), "two-level"), Scaling()):
        assert torch.equal(scaled(x, how, 0), scaled(x.t().contiguous(), how, 1).t())
    square = Scaling("e2m1", (16, 16), "two-level")
    assert torch.equal(scaled(x, square, 0), scaled(x, square, 1))


@pytest.mark.parametrize("name", RECIPES)
def test_zeros_stay_zeros_and_what_is_no_number_shows(name):
    how, x = RECIPES[name].g, draw(128, 128)
    assert torch.equal(scaled(torch.zeros(128, 128), how, random=torch.Generator()), torch.zeros(128, 128))
    x[:, :64] = 0  # blocks of zeros beside others
    assert torch.equal(scaled(x, how, random=torch.Generator())[:, :64], x[:, :64])
    x[0, 0] = torch.nan
    assert scaled(x, how, random=torch.Generator())[0, 0].isnan()


def test_an_infinity_makes_its_block_no_number():
    x = draw(2, 64)
    x[0, 3] = torch.inf
    for scale in ("float32", "floor", "ceil", "e4m3"):
        found = scaled(x, Scaling(block=(1, 32), scale=scale))
        assert found[0, :32].isnan().all() and found[0, 32:].isfinite().all() and found[1].isfinite().all()


@pytest.mark.oracle
@pytest.mark.parametrize("scale", ["float32", "ceil", "floor", "two-level"])
def test_each_number_is_near_its_own(scale):
    x = draw(32, 64)
    off = (scaled(x, Scaling(block=(1, 32), scale=scale)) - x).abs()
    block = x.view(32, 2, 32).abs().amax(2, keepdim=True).expand(32, 2, 32).reshape(32, 64)
    assert (off <= 2**-4 * x.abs() + (block / 8 if scale == "floor" else block * 2**-9)).all()


@pytest.mark.oracle
def test_scaling_by_the_floor_cuts_off_the_largest():
    x = torch.full((1, 32), 1.9)  # 1.9 · 2⁸ is above 448
    assert scaled(x, Scaling(block=(1, 32), scale="floor")).max() == 1.75
    assert scaled(x, Scaling(block=(1, 32), scale="ceil")).max() == 1.875


@pytest.mark.oracle
def test_the_hadamard_transform_changes_no_product_and_spreads_an_outlier():
    x, y = draw(64, 8), draw(64, 5, seed=1)
    signs = torch.tensor([1.0, -1, -1, 1] * 4)
    torch.testing.assert_close(mixed(x, signs).t() @ mixed(y, signs), x.t() @ y)
    one = torch.zeros(16, 1)
    one[3] = 100.0
    assert torch.equal(mixed(one, signs).abs(), torch.full((16, 1), 25.0))


def linear(recipe, x, w, g):
    """The output and both gradients of x @ w."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    with low_bits(recipe, {"w": w}):
        y = x @ w
        y.backward(g)
    return y.detach(), x.grad, w.grad


X, W, G = draw(2, 64, 128), draw(128, 256, seed=1), draw(2, 64, 256, seed=2)


@pytest.mark.oracle
def test_without_rounding_the_products_are_autograds():
    none = Scaling("float32")
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    (x @ w).backward(G)
    for hadamard in (False, True):
        y, gx, gw = linear(Recipe(none, none, none, hadamard), X, W, G)
        for found, right in ((y, X @ W), (gx, x.grad), (gw, w.grad)):
            torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-3)


@pytest.mark.oracle
@pytest.mark.parametrize("name", [name for name in RECIPES if "no scale" not in name])
def test_products_are_those_of_the_rounded_matrices(name):
    recipe = RECIPES[name]
    y, gx, gw = linear(recipe, X, W, G)
    x, g = X.flatten(0, 1), G.flatten(0, 1)
    assert torch.equal(y.flatten(0, 1), scaled(x, recipe.x, 1) @ scaled(W, recipe.w, 0))
    limit = 0.3 if recipe.g.format == "e2m1" else 0.1
    for found, right in ((y, X @ W), (gx, G @ W.t()), (gw, x.t() @ g)):
        assert (found - right).norm() < limit * right.norm()


def test_what_is_not_named_is_left_alone():
    with low_bits(RECIPES["MXFP4"], {"other": W}):
        assert torch.equal(X @ W.clone(), X @ W.clone())
    assert torch.equal(linear(RECIPES["MXFP4"], X, W, G)[0], linear(RECIPES["MXFP4"], X, W, G)[0])


@pytest.mark.oracle
def test_a_delayed_scale_is_that_of_the_steps_before():
    recipe = Recipe(Scaling(history=2), Scaling("float32"), Scaling("float32"))
    w, one = torch.eye(16), torch.ones(1, 16)
    with low_bits(recipe, {"w": w}):
        assert torch.equal(one @ w, one)  # its own, at first
        assert torch.equal((100 * one) @ w, one)  # saturates: the scale is that of 1
        assert torch.equal((1e-4 * one) @ w, nearest(1e-4 * 4.48 * one, "e4m3") / 4.48)  # beside 100: coarse
        assert torch.equal(torch.zeros(1, 16) @ w, torch.zeros(1, 16))
        one @ w
        one @ w
        assert torch.equal(one @ w, one)  # the spike is forgotten


def test_after_steps_of_zeros_a_delayed_scale_begins_anew():
    recipe = Recipe(Scaling(history=1), Scaling("float32"), Scaling("float32"))
    w = torch.eye(16)
    with low_bits(recipe, {"w": w}):
        torch.zeros(1, 16) @ w
        assert torch.equal(torch.ones(1, 16) @ w, torch.ones(1, 16))


def trained(how, updates, start=1.0):
    """A weight after steps that add so much each."""
    w = torch.full((1000,), start, requires_grad=True)
    optimizer = torch.optim.SGD([w], 1.0)
    if how:
        Bfloat16Weights(optimizer, how)
    for update in updates:
        w.grad = torch.full_like(w, -update)
        optimizer.step()
    return w.detach()


@pytest.mark.oracle
def test_bfloat16_weights_stall_unless_rounded_at_random_or_by_kahan():
    updates = [2**-10] * 512  # half a unit in all, each an eighth of what bfloat16 tells apart at 1
    assert (trained("nearest", updates) == 1).all()
    assert abs(float(trained("stochastic", updates).mean()) - 1.5) < 0.01
    assert (trained("kahan", updates) - 1.5).abs().max() <= 2**-8


@pytest.mark.parametrize("how", ["nearest", "stochastic", "kahan"])
def test_weights_are_numbers_of_bfloat16(how):
    w = trained(how, [0.001, 0.02, -0.3], start=1 / 3)
    assert torch.equal(w, w.bfloat16().float())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Scaling("int8"), "format is 'int8'"),
        (lambda: Scaling(scale="half"), "scale is 'half'"),
        (lambda: Scaling(history=-1), "history is -1"),
        (lambda: Scaling(block=(1, 0)), "block is 0"),
        (lambda: nearest(X, "float16"), "format is 'float16'"),
        (lambda: scaled(X, Scaling()), "wanted a matrix"),
        (lambda: scaled(X[0].double(), Scaling()), "float64"),
        (lambda: scaled(X[0][:, :40], Scaling(block=(1, 32))), r"\(64, 40\); wanted a multiple"),
        (lambda: scaled(X[0], Scaling(), largest=torch.tensor(0.0)), "largest is 0.0"),
        (lambda: scaled(X[0], Scaling(), largest=torch.tensor(torch.nan)), "largest is nan"),
        (lambda: Bfloat16Weights(torch.optim.SGD([W], 1.0), "up"), "how is 'up'"),
    ],
)
def test_bad_input_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
