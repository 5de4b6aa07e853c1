"""Controls for the benchmarks of rules and of language models, by the same grids and seeds as theirs.

Perceptrons of which only the last layer learns, from random features: what a rule for hidden layers has to
beat. The transformer whose attention learns by the gradient while its perceptrons stay as drawn: what a rule
for perceptrons has to beat there. And a model that reads a window, by sign symmetry and by local classifiers,
the two rules that keep up with backpropagation on images.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmarks import language, relatives
from benchmarks.harness import one_thread, search
from ed_lib.ed.relatives import Perceptron


@dataclass(frozen=True)
class Size:
    """Those of the two benchmarks, the second with other cases."""

    images: relatives.Size
    text: language.Size


CASES = {"transformers": (("backprop", "frozen", False),),
         "window_models": (("sign", True, False), ("local", True, False))}  # fmt: skip
SIZE = Size(relatives.SIZE, replace(language.SIZE, **CASES))
TINY = Size(relatives.TINY, replace(language.TINY, **CASES))


class LastOnly(Perceptron):
    """Hidden layers that stay as they were drawn."""

    def deltas(self, target, rule=None):
        *hidden, last = super().deltas(target, rule)
        return [*map(torch.zeros_like, hidden), last]


def random_features(size, device, of):
    """A row for each network; results: those of :func:`benchmarks.relatives.rules`, without cosines."""
    cases = [{"network": network, "rule": "the last layer only"} for network in ("free", "one-signed")]
    options = {"score": "test", "workers": size.images.workers, "of": of, "size": size.images}
    return search(run, cases, size.images.rates, size.images.seeds, **options)


def run(network, rule, rate, seed, searching, of, size):
    """Trains one last layer → {"test", "seconds"}."""
    options = {"rate": rate, "one_signed": network == "one-signed", "seed": seed}
    make = lambda inputs, steps: LastOnly((inputs, *size.hidden, 10), steps=steps, **options)  # noqa: E731
    return relatives.learned(make, of, seed, searching, size, size.epochs)


TABLES = {name: partial(random_features, of=name) for name in relatives.SETS}
TABLES |= {name: (lambda size, device, name=name: language.rows(size.text, device, name))
           for name in language.TABLES}  # fmt: skip
context = one_thread
