"""Rung 7: several layers at once, along the anti-diagonals of the grid of layers and steps.

Layer l can take step t as soon as layer l − 1 has taken it and layer l itself has taken step t − 1. So all
squares (l, t) of an anti-diagonal, l + t = constant, are ready at the same time.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ed_lib.lstm import gpu
from ed_lib.lstm.graphs import fork
from ed_lib.lstm.ladder import Kept, Layer, Weights, run_block, transposed

Block = tuple[int, int, int]  # layer, direction, and which block of its steps


def slots(blocks: int, layers: int, directions: int = 1) -> list[list[Block]]:
    """The schedule: slots, each a list of (layer, direction, block) that may run at once.

    One direction: blocks + layers − 1 slots. Of two directions, the layer above needs the last block of both
    before its first, so nothing is left but to run the two beside each other: layers · blocks slots.
    """
    if directions == 2:
        return [[(layer, d, block) for d in range(2)] for layer in range(layers) for block in range(blocks)]
    return [
        [(layer, 0, slot - layer) for layer in range(layers) if 0 <= slot - layer < blocks]
        for slot in range(blocks + layers - 1)
    ]


def streamed_wavefront(levels: list[list[Layer]], combine: int = 2) -> None:
    """Runs all layers, each with two streams of its own, in blocks of ``combine`` steps.

    levels: for each layer, from the lowest, a ``ladder.Layer`` for each direction.
    """
    each = {(n, d): layer for n, level in enumerate(levels) for d, layer in enumerate(level)}
    blocks = {key: layer.blocks(combine) for key, layer in each.items()}
    count, directions = len(blocks[0, 0]), len(levels[0])
    done: dict[Block, Any] = {}
    with fork(each[0, 0].x.device, *[0, -1] * len(each)) as streams:
        pairs = dict(zip(each, zip(streams[::2], streams[1::2], strict=True), strict=True))
        weights = {key: transposed(layer, *pairs[key]) for key, layer in each.items()}
        for slot in slots(count, len(levels), directions):
            for level, d, block in slot:
                key = level, d  # and its pair of streams: (inputs, recurrence)
                below = block if directions == 1 else count - 1  # the block that this one's inputs wait for
                for way in range(directions if level else 0):
                    pairs[key][0].wait_event(done[level - 1, way, below])
                steps = blocks[key][block]
                done[level, d, block] = run_block(each[key], steps, weights[key], *pairs[key])


def batched_wavefront(
    x: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor, weights: Sequence[Weights]
) -> tuple[torch.Tensor, list[Kept]]:
    """The wavefront in three launches a slot, however many layers: two batched products and one pointwise
    kernel for all layers. One direction; arguments and result as ``module.run``.

    Layer l takes step s − l in slot s, and all arrays are indexed by the slot: what it reads, its own last h
    and that of the layer below, then lies at the same slot. The few squares before a layer's first step and
    after its last are computed as well, from whatever is there, and never read.
    """
    (steps, batch, _), (layers, _, size) = x.shape, h0.shape
    w_ih, w_hh, *biases = zip(*weights, strict=True)
    across = torch.stack([w.t() for w in w_hh])  # (L, H, 4H), contiguous
    upward = torch.stack([w.t() for w in w_ih[1:]]) if layers > 1 else across[:0]  # (L − 1, H, 4H)
    b_ih, b_hh = map(torch.stack, biases)  # (L, 4H)
    slots = steps + layers - 1
    hidden, cells = x.new_zeros(2, slots + 1, layers, batch, size)
    gates = x.new_empty(slots, layers, batch, 4 * size)
    recurrent = x.new_empty(layers, batch, 4 * size)
    # no step waits for it: (T · B, I) (I, 4H) → (T · B, 4H)
    gates[:steps, 0] = (x.flatten(0, 1) @ w_ih[0].t()).view(steps, batch, -1)
    rows = (array.flatten(1, 2).unbind() for array in (gates, cells, hidden))
    flat_gates, flat_cells, flat_hidden = rows  # by slot: (L · B, 4H), (L · B, H) twice
    flat_recurrent = recurrent.flatten(0, 1)
    for slot, (h, a) in enumerate(zip(hidden, gates, strict=False)):
        if slot < layers:  # the layer that begins here
            h[slot], cells[slot, slot] = h0[slot], c0[slot]
        if layers > 1:
            torch.bmm(h[:-1], upward, out=a[1:])  # (L − 1, B, H) (L − 1, H, 4H)
        torch.bmm(h, across, out=recurrent)  # (L, B, H) (L, H, 4H) → (L, B, 4H)
        gpu.cell(
            flat_gates[slot], flat_recurrent, b_ih, b_hh,
            flat_cells[slot], flat_cells[slot + 1], flat_hidden[slot + 1],
        )  # fmt: skip
    kept, below = [], x
    for n in range(layers):
        h, c = hidden[n : n + steps + 1, n], cells[n : n + steps + 1, n]  # (T + 1, B, H)
        kept.append(Kept(below, w_ih[n], w_hh[n], gates[n : n + steps, n], h, c))
        below = h[1:]
    return below.clone(memory_format=torch.contiguous_format), kept
