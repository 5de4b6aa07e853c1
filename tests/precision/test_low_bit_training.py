"""Products of few bits against formats' exact rounding, ml_dtypes, autograd, and what the recipes
promise.
"""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
import torch

from ed_lib.precision.formats import FORMATS, nearest, values
from ed_lib.precision.low_bit_training import (
    RECIPES,
    Bfloat16Weights,
    Recipe,
    Scaling,
    low_bits,
    mixed,
    scaled,
)

EIGHT = ["e5m2", "e4m3", "e3m2", "e2m3", "e2m1"]


def draw(*shape, seed=0, powers=False):
    """Normal numbers; with ``powers`` of very different sizes."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=random)
    return x * torch.exp2(torch.randint(-24, 12, shape, generator=random).float()) if powers else x


@pytest.mark.oracle
@pytest.mark.parametrize("name", [*EIGHT, "bfloat16"])
def test_stochastic_rounding_goes_to_a_neighbour_and_is_right_in_the_mean(name):
    every, top = values(name), FORMATS[name].largest
    for sign, at in ((1, 3), (-1, np.searchsorted(every, 1.0))):  # subnormal in most; below −1
        low, high = sign * every[at : at + 2]
        x = torch.full((100_000,), float(low + 0.3 * (high - low)))
        found = nearest(x, name, torch.Generator().manual_seed(0))
        assert set(found.tolist()) == {float(low), float(high)}
        share = float((found == high).float().mean())
        assert abs(share - 0.3) < 5 * (0.3 * 0.7 / len(x)) ** 0.5  # five standard errors
    assert (
        nearest(torch.full((1000,), min(2 * top, 3.4e38)), name, torch.Generator()) == top
    ).all()


def test_stochastic_rounding_keeps_nan_and_infinity():
    bits = torch.tensor(
        [0x7FFFFFFF, -1, 0x7F800001, 0x7F800000], dtype=torch.int32
    )  # NaN thrice, and ∞
    some = nearest(bits.view(torch.float32), "bfloat16", torch.Generator(), saturate=False)
    assert some[:3].isnan().all() and some[3] == torch.inf


@pytest.mark.parametrize("name", ["bfloat16", "float16", *EIGHT])
def test_stochastic_rounding_leaves_the_formats_own_numbers_alone(name, monkeypatch):
    own = torch.from_numpy(values(name)).float()
    own = torch.cat([own, -own])
    for saturate, drawn in itertools.product(
        (True, False), (0, 1 - 2**-24)
    ):  # whatever is drawn of [0, 1)
        monkeypatch.setattr(
            torch, "rand", lambda shape, generator, drawn=drawn: torch.full(shape, drawn)
        )
        found = nearest(own, name, torch.Generator().manual_seed(0), saturate=saturate)
        assert torch.equal(found, own) and torch.equal(found.signbit(), own.signbit())


BLOCKS = {  # a format in blocks, as the specifications have it: element, size, scale
    "mxfp8": ("e4m3", 32, "floor"),
    "mxfp8, up": ("e4m3", 32, "ceil"),
    "mxfp6": ("e2m3", 32, "floor"),
    "mxfp6, up": ("e2m3", 32, "ceil"),
    "mxfp4": ("e2m1", 32, "floor"),
    "mxfp4, up": ("e2m1", 32, "ceil"),
    "nvfp4": ("e2m1", 16, "two-level"),
    "by its largest": ("e4m3", 32, "float32"),
}
ELEMENTS = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}


def blocks_one_by_one(x, element, size, scale):
    """Block formats in plain loops, with ml_dtypes' elements and scales. "ceil": NVIDIA's rule."""
    top, result = np.float32(FORMATS[element].largest), []
    overall = np.abs(x).max() / (top * np.float32(448))
    for block in x.reshape(-1, size):
        largest = np.abs(block).max()
        if scale == "two-level":
            kept = np.minimum(largest / top / overall, np.float32(448)).astype(
                ml_dtypes.float8_e4m3fn
            )
            by = kept.astype(np.float32) * overall
        elif scale == "float32":
            by = largest / top
        else:
            power = math.frexp(largest)[1] - math.frexp(top)[1] if largest else -127
            if scale == "ceil" and largest:
                power = math.ceil(math.log2(float(largest) / float(top)))
            by = (
                np.float32(2.0 ** max(power, -127))
                .astype(ml_dtypes.float8_e8m0fnu)
                .astype(np.float32)
            )
        inside = np.clip(block * (1 / by), -top, top) if by else 0 * block
        result.append(inside.astype(ELEMENTS[element]).astype(np.float32) * by)
    return np.array(result).reshape(x.shape)


@pytest.mark.oracle
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("spread", [0, 3, 20])
def test_blocks_are_those_of_a_loop(name, spread):
    rng, (element, size, scale) = np.random.default_rng(spread), BLOCKS[name]
    x = rng.standard_normal((15, 64)) * 10.0 ** rng.uniform(-spread, spread, (15, 1))
    x = x.astype("float32")
    x[0, :32] = 0
    wanted = blocks_one_by_one(x, element, size, scale)
    found = scaled(torch.from_numpy(x), Scaling(element, (1, size), scale))
    assert np.array_equal(found.numpy(), wanted)


@pytest.mark.oracle
@pytest.mark.parametrize("element", ["e4m3", "e2m1"])
def test_a_scale_a_row_is_a_loops_block_as_long_as_the_axis_that_is_summed_over(element):
    how, x = Scaling(element, (1, None)), draw(15, 40, powers=True)
    x[3] = 0
    rows = torch.from_numpy(blocks_one_by_one(x.numpy(), element, 40, "float32"))
    assert torch.equal(scaled(x, how, 1), rows)
    columns = blocks_one_by_one(x.t().contiguous().numpy(), element, 15, "float32")
    assert torch.equal(scaled(x, how, 0), torch.from_numpy(columns).t())
    assert torch.equal(scaled(x, Scaling(element, (None, None))), scaled(x, Scaling(element)))


def test_blocks_lie_along_the_axis_that_is_summed_over():
    x = draw(64, 32)
    for how in (Scaling(block=(1, 32)), Scaling("e2m1", (1, 16), "two-level"), Scaling()):
        assert torch.equal(scaled(x, how, 0), scaled(x.t().contiguous(), how, 1).t())
    square = Scaling("e2m1", (16, 16), "two-level")
    assert torch.equal(scaled(x, square, 0), scaled(x, square, 1))


@pytest.mark.parametrize("name", RECIPES)
def test_zeros_stay_zeros_and_what_is_no_number_shows(name):
    how, x = RECIPES[name].g, draw(128, 128)
    assert torch.equal(
        scaled(torch.zeros(128, 128), how, random=torch.Generator()), torch.zeros(128, 128)
    )
    x[:, :64] = 0  # blocks of zeros beside others
    assert torch.equal(scaled(x, how, random=torch.Generator())[:, :64], x[:, :64])
    x[0, 0] = torch.nan
    assert scaled(x, how, random=torch.Generator())[0, 0].isnan()


@pytest.mark.parametrize("name", ["e5m2", "e4m3", "e2m1"])
def test_finite_numbers_stay_finite_however_small_and_random_ones_in_the_format(name):
    for scale in ("float32", "floor", "ceil"):
        assert scaled(torch.full((1, 2), 3.4e38), Scaling(name, scale=scale)).isfinite().all()
        found = scaled(torch.tensor([[1e-34, 0.0, -1e-38]]), Scaling(name, scale=scale))
        assert found.isfinite().all() and abs(found[0, 0] - 1e-34) < 2e-35
    x = torch.full((1, 10_000), 0.3)
    x[0, 0] = FORMATS[name].largest  # so that the scale is 1
    for scale in ("none", "ceil"):
        how, random = Scaling(name, scale=scale, stochastic=True), torch.Generator().manual_seed(0)
        drawn = scaled(x, how, random=random)[0, 1:]
        assert len(set(drawn.tolist())) == 2 and abs(drawn.mean() - 0.3) < 0.02


SCALES = ["float32", "floor", "ceil", "two-level"]


@pytest.mark.parametrize("name", ["float16", *EIGHT])
@pytest.mark.parametrize("scale", SCALES)
def test_finite_numbers_of_every_size_stay_finite_and_where_they_are(name, scale):
    """From the smallest number of float32 to its largest. Of a block's largest number no more than
    a quarter is lost: a floor may cut 7.99 to 6. What is smaller than a scale may be becomes 0.
    """
    least = 2 * FORMATS["float32"].smallest_normal
    for power in range(-149, 128):
        largest = min(1.99 * 2.0**power, FORMATS["float32"].largest)
        x = torch.zeros(2, 16)
        x[0, :3] = torch.tensor([largest, -largest / 3, 2.0**power])
        x[1, 3] = largest / 1000
        for stochastic in (False, True):
            how = Scaling(name, (1, 16), scale, stochastic=stochastic)
            found = scaled(x, how, random=torch.Generator().manual_seed(0))
            off = (found.double() - x.double()).abs().max()
            case = f"{how}, 2^{power}: off by {float(off):.3g} of {largest:.3g}"
            assert found.isfinite().all(), case
            assert off <= (0.5 if stochastic else 0.26) * largest + least, case
            assert not found[x == 0].any(), case


def test_numbers_beside_a_tiny_one_stay_zero_under_two_levels():
    how = Scaling("e2m1", (1, 2), "two-level")
    assert scaled(torch.tensor([[1e-39, 0.0]]), how).tolist() == [[0, 0]]
    x = torch.zeros(16, 16)
    x[0, 0] = 1e-38
    w = torch.eye(16)
    for number in (1e-38, 3e-42, 1e-36):
        x[0, 0] = number
        for each in linear(RECIPES["NVFP4"], x, w, x):
            assert each.isfinite().all(), f"{number} beside zeros: {each}"


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
@pytest.mark.parametrize("scale", ["float32", "floor", "ceil", "e4m3"])
def test_infinity_or_nan_makes_its_block_no_number_and_no_other(scale, bad):
    x = draw(2, 64)
    x[0, 3] = bad
    found = scaled(x, Scaling(block=(1, 32), scale=scale))
    assert (
        found[0, :32].isnan().all() and found[0, 32:].isfinite().all() and found[1].isfinite().all()
    )


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


@pytest.mark.parametrize("name", RECIPES)
def test_a_batch_of_no_rows_is_taken_as_it_is(name):
    y, gx, gw = linear(RECIPES[name], X[:, :0], W, G[:, :0])
    assert y.shape == (2, 0, 256) and gx.shape == (2, 0, 128) and not gw.any()


CALLS = {
    "other by its name": lambda x, w: torch.matmul(x, other=w),
    "both by their names": lambda x, w: torch.matmul(input=x, other=w),
    "a method": lambda x, w: x.matmul(w),
    "a method, by its name": lambda x, w: x.matmul(other=w),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_product_is_of_few_bits_however_it_is_called(name):
    with low_bits(RECIPES["E4M3, per tensor"], {"w": W}):
        wanted, found = X @ W, CALLS[name](X, W)
        other = CALLS[name](X, W.clone())
    assert torch.equal(found, wanted) and not torch.equal(found, X @ W)
    assert torch.equal(other, X @ W), "no weight of these"


def test_a_vector_is_a_matrix_of_one_row():
    one = RECIPES["E4M3, per tensor"]
    for found, wanted in zip(
        linear(one, X[0, 0], W, G[0, 0]), linear(one, X[0, :1], W, G[0, :1]), strict=True
    ):
        assert torch.equal(found, wanted.view_as(found))


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
        assert torch.equal(
            (1e-4 * one) @ w, nearest(1e-4 * 4.48 * one, "e4m3") / 4.48
        )  # beside 100: coarse
        assert torch.equal(torch.zeros(1, 16) @ w, torch.zeros(1, 16))
        one @ w
        one @ w
        assert torch.equal(one @ w, one)  # the spike is forgotten


@pytest.mark.oracle
def test_a_delayed_scale_is_of_the_largest_of_so_many_steps_wherever_it_came():
    recipe = Recipe(Scaling(history=3), Scaling("float32"), Scaling("float32"))
    steps = [1.0, 7.0, 3.0, 1.3, 1.1, 1.0]
    # Before each step the three before it hold at most: (its own,) 1, 7, 7, 7, 3.
    largest = [1.0, 1.0, 7.0, 7.0, 7.0, 3.0]
    w = torch.eye(16)
    with low_bits(recipe, {"w": w}):
        for step, most in zip(steps, largest, strict=True):
            x = torch.full((1, 16), 0.3)
            x[0, 0] = step
            ways = {each: nearest(x * (448 / each), "e4m3") / (448 / each) for each in {*largest}}
            assert len({float(way[0, 1]) for way in ways.values()}) == 3, "to tell them apart"
            torch.testing.assert_close(
                x @ w, ways[most], msg=lambda m, step=step: f"step of {step}: {m}"
            )


def test_after_steps_of_zeros_or_infinity_a_delayed_scale_begins_anew():
    recipe = Recipe(Scaling(history=1), Scaling("float32"), Scaling("float32"))
    w = torch.eye(16)
    with low_bits(recipe, {"w": w}):
        torch.zeros(1, 16) @ w
        assert torch.equal(torch.ones(1, 16) @ w, torch.ones(1, 16))
        assert not (torch.full((1, 16), torch.inf) @ w).isfinite().any()
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


@pytest.mark.oracle
@pytest.mark.parametrize("history", [1, 2, 3, 5])
def test_a_delayed_scale_is_that_of_the_largest_of_the_last_steps(history):
    """In a plain loop, with ml_dtypes' elements; the largest number is rarely the last step's."""
    recipe = Recipe(Scaling(history=history), Scaling("float32"), Scaling("float32"))
    steps = [
        (size * draw(4, 16, seed=seed)) for seed, size in enumerate([1, 50, 3, 2, 9, 1, 1, 1, 4, 2])
    ]
    w, past = torch.eye(16), []
    with low_bits(recipe, {"w": w}):
        for number, x in enumerate(steps):
            largest = max(past[-history:], default=x.abs().max().numpy())
            by = largest / np.float32(448)
            inside = np.clip(x.numpy() * (1 / by), -448, 448).astype(ml_dtypes.float8_e4m3fn)
            wanted = inside.astype("float32") * by
            assert np.array_equal((x @ w).numpy(), wanted), f"history {history}, step {number}"
            past.append(x.abs().max().numpy())


def tiles_one_by_one(x, element, block, scale):
    """A matrix in tiles of r × c numbers, each by the plain loop above."""
    (rows, columns), (r, c) = x.shape, block
    tiles = x.reshape(rows // r, r, columns // c, c).swapaxes(1, 2)
    done = blocks_one_by_one(tiles.reshape(-1, r * c), element, r * c, scale)
    return torch.from_numpy(done.reshape(tiles.shape).swapaxes(1, 2).reshape(rows, columns))


PUBLISHED = {  # what x, w and g are made of: element, tile (across, along) the sum, scale
    # OCP, "Microscaling Formats (MX) v1.0": 32 numbers share a power of two.
    "MXFP8, floor": 3 * [("e4m3", (1, 32), "floor")],
    # Mishra and others, arXiv 2506.08027: the same, the scale rounded up.
    "MXFP8, ceil": 3 * [("e4m3", (1, 32), "ceil")],
    "MXFP4": 3 * [("e2m1", (1, 32), "floor")],
    # NVIDIA, arXiv 2509.25149: 16 numbers share a scale in E4M3.
    "NVFP4, to nearest": 3 * [("e2m1", (1, 16), "two-level")],
    # DeepSeek-V3, arXiv 2412.19437: rows of 128 for activations, squares of 128 for weights.
    "E4M3, blocks of 128": [
        ("e4m3", (1, 128), "float32"),
        ("e4m3", (128, 128), "float32"),
        ("e4m3", (1, 128), "float32"),
    ],
    # Micikevicius and others, arXiv 2209.05433: gradients in E5M2.
    "E4M3, per tensor": 3 * [("e4m3", None, "float32")],
    "hybrid, per tensor": [*2 * [("e4m3", None, "float32")], ("e5m2", None, "float32")],
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_three_products_of_a_recipe_are_those_of_its_published_blocks(name, monkeypatch):
    """In the second step, which no recipe of these scales by what came before."""
    monkeypatch.setitem(ELEMENTS, "e5m2", ml_dtypes.float8_e5m2)

    def rounded(role, matrix, axis):
        element, block, scale = PUBLISHED[name]["xwg".index(role)]
        across, along = block or (matrix.shape[1 - axis], matrix.shape[axis])
        tile = (across, along) if axis == 1 else (along, across)
        return tiles_one_by_one(matrix.numpy(), element, tile, scale)

    x, w = (10 * draw(256, 128)).requires_grad_(), draw(128, 384, seed=1).requires_grad_()
    g = draw(256, 384, seed=2)
    with low_bits(RECIPES[name], {"w": w}):
        (100 * x.detach()) @ w
        y = x @ w
        y.backward(g)
    one, two = x.detach(), w.detach()
    for found, left, right in (
        (y.detach(), rounded("x", one, 1), rounded("w", two, 0)),
        (x.grad, rounded("g", g, 1), rounded("w", two, 1).t()),
        (w.grad, rounded("x", one, 0).t(), rounded("g", g, 0)),
    ):
        torch.testing.assert_close(
            found, left @ right, rtol=1e-5, atol=1e-2, msg=lambda m: f"{name}: {m}"
        )


@pytest.mark.oracle
def test_nvfp4_rounds_weights_in_squares_and_gradients_at_random():
    """arXiv 2509.25149: squares of 16 × 16 for weights; what is random is right in the mean."""
    x, w, g = X[0], W, G[0]
    squares = tiles_one_by_one(w.numpy(), "e2m1", (16, 16), "two-level")
    rows = tiles_one_by_one(x.numpy(), "e2m1", (1, 16), "two-level")
    found = []
    for seed in range(64):
        one = x.clone().requires_grad_()
        with low_bits(RECIPES["NVFP4"], {"w": w}, seed):
            y = one @ w
            y.backward(g)
        torch.testing.assert_close(y.detach(), rows @ squares, rtol=1e-5, atol=1e-3)
        found.append(one.grad)
    assert not torch.equal(found[0], found[1])
    right = g @ squares.t()
    errors = [float((some - right).norm()) for some in (found[0], torch.stack(found).mean(0))]
    assert errors[1] < errors[0] / 4, f"of one draw and of the mean of 64: {errors}"  # √64 = 8


@pytest.mark.parametrize("kind", ["low_bits", "stochastic"])
def test_what_is_random_is_that_of_the_seed_which_is_0_unless_said(kind):
    def numbers(*seed):
        if kind == "low_bits":
            x = X.clone().requires_grad_()
            with low_bits(RECIPES["NVFP4"], {"w": W}, *seed):
                (x @ W).backward(G)
            return x.grad
        w = torch.full((1000,), 1.0, requires_grad=True)
        optimizer = torch.optim.SGD([w], 1.0)
        Bfloat16Weights(optimizer, "stochastic", *seed)
        w.grad = torch.full_like(w, 2**-10)
        optimizer.step()
        return w.detach()

    assert torch.equal(numbers(), numbers(0)) and not torch.equal(numbers(0), numbers(1))


@pytest.mark.oracle
@pytest.mark.parametrize("element", ["e4m3", "e2m3", "e2m1"])
@pytest.mark.parametrize("scale", ["float32", "floor", "ceil"])
def test_a_block_of_the_formats_own_numbers_comes_back_as_it_is(element, scale):
    """Its largest number is the format's largest, so its scale is 1; and of 2ⁿ times such numbers
    2ⁿ. A largest number of exactly 1 is one like others.
    """
    own = torch.from_numpy(values(element)).float()[None]
    for factor in (1.0, 2.0**-20, 2.0**20):
        assert torch.equal(scaled(factor * own, Scaling(element, scale=scale)), factor * own)
    ones = np.float32([[1, -0.5, 0.25, 0]])
    wanted = blocks_one_by_one(ones, element, 4, scale)
    assert np.array_equal(scaled(torch.from_numpy(ones), Scaling(element, scale=scale)), wanted)


@pytest.mark.oracle
def test_without_a_scale_sixteen_bits_overflow_and_eight_saturate():
    x = torch.tensor([[3.4e38, -7e4, 500.0, 1 / 3]])
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        assert torch.equal(scaled(x, Scaling(name, scale="none")), x.to(dtype).float())
    for name, dtype in (("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)):
        top = FORMATS[name].largest
        wanted = np.clip(x.numpy(), -top, top).astype(dtype).astype("float32")
        assert np.array_equal(scaled(x, Scaling(name, scale="none")), wanted)


def test_rows_and_columns_have_to_be_multiples_of_blocks_along_either_axis():
    how = Scaling(block=(32, 16))
    assert scaled(draw(64, 48), how, 1).shape == scaled(draw(48, 64), how, 0).shape[::-1]
    for shape, axis in (((48, 48), 1), ((64, 40), 1), ((48, 48), 0), ((40, 64), 0)):
        with pytest.raises(ValueError, match="wanted a multiple of its blocks"):
            scaled(draw(*shape), how, axis)


def test_the_operator_and_both_functions_of_a_product_are_rounded_alike():
    with low_bits(RECIPES["MXFP4"], {"w": W}):
        products = [X @ W, torch.matmul(X, W), X.matmul(W)]
    assert not torch.equal(products[0], X @ W)
    assert torch.equal(products[0], products[1]) and torch.equal(products[0], products[2])


def test_after_an_infinity_a_delayed_scale_is_the_next_steps_own():
    """However large its numbers are, beside 0 and beside 1."""
    recipe = Recipe(Scaling(history=1), Scaling("float32"), Scaling("float32"))
    w = torch.eye(16)
    for size in (0.25, 1.0, 100.0):
        with low_bits(recipe, {"w": w}):
            torch.full((1, 16), torch.inf) @ w
            following = torch.full((1, 16), size)
            assert torch.equal(following @ w, following)


@pytest.mark.oracle
@pytest.mark.parametrize("how", ["nearest", "kahan"])
def test_a_weight_beyond_bfloat16_is_infinite_as_in_pytorch(how):
    w = trained(None, [0.195e38], start=float(torch.tensor(3.2e38).bfloat16()))
    assert w.isfinite().all() and w.bfloat16().isinf().all()
    assert torch.equal(trained(how, [0.195e38], start=3.2e38), w.bfloat16().float())


def test_a_product_with_another_matrix_is_never_taken_for_one_of_few_bits():
    """The name of a weight hangs on its id, which is free again once the weight is gone."""
    draw = torch.Generator().manual_seed(0)
    mode = low_bits(RECIPES["E4M3, per tensor"], {"w": torch.randn(4, 4, generator=draw)})
    x = torch.randn(4, 4, generator=draw)
    for _ in range(1000):
        z = torch.randn(4, 4, generator=draw)
        with mode:
            y = x @ z
        assert torch.equal(y, x @ z)
