"""The states of an LSTM as bytes, for a recurrent product in eight bits.

Letters: T steps, B batch, P: the hidden numbers rounded up to whole vectors.
"""

import numpy as np

from ed_lib.compiled import cached
from ed_lib.registers import FAST

F = np.float32  # numbers in the compiled code keep this type
UNITS = 127  # for a number from 0 to 1: of h, and of a weight by its row's largest
MIDDLE = 128  # the code of h = 0
LOST = 0  # the code of NaN; those of numbers are 1 to 255


@cached(**FAST)
def find_lost(codes, size, lost):
    """Which samples have a NaN among the ``size`` numbers of h: codes (B, P), lost (B,)."""
    for b in range(len(lost)):
        found = False
        for j in range(size):
            found |= codes[b, j] == LOST
        lost[b] = found


@cached(**FAST)
def lose(lost, sums):
    """A sample with a NaN in h has no sum that is a number, since 0 times NaN is NaN; but the
    sum of its bytes would be one. lost (B,), sums (B, 4 LANES).
    """
    for b in range(len(lost)):
        if lost[b]:
            sums[b] = np.nan


@cached(**FAST)
def encode(h, codes):
    """h in (−1, 1) as bytes, round(127 h) + 128, from 1 to 255; NaN as LOST: (n,) both."""
    for j in range(len(h)):
        is_number = h[j] == h[j]
        known = h[j] if is_number else F(0)
        code = np.uint8(np.int32(known * F(UNITS) + F(MIDDLE + 0.5)))
        codes[j] = code if is_number else np.uint8(LOST)
