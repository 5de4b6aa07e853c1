"""Should I use ED? Accuracy against seconds: ED, backpropagation by hand and by autograd in ED's
network, and an ordinary network, with one hidden layer and with more.

Even is told from odd, by Adam, on one thread. Each is tuned: its rate, and in ED's network of
several layers its start too, are the best on 10,000 training images that are kept out. Then three
seeds learn from all 60,000 and look at the test images on the way; looking is not timed.
"""

import torch
from torch.nn import functional

from benchmarks.deep import pupil
from benchmarks.relatives import split
from benchmarks.shared.grid import search
from benchmarks.shared.harness import Size, one_thread
from ed_lib.ed import EDNetwork, rivals
from ed_lib.ed.learner import fit

# Of each method its rule, as in ``deep``, and the starts that it may choose from. With one hidden
# layer the starts of ED's network are one.
STARTS = "dense", "dense, gain 1"
METHODS = {
    "ED": ("signed", STARTS),
    "backpropagation by hand": ("cross_entropy", STARTS),
    "backpropagation by autograd": ("autograd", STARTS),
    "ordinary network": ("cross_entropy", ("ordinary, He's start",)),
}

# One worker, since the finals are timed; every: steps between two looks.
SIZE = Size(depths=(0, 8, 16), methods=tuple(METHODS), width=32, rates=(3e-4, 1e-3, 3e-3), batch=64,
            epochs=2, every=50, kept=10_000, workers=1)  # fmt: skip
TINY = SIZE.rehearsal(
    depths=(0, 2), methods=("ED", "backpropagation by autograd"), width=4, every=3, kept=200
)


class Autograd:
    """ED's network of one output, with Adam on the cross-entropy's gradient by autograd."""

    def __init__(self, net: EDNetwork, rate: float, steps: int):
        self.net = net
        # They share their memory with the network's own parameters, which need no gradient.
        self.parameters = {name: p.detach().requires_grad_() for name, p in net.parameters.items()}
        self.optimizer = rivals.optimizer(self.parameters.values(), "adam", rate, steps)

    def step(self, x, target):
        """One step: x (B, n_inputs), target (B, 1) in [0, 1] → the outputs before it, (B, 1)."""
        scale = 2 / self.net.u0
        y = x[None]  # (K, B, I), one network
        *hidden, output = rivals.by_layer(self.parameters)
        for n, (weight, bias) in enumerate(hidden):
            if n == 0:
                # Senders of both types send x, so that their weights add: (K, 2I, C) → (K, I, C)
                weight = weight.unflatten(1, (2, -1)).sum(1)
            y = torch.baddbmm(bias, y, weight, beta=scale, alpha=scale).sigmoid()
        weight, bias = output
        # The excitatory cell is the output: (K, B, 2) → (B, K)
        logits = torch.baddbmm(bias, y, weight, beta=scale, alpha=scale)[..., 0].T
        self.optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(logits, target).backward()
        self.optimizer.step()
        return logits.detach().sigmoid()


def curves(size, device):
    """A row for each method and depth, of its best start; results: "kept", "test", and by seed the
    "steps", the seconds "after" them and the "accuracy" at each look.
    """
    for depth in size.depths:
        for method in size.methods:
            starts = METHODS[method][1]
            cases = [
                {"method": method, "depth": depth, "start": start}
                for start in (starts if depth else starts[:1])
            ]
            tuned = search(trained, cases, size.rates, size, score="test")
            yield max(tuned, key=lambda row: max(row["kept"]))


def trained(method, depth, start, rate, seed, searching, size):
    """Trains one → {"test", "seconds", "steps", "after", "accuracy"}."""
    torch.set_flush_denormal(True)
    learned, judge = [(x, labels % 2) for x, labels in split("MNIST", searching, size)]
    n_inputs = learned[0].shape[1]
    steps = size.epochs * -(-len(learned[0]) // size.batch)
    rule = METHODS[method][0]
    if rule == "autograd":
        net = pupil(start, "signed", depth, rate, seed, size.width, n_inputs, steps).net
        learner = Autograd(net, rate, steps)
    else:
        learner = pupil(start, rule, depth, rate, seed, size.width, n_inputs, steps)
    every = steps if searching else size.every
    order = {"epochs": size.epochs, "batch": size.batch, "every": every, "seed": 1000 * seed}
    history = fit(learner, learned, judge, **order)
    after = torch.tensor(history.seconds).cumsum(0).tolist()
    return {
        "test": history.accuracy[-1],
        "seconds": after[-1],
        "steps": history.steps,
        "after": [round(seconds, 4) for seconds in after],
        "accuracy": history.accuracy,
    }


TABLES = {"curves": curves}
context = one_thread
