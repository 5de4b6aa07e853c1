"""How well even is told from odd, by depth, under ED and under backpropagation: in ED's own network
of dense layers from two starts, with skip connections, and in an ordinary network from two starts.

Of each the rate is chosen by one run each on 50,000 training images, held to account on the 10,000
kept out; the grid grows until the best is at no edge. At that rate three seeds learn from all
60,000, in one pass.
"""

from functools import partial

import torch

from benchmarks.relatives import learned
from benchmarks.shared.grid import LADDER, search
from benchmarks.shared.harness import Size, one_thread
from benchmarks.shared.networks import Ordinary, Residual
from ed_lib.ed import EDNetwork
from ed_lib.ed.learner import Learner

CASES = [("dense", rule) for rule in ("kaneko", "signed", "cross_entropy")]
CASES += [
    ("skips", rule) for rule in ("signed", "signed, stack frozen", "cross_entropy", "squared")
]
CASES += [("ordinary", "cross_entropy"), ("ordinary, He's start", "cross_entropy")]
GAIN_1 = [("dense, gain 1", rule) for rule in ("signed", "cross_entropy")]
# Adam divides a gradient by its size + ε. Where gradients are small, one would first change ε,
# then the number format too. ED beside them.
EPSILONS = [("signed", "float32", 1e-8)]
EPSILONS += [("cross_entropy", "float32", 1e-8), ("cross_entropy", "float32", 1e-16)]
EPSILONS += [("cross_entropy", "float64", 1e-8), ("cross_entropy", "float64", 1e-150)]


# width: pairs of cells a layer; the ordinary network has as many cells. sgd: Kaneko's rates.
SIZE = Size(depths=(0, 1, 2, 4, 8, 16, 32), cases=CASES, width=32, rates=(1e-3, 3e-3, 1e-2),
            epsilons=EPSILONS, small_rates=(1e-4, 3e-4, 1e-3), sgd=(0.03, 0.1, 0.3),
            ladder=LADDER[:-4], batch=64, kept=10_000)  # fmt: skip
TINY = SIZE.rehearsal(
    depths=(0, 3),
    cases=CASES[:5:2] + CASES[-1:],
    epsilons=EPSILONS[::4],
    small_rates=(1e-3, 3e-3),
    width=4,
    ladder=LADDER[3:-3],
    batch=256,
    kept=200,
)


def by_depth(size, device, cases=None):
    """Results: "kept" and "test", shares of images that are right."""
    for depth in size.depths:
        for network, rule in cases or size.cases:
            rates = size.sgd if rule == "kaneko" else size.rates
            ladder = LADDER if rule == "kaneko" else size.ladder
            case = {"network": network, "rule": rule, "depth": depth}
            yield from search(even_or_odd, [case], rates, size, score="test", ladder=ladder)


def by_epsilon(size, device):
    """Results: "kept" and "test", of ED's dense network under another ε of Adam's."""
    depths = [depth for depth in size.depths if 4 <= depth <= 16] or size.depths[-1:]
    for depth in depths:
        for rule, dtype, epsilon in size.epsilons:
            case = {"rule": rule, "depth": depth, "dtype": dtype, "epsilon": epsilon}
            yield from search(
                of_epsilon, [case], size.small_rates, size, score="test", ladder=size.ladder
            )


def of_epsilon(rule, depth, dtype, epsilon, rate, seed, searching, size):
    """Trains one → {"test", "seconds"}."""
    torch.set_flush_denormal(True)

    def make(inputs, steps):
        options = {"rule": "signed", "init": "fan_in", "seed": seed, "backend": "torch"}
        net = EDNetwork(inputs, size.width, depth, dtype=dtype, **options)
        learner = Learner(net, "ed" if rule == "signed" else rule, "adam", rate, steps=steps)
        learner.optimizer.param_groups[0]["eps"] = epsilon
        return learner

    return learned(make, "MNIST", seed, searching, size, 1, odd=True)


def even_or_odd(network, rule, depth, rate, seed, searching, size):
    """Trains one → {"test", "seconds"}."""
    torch.set_flush_denormal(True)
    make = partial(pupil, network, rule, depth, rate, seed, size.width)
    return learned(make, "MNIST", seed, searching, size, 1, odd=True)


def pupil(network, rule, depth, rate, seed, width, inputs, steps):
    """What learns: all by Adam, but Kaneko's rule by SGD, which suits it better."""
    if network == "skips":
        options = {"stack": "frozen" not in rule, "steps": steps, "seed": seed}
        return Residual(inputs, width, depth, "ed" if "signed" in rule else rule, rate, **options)
    if network.startswith("dense"):
        learns = rule if rule in ("kaneko", "signed") else "signed"
        net = EDNetwork(
            inputs, width, depth, rule=learns, init="fan_in", seed=seed, backend="torch"
        )
        # With 32 pairs of cells a layer multiplies what is common to its cells by 8.
        if "gain 1" in network:
            net.parameters["hidden.weight"] /= 8
        method = "ed" if rule == learns else rule
        optimizer = "sgd" if rule == "kaneko" else "adam"
        return Learner(net, method, optimizer, rate, steps=steps)
    net = Ordinary((inputs, *[2 * width] * (depth + 1), 1), "adam", rate, steps=steps, seed=seed)
    torch.manual_seed(seed)
    for layer in net.layers if "He" in network else ():
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            torch.nn.init.zeros_(layer.bias)
    return net


TABLES = {"depth": by_depth, "gain 1": partial(by_depth, cases=GAIN_1), "epsilon": by_epsilon}
context = partial(one_thread, flush_denormal=True)
