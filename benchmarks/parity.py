"""What is lost with gates that do not look at the state: the parity of the bits so far, learned by
an LSTM, a minGRU, a minGRU of two layers, and one whose gate may be negative.

Each learns from sequences of ``length`` bits, and is then asked about ``longer`` ones. All have as
many hidden units, a linear readout, and the same rates.
"""

from functools import partial

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
# cases: of each table, networks, and what they are trained at.
SIZE = Size(
    hidden=32,
    length=16,
    longer=64,
    cases={
        "bits": (list(NETWORKS), [{"steps": 1200, "rate": 1e-2}]),
        "other rates": (
            list(NETWORKS)[1:],
            [{"steps": 1200, "rate": rate} for rate in (3e-3, 3e-2)],
        ),
        "trained longer": (list(NETWORKS)[2:], [{"steps": 4800, "rate": 1e-2}]),
    },
)
TINY = SIZE.rehearsal(
    hidden=3,
    length=4,
    longer=6,
    cases={
        table: (names, [{"steps": 5, "rate": 1e-2}]) for table, (names, _) in SIZE.cases.items()
    },
    seeds=2,
)


def bits(size, device, table):
    """A row for each network, and how it is trained. Results: "right", of each seed the shares of
    right answers after each bit.
    """
    networks, hows = size.cases[table]
    return runs(run, [{"network": name} | how for name in networks for how in hows], size)


def run(network, steps, rate, seed, size):
    """Trains one → {"right", "seconds"}."""
    torch.manual_seed(seed)
    rnn = NETWORKS[network](1, size.hidden)
    start = timing.now()
    shares = parity.learn(rnn, seed, rate=rate, steps=steps, length=size.length, longer=size.longer)
    seconds = timing.now() - start
    return {"right": [round(share, 4) for share in shares.tolist()], "seconds": seconds}


TABLES = {table: partial(bits, table=table) for table in SIZE.cases}
context = one_thread
