"""How fast a cache is read."""

import numpy as np
import pytest

from ed_lib.lstm import caches


@pytest.mark.oracle
def test_every_number_in_a_cache_is_read_every_time():
    blocks = np.ones((2, 640), np.float32)
    assert caches.read(blocks, 7).tolist() == [7 * 640] * 2


def test_a_cache_has_a_finite_rate():
    assert 0 < caches.cache_rate(10_000, seconds=0.02) < 1e15 and caches.cache_rate(1024, seconds=0.02) > 0
