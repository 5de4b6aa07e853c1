"""Formats against torch's and ml_dtypes' own: every float16 and FP8 number, what lies between, and
beyond.
"""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ed_lib.precision.formats import FORMATS, nearest, values

TORCH = {"bfloat16": torch.bfloat16, "float16": torch.float16, "e5m2": torch.float8_e5m2}
TORCH |= {"e4m3": torch.float8_e4m3fn}
ML = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
ML |= {"e5m2": ml_dtypes.float8_e5m2, "e4m3": ml_dtypes.float8_e4m3fn}
ML |= {
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
SMALL = [name for name in FORMATS if name != "float32"]


def rounded(x, name, **options):
    """nearest, for NumPy."""
    return nearest(torch.from_numpy(x), name, **options).numpy()


def same(a, b):
    """Equal, zeros with their signs, NaN like NaN."""
    a, b = np.asarray(a), np.asarray(b)
    signs = np.signbit(a)[a == 0], np.signbit(b)[b == 0]
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(*signs)


def hard(name):
    """float32: all numbers of a format, what is halfway between two, the neighbours of both, and
    beyond.
    """
    some = values(name) if name != "tf32" else values(name)[:: 2**6 + 1]
    halves = (some[:-1] + some[1:]) / 2
    top = FORMATS[name].largest
    spacing = values(name)[-1] - values(name)[-2]
    with np.errstate(over="ignore"):
        x = np.concatenate([some, halves, [top + spacing / 2, top + spacing, 2 * top]]).astype(
            "float32"
        )
    x = np.concatenate([x, np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(np.inf))])
    return np.concatenate([x, -x, np.float32([np.inf, -np.inf, np.nan])])


def theirs(x, name):
    """ml_dtypes' rounding. Its formats without infinity and NaN saturate, but know no NaN."""
    with np.errstate(all="ignore"):
        return x.astype(ML[name]).astype("float32")


@pytest.mark.oracle
@pytest.mark.parametrize("name", ML)
def test_numbers_halves_and_neighbours_are_rounded_as_ml_dtypes_rounds_them(name):
    some = (
        np.random.default_rng(0).standard_normal(20_000) * min(FORMATS[name].largest, 2.0**120) / 4
    )
    x = np.concatenate(
        [hard(name), some.astype("float32"), (some / FORMATS[name].largest).astype("float32")]
    )
    x = x if FORMATS[name].codes != "numbers" else x[~np.isnan(x)]
    assert same(rounded(x, name, saturate=False), theirs(x, name))
    finite = x[np.abs(x) <= FORMATS[name].largest]
    assert same(rounded(finite, name), theirs(finite, name))


@pytest.mark.oracle
@pytest.mark.parametrize("name", TORCH)
def test_random_bits_are_rounded_as_torch_rounds_them(name):
    bits = np.random.default_rng(0).integers(0, 2**32, 1_000_000, dtype=np.uint32)
    x = torch.from_numpy(np.concatenate([bits.view("float32"), hard(name)]))
    saturates = bool(
        torch.tensor(torch.inf).to(TORCH[name]).float().isfinite()
    )  # e4m3, in newer versions
    assert same(nearest(x, name, saturate=saturates), x.to(TORCH[name]).float())


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["float16", "bfloat16", "e5m2", "e4m3"])
def test_every_number_of_the_format_is_in_values_and_stays_itself(name):
    dtype, bits = (np.uint16, 16) if "16" in name else (np.uint8, 8)
    every = np.arange(2**bits, dtype=dtype).view(ML[name]).astype("float32")
    finite = every[np.isfinite(every)]
    assert same(rounded(every, name, saturate=False), every)
    assert np.array_equal(np.unique(np.abs(finite)), values(name))


@pytest.mark.oracle
@pytest.mark.parametrize("name", SMALL)
def test_limits_are_those_of_the_numbers(name):
    f, every = FORMATS[name], values(name)
    assert len(every) == len(np.unique(every)) and (np.diff(every) > 0).all()
    assert (every[0], every[1], every[-1]) == (0, f.smallest, f.largest)
    assert every[np.searchsorted(every, 1) + 1] == 1 + f.epsilon
    if name in TORCH:
        info = torch.finfo(TORCH[name])
        assert (f.largest, f.smallest_normal, f.epsilon) == (info.max, info.tiny, info.eps)
        assert 1 + f.exponent + f.mantissa == info.bits == f.bits


@pytest.mark.oracle
def test_the_limits_that_the_specifications_give():
    limits = {"float16": 65504, "e5m2": 57344, "e4m3": 448, "e3m2": 28, "e2m3": 7.5, "e2m1": 6}
    assert {name: FORMATS[name].largest for name in limits} == limits
    assert FORMATS["float16"].smallest == 2**-24 and FORMATS["float16"].smallest_normal == 2**-14
    assert FORMATS["float32"].largest == np.finfo("float32").max
    assert FORMATS["float32"].smallest == np.finfo("float32").smallest_subnormal
    assert values("e2m1").tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]


@pytest.mark.oracle
def test_tf32_keeps_the_first_ten_bits_of_the_mantissa():
    x = np.random.default_rng(1).standard_normal(100_000).astype("float32")
    bits = rounded(x, "tf32").view(np.uint32)
    assert not (bits & 0x1FFF).any()
    lost = np.abs(rounded(x, "tf32").astype(float) - x)
    assert (lost <= 2.0 ** (np.floor(np.log2(np.abs(x))) - 11)).all()
    in_range = x[(np.abs(x) > 2**-10)]  # there float16 has the same ten bits
    assert same(rounded(in_range, "tf32"), rounded(in_range, "float16"))


def test_float32_is_left_as_it_is():
    x = np.random.default_rng(2).integers(0, 2**32, 10_000, dtype=np.uint32).view("float32")
    x = np.concatenate([x, np.float32([np.inf, -np.inf, np.nan, 0.0, -0.0])])
    assert same(rounded(x, "float32", saturate=False), x)
    top = np.finfo("float32").max
    assert same(rounded(x, "float32"), np.clip(x, -top, top))


@pytest.mark.parametrize("x", [np.float32([1.5]), [1.5], torch.ones(2).double()])
def test_what_is_no_tensor_of_float32_is_refused(x):
    with pytest.raises(TypeError, match="x is of (float32|list|torch.float64); wanted a tensor"):
        nearest(x, "e4m3")


@pytest.mark.parametrize("x", [1.0625, -1.09375, 3.3, 0.0003, 17.0])
def test_at_random_the_mean_is_the_number_itself(x):
    """It lands on the two neighbours alone; the mean of n draws is within five of its spreads."""
    n, every = 40_000, np.concatenate([-values("e4m3")[::-1], values("e4m3")])
    draws = nearest(torch.full((n,), x), "e4m3", torch.Generator().manual_seed(0)).numpy()
    below, above = every[every <= x].max(), every[every >= x].min()
    assert set(np.unique(draws)) <= {np.float32(below), np.float32(above)}
    assert abs(draws.astype(float).mean() - x) <= 5 * (above - below) / 2 / n**0.5


@pytest.mark.oracle
@given(st.floats(width=32, allow_nan=False), st.sampled_from(sorted(set(SMALL) - {"tf32"})))
@settings(max_examples=400, deadline=None)
def test_what_comes_back_is_the_nearest_number(x, name):
    every = values(name)
    wanted = every[np.abs(every - min(abs(x), every[-1])).argmin()] * math.copysign(1, x)
    got = float(rounded(np.float32([x]), name)[0])
    gap = abs(min(abs(x), every[-1]) - abs(wanted))
    assert abs(min(abs(x), every[-1]) - abs(got)) == gap and math.copysign(1, got) == math.copysign(
        1, x
    )


@pytest.mark.oracle
@pytest.mark.parametrize(
    "name, beyond", [("float16", np.inf), ("e5m2", np.inf), ("e4m3", np.nan), ("e2m1", 6.0)]
)
def test_what_is_too_large_overflows_unless_it_is_to_saturate(name, beyond):
    x = np.float32([1e6, -1e6, np.inf, np.nan])
    top = FORMATS[name].largest
    assert same(rounded(x, name, saturate=False), np.float32([beyond, -beyond, beyond, np.nan]))
    assert same(rounded(x, name), np.float32([top, -top, top, np.nan]))


def test_shape_and_argument_are_kept():
    x = torch.randn(3, 4, 5).transpose(0, 2)
    before = x.clone()
    y = nearest(x, "e4m3")
    assert y.shape == x.shape and y.dtype == torch.float32 and torch.equal(x, before)
    assert nearest(torch.tensor(2.3), "e4m3").shape == () and torch.equal(
        nearest(x.contiguous(), "e4m3"), y
    )
