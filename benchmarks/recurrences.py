"""A linear recurrence on a CPU beside an LSTM: what each learns of a text, by steps and by seconds.

Networks are trained in turns, step by step, so that a second means the same for each: an LSTM and two layers
of minGRU with as many parameters, each at the rate of those tried at which the first seed ends lowest.
"""

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.harness import Size, summary
from ed_lib import data, timing
from ed_lib.lstm import scans

# A step takes a batch of sequences of a length; hidden: the LSTM's cells, minGRU's.
SIZE = Size(length=128, batch=32, training=600, every=50, seeds=3, rates=(1e-3, 3e-3, 1e-2, 3e-2),
            embedded=128, hidden=(256, 384))  # fmt: skip
TINY = SIZE(length=4, batch=2, training=4, every=2, seeds=2, rates=(1e-3, 3e-3), embedded=3, hidden=(4, 5))
NETWORKS = {"LSTM": nn.LSTM, "minGRU, 2 layers": scans.Stack}


class Reader(nn.Module):
    """Which character comes next, by one of ``NETWORKS``: x (T, B) → (T, B, characters)."""

    def __init__(self, what, characters, size):
        super().__init__()
        hidden = dict(zip(NETWORKS, size.hidden, strict=True))[what]
        self.embedding = nn.Embedding(characters, size.embedded)
        self.rnn, self.head = NETWORKS[what](size.embedded, hidden), nn.Linear(hidden, characters)

    def forward(self, x):
        return self.head(self.rnn(self.embedding(x))[0])


def read(size, device):
    """The loss on the held-out text by training steps, and seconds of a training step."""
    text = data.text()
    first = contest(text, size, itertools.product(NETWORKS, size.rates), 0)
    best = {what: min(size.rates, key=lambda rate: first[what, rate]["loss"][-1]) for what in NETWORKS}
    runs = [first, *(contest(text, size, best.items(), seed) for seed in range(1, size.seeds))]
    for what, rate in best.items():
        mine = [run[what, rate] for run in runs]
        parameters = sum(p.numel() for p in Reader(what, len(text.characters), size).parameters())
        row = {"what": what, "rate": rate, "parameters": parameters, "every": size.every}
        row |= summary([time for run in mine for time in run["seconds"]])
        row |= {f"loss, seed {seed}": run["loss"] for seed, run in enumerate(mine)}
        yield row | {f"rate {r:g}": first[what, r]["loss"][-1] for r in size.rates}


def contest(text, size, entries, seed):
    """Trains in turns → {(network, rate): its parameters, losses and seconds of each step}."""
    found, trainees = {}, {}
    for what, rate in entries:
        torch.manual_seed(seed)
        network = Reader(what, len(text.characters), size)
        trainees[what, rate] = network, torch.optim.Adam(network.parameters(), rate)
        found[what, rate] = {"loss": [], "seconds": []}
    batches = data.stretches(text.train, size.batch, size.length, seed=seed)
    for n in range(size.training + 1):
        x, wanted = next(batches)
        for key, (network, adam) in trainees.items():
            if n % size.every == 0:
                found[key]["loss"].append(round(held_out(network, text, size), 4))
            if n < size.training:
                start = timing.now()
                adam.zero_grad()
                F.cross_entropy(network(x).flatten(0, 1), wanted.flatten()).backward()
                nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                adam.step()
                found[key]["seconds"].append(timing.now() - start)
    return found


@torch.no_grad()
def held_out(network, text, size):
    """The mean loss, in nats a character, on eight batches of the held-out text, always the same."""
    pairs = itertools.islice(data.stretches(text.held_out, size.batch, size.length, seed=0), 8)
    return float(np.mean([F.cross_entropy(network(x).flatten(0, 1), y.flatten()) for x, y in pairs]))


TABLES = {"text": read}
