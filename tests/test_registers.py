"""Products whose sums stay in registers, of floating-point numbers and of bytes, against
NumPy's.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from ed_lib.registers import LANES, VNNI, product  # noqa: E402


@pytest.mark.oracle
@given(rows=st.integers(1, 9), inputs=st.integers(1, 30), seed=st.integers(0, 99))
def test_a_product_is_numpys(rows, inputs, seed):
    random = np.random.default_rng(seed)
    for dtype, close in ((np.float32, 1e-5), (np.float64, 1e-13)):
        x, w = (random.normal(size=s).astype(dtype) for s in ((rows, inputs), (inputs, 4 * LANES)))
        out = random.normal(size=(rows, 4 * LANES)).astype(dtype)
        right = out + x @ w
        for given_x in (x, np.asfortranarray(x)):
            answer = np.empty_like(out)
            product(given_x, w, out, answer)
            np.testing.assert_allclose(answer, right, rtol=0, atol=close)


@pytest.mark.oracle
@pytest.mark.skipif(not VNNI, reason="needs AVX-512 VNNI")
@given(rows=st.integers(1, 9), fours=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_product_of_bytes_is_the_integers(rows, fours, seed):
    random = np.random.default_rng(seed)
    x = random.integers(0, 256, (rows, 4 * fours), np.uint8)
    w = random.integers(-128, 128, (fours, 4 * LANES, 4), np.int8)
    scale = random.integers(1, 9, 4 * LANES).astype(np.float32)
    out = np.zeros((rows, 4 * LANES), np.float32)
    product(x.view(np.int32), w.reshape(fours, -1).view(np.int32), out, out, scale)
    exact = np.einsum("rkb,knb->rn", x.reshape(rows, fours, 4).astype(int), w.astype(int))
    assert np.array_equal(out, exact * scale)
