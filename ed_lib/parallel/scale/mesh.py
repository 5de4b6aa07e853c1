"""The seconds of one training step of a transformer on thousands of devices, by a model.

Devices form a mesh: data × pipeline × context × tensor. Each layer's products, the memory traffic of what is
not a product, and every message are counted; seconds follow from the devices' rates and links, and from three
:class:`Efficiency`, the only things that are fitted (:mod:`.published`). Bytes are those of 16-bit training.
Sources: D. Narayanan et al. (2021) for counts of FLOPs and the schedule; V. Korthikanti et al., "Reducing
activation recomputation in large transformer models" (2022); A. Grattafiori et al., "Llama 3" (2024).
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from ed_lib import check
from ed_lib.parallel.ranks import costs


@dataclass(frozen=True)
class Model:
    """A transformer: ``layers`` L of width ``hidden`` H with ``heads`` a, on sequences of ``tokens`` T.

    ``wide``: the cells of the feed-forward part, which is gated (three products) if ``gated``. ``kv_heads``:
    of keys and values. ``causal``: whether attention is fused and only the half is computed that is used.
    """

    layers: int
    hidden: int
    heads: int
    tokens: int
    vocabulary: int
    wide: int
    kv_heads: int
    gated: bool = False
    causal: bool = False

    @property
    def weights(self) -> int:
        """Of one layer's products."""
        H, keys = self.hidden, self.hidden * self.kv_heads // self.heads
        return 2 * H * H + 2 * H * keys + (3 if self.gated else 2) * H * self.wide

    @property
    def parameters(self) -> int:
        """Of all layers' products and one matrix of the vocabulary."""
        return self.layers * self.weights + self.vocabulary * self.hidden

    @property
    def attention(self) -> float:
        """FLOPs of a token's scores and weighted sums in one layer, forward."""
        return 4 * self.tokens * self.hidden * (0.5 if self.causal else 1)

    def flops(self, passes: int = 3) -> float:
        """Of one token, as publications count them: forward 1 pass, backward 2, recomputation 1 more."""
        layers = self.layers * (2 * self.weights + self.attention)
        return passes * layers + 3 * 2 * self.hidden * self.vocabulary


@dataclass(frozen=True)
class Machine:
    """Devices that multiply at ``rate`` FLOP/s, read memory of ``capacity`` bytes at ``memory`` bytes/s, and
    stand ``server`` to a server; links ``inside`` one, and ``between`` servers, the latter one a device.
    """

    name: str
    rate: float
    memory: float
    capacity: float
    inside: costs.Link
    between: costs.Link
    server: int = 8

    def all_reduce(self, bytes: float, ranks: int, stride: int) -> float:
        """Seconds, for ranks whose numbers are ``stride`` apart: rings inside servers, then between them."""
        each = min(ranks, max(1, self.server // stride))  # of the ranks, on one server
        return costs.two_levels(bytes, -(-ranks // each), each, self.inside, self.between)

    def link(self, stride: int) -> costs.Link:
        """To a device whose number is so much higher."""
        return self.inside if stride < self.server else self.between


@dataclass(frozen=True)
class Layout:
    """How a step is split: over ``devices``, of which ``tensor``, ``context`` and ``pipeline`` are one copy.

    ``batch``: sequences in a step, ``micro`` in a micro-batch; ``chunks`` v of the layers on a device.
    ``recompute``: all activations. ``sharded``: what tensor parallelism leaves whole is cut along the
    sequence, and the optimizer's state over the copies. ``overlap``: messages of the pipeline, and sums of
    gradients, travel while devices compute. ``gradient``: bytes of one.
    """

    devices: int
    tensor: int
    pipeline: int
    batch: int
    context: int = 1
    micro: int = 1
    chunks: int = 1
    recompute: bool = False
    sharded: bool = False
    overlap: bool = False
    gradient: int = 2

    def __post_init__(self):
        for name in ("devices", "tensor", "pipeline", "batch", "context", "micro", "chunks", "gradient"):
            check.count(name, getattr(self, name))
        copy = self.tensor * self.context * self.pipeline
        if self.devices % copy:
            low = self.devices // copy * copy
            split = f"tensor {self.tensor} × context {self.context} × pipeline {self.pipeline} = {copy}"
            said = f"devices is {self.devices}, and a copy of the model is on {split}"
            raise ValueError(f"{said}; wanted a multiple, such as {low + copy}")
        if self.batch % (self.data * self.micro):
            said = f"batch is {self.batch}, on {self.data} copies in micro-batches of {self.micro}"
            raise ValueError(f"{said}; wanted a multiple of {self.data * self.micro}")

    @property
    def data(self) -> int:
        """Copies of the model."""
        return self.devices // (self.tensor * self.context * self.pipeline)

    @property
    def microbatches(self) -> int:
        return self.batch // (self.data * self.micro)

    def layers(self, model: Model) -> tuple[int, bool]:
        """Layers in a chunk, and whether the first and the last device have one less, as in Llama 3."""
        cuts, L = self.pipeline * self.chunks, model.layers
        for missing in (0, 2):
            if (L + missing) % cuts == 0 and L > missing:
                return (L + missing) // cuts, missing > 0
        said = f"layers is {L}, in pipeline {self.pipeline} × chunks {self.chunks} = {cuts}"
        raise ValueError(f"{said}; wanted a multiple of {cuts}, or two less")


@dataclass(frozen=True)
class Efficiency:
    """What part of a machine's rates is reached: by ``products``, by traffic to ``memory``, on ``links``."""

    products: float = 1.0
    memory: float = 1.0
    links: float = 1.0

    def of(self, machine: Machine) -> Machine:
        """The machine as slow as that."""
        both = machine.inside, machine.between
        inside, between = (dataclasses.replace(link, beta=link.beta / self.links) for link in both)
        rates: dict[str, Any] = {"rate": machine.rate * self.products, "memory": machine.memory * self.memory}
        return dataclasses.replace(machine, inside=inside, between=between, **rates)


def traffic(model: Model, layout: Layout, n: int) -> float:
    """Bytes that a device moves in one layer's forward pass over n tokens, besides its products' own.

    Norms, residual sums and what else is as wide as H; the activation between the wide products; and, unless
    attention is fused, masking, softmax and dropout of all scores, and the products that write and read them.
    """
    narrow = 22 * model.hidden  # two norms, two sums with a residual and dropout
    wide = (6 if model.gated else 4) * model.wide + 8 * model.hidden
    scores = 0 if model.causal else 13 * model.tokens * model.heads
    return n * (narrow / (layout.tensor if layout.sharded else 1) + (wide + scores) / layout.tensor)


def layer(model: Model, machine: Machine, layout: Layout) -> dict[str, float]:
    """Seconds of one layer for one micro-batch, forward, backward and recomputation: what computes, what
    moves memory, what is sent for tensor and for context parallelism.
    """
    t, c = layout.tensor, layout.context
    n = layout.micro * model.tokens // c  # tokens on a device
    passes = 4 if layout.recompute else 3
    products = passes * 2 * n * model.weights
    attention = (3.5 if model.causal else passes) * n * model.attention  # fused, its scores come twice
    accumulation = (3 * layout.gradient if layout.microbatches > 1 else 0) * model.weights / t
    all_reduces = 6 if layout.recompute else 4  # two forward, two backward, and two where forward is repeated
    activation = 2 * n * model.hidden  # bytes
    keys = 2 * activation * model.kv_heads / model.heads / t
    return {
        "products": (products + attention) / t / machine.rate,
        "memory": (passes * traffic(model, layout, n) + accumulation) / machine.memory,
        "tensor": all_reduces * machine.all_reduce(activation, t, 1),
        "context": 2 * (c - 1) * machine.link(t).seconds(keys) if c > 1 else 0.0,
    }


def step(
    model: Model, machine: Machine, layout: Layout, efficiency: Efficiency | None = None
) -> dict[str, float]:
    """The seconds of a step, in parts that add up to it → {part: seconds}.

    "products", "memory", "tensor" and "context" are :func:`layer`'s on a device with nothing to wait for;
    "vocabulary": the product with it, for which all stages wait that do not have it, less the layer that the
    last one may lack; "stages": messages between them; "bubble"; "gradients": their all-reduce over the
    copies, as far as nothing hides it; "optimizer".
    """
    machine = (efficiency or Efficiency()).of(machine)
    m, p, v, t = layout.microbatches, layout.pipeline, layout.chunks, layout.tensor
    count, short = layout.layers(model)
    one = layer(model, machine, layout)
    chunk, n = count * sum(one.values()), layout.micro * model.tokens // layout.context
    message = 0.0
    if p > 1 and not layout.overlap:  # each device sends its part to the next server, where all gather it
        message = machine.link(t * layout.context).seconds(2 * n * model.hidden / t)
        message += machine.all_reduce(2 * n * model.hidden, t, 1) / 2
    stage = v * (chunk + 2 * message)
    head = 6 * n * model.hidden * model.vocabulary / t / machine.rate
    head += 16 * n * model.vocabulary / t / machine.memory  # logits in float32, a few times
    longer = max(0.0, head - (sum(one.values()) if short else 0))
    own = model.parameters / (t * p)
    parts = {name: m * v * count * seconds for name, seconds in one.items()}
    parts |= {"stages": m * v * 2 * message, "vocabulary": m * longer, "bubble": (p - 1) * stage / v}
    parts["gradients"] = _gradients(machine, layout, own, chunk, model.layers)
    parts["optimizer"] = 30 * own / (layout.data if layout.sharded else 1) / machine.memory
    return parts


def _gradients(machine, layout, own, chunk, layers):
    """Seconds of summing ``own`` gradients over the copies that nothing hides, pieces one after another.

    A piece is a layer's, or with a pipeline a chunk's, whose last backward passes are p micro-batches'.
    """
    p, stride = layout.pipeline, layout.tensor * layout.context * layout.pipeline
    ranks = layout.data * layout.context  # all of them have the same weights
    size = (layout.gradient + 2) / 2 if layout.sharded else layout.gradient  # weights come back in 16 bits
    pieces = 1 if not layout.overlap else layout.chunks if p > 1 else layers
    piece = machine.all_reduce(own * size / pieces, ranks, stride if layout.context == 1 else layout.tensor)
    window = chunk * (2 / 3) * p * (1 if p > 1 else 1 / layers)
    return max(piece, pieces * piece - (pieces - 1) * window)


def rate(model: Model, layout: Layout, seconds: float) -> float:
    """FLOP/s of one device, as publications count them: recomputation counts where it is done."""
    tokens = layout.batch * model.tokens
    return tokens * model.flops(4 if layout.recompute else 3) / seconds / layout.devices


def memory(model: Model, layout: Layout) -> dict[str, float]:
    """Bytes on the fullest device, stage 0 → {"weights", "gradients", "optimizer", "activations"}.

    Under 1F1B stage 0 keeps p micro-batches of its L/p layers, interleaved up to 1 + (p − 1)/(pv) times that.
    Kept of a layer: inputs of its norms, queries, keys, values, attention's output and the wide products';
    with ``recompute`` its input alone. Gradients are whole; the optimizer's state may be sharded (ZeRO-1).
    """
    t, p, v, m = layout.tensor, layout.pipeline, layout.chunks, layout.microbatches
    count, short = layout.layers(model)
    layers = v * count - short  # of stage 0, which has the embedding too
    own = (layers * model.weights + model.vocabulary * model.hidden) / t
    keys = model.hidden * model.kv_heads / model.heads
    kept = 4 * model.hidden + 2 * keys + (2 if model.gated else 1) * model.wide
    if layout.recompute:
        kept = model.hidden
    kept /= t if layout.sharded else 1
    ahead = min(m * v, 2 * (p - 1) + (v - 1) * p + 1) if v > 1 else min(m, p)
    tokens = layout.micro * model.tokens // layout.context
    return {
        "weights": 2 * own,
        "gradients": layout.gradient * own,
        "optimizer": 12 * own / (layout.data * layout.context if layout.sharded else 1),
        "activations": 2 * kept * tokens * ahead * layers / v,
    }
