"""How often to save: a run that is interrupted at random, and goes on from its last checkpoint."""

import numpy as np

from ed_lib import check


def best_interval(save: float, between: float) -> float:
    """Seconds of work between two checkpoints, where saving takes ``save`` seconds and failures come
    ``between`` seconds apart in the mean: √(2 · save · between).

    J. Young, "A first order approximation to the optimum checkpoint interval" (1974); J. Daly (2006).
    """
    return (2 * check.positive("save", save) * check.positive("between", between)) ** 0.5


def goodput(
    interval: float, save: float, between: float, restart: float = 0.0, failures: int = 2000, seed: int = 0
) -> float:
    """The share of the time that is work which lasts, in a simulated run with so many failures.

    interval: of work between two checkpoints; a failure loses what came after the last whole one, and costs
    ``restart`` seconds. The times between failures are exponential, with the mean ``between``.
    """
    for name, value in {"interval": interval, "save": save, "between": between}.items():
        check.positive(name, value)
    alive = np.random.default_rng(seed).exponential(between, check.count("failures", failures))  # seconds
    whole = alive // (interval + save)  # checkpoints that were finished before each failure
    return float(whole.sum() * interval / (alive.sum() + failures * restart))
