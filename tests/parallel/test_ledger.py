"""What is kept for a backward pass, counted and by formula; and recomputation."""

import pytest
import torch

from conftest import ROOT
from ed_lib.models import RECOMPUTE, Block
from ed_lib.parallel import ledger
from tools import notebooks

CHAPTER = notebooks.code_cells(notebooks.read(ROOT / "book/parallel/when_it_does_not_fit.ipynb"))
exec(
    next(cell.source for cell in CHAPTER if cell.source.startswith("def saved("))
)  # of the chapter


def block(how, hidden=12, heads=3):
    torch.manual_seed(0)
    return Block(hidden, heads, how)


@pytest.mark.oracle
@pytest.mark.parametrize("how", RECOMPUTE)
@pytest.mark.parametrize(
    "tokens, sequences, hidden, heads", [(5, 3, 12, 3), (16, 1, 8, 4), (1, 2, 4, 1)]
)
def test_a_block_keeps_what_the_formula_says(how, tokens, sequences, hidden, heads):
    made = block(how, hidden, heads)
    x = torch.randn(sequences, tokens, hidden, requires_grad=True)
    found = saved(lambda: made(x), *made.parameters())  # noqa: F821
    norms = (
        0 if how == "full" else 2 * 2 * 4 * tokens * sequences
    )  # a mean and a spread for each token
    assert found - norms == ledger.activations(tokens, sequences, hidden, heads, how, itemsize=4)


@pytest.mark.parametrize("how", RECOMPUTE)
def test_recomputing_changes_no_number(how):
    x = torch.randn(2, 5, 12)
    found = []
    for made in (block("none"), block(how)):
        inputs = x.clone().requires_grad_()
        y = made(inputs)
        found.append([y, *torch.autograd.grad(y.square().sum(), [inputs, *made.parameters()])])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.oracle
def test_the_published_ledger():
    of = 7.5e9  # of ZeRO's figure 1, on 64 devices, in GB of 1e9 bytes
    wanted = {0: 120, 1: 31.4, 2: 16.6, 3: 1.9}
    for stage, gigabytes in wanted.items():
        assert round(sum(ledger.state(of, 64, stage).values()) / 1e9, 1) == gigabytes
    assert sum(ledger.state(1, 1, 0, ledger.FULL).values()) == 16
    assert ledger.sent(1000, 4, 3) == 1.5 * ledger.sent(1000, 4, 0)
