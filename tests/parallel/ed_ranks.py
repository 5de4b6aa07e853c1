"""What the tests of ED on many devices launch."""

import torch

from ed_lib.ed import EDNetwork
from ed_lib.parallel.ed_stages import EDPipeline

INPUTS, OUTPUTS, DEPTH = 7, 2, 5


def network(width=6, depth=DEPTH, **options):
    options = {"rule": "signed", "init": "fan_in", "dtype": "float64"} | options
    return EDNetwork(INPUTS, width, depth, OUTPUTS, backend="torch", seed=3, **options)


def batches(count, size):
    """Batches (x, target) in float64, the same on every rank."""
    made = torch.Generator().manual_seed(size)

    def draw(*shape):
        return torch.rand(*shape, generator=made, dtype=torch.float64)

    return [(draw(size, INPUTS), draw(size, OUTPUTS)) for _ in range(count)]


CASES = {  # (microbatches, options of the network)
    "signed": (4, {}),
    "kaneko": (3, {"rule": "kaneko"}),
    "bias cells": (4, {"bias": "cells"}),
    "one micro-batch": (1, {}),
    "a sample each": (10, {}),
    "float32": (1, {"dtype": "float32"}),
}


def pipelines():
    """Four steps of each case → {case: (parameters of this stage, outputs, traffic)}."""
    found = {}
    for name, (microbatches, options) in CASES.items():
        pipeline = EDPipeline(network(**options))
        outputs = [pipeline.step(x, target, microbatches) for x, target in batches(4, 10)]
        found[name] = pipeline.stage.params, outputs, pipeline.traffic
    found["errors"] = errors(EDPipeline(network()))
    return found


def errors(pipeline):
    """Bad calls, made by every rank → the messages; none may leave another rank waiting."""
    (x, target), messages = batches(1, 10)[0], []
    for call in (
        lambda: pipeline.step(x[:, 1:], target),
        lambda: pipeline.step(x, 2 * target),
        lambda: pipeline.step(x, target, 11),
        lambda: EDPipeline(network(depth=1)),
        lambda: EDPipeline(EDNetwork(7, 6, 5)),
    ):
        try:
            call()
        except (TypeError, ValueError) as error:
            messages.append(str(error))
        else:
            messages.append("no error")
    return messages
