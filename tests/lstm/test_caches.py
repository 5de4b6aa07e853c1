"""That what is timed is what was asked for; how fast it is, is no test's business."""

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from ed_lib.lstm import caches  # noqa: E402


@pytest.mark.oracle
@pytest.mark.parametrize("read, factor", [(caches.read_by_loop, 1), (caches.read_by_blas, 0.5)])
def test_every_number_is_read_every_time(read, factor):
    blocks = np.ones((numba.get_num_threads(), 640), np.float32)
    assert read(blocks, 7).tolist() == [7 * 640 * factor] * len(blocks)


def test_a_rate_is_a_finite_number_of_bytes():
    assert 1e6 < caches.read_rate(10_000, seconds=0.02) < 1e15
    assert caches.read_rate(4 * 64 * numba.get_num_threads(), numba.get_num_threads(), seconds=0.02) > 0


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="threads is 1000; wanted at most"):
        caches.read_rate(1e6, 1000)
    with pytest.raises(ValueError, match="size is 100; wanted at least 256, 256 a thread"):
        caches.read_rate(100)
