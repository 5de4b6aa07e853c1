"""Parity: the sequences against counting, who learns it, and that only the past decides."""

import torch

from ed_lib.lstm import parity, scans


def test_the_ones_so_far_are_odd_or_even():
    x, odd = parity.sequences(9, 5, torch.Generator().manual_seed(0))
    assert x.shape == odd.shape == (9, 5, 1) and set(x.unique().tolist()) == {-1.0, 1.0}
    for sequence, answers in zip(x[..., 0].T.tolist(), odd[..., 0].T.tolist(), strict=True):
        ones = [sequence[: t + 1].count(1.0) % 2 for t in range(len(sequence))]
        assert ones == answers


class Knows(torch.nn.Module):
    """What is asked, from the inputs alone; its parameter moves nothing."""

    hidden_size = 1

    def __init__(self):
        super().__init__()
        self.moves_nothing = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        turns = torch.cumprod(-x, 0)  # −1 after ones in odd number
        return -turns + 0 * self.moves_nothing, None


def test_who_knows_the_answer_is_right_after_each_bit_and_who_forgets_is_not():
    torch.manual_seed(0)
    right = parity.learn(Knows(), rate=0.1, steps=60, length=4, longer=20)
    assert right.shape == (20,) and right.eq(1).all()
    torch.manual_seed(0)
    forgets = parity.learn(scans.MinGRU(1, 2), rate=0.1, steps=60, length=4, longer=20)
    assert abs(forgets[-1] - 0.5) < 0.1


def test_the_same_seed_learns_the_same():
    def learned(seed):
        torch.manual_seed(0)
        return parity.learn(scans.SignedMinGRU(1, 3), seed, steps=3, length=3, longer=5)

    assert torch.equal(learned(1), learned(1)) and not torch.equal(learned(1), learned(2))
