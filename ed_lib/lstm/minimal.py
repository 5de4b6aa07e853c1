"""Gates that do not look at the state: minGRU and minLSTM, whose recurrence is linear, and so a scan.

L. Feng, F. Tung, M. O. Ahmed, Y. Bengio and H. Hajimirsadeghi, "Were RNNs all we needed?" (2024), without the
logarithms of its appendix. Letters: T time steps, B batch, I inputs, H hidden.
"""

import torch
from torch import Tensor, nn

from ed_lib.lstm import scans


class MinGRU(nn.Module):
    """h_t = (1 − z_t) h_{t−1} + z_t h̃_t, with z = σ(W_z x + b_z) and h̃ = W_h x + b_h.

    Called as ``torch.nn.GRU`` is, sequence first: x (T, B, I), h0 (1, B, H) or None for zeros → output
    (T, B, H) and h_n (1, B, H). scan: one of ``scans.SCANS``; all give the same numbers.
    """

    gates = 2

    def __init__(self, input_size: int, hidden_size: int, *, scan: str = "halving"):
        super().__init__()
        self.hidden_size, self.scan = hidden_size, scan
        self.inputs = nn.Linear(input_size, self.gates * hidden_size)

    def forward(self, x: Tensor, h0: Tensor | None = None) -> tuple[Tensor, Tensor]:
        a, b = self.recurrence(self.inputs(x))  # (T, B, H) each, from one matrix product for all steps
        h = x.new_zeros(x.shape[1], self.hidden_size) if h0 is None else h0[0]
        states = scans.solve(a, b, h, self.scan)
        return states, states[-1:]

    @staticmethod
    def recurrence(gates: Tensor) -> tuple[Tensor, Tensor]:
        """(T, B, 2H) → a and b of h_t = a_t h_{t−1} + b_t."""
        z, new = gates.chunk(2, -1)
        return torch.sigmoid(-z), torch.sigmoid(z) * new


class MinLSTM(MinGRU):
    """h_t = f' h_{t−1} + i' h̃_t, with f' = f / (f + i) and i' = i / (f + i): shares that add up to one."""

    gates = 3

    @staticmethod
    def recurrence(gates: Tensor) -> tuple[Tensor, Tensor]:
        """(T, B, 3H) → a and b of h_t = a_t h_{t−1} + b_t."""
        f, i, new = gates.chunk(3, -1)
        f, i = torch.sigmoid(f), torch.sigmoid(i)
        return f / (f + i), i / (f + i) * new


class Stack(nn.Module):
    """Layers of minGRU on top of one another, called as one is; a gate above knows the past from below.

    x (T, B, I) → output (T, B, H), and the layers' last states (L, B, H).
    """

    def __init__(self, input_size: int, hidden_size: int, layers: int = 2, *, scan: str = "compiled"):
        super().__init__()
        self.hidden_size, sizes = hidden_size, [input_size, *[hidden_size] * (layers - 1)]
        self.layers = nn.ModuleList(MinGRU(size, hidden_size, scan=scan) for size in sizes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states = []
        for layer in self.layers:
            x, state = layer(x)
            states.append(state)
        return x, torch.cat(states)
