"""The rungs of NVIDIA's ladder, six for one layer and one over several: each differs from the one
before in one thing. After Appleyard, Kočiský and Blunsom, "Optimizing performance of recurrent
neural networks on GPUs" (2016), and the program that goes with it.

Letters: T time steps, B batch, I inputs, H hidden. Gates lie side by side in the order i, f, g, o.
Everything is written into memory allocated before; none of it is recorded by autograd (``module``
goes back by hand).
"""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

import torch

from ed_lib.lstm import lstm_on_gpu
from ed_lib.lstm.streams import fork, on

# GFLOP/s in float32 on a Tesla M40, forward, 100 steps, 512 inputs and hidden, batch 64; of one
# layer but for the last, which is of four. The paper, and the blog of the same year.
PUBLISHED = {
    "baseline": 349,
    "combined_gemms": 724,
    "streamed_gemms": 994,
    "fused_pointwise": 1942,
    "pretransposed": 2199,
    "combined_inputs": 2290,
    "wavefront": 3898,
}

Pair = tuple[torch.Tensor, torch.Tensor]  # W_ih (I, 4H) and W_hh (H, 4H)
Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # W_ih, W_hh, b_ih, b_hh


class Kept(NamedTuple):
    """What the way back needs of a layer."""

    x: torch.Tensor  # (T, B, I)
    w_ih: torch.Tensor  # (4H, I)
    w_hh: torch.Tensor  # (4H, H)
    gates: torch.Tensor  # (T, B, 4H), activated
    hidden: torch.Tensor  # (T + 1, B, H), with the state before the first step
    cells: torch.Tensor  # (T + 1, B, H), likewise


@dataclass
class Layer:
    """One layer, and the memory that its steps fill. h, c (B, H): the state to start from."""

    x: torch.Tensor  # (T, B, I)
    w_ih: torch.Tensor  # (4H, I)
    w_hh: torch.Tensor  # (4H, H)
    b_ih: torch.Tensor  # (4H,)
    b_hh: torch.Tensor  # (4H,)
    h: InitVar[torch.Tensor]
    c: InitVar[torch.Tensor]
    output: torch.Tensor = field(init=False)  # (T, B, H): h of each step again, for the layer above
    gates: torch.Tensor = field(init=False)  # (T, B, 4H)
    hidden: torch.Tensor = field(init=False)  # (T + 1, B, H), with the state before the first step
    cells: torch.Tensor = field(init=False)  # (T + 1, B, H), likewise
    recurrent: torch.Tensor = field(init=False)  # (B, 4H): W_hh h of the step at hand
    spare: torch.Tensor = field(init=False)  # (2, B, H), for rungs that do one operation at a time

    def __post_init__(self, h, c):
        steps, batch, _ = self.x.shape
        size = h.shape[1]
        self.output = self.x.new_empty(steps, batch, size)
        self.gates = self.x.new_empty(steps, batch, 4 * size)
        self.hidden, self.cells = self.x.new_empty(2, steps + 1, batch, size)
        self.recurrent = self.x.new_empty(batch, 4 * size)
        self.spare = self.x.new_empty(2, batch, size)
        self.hidden[0] = h
        self.cells[0] = c

    @property
    def kept(self) -> Kept:
        return Kept(self.x, self.w_ih, self.w_hh, self.gates, self.hidden, self.cells)

    def steps(self) -> range:
        return range(len(self.x))

    def blocks(self, length: int) -> list[range]:
        """The steps in blocks of ``length``, the last one perhaps shorter."""
        return [self.steps()[start : start + length] for start in range(0, len(self.x), length)]


def baseline(layer: Layer) -> None:
    """Rung 1: the formula as it stands, eight products and 23 pointwise launches."""
    w_ih = layer.w_ih.chunk(4)  # (H, I), four
    w_hh = layer.w_hh.chunk(4)  # (H, H), four
    for t in layer.steps():
        # four times (B, I) (I, H) → (B, H)
        for w, gate in zip(w_ih, layer.gates[t].chunk(4, 1), strict=True):
            torch.mm(layer.x[t], w.t(), out=gate)
        # four times (B, H) (H, H) → (B, H)
        for w, gate in zip(w_hh, layer.recurrent.chunk(4, 1), strict=True):
            torch.mm(layer.hidden[t], w.t(), out=gate)
        separate_cell(layer, t)


def combined_gemms(layer: Layer) -> None:
    """Rung 2: one product for four gates, since they have the same input."""
    for t in layer.steps():
        # (B, I) (I, 4H) → (B, 4H)
        torch.mm(layer.x[t], layer.w_ih.t(), out=layer.gates[t])
        # (B, H) (H, 4H) → (B, 4H)
        torch.mm(layer.hidden[t], layer.w_hh.t(), out=layer.recurrent)
        separate_cell(layer, t)


def streamed_gemms(layer: Layer) -> None:
    """Rung 3: input products wait for no step. On their own stream they run ahead."""
    ready = {}
    with fork(layer.x.device, 0, -1) as (inputs, recurrence):
        with on(inputs):
            for t in layer.steps():
                # (B, I) (I, 4H) → (B, 4H)
                torch.mm(layer.x[t], layer.w_ih.t(), out=layer.gates[t])
                ready[t] = inputs.record_event()
        with on(recurrence):
            for t in layer.steps():
                # (B, H) (H, 4H) → (B, 4H)
                torch.mm(layer.hidden[t], layer.w_hh.t(), out=layer.recurrent)
                recurrence.wait_event(ready[t])
                separate_cell(layer, t)


def fused_pointwise(layer: Layer) -> None:
    """Rung 4: all pointwise work of a step in one launch."""
    ready = {}
    with fork(layer.x.device, 0, -1) as (inputs, recurrence):
        with on(inputs):
            for t in layer.steps():
                # (B, I) (I, 4H) → (B, 4H)
                torch.mm(layer.x[t], layer.w_ih.t(), out=layer.gates[t])
                ready[t] = inputs.record_event()
        with on(recurrence):
            for t in layer.steps():
                # (B, H) (H, 4H) → (B, 4H)
                torch.mm(layer.hidden[t], layer.w_hh.t(), out=layer.recurrent)
                recurrence.wait_event(ready[t])
                fused_cell(layer, t)


def pretransposed(layer: Layer) -> None:
    """Rung 5: the weights are transposed once, not read across in every product."""
    ready = {}
    with fork(layer.x.device, 0, -1) as (inputs, recurrence):
        w_ih, w_hh = transposed(layer, inputs, recurrence)  # (I, 4H), (H, 4H)
        with on(inputs):
            for t in layer.steps():
                # (B, I) (I, 4H) → (B, 4H)
                torch.mm(layer.x[t], w_ih, out=layer.gates[t])
                ready[t] = inputs.record_event()
        with on(recurrence):
            for t in layer.steps():
                # (B, H) (H, 4H) → (B, 4H)
                torch.mm(layer.hidden[t], w_hh, out=layer.recurrent)
                recurrence.wait_event(ready[t])
                fused_cell(layer, t)


def combined_inputs(layer: Layer, combine: int = 2) -> None:
    """Rung 6: one input product for ``combine`` steps at a time."""
    with fork(layer.x.device, 0, -1) as streams:
        weights = transposed(layer, *streams)
        for block in layer.blocks(combine):
            run_block(layer, block, weights, *streams)


def run_block(layer: Layer, block: range, weights: Pair, inputs: Any, recurrence: Any) -> Any:
    """A block's input product, then its steps → the event that they are done."""
    w_ih, w_hh = weights
    now = slice(block.start, block.stop)  # k steps
    with on(inputs):
        x = layer.x[now].flatten(0, 1)
        a = layer.gates[now].flatten(0, 1)
        # (k · B, I) (I, 4H) → (k · B, 4H)
        torch.mm(x, w_ih, out=a)
        ready = inputs.record_event()
    with on(recurrence):
        recurrence.wait_event(ready)
        for t in block:
            # (B, H) (H, 4H) → (B, 4H)
            torch.mm(layer.hidden[t], w_hh, out=layer.recurrent)
            fused_cell(layer, t)
        return recurrence.record_event()


def slots(blocks: int, layers: int) -> list[list[tuple[int, int]]]:
    """The schedule: blocks + layers − 1 slots, each a list of (layer, block) that may run at
    once.
    """
    schedule = []
    for slot in range(blocks + layers - 1):
        # A layer is one block behind the layer below.
        places = [(layer, slot - layer) for layer in range(layers)]
        schedule.append([(layer, block) for layer, block in places if 0 <= block < blocks])
    return schedule


def wavefront(layers: Sequence[Layer], combine: int = 2) -> None:
    """Rung 7: all layers, from the lowest, each with two streams of its own, in blocks of
    ``combine`` steps. A layer computes a block once the layer below has computed it, and once it
    has itself computed the block before. So blocks with the same layer + block run at once.
    """
    blocks = layers[0].blocks(combine)
    done: dict[tuple[int, int], Any] = {}  # events: when a layer has finished a block
    with fork(layers[0].x.device, *[0, -1] * len(layers)) as streams:
        # (inputs, recurrence) of each layer
        pairs = list(zip(streams[::2], streams[1::2], strict=True))
        weights = [transposed(layer, *pair) for layer, pair in zip(layers, pairs, strict=True)]
        for slot in slots(len(blocks), len(layers)):
            for n, block in slot:
                inputs, recurrence = pairs[n]
                # A block waits for the layer below by this event, and for the block before by
                # the order of its own streams.
                if n:
                    inputs.wait_event(done[n - 1, block])
                done[n, block] = run_block(layers[n], blocks[block], weights[n], inputs, recurrence)


def transposed(layer: Layer, inputs: Any, recurrence: Any) -> Pair:
    """W_ih (I, 4H) and W_hh (H, 4H), each copied on the stream that reads it."""
    with on(inputs):
        w_ih = layer.w_ih.t().contiguous()
    with on(recurrence):
        return w_ih, layer.w_hh.t().contiguous()


def separate_cell(layer: Layer, t: int) -> None:
    """The pointwise work of step t in 23 launches, each of one operation."""
    gates = layer.gates[t].chunk(4, 1)  # (B, H) each, W_ih x so far
    others = (array.chunk(4, -1) for array in (layer.recurrent, layer.b_ih, layer.b_hh))
    for gate, recurrent, b_ih, b_hh in zip(gates, *others, strict=True):
        gate.add_(recurrent).add_(b_ih).add_(b_hh)
    kept, c = layer.spare  # (B, H) each
    i, f, g, o = gates
    i.sigmoid_()
    f.sigmoid_()
    g.tanh_()
    o.sigmoid_()
    torch.mul(f, layer.cells[t], out=kept)
    torch.mul(i, g, out=c)
    c.add_(kept)
    layer.cells[t + 1].copy_(c)
    c.tanh_()
    torch.mul(o, c, out=layer.hidden[t + 1])
    torch.mul(o, c, out=layer.output[t])


def fused_cell(layer: Layer, t: int) -> None:
    """The same in one launch."""
    lstm_on_gpu.cell(
        layer.gates[t], layer.recurrent, layer.b_ih, layer.b_hh, layer.cells[t],
        c_after=layer.cells[t + 1], h=layer.hidden[t + 1], output=layer.output[t],
    )  # fmt: skip


@dataclass(frozen=True)
class LSTMRun:
    """The sizes of a run in float32; the defaults are those of the published measurements. L
    layers.
    """

    steps: int = 100
    batch: int = 64
    inputs: int = 512
    hidden: int = 512
    layers: int = 1

    @property
    def weights(self) -> int:
        """Numbers in all weights and biases: 4H (I + H + 2) for each layer, where I is H above the
        first.
        """
        rows = 4 * self.hidden
        first = rows * (self.inputs + self.hidden + 2)
        above = rows * (self.hidden + self.hidden + 2)
        return first + (self.layers - 1) * above

    @property
    def flops(self) -> int:
        """Of a forward pass' products: two for each weight, step and sample, biases among the
        weights. With NVIDIA's times and rates this agrees to a per cent; whether biases, 0.2 %, are
        in, that does not tell.
        """
        return 2 * self.steps * self.batch * self.weights
