"""Number formats of few bits, and one function that rounds float32 numbers to those that a format
has.

A number is ± 1.m · 2ᵉ: a sign, an exponent of E bits, a mantissa of M bits. E sets how large and
how small it can be, M how close the numbers are. Below the smallest normal number they stay equally
far apart down to zero: the subnormal numbers, ± 0.m · 2ᵉ. Sources: IEEE 754-2019; the OCP
specifications of 8-bit floating point (2023) and of microscaling formats (2023).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ed_lib import check


@dataclass(frozen=True)
class Format:
    """A floating-point format: bits of ``exponent`` and of ``mantissa``; one more is the sign.
    ``codes``: what the largest exponent means: "ieee", infinity and NaN; "nan", numbers, but for
    the one code of all ones, which is NaN; "numbers", nothing but numbers.
    """

    name: str
    exponent: int
    mantissa: int
    codes: str = "ieee"

    @property
    def bits(self) -> int:
        """How many bits a number has, its sign among them."""
        return 1 + self.exponent + self.mantissa

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number above."""
        return 2.0**-self.mantissa

    @property
    def smallest_normal(self) -> float:
        """The smallest number above 0 that has all bits of its mantissa."""
        return 2.0 ** (2 - 2 ** (self.exponent - 1))

    @property
    def smallest(self) -> float:
        """The smallest number above 0."""
        return self.smallest_normal * self.epsilon

    @property
    def largest(self) -> float:
        """The largest finite number."""
        # The largest mantissa is a step below 2; in "nan" that code is taken, so two steps.
        lost = 2 if self.codes == "nan" else 1
        # The largest exponent is for infinity and NaN in "ieee"; the others count with it.
        power = 2 if self.codes == "ieee" else 4
        return (2 - lost * self.epsilon) * power / self.smallest_normal


FORMATS = {
    f.name: f
    for f in (
        Format("float32", 8, 23),
        # Kept in 32 bits: only products see it.
        Format("tf32", 8, 10),
        Format("bfloat16", 8, 7),
        Format("float16", 5, 10),
        Format("e5m2", 5, 2),
        Format("e4m3", 4, 3, "nan"),
        Format("e3m2", 3, 2, "numbers"),
        Format("e2m3", 2, 3, "numbers"),
        Format("e2m1", 2, 1, "numbers"),
    )
}


def power(x: Tensor) -> Tensor:
    """The power of two at or below the magnitude of each number, float32 (…) → (…): its exponent
    alone.
    """
    return (x.view(torch.int32) & 0x7F800000).view(torch.float32)


def nearest(
    x: Tensor, format: str, random: torch.Generator | None = None, *, saturate: bool = True
) -> Tensor:
    """The numbers of a format that are nearest to x, float32 (…) → (…); of two as near, the one
    whose last bit is 0. ``format``: a key of FORMATS. NaN stays NaN, and a zero keeps its sign.

    saturate: what is beyond the largest number becomes that; without, infinity, or NaN in e4m3 (a
    format that has neither saturates). random: up or down with the probability that makes the mean
    right.
    """
    check.choice("format", format, FORMATS)
    if not isinstance(x, Tensor) or x.dtype != torch.float32:
        raise TypeError(
            f"x is of {getattr(x, 'dtype', type(x).__name__)}; wanted a tensor of float32"
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError("x requires a gradient, and rounding has none; wanted x.detach()")
    f = FORMATS[format]
    saturate = saturate or f.codes == "numbers"
    # What is float32 already stays, and infinity, which the steps below would lose, with it.
    if f.mantissa == 23 and not saturate:
        return x.clone()
    top = f.largest if saturate else torch.finfo(torch.float32).max
    near = x.clamp(-top, top)
    # Around x the numbers of the format are 2ᵉ · epsilon apart; below the smallest normal number
    # no closer than there.
    spacing = power(near).clamp_(min=f.smallest_normal)
    # x, counted in steps of that. Powers of two change no bit of a mantissa.
    steps = near.div_(spacing).mul_(2.0**f.mantissa)
    rounded = steps.round_() if random is None else _at_random(steps, x, random)
    rounded = rounded.mul_(f.epsilon).mul_(spacing)
    if saturate:
        return rounded
    overflow = float("inf") if f.codes == "ieee" else float("nan")
    beyond = torch.full_like(x, overflow).copysign(x)
    return torch.where(rounded.abs() > f.largest, beyond, rounded)


def _at_random(steps, x, random):
    """To the whole number above as often as ``steps`` is nearer to it, else to the one below."""
    draw = torch.rand(x.shape, generator=random).to(x.device)
    below = steps.floor()
    up = draw >= 1 - (steps - below)
    # −0.3 becomes 0 from below: the sum has lost the sign of that zero.
    return (below + up).copysign_(x)


def values(format: str) -> np.ndarray:
    """All finite numbers of a format from 0 up: float64, in order. Not for float32, which has 2³¹
    of them.
    """
    check.choice("format", format, [*FORMATS][1:])
    f = FORMATS[format]
    # 0.m of each mantissa, and 2ᵉ of the exponents from 1 on
    mantissas = np.arange(2**f.mantissa) * f.epsilon
    powers = f.smallest_normal * 2.0 ** np.arange(2**f.exponent - 1)
    # (exponents, mantissas)
    normal = (1 + mantissas) * powers[:, None]
    every = np.concatenate([mantissas * f.smallest_normal, normal.ravel()])
    return every[every <= f.largest]
