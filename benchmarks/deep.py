"""Can ED go deep? Even against odd by depth, for starts, skips and centred sums; and an ablation.

Of each network every rate of one grid is tried by one run on 50,000 training images, held to account on the
10,000 kept out; at the best three seeds learn from all 60,000.
"""

from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.harness import REHEARSAL, Training, one_thread, search
from benchmarks.networks import ResidualNetwork, RoutedNetwork
from benchmarks.relatives import SETS, learned
from ed_lib.ed.learner import Learner

NETWORKS = {  # how a deep network differs from EDNetwork
    "plain": {"start": "fan_in", "residual": False, "centred": False},
    "gain one": {"start": "gain_one", "residual": False, "centred": False},
    "permutation, centred": {"start": "permutation", "residual": False, "centred": True},
    "residual": {"start": "gain_one", "residual": True, "centred": False},
    "residual, centred": {"start": "gain_one", "residual": True, "centred": True},
}
CASES = [(name, rule, True) for name in NETWORKS for rule in ("ed", "backprop")]
CASES += [("residual, centred", "ed", False)]  # the stack as it was drawn
PARTS = {  # of "Diffusing Blame": what is taken away
    "everything": {}, "without centring": {"centred": False},
    "the article's sigmoid": {"u0": 0.4}, "one start for both types": {"uneven": False},
}  # fmt: skip


@dataclass(frozen=True)
class Size(Training):
    """``width``: pairs a layer; ``pairs``: those of the ablation, of one hidden-to-hidden layer."""

    depths: tuple = (0, 1, 2, 4, 8, 16, 32, 64)
    cases: tuple = tuple(CASES)
    width: int = 32
    pairs: int = 100
    rates: tuple = (1e-3, 3e-3, 1e-2)
    epochs: int = 1
    ablation_epochs: int = 3
    batch: int = 64
    kept: int = 10_000


SIZE = Size()
TINY = Size((0, 3), (CASES[0], CASES[-1]), 4, 10, (1e-3, 1e-2), 1, 1, 256, 200,
            **REHEARSAL | {"seeds": 1})  # fmt: skip


def by_depth(size, device):
    """Even against odd; results: "kept" and "test", shares of images that are right."""
    names = "network", "rule", "stack"
    cases = [{"task": "MNIST"} | dict(zip(names, case, strict=True)) | {"depth": depth}
             for depth in size.depths for case in size.cases]  # fmt: skip
    return search(even_or_odd, cases, size.rates, size.seeds, score="test", workers=size.workers, size=size)


def even_or_odd(task, network, rule, stack, depth, rate, seed, searching, size):
    """Trains one → {"test", "seconds"}."""
    sizes, options = (size.width, depth), NETWORKS[network] | {"stack": stack, "seed": seed}
    make = lambda n, steps: ResidualNetwork(n, *sizes, rule, rate, steps=steps, **options)  # noqa: E731
    return learned(make, task, seed, searching, size, size.epochs, odd=True)


def ablation(size, device):
    """Ten classes; results: "kept" and "test"."""
    cases = [{"task": task, "part": part} for task in SETS for part in PARTS]
    return search(ten_classes, cases, size.rates, size.seeds, score="test", workers=size.workers, size=size)


def ten_classes(task, part, rate, seed, searching, size):
    """Trains one → {"test", "seconds"}."""
    net = partial(published, pairs=size.pairs, seed=seed, **PARTS[part])
    make = lambda inputs, steps: Learner(net(inputs), "ed", "adam", rate, steps=steps)  # noqa: E731
    return learned(make, task, seed, searching, size, size.ablation_epochs)


def published(inputs, pairs, seed, *, centred=True, u0=6.0, uneven=True):
    """A RoutedNetwork with one hidden-to-hidden layer, as "Diffusing Blame" has its dense layers: sigmoids of
    width 6, centred errors, excitatory weights of the start times 1.5 and inhibitory ones times 0.5, but for
    the output's.
    """
    net = RoutedNetwork(inputs, pairs, 1, 10, u0=u0, centred=centred, seed=seed)
    for name in ("input.weight", "hidden.weight") if uneven else ():  # [..., q, i, p o]
        net.parameters[name].unflatten(-2, (2, -1)).mul_(torch.tensor([1.5, 0.5])[:, None, None])
    return net


TABLES = {"depth": by_depth, "ablation": ablation}
context = one_thread
