"""Sigmoid and tanh for compiled functions, in operations that a vector register does for all its
numbers at once; small numbers keep all their digits.
"""

import numpy as np
from numba import types
from numba.extending import overload

from ed_lib.compiled import cached
from ed_lib.registers import FAST

F = np.float32  # numbers in the compiled code keep this type
ROUND = F(1.5 * 2**23)  # added and taken off again, it rounds to a whole number
C2, C3, C4, C5, C6, C7 = [F(1 / np.prod(np.arange(1.0, n + 1))) for n in range(2, 8)]  # 1 / n!


@cached(**FAST)
def sigmoid(x):
    """1 / (1 + e^−x)."""
    return F(1) / (F(2) + expm1(-x))


@cached(**FAST)
def tanh(x):
    """(e^2x − 1) / (e^2x + 1)."""
    twice = expm1(x + x)
    return twice / (twice + F(2))


def expm1(x):
    """e^x − 1, of which small x keep all digits; in float64 the library's."""


@overload(expm1)
def expm1_by_type(x):
    if x == types.float32:
        return lambda x: series(x)
    # infinity divided by infinity would be no tanh
    return lambda x: np.expm1(min(x, 700.0))


@cached(**FAST)
def series(x):
    """e^x − 1 = 2^n (e^f − 1) + 2^n − 1 with n = round(x / ln 2), f = x − n ln 2, for x from −87 to
    87; what is beyond counts as they do, and NaN stays.
    """
    x = F(-87) if x < F(-87) else x
    x = F(87) if x > F(87) else x
    # n is in the last bits of what the addition rounds
    shifted = np.float32(x * F(1 / np.log(2)) + ROUND)
    n = shifted - ROUND
    # ln 2 in two parts, the first of few bits, so that n times it is exact
    f = (x - n * F(0.693359375)) + n * F(2.12194440e-4)
    # 2^n, by the bits of its exponent
    power = np.int32((shifted.view(np.int32) + 127) * 2**23).view(np.float32)
    terms = f + f * f * (C2 + f * (C3 + f * (C4 + f * (C5 + f * (C6 + f * C7)))))
    return power * terms + (power - F(1))
