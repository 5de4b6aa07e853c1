"""Number formats of few bits, as functions that round float32 numbers to those that a format has.

A number is ± 1.m · 2ᵉ: a sign, an exponent of E bits, a mantissa of M bits. E sets how large and how small it
can be, M how close the numbers are. Below the smallest normal number they stay equally far apart down to
zero: the subnormal numbers, ± 0.m · 2ᵉ. Sources: IEEE 754-2019; the OCP specifications of 8-bit floating
point (2023) and of microscaling formats (2023).
"""

from dataclasses import dataclass

import numpy as np

from ed_lib import arrays, check
from ed_lib.arrays import Array

EXPONENT = 0x7FF0000000000000  # the bits of a float64 that hold its exponent


@dataclass(frozen=True)
class Format:
    """A floating-point format: ``name``, bits of ``exponent`` and of ``mantissa``; one more is the sign.

    ``codes`` says what the largest exponent means: "ieee": infinity and NaN; "nan": numbers, but for the one
    code of all ones, which is NaN; "numbers": nothing but numbers.
    """

    name: str
    exponent: int
    mantissa: int
    codes: str = "ieee"

    @property
    def bits(self) -> int:
        """How many bits a number has."""
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        """What is subtracted from the stored exponent."""
        return 2 ** (self.exponent - 1) - 1

    @property
    def largest(self) -> float:
        """The largest finite number."""
        lost = {"ieee": 1, "nan": 2, "numbers": 1}[self.codes]  # mantissas, counted from 2 downwards
        top = self.bias + (self.codes != "ieee")
        return (2 - lost * self.epsilon) * 2.0**top

    @property
    def smallest_normal(self) -> float:
        """The smallest number above 0 that has all bits of its mantissa."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest(self) -> float:
        """The smallest number above 0."""
        return self.smallest_normal * self.epsilon

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number above."""
        return 2.0**-self.mantissa


FORMATS = {
    f.name: f
    for f in (
        Format("float32", 8, 23),
        Format("tf32", 8, 10),  # kept in 32 bits; only products see it
        Format("bfloat16", 8, 7),
        Format("float16", 5, 10),
        Format("e5m2", 5, 2),
        Format("e4m3", 4, 3, "nan"),
        Format("e3m2", 3, 2, "numbers"),
        Format("e2m3", 2, 3, "numbers"),
        Format("e2m1", 2, 1, "numbers"),
    )
}


@dataclass(frozen=True)
class BlockFormat:
    """Numbers of a small ``element`` format that share a scale, stored in 8 bits, with ``size`` of them.

    ``scale``: "power of two", or the name of the format that the scale is rounded to.
    """

    name: str
    element: Format
    size: int
    scale: str = "power of two"

    @property
    def bits(self) -> float:
        """How many bits a number has, its part of the scale included."""
        return self.element.bits + 8 / self.size


BLOCK_FORMATS = {
    f.name: f
    for f in (
        BlockFormat("mxfp8", FORMATS["e4m3"], 32),
        BlockFormat("mxfp6", FORMATS["e2m3"], 32),
        BlockFormat("mxfp4", FORMATS["e2m1"], 32),
        BlockFormat("nvfp4", FORMATS["e2m1"], 16, "e4m3"),
    )
}


def round_to(x: Array, format: str, *, saturate: bool = False) -> Array:
    """The numbers of a format that are nearest to x; of two as near, the one whose last bit is 0.

    x: a NumPy array or tensor of float32, of any shape; so is what comes back, a new one. ``format``: a key
    of FORMATS. What would round to more than the largest number becomes infinity, or NaN in e4m3, or the
    largest number where a format has neither, or if ``saturate`` (then infinity too). NaN stays NaN.
    """
    check.choice("format", format, FORMATS)
    _check(x)
    with np.errstate(invalid="ignore"):  # NaN and infinity are meant to pass
        return _float32(nearest(_float64(x), FORMATS[format], saturate))


def round_blocks(x: Array, format: str, *, up: bool = False) -> Array:
    """x as a block format of BLOCK_FORMATS keeps it: each block of the last axis divided by its scale,
    rounded to the element's format, and multiplied again.

    x: a NumPy array or tensor of float32 (…, n), n a multiple of the block's size; so is what comes back.
    MX formats: the scale is a power of two. OCP's rule (2023, section 6.3) brings the block's largest number
    to the largest exponent; what is then still too large saturates. ``up``: twice that scale where it would,
    so that nothing does (Mishra and others, "Recipes for pre-training LLMs with MXFP8", 2025). nvfp4: the
    scale brings the block's largest number to 6, and is itself rounded to e4m3, after one of float32 for all
    blocks that brings the largest scale to 448.
    """
    check.choice("format", format, BLOCK_FORMATS)
    _check(x)
    f = BLOCK_FORMATS[format]
    if not x.ndim or x.shape[-1] % f.size:
        raise ValueError(f"x has the shape {tuple(x.shape)}; wanted a last axis in blocks of {f.size}")
    if not bool(arrays.library(x).isfinite(x).all()):
        raise ValueError(f"x holds NaN or infinity; wanted finite numbers, since {format} has no others")
    xp = arrays.library(x)
    blocks = _float64(x).reshape(-1, f.size)  # (…, n) → (blocks, size)
    largest = xp.amax(abs(blocks), axis=1, keepdims=True)  # → (blocks, 1)
    scale = _power_of_two(largest, f.element, up) if f.scale == "power of two" else _two_scales(largest, f)
    rounded = nearest(_quotient(blocks, scale), f.element, saturate=True) * scale  # (blocks, size)
    return _float32(rounded.reshape(x.shape))


def values(format: str) -> np.ndarray:
    """All finite numbers of a format from 0 up: float64, in order. Not for float32, which has 2³¹ of them."""
    check.choice("format", format, [name for name in FORMATS if name != "float32"])
    f = FORMATS[format]
    mantissas = np.arange(2**f.mantissa) * f.epsilon  # 0.m
    powers = f.smallest_normal * 2.0 ** np.arange(2**f.exponent - 1)  # of the exponents 1, 2, …
    normal = (1 + mantissas) * powers[:, None]  # (exponents, mantissas)
    every = np.concatenate([mantissas * f.smallest_normal, normal.ravel()])
    return every[every <= f.largest]


def nearest(x: Array, f: Format, saturate: bool) -> Array:
    """float64 → float64. Where two neighbours in the format are 2ᵏ apart, round x / 2ᵏ to a whole number."""
    xp = arrays.library(x)
    spacing = xp.clip(_floor_power(x), f.smallest_normal, None) * f.epsilon
    rounded = xp.where(xp.isfinite(x), xp.round(x / spacing) * spacing, x)  # to even, where halfway
    if saturate or f.codes == "numbers":
        return xp.clip(rounded, -f.largest, f.largest)
    beyond = {"ieee": float("inf"), "nan": float("nan")}[f.codes]
    return xp.where(abs(rounded) > f.largest, xp.copysign(xp.full_like(x, beyond), x), rounded)


def _floor_power(x):
    """The largest power of two up to |x|: of the bits of float64, the exponent alone is kept."""
    xp = arrays.library(x)
    return (x.view(xp.int64) & EXPONENT).view(xp.float64)


def _power_of_two(largest, element, up):
    """Scales of blocks, as MX formats have them: (blocks, 1) → (blocks, 1), powers of two."""
    xp, top = arrays.library(largest), 2.0 ** np.floor(np.log2(element.largest))
    scale = _floor_power(largest) / top
    if up:
        scale = xp.where(largest > element.largest * scale, 2 * scale, scale)
    return xp.clip(scale, 2.0**-127, 2.0**127)


def _two_scales(largest, f):
    """Scales of blocks, as nvfp4 has them: rounded multiples of one for all, (blocks, 1) → (blocks, 1)."""
    kind = FORMATS[f.scale]
    overall = _float64(_float32(largest.max() / (f.element.largest * kind.largest)))
    wanted = _quotient(largest / f.element.largest, overall)
    return nearest(wanted, kind, saturate=True) * overall


def _quotient(x, y):
    """x / y, and 0 where y is 0."""
    xp = arrays.library(x)
    return xp.where(y == 0, xp.zeros_like(x), x / xp.where(y == 0, xp.ones_like(y), y))


def _check(x):
    came = arrays.dtype_name(x.dtype) if hasattr(x, "dtype") else type(x).__name__
    if came != "float32":
        raise TypeError(f"x is of {came}; wanted a NumPy array or a tensor of float32")
    if getattr(x, "requires_grad", False):
        raise ValueError("x requires a gradient, and rounding has none; wanted x.detach()")


def _float64(x):
    return x.double() if hasattr(x, "double") else x.astype("float64")


def _float32(x):
    return x.float() if hasattr(x, "float") else x.astype("float32")
