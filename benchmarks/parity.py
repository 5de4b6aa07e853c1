"""What is lost with gates that do not look at the state: the parity of the bits so far, learned by
an LSTM, a minGRU, a minGRU of two layers, and one whose gate may be negative.

Each learns from sequences of ``length`` bits, and is then asked about ``longer`` ones. All have as
many hidden units, a linear readout, and the same rates.
"""

import torch
from torch import nn

from benchmarks.shared.harness import Size, one_thread, runs
from ed_lib import timing
from ed_lib.lstm import parity, scans


class TwoLayers(nn.Module):
    """Two minGRUs, called as one is."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.first = scans.MinGRU(input_size, hidden_size)
        self.second = scans.MinGRU(hidden_size, hidden_size)

    def forward(self, x):
        states, _ = self.first(x)
        return self.second(states)


NETWORKS = {
    "LSTM": nn.LSTM,
    "minGRU": scans.MinGRU,
    "minGRU, two layers": TwoLayers,
    "minGRU, signed gate": scans.SignedMinGRU,
}
SIZE = Size(
    networks=list(NETWORKS),
    hidden=32,
    length=16,
    longer=64,
    steps=1200,
    rates=(3e-3, 1e-2, 3e-2),
    more=4,
    again=("minGRU, two layers", "minGRU, signed gate"),
)
TINY = SIZE.rehearsal(
    hidden=3, length=4, longer=6, steps=5, rates=(1e-2,), again=("minGRU, signed gate",), seeds=2
)


def by_rate(size, device):
    """A row for each network and rate. Results: "right", of each seed the shares of right answers
    after each bit.
    """
    cases = [(network, size.steps, rate) for network in size.networks for rate in size.rates]
    return rows(cases, size)


def trained_longer(size, device):
    """A row for some networks, after ``more`` times as many steps. Results as above."""
    rate = size.rates[len(size.rates) // 2]
    return rows([(network, size.more * size.steps, rate) for network in size.again], size)


def rows(cases, size):
    """Of (network, steps, rate)."""
    names = "network", "steps", "rate"
    return runs(run, [dict(zip(names, case, strict=True)) for case in cases], size)


def run(network, steps, rate, seed, size):
    """Trains one → {"right", "seconds"}."""
    torch.manual_seed(seed)
    rnn = NETWORKS[network](1, size.hidden)
    start = timing.now()
    shares = parity.learn(rnn, seed, rate=rate, steps=steps, length=size.length, longer=size.longer)
    seconds = timing.now() - start
    return {"right": [round(share, 4) for share in shares.tolist()], "seconds": seconds}


TABLES = {"bits": by_rate, "trained longer": trained_longer}
context = one_thread
