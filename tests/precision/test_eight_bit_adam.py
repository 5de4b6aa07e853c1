"""Adam with averages of eight bits, as a chapter's cell has them: the codes, and against
torchao's.
"""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from tools import notebooks

CHAPTER = notebooks.read(notebooks.ROOT / "book/precision/training_in_eight_bits.ipynb")
(CELL,) = [
    cell.source for cell in notebooks.code_cells(CHAPTER) if cell.source.startswith("def codes(")
]
exec(CELL, there := {"torch": torch, "F": F})
codes, in_codes = there["codes"], there["in_codes"]


@pytest.mark.oracle
def test_half_of_the_spread_codes_are_in_a_decade_half_of_the_rest_in_the_next():
    for signed, most in ((True, 64), (False, 128)):
        found = codes("spread", signed)
        decades = [((found > 10.0 ** -(n + 1)) & (found < 10.0**-n)).sum() for n in range(7)]
        assert decades == [most // 2**n for n in range(7)] and len(found) == 256
        assert 1e-7 < found[found > 0].min() < 1e-6 and {0, 1} < {*found.tolist()}


@pytest.mark.oracle
@given(
    st.integers(1, 50),
    st.integers(1, 20),
    st.sampled_from(("spread", "even")),
    st.integers(0, 1000),
)
def test_codes_are_the_nearest_zeros_stay_and_the_largest_of_a_block_is_exact(n, block, kind, seed):
    x, numbers = (
        torch.randn(n, generator=torch.Generator().manual_seed(seed)) ** 3,
        codes(kind, True),
    )
    x[seed % n] = 0
    found, blocks = in_codes(x, numbers, block), F.pad(x, (0, -n % block)).view(-1, block)
    scales = blocks.abs().amax(1).repeat_interleave(block)[:n]
    best = (x[:, None] - scales[:, None] * numbers).abs().amin(1)
    assert torch.allclose((x - found).abs(), best, rtol=1e-4, atol=1e-7) and found[seed % n] == 0
    positive = x.abs()
    largest = positive == scales
    assert torch.equal(in_codes(positive, codes(kind, False), block)[largest], positive[largest])


@pytest.mark.oracle
def test_with_spread_codes_adam_moves_as_torchaos_and_nearly_as_without():
    from torchao import optim

    def moved(make, kind=None, block=64):
        p = torch.randn(
            64, 128, generator=(draw := torch.Generator().manual_seed(0))
        ).requires_grad_()
        adam, start = make([p]), p.detach().clone()
        for _ in range(20):
            p.grad = torch.randn(p.shape, generator=draw) * torch.linspace(0.01, 1, 128)
            adam.step()
            for name, signed in (("exp_avg", True), ("exp_avg_sq", False)) if kind else ():
                adam.state[p][name].copy_(in_codes(adam.state[p][name], codes(kind, signed), block))
        return p.detach() - start

    adam = partial(torch.optim.Adam, lr=1e-2)
    whole, spread, even = (moved(adam, kind) for kind in (None, "spread", "even"))
    with torch.compiler.set_stance("force_eager"):  # else it spends 20 seconds on compiling
        theirs = moved(partial(optim.Adam8bit, lr=1e-2, block_size=256))
    off = [float((each - whole).norm() / whole.norm()) for each in (spread, even)]
    assert float((moved(adam, "spread", 256) - theirs).norm() / theirs.norm()) < 1e-3
    assert off[0] < 0.05 and off[1] > 3 * off[0]
