"""Number formats of few bits, as functions that round float32 numbers to those that a format has.

A number is ± 1.m · 2ᵉ: a sign, an exponent of E bits, a mantissa of M bits. E sets how large and how small it
can be, M how close the numbers are. Below the smallest normal number they stay equally far apart down to
zero: the subnormal numbers, ± 0.m · 2ᵉ. Sources: IEEE 754-2019; the OCP specifications of 8-bit floating
point (2023) and of microscaling formats (2023).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ed_lib import check

EXPONENT = 0x7F800000  # the bits of a float32 that hold its exponent


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


def nearest(
    x: Tensor, format: str, random: torch.Generator | None = None, *, saturate: bool = True
) -> Tensor:
    """The numbers of a format that are nearest to x, float32 (…) → (…); of two as near, the one whose last
    bit is 0. ``format``: a key of FORMATS. NaN stays NaN, and a zero keeps its sign.

    saturate: what is beyond the largest number becomes that; without, infinity, or NaN in e4m3 (a format
    that has neither saturates). random: up or down with the probability that makes the mean right.
    """
    check.choice("format", format, FORMATS)
    if not isinstance(x, Tensor) or x.dtype != torch.float32:
        raise TypeError(f"x is of {getattr(x, 'dtype', type(x).__name__)}; wanted a tensor of float32")
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError("x requires a gradient, and rounding has none; wanted x.detach()")
    f = FORMATS[format]
    saturate = saturate or f.codes == "numbers"
    if f.mantissa == 23 and not saturate:
        return x.clone()
    top = f.largest if saturate else torch.finfo(torch.float32).max
    near = x.clamp(-top, top)
    power = (near.view(torch.int32) & EXPONENT).view(torch.float32)  # 2ᵏ ≤ |x| < 2ᵏ⁺¹
    power = power.clamp_(min=f.smallest_normal)  # 2ᵏ · epsilon apart are the numbers of the format here
    if random is not None:
        noise = torch.rand(x.shape, generator=random).to(x.device).sub_(0.5)
        near = noise.mul_(power).mul_(f.epsilon).add_(near)
    rounded = near.div(power).mul_(2.0**f.mantissa).round_().mul_(f.epsilon).mul_(power)
    if saturate:
        return rounded if random is None else rounded.clamp_(-top, top)
    beyond = torch.full_like(x, float("inf") if f.codes == "ieee" else float("nan"))
    return torch.where(rounded.abs() > f.largest, beyond.copysign(x), rounded)


def values(format: str) -> np.ndarray:
    """All finite numbers of a format from 0 up: float64, in order. Not for float32, which has 2³¹ of them."""
    check.choice("format", format, [name for name in FORMATS if name != "float32"])
    f = FORMATS[format]
    mantissas = np.arange(2**f.mantissa) * f.epsilon  # 0.m
    powers = f.smallest_normal * 2.0 ** np.arange(2**f.exponent - 1)  # of the exponents 1, 2, …
    normal = (1 + mantissas) * powers[:, None]  # (exponents, mantissas)
    every = np.concatenate([mantissas * f.smallest_normal, normal.ravel()])
    return every[every <= f.largest]
