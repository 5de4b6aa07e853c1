"""What each cut of a stack sends: the counters of real ranks against the formulas."""

import pytest

from ed_lib.parallel import cuts
from ed_lib.parallel.collectives import Traffic
from ed_lib.parallel.launcher import launch

SHAPES = [(4, 6, 5), (4, 12, 7), (6, 9, 8)]  # layers, width, batch; uneven over 2 and over 3


@pytest.mark.oracle
@pytest.mark.parametrize("p", [1, 2, 3])
def test_the_bytes_are_those_of_the_formulas(p):
    ranks = launch(cuts.counted_each, p, SHAPES, timeout=120)
    for n, (layers, width, batch) in enumerate(SHAPES):
        for way in cuts.CUTS:
            sent = sum((rank[n][way] for rank in ranks), Traffic())
            assert sent.bytes == cuts.bytes_sent(way, layers, width, batch, p, itemsize=8)
    if p > 1:
        sums = {"data": 4, "tensor": 3}  # of the first shape; a ring sends 2(p − 1) messages a rank for each
        for way, number in sums.items():
            assert [rank[0][way].messages for rank in ranks] == [number * 2 * (p - 1)] * p
        assert sum(rank[0]["pipeline"].messages for rank in ranks) == 2 * 2 * (p - 1)
