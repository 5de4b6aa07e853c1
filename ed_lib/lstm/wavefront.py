"""Rung 7: several layers at once, along the anti-diagonals of the grid of layers and steps.

Layer l can take step t as soon as layer l − 1 has taken it and layer l itself has taken step t − 1. So all
cells of an anti-diagonal, l + t = constant, are ready at the same time.
"""

from ed_lib import arrays
from ed_lib.lstm.ladder import run_block, transposed
from ed_lib.lstm.streams import fork


def slots(blocks, layers, directions=1):
    """The schedule: a list of slots, each a list of the (layer, direction, block) that may run at once.

    One direction: blocks + layers − 1 slots. Of two directions, the layer above needs the last block of both
    before its first, so nothing is left but to run the two beside each other: layers · blocks slots.
    """
    for name, count in (("blocks", blocks), ("layers", layers)):
        arrays.check_count(name, count)
    arrays.check_choice("directions", directions, (1, 2))
    if directions == 2:
        return [[(n // blocks, d, n % blocks) for d in range(2)] for n in range(blocks * layers)]
    return [
        [(layer, 0, slot - layer) for layer in range(layers) if 0 <= slot - layer < blocks]
        for slot in range(blocks + layers - 1)
    ]


def wavefront(levels, combine=2):
    """Runs all layers. ``levels``: for each layer, from the lowest, a list with a ``ladder.Layer`` for each
    direction; combine: steps in a block. Each layer and direction has streams of its own.
    """
    flat = [layer for level in levels for layer in level]
    blocks = [[layer.blocks(combine) for layer in level] for level in levels]
    count, done = len(blocks[0][0]), {}
    with fork(flat[0].x.device, *[0, -1] * len(flat)) as streams:
        pairs = list(zip(streams[::2], streams[1::2], strict=True))  # (inputs, recurrence)
        weights = [transposed(layer, *pair) for layer, pair in zip(flat, pairs, strict=True)]
        for slot in slots(count, len(levels), len(levels[0])):
            for level, direction, block in slot:
                which = level * len(levels[0]) + direction
                for event in needed(done, level, block, len(levels[0]), count):
                    pairs[which][0].wait(event)
                steps = blocks[level][direction][block]
                done[level, direction, block] = run_block(flat[which], steps, weights[which], *pairs[which])


def needed(done, level, block, directions, count):
    """The events of the layer below that a block's input product waits for."""
    if level == 0:
        return []
    if directions == 1:
        return [done[level - 1, 0, block]]
    return [done[level - 1, direction, count - 1] for direction in range(2)]
