"""Rung 7: several layers at once, along the anti-diagonals of the grid of layers and steps.

Layer l can take step t as soon as layer l − 1 has taken it and layer l itself has taken step t − 1. So all
cells of an anti-diagonal, l + t = constant, are ready at the same time.
"""

import torch

from ed_lib import arrays
from ed_lib.lstm import kernels
from ed_lib.lstm.ladder import Kept, run_block, transposed
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


def batched_wavefront(x, h0, c0, weights):
    """The wavefront in three launches a slot, however many layers: two batched products and one pointwise
    kernel take all the layers of the slot at once. One direction.

    x (T, B, I), h0 and c0 (L, B, H), weights: (w_ih, w_hh, b_ih, b_hh) for each layer → output (T, B, H) and
    ``ladder.Kept`` of each layer. Layer l takes step s − l in slot s, and all arrays are indexed by the slot:
    what it reads, its own last h and that of the layer below, then lies side by side, at the same slot.
    """
    (steps, batch, _), (layers, _, size) = x.shape, h0.shape
    w_ih, w_hh, b_ih, b_hh = zip(*weights, strict=True)
    across = torch.stack([w.t() for w in w_hh])  # (L, H, 4H), contiguous
    upward = torch.stack([w.t() for w in w_ih[1:]]) if layers > 1 else across[:0]  # (L − 1, H, 4H)
    b_ih, b_hh = torch.stack(b_ih), torch.stack(b_hh)  # (L, 4H)
    hidden, cells = x.new_empty(2, steps + layers, layers, batch, size)
    gates = x.new_empty(steps + layers - 1, layers, batch, 4 * size)
    recurrent = x.new_empty(layers, batch, 4 * size)
    for layer in range(layers):
        hidden[layer, layer], cells[layer, layer] = h0[layer], c0[layer]
    first = x.flatten(0, 1) @ w_ih[0].t()  # (T · B, I) (I, 4H) → (T · B, 4H): no step waits for it
    gates[:steps, 0] = first.view(steps, batch, -1)
    for slot in range(steps + layers - 1):
        low, high = (
            max(0, slot - steps + 1),
            min(layers, slot + 1),
        )  # the layers that have a step in this slot
        above = max(low, 1)  # those that read a layer below
        if above < high:  # (n, B, H) (n, H, 4H) → (n, B, 4H)
            torch.bmm(
                hidden[slot, above - 1 : high - 1], upward[above - 1 : high - 1], out=gates[slot, above:high]
            )
        torch.bmm(hidden[slot, low:high], across[low:high], out=recurrent[low:high])
        kernels.cell(
            gates[slot, low:high].flatten(0, 1), recurrent[low:high].flatten(0, 1), b_ih[low:high],
            b_hh[low:high], cells[slot, low:high].flatten(0, 1), cells[slot + 1, low:high].flatten(0, 1),
            hidden[slot + 1, low:high].flatten(0, 1),
        )  # fmt: skip
    kept, below = [], x
    for n in range(layers):
        mine = slice(n, n + steps + 1)  # (T + 1, B, H)
        kept.append(Kept(below, w_ih[n], w_hh[n], gates[n : n + steps, n], hidden[mine, n], cells[mine, n]))
        below = hidden[mine, n][1:]
    return below.contiguous(), kept
