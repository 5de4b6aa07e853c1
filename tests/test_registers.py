"""Products whose sums stay in registers, of floating-point numbers and of bytes, against their
specification in NumPy, and that against NumPy's product and plain loops.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from ed_lib.registers import LANES, VNNI, WIDE, product, product_in_numpy  # noqa: E402

ROWS = st.integers(1, 9)  # in tiles of two or four, and what is left
WIDTHS = st.sampled_from([LANES, WIDE])
SEEDS = st.integers(0, 99)


def drawn(rows, inputs, width, seed, dtype):
    """x, with a column more than w has rows; w; and where the sums start."""
    random = np.random.default_rng(seed)
    shapes = (rows, inputs + 1), (inputs, width), (rows, width)
    return [random.normal(size=shape).astype(dtype) for shape in shapes]


def drawn_bytes(rows, fours, width, seed):
    """x and w as bytes, (R, 4 K) and (K, n, 4), the scale of each column, and the start."""
    random = np.random.default_rng(seed)
    x = random.integers(0, 256, (rows, 4 * fours), np.uint8)
    w = random.integers(-128, 128, (fours, width, 4), np.int8)
    scale = random.integers(1, 9, width).astype(np.float32)
    return x, w, scale, random.integers(-9, 9, (rows, width)).astype(np.float32)


def in_fours(x, w):
    """Bytes as ``product`` takes them, four in an int32."""
    return x.view(np.int32), w.reshape(len(w), -1).view(np.int32)


@pytest.mark.oracle
@given(rows=ROWS, inputs=st.integers(1, 30), width=WIDTHS, seed=SEEDS)
def test_a_product_is_numpys(rows, inputs, width, seed):
    for dtype, close in ((np.float32, 1e-5), (np.float64, 1e-13)):
        x, w, start = drawn(rows, inputs, width, seed, dtype)
        right = start + x[:, :-1] @ w
        by_numpy = np.empty_like(start)
        product_in_numpy(x, w, start, by_numpy)
        np.testing.assert_array_equal(by_numpy, right)
        for given_x in (x, np.asfortranarray(x)):
            answer = np.empty_like(start)
            product(given_x, w, start, answer)
            np.testing.assert_allclose(answer, by_numpy, rtol=0, atol=close)


@pytest.mark.oracle
@given(rows=ROWS, inputs=st.integers(1, 30), width=WIDTHS, seed=SEEDS)
def test_a_product_into_its_start_that_fetches_ahead_is_the_same(rows, inputs, width, seed):
    x, w, start = drawn(rows, inputs, width, seed, np.float32)
    right = np.empty_like(start)
    product_in_numpy(x, w, start, right)
    product(x, w, start, start, None, w)
    np.testing.assert_allclose(start, right, rtol=0, atol=1e-5)


@pytest.mark.oracle
@given(rows=ROWS, fours=st.integers(1, 9), width=WIDTHS, seed=SEEDS)
def test_the_specification_of_a_product_of_bytes_is_the_integers(rows, fours, width, seed):
    x, w, scale, start = drawn_bytes(rows, fours, width, seed)
    exact = np.einsum("rkb,knb->rn", x.reshape(rows, fours, 4).astype(int), w.astype(int))
    by_numpy = np.empty_like(start)
    product_in_numpy(*in_fours(x, w), start, by_numpy, scale)
    np.testing.assert_array_equal(by_numpy, start + exact * scale)


@pytest.mark.oracle
@pytest.mark.skipif(not VNNI, reason="needs AVX-512 VNNI")
@given(rows=ROWS, fours=st.integers(1, 9), width=WIDTHS, seed=SEEDS)
def test_a_product_of_bytes_is_the_integers(rows, fours, width, seed):
    x, w, scale, start = drawn_bytes(rows, fours, width, seed)
    right = np.empty_like(start)
    product_in_numpy(*in_fours(x, w), start, right, scale)
    product(*in_fours(x, w), start, start, scale)
    np.testing.assert_array_equal(start, right)
