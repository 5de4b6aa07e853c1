"""Rung 7: several layers at once, along the anti-diagonals of the grid of layers and steps.

Layer l can take step t as soon as layer l − 1 has taken it and layer l itself has taken step t − 1. So all
squares (l, t) of an anti-diagonal, l + t = constant, are ready at the same time.
"""

from collections.abc import Sequence
from typing import Any

from ed_lib.lstm.ladder import Layer, fork, run_block, transposed


def slots(blocks: int, layers: int) -> list[list[tuple[int, int]]]:
    """The schedule: blocks + layers − 1 slots, each a list of (layer, block) that may run at once."""
    return [
        [(layer, slot - layer) for layer in range(layers) if 0 <= slot - layer < blocks]
        for slot in range(blocks + layers - 1)
    ]


def wavefront(layers: Sequence[Layer], combine: int = 2) -> None:
    """Runs all layers, from the lowest, each with two streams of its own, in blocks of ``combine`` steps."""
    blocks = layers[0].blocks(combine)
    done: dict[tuple[int, int], Any] = {}  # events: when a layer has finished a block
    with fork(layers[0].x.device, *[0, -1] * len(layers)) as streams:
        pairs = list(zip(streams[::2], streams[1::2], strict=True))  # (inputs, recurrence) of each layer
        weights = [transposed(layer, *pair) for layer, pair in zip(layers, pairs, strict=True)]
        for slot in slots(len(blocks), len(layers)):
            for n, block in slot:
                if n:
                    pairs[n][0].wait_event(done[n - 1, block])
                done[n, block] = run_block(layers[n], blocks[block], weights[n], *pairs[n])
