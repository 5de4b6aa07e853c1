"""Parity, the shortest test of a recurrent network's memory: is the number of ones so far even or
odd? A network has to keep one bit, and to turn it over at each one that it reads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ed_lib import training

BATCH, TESTS = 32, 2000  # sequences that a step learns from, and that judge


def learn(
    rnn: nn.Module,
    seed: int = 0,
    *,
    rate: float = 1e-2,
    steps: int = 1200,
    length: int = 16,
    longer: int = 64,
) -> Tensor:
    """Trains a network on random sequences, with a linear readout of each state, and then asks it
    about longer ones → the share of right answers after each bit, (longer,).

    rnn: called as ``torch.nn.GRU`` is, x (T, B, 1) → (T, B, H) and more, with its hidden_size.
    length, longer: bits of a sequence that it learns from, and that it is asked about.
    """
    head = nn.Linear(rnn.hidden_size, 1)  # type: ignore[arg-type]  # a module may hold anything
    adam = torch.optim.Adam([*rnn.parameters(), *head.parameters()], rate)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x, odd = sequences(length, BATCH, draw)
        states, _ = rnn(x)
        training.optimizer_step(F.binary_cross_entropy_with_logits(head(states), odd), adam)
    x, odd = sequences(longer, TESTS, draw)
    with torch.no_grad():
        says = head(rnn(x)[0])
    return ((says > 0) == (odd > 0)).float().mean((1, 2))


def sequences(length: int, batch: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random bits as −1 and 1, and whether there were ones in odd number so far, (T, B, 1) each."""
    bits = torch.randint(0, 2, (length, batch, 1), generator=draw).float()
    return 2 * bits - 1, bits.cumsum(0) % 2
