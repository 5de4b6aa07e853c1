"""Rules that learn without a backward pass, on one perceptron: grids of rates that begin alike and
grow.

A rate is chosen by one run of each on 50,000 training images, held to account on the 10,000 that
are kept out. At that rate each rule then learns from all 60,000, from several seeds, and the test
images are looked at once.
"""

from functools import partial

import torch

from benchmarks.shared.grid import search
from benchmarks.shared.harness import Size, images, one_thread
from benchmarks.shared.networks import VectorPerceptron
from ed_lib import data, timing
from ed_lib.ed import relatives
from ed_lib.ed.learner import accuracy

CASES = [(network, rule) for network in ("free", "one-signed") for rule in relatives.RULES]
CASES += [*(("vectors", rule) for rule in VectorPerceptron.rules), ("free, 1M", "direct")]


# Cells of each hidden layer, wide with as many weights as vectors; rates where the grids begin.
SIZE = Size(hidden=(400, 400), of_vectors=(128, 128), wide=(688, 688), alone=(400, 800),
            cases=CASES, rates=(3e-4, 1e-3, 3e-3, 1e-2),
            epochs=6, batch=128, kept=10_000)  # fmt: skip
TINY = SIZE.rehearsal(
    hidden=(12,),
    of_vectors=(6,),
    wide=(20,),
    alone=(12,),
    cases=(CASES[0], CASES[-5], *CASES[-3::2]),
    epochs=1,
    batch=256,
    kept=200,
    seeds=2,
)


def rules(size, device, of):
    """A row for each network and rule; results: "kept" and "test", shares of images that are
    right.
    """
    cases = [{"network": network, "rule": rule} for network, rule in size.cases]
    return search(run, cases, size.rates, size, score="test", of=of)


def one_layer(size, device):
    """A row for each data set and width: one hidden layer alone, by backpropagation."""
    for of in ("MNIST", "Fashion-MNIST"):
        cases = [{"of": of, "cells": cells} for cells in size.alone]
        yield from search(run_alone, cases, size.rates, size, score="test")


def run_alone(of, cells, rate, seed, searching, size):
    """Trains a network of one hidden layer → {"test", "seconds"}."""
    make = lambda n, steps: relatives.Perceptron(  # noqa: E731
        (n, cells, 10), "backprop", rate, steps=steps, seed=seed
    )
    return learned(make, of, seed, searching, size, size.epochs)


def run(network, rule, rate, seed, searching, of, size):
    """Trains one network → {"test", "seconds"}."""
    hidden = {"vectors": size.of_vectors, "free, 1M": size.wide}.get(network, size.hidden)
    free = partial(relatives.Perceptron, one_signed=network == "one-signed")
    kind = VectorPerceptron if network == "vectors" else free
    make = lambda n, steps: kind((n, *hidden, 10), rule, rate, steps=steps, seed=seed)  # noqa: E731
    return learned(make, of, seed, searching, size, size.epochs)


def learned(make, of, seed, searching, size, epochs, *, odd=False):
    """Trains what ``make(inputs, steps)`` gives on ten classes, or even against odd → {"test",
    "seconds"}.
    """
    (x, labels), (tests, judge) = split(of, searching, size)
    # The steps of all epochs, whose last batches may be smaller.
    learner = make(x.shape[1], epochs * -(-len(x) // size.batch))
    x = torch.from_numpy(x)
    # (N, 1) of 0 and 1, or (N, 10) of one 1 each.
    wanted = labels[:, None].astype("float32") % 2 if odd else data.one_hot(labels, 10)
    target = torch.from_numpy(wanted)
    start = timing.now()
    for epoch in range(epochs):
        for rows in data.batches(len(x), size.batch, seed=1000 * seed + epoch):
            learner.step(x[rows], target[rows])
    seconds = timing.now() - start
    right = judge % 2 if odd else judge
    return {"test": accuracy(learner.net, tests, right), "seconds": seconds}


def split(of, searching, size):
    """What is learned from and what judges: the training images and the test images, or in
    ``searching`` the training images without the last, which are kept out, and these.
    """
    (x, labels), test = images(of.lower(), size.whole)
    if searching:
        return (x[: -size.kept], labels[: -size.kept]), (x[-size.kept :], labels[-size.kept :])
    return (x, labels), test


TABLES = {name: partial(rules, of=name) for name in ("MNIST", "Fashion-MNIST")}
TABLES["one layer"] = one_layer
context = one_thread
