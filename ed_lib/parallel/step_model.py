"""The seconds and the bytes of one training step of a transformer on any number of devices, by a
model.

Devices form a mesh: data × pipeline × context × tensor. Each layer's products, what else moves
memory, and every message are counted; seconds follow from a machine's rates and links. Training is
in 16 bits. Sources: D. Narayanan et al. (2021), V. Korthikanti et al. (2022), A. Grattafiori et al.
(2024).
"""

from dataclasses import dataclass, replace

from ed_lib import check
from ed_lib.parallel.links import Link, two_levels


@dataclass(frozen=True)
class Model:
    """A transformer: ``layers`` L of width ``hidden`` H with ``heads`` a, on sequences of
    ``tokens`` T.

    ``wide``: the cells of the feed-forward part, which is gated (three products) if ``gated``.
    ``kv_heads``: of keys and values. ``causal``: whether attention is fused and only the half is
    computed that is used.
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
    def keys(self) -> int:
        """Numbers of a token's keys; its values have as many."""
        return self.hidden * self.kv_heads // self.heads

    @property
    def weights(self) -> int:
        """Of one layer's products."""
        return self.hidden * (2 * self.hidden + 2 * self.keys + (2 + self.gated) * self.wide)

    @property
    def parameters(self) -> int:
        """Of all layers' products and one matrix of the vocabulary."""
        return self.layers * self.weights + self.vocabulary * self.hidden

    @property
    def attention(self) -> float:
        """FLOPs of a token's scores and weighted sums in one layer, forward."""
        return 4 * self.tokens * self.hidden * (0.5 if self.causal else 1)


@dataclass(frozen=True)
class Machine:
    """Devices whose large products reach ``rate`` FLOP/s, with ``capacity`` bytes of memory at
    ``memory`` bytes/s; ``server`` of them to a server, a link each ``inside`` one, and ``between``
    servers.
    """

    rate: float
    memory: float
    capacity: float
    inside: Link
    between: Link
    server: int = 8

    def slower(self, products: float = 1.0, memory: float = 1.0, links: float = 1.0) -> "Machine":
        """One that reaches only these shares of its rate, of its memory's and of its links'
        bandwidth.
        """
        inside, between = (
            replace(link, beta=link.beta / links) for link in (self.inside, self.between)
        )
        rate, memory = self.rate * products, self.memory * memory
        return replace(self, rate=rate, memory=memory, inside=inside, between=between)

    def together(self, ranks: int, stride: int) -> int:
        """How many of so many ranks, whose numbers are ``stride`` apart, stand in one server."""
        return min(ranks, max(1, self.server // stride))

    def all_reduce(self, bytes: float, ranks: int, each: int) -> float:
        """Seconds, ``each`` of the ranks in one server: rings inside servers, then between them."""
        return two_levels(bytes, -(-ranks // each), each, self.inside, self.between)

    def link(self, span: int) -> Link:
        """The slowest that a ring crosses which spans so many neighbouring devices."""
        return self.inside if span <= self.server else self.between


# What a large 16-bit product reaches: S. Bekman, "Machine learning engineering"
# (stas00/ml-engineering, compute/accelerator); memory's bandwidth, NVLink (one direction), network:
# data sheets; latencies: a guess, of little effect. Capacity: 79.1 GiB, what CUDA offers of the
# 81,559 MiB (H100) or 81,920 (A100) of a card, before its own context's and NCCL's buffers.
A100 = Machine(271.2e12, 2.039e12, 84.9e9, Link(5e-6, 1 / 300e9), Link(10e-6, 1 / 25e9))
H100 = Machine(794.5e12, 3.35e12, 84.9e9, Link(5e-6, 1 / 450e9), Link(10e-6, 1 / 50e9))
REACHED = (
    0.761  # of ``rate``, by products: fitted in "To ten thousand devices", to five published runs
)


@dataclass(frozen=True)
class Layout:
    """How a step is split: over ``devices``, of which ``tensor`` × ``context`` × ``pipeline`` are
    one copy.

    ``batch``: sequences in a step, ``micro`` in a micro-batch; ``chunks`` v of the layers on a
    device. ``stage``: of ZeRO, what the copies share out: 1 the optimizer's state, 2 gradients too,
    3 weights too (FSDP). ``sequence``: what tensor parallelism leaves whole is cut along the
    sequence. ``recompute``: all activations. ``overlap``: messages of the pipeline and of the
    copies travel while devices compute. ``gradient``: bytes of one. ValueError, TypeError for what
    does not come out even.
    """

    devices: int
    tensor: int = 1
    pipeline: int = 1
    batch: int = 1
    context: int = 1
    micro: int = 1
    chunks: int = 1
    stage: int = 0
    sequence: bool = False
    recompute: bool = False
    overlap: bool = False
    gradient: int = 2

    def __post_init__(self):
        for name in (
            "devices",
            "tensor",
            "pipeline",
            "batch",
            "context",
            "micro",
            "chunks",
            "gradient",
        ):
            check.count(name, getattr(self, name))
        check.choice("stage", self.stage, (0, 1, 2, 3))
        _whole("devices", self.devices, self.copy, "tensor × context × pipeline")
        _whole("batch", self.batch, self.data * self.micro, "copies × micro")
        if self.chunks > 1:  # an interleaved pipeline goes by groups
            _whole("micro-batches", self.microbatches, self.pipeline, "pipeline")

    @property
    def copy(self) -> int:
        """Devices of one copy of the model."""
        return self.tensor * self.context * self.pipeline

    @property
    def data(self) -> int:
        """Copies of the model."""
        return self.devices // self.copy

    @property
    def microbatches(self) -> int:
        return self.batch // (self.data * self.micro)

    def layers(self, model: Model) -> tuple[int, bool]:
        """Layers in a chunk; whether first and last device have one less, as in Llama 3. Or
        ValueError.
        """
        _whole("heads", model.heads, self.tensor, "tensor")
        _whole("tokens", model.tokens, self.context, "context")
        cuts, L = self.pipeline * self.chunks, model.layers
        short = L % cuts > 0 and (L + 2) % cuts == 0 and L > 2
        _whole("layers", L + 2 * short, cuts, "pipeline × chunks, or two less")
        return -(-L // cuts), short


def _whole(name, value, of, what):
    if value % of:
        raise ValueError(f"{name} is {value}; wanted a multiple of {of}, {what}")


def layer_seconds(model: Model, machine: Machine, layout: Layout) -> dict[str, float]:
    """Seconds of a layer for a micro-batch, all passes: products, memory, and what is sent within
    it.
    """
    t, c, passes = layout.tensor, layout.context, 3 + layout.recompute
    n = layout.micro * model.tokens // c  # tokens on a device
    products = max(
        2 * n * model.weights / machine.rate, 2 * model.weights / machine.memory
    )  # reads weights
    attention = (
        (3.5 if model.causal else passes) * n * model.attention
    )  # fused, its scores come twice
    accumulation = (3 * layout.gradient if layout.microbatches > 1 else 0) * model.weights / t
    # norms, residual sums and dropout; the wide activation; scores, unless attention is fused
    narrow = 22 * model.hidden / (t if layout.sequence else 1)
    wide = (4 + 2 * model.gated) * model.wide + 8 * model.hidden
    moved = (
        narrow + (wide + (0 if model.causal else 13 * model.tokens * model.heads)) / t
    )  # bytes a token
    sums = 2 * (
        passes - 1
    )  # all-reduces: two forward, two backward, and two where forward is repeated
    return {
        "products": (passes * products + attention / machine.rate) / t,
        "memory": (passes * n * moved + accumulation) / machine.memory,
        "tensor": sums * machine.all_reduce(2 * n * model.hidden, t, machine.together(t, 1)),
        "context": 2 * (c - 1) * machine.link(t * c).seconds(4 * n * model.keys / t),
    }


def step_seconds(model: Model, machine: Machine, layout: Layout) -> dict[str, float]:
    """The seconds of a step, in parts that add up to it → {part: seconds}.

    "products", "memory", "tensor" and "context" are `layer_seconds`'s on a device with nothing to
    wait for; "vocabulary": the product with it, for which all stages wait that do not have it, less
    the layer that the last one may lack; "stages": messages between them; "bubble"; "copies":
    gradients and sharded weights, as far as nothing hides them; "optimizer".
    """
    m, p, v, t = layout.microbatches, layout.pipeline, layout.chunks, layout.tensor
    (count, short), one = layout.layers(model), layer_seconds(model, machine, layout)
    chunk, n = count * sum(one.values()), layout.micro * model.tokens // layout.context
    message = 0.0
    if (
        p > 1 and not layout.overlap
    ):  # each device sends its part to the next stage, where all gather it
        message = machine.link(layout.copy).seconds(2 * n * model.hidden / t)
        message += machine.all_reduce(2 * n * model.hidden, t, machine.together(t, 1)) / 2
    logits = 16 * n * model.vocabulary / t / machine.memory  # in float32, a few times
    head = 6 * n * model.hidden * model.vocabulary / t / machine.rate + logits
    own = model.parameters / (t * p) / (layout.data * layout.context if layout.stage else 1)
    return {name: m * v * count * seconds for name, seconds in one.items()} | {
        "vocabulary": m * max(0.0, head - short * sum(one.values())),
        "stages": m * v * 2 * message,
        "bubble": (p - 1) * (chunk + 2 * message),
        "copies": _copies(model, machine, layout, chunk),
        "optimizer": 30 * own / machine.memory,
    }


def _copies(model, machine, layout, chunk):
    """Seconds of messages between the copies that nothing hides; ``chunk``: seconds of computing
    one.
    """
    c, t, p, v, stage = layout.context, layout.tensor, layout.pipeline, layout.chunks, layout.stage
    # weights are gathered and gradients sent by chunks, after p micro-batches each; or by layers,
    # after one
    pieces, group = (v, p) if v > 1 else (layout.layers(model)[0], 1)
    each = machine.together(c, t)  # copies, and parts of a sequence, have the same weights
    each *= machine.together(layout.data, layout.copy) if each == c else 1
    weights = model.parameters / (t * p * pieces)
    halves = [
        machine.all_reduce(weights * size, layout.data * c, each) / 2
        for size in (2, layout.gradient)
    ]
    (gather, scatter), rounds = halves, layout.microbatches // group
    forward = group * chunk / (3 + layout.recompute) / (1 if v > 1 else pieces)  # of a piece
    backward = scatter + (scatter if stage == 0 else gather if stage == 3 else 0.0)
    window = layout.overlap * forward
    seconds = exposed(gather if stage else 0.0, window, pieces * (rounds if stage == 3 else 1))
    return seconds + exposed(
        backward, (2 + layout.recompute) * window, pieces * (rounds if stage > 1 else 1)
    )


def exposed(message: float, computing: float, often: int) -> float:
    """Seconds left of so many messages if beside each of them, but one, a device computes for so
    long.
    """
    return often * message - (often - 1) * min(message, computing)


def device_memory(model: Model, layout: Layout) -> dict[str, float]:
    """Bytes on the fullest device, a pipeline's first → {"weights", "gradients", "optimizer",
    "activations"}.

    Under 1F1B it keeps p micro-batches of its L/p layers, interleaved up to 1 + (p − 1)/(pv) times
    that: inputs of norms, queries, keys, values, attention's output and the wide products'; with
    ``recompute`` a layer's input alone; without a pipeline logits too, in float32 and 16 bits. Of
    what is sharded, the piece at work is whole (of weights, the next one too).
    """
    t, p, v, m = layout.tensor, layout.pipeline, layout.chunks, layout.microbatches
    count, short = layout.layers(model)
    layers = v * count - short  # which has the embedding too
    own = (layers * model.weights + model.vocabulary * model.hidden) / t
    copies, pieces = layout.data * layout.context, v if v > 1 else count

    def share(since):  # what a device has of what is sharded from this stage of ZeRO on
        return min(1.0, 1 / copies + (since - 1) / pieces) if layout.stage >= since else 1

    n, narrow = layout.micro * model.tokens // layout.context, t if layout.sequence else 1
    wide = (2 * model.hidden + 2 * model.keys + (1 + model.gated) * model.wide) / t
    kept = model.hidden / narrow + (0 if layout.recompute else model.hidden / narrow + wide)
    ahead = (
        min(m * v, 2 * (p - 1) + (v - 1) * p + 1) if v > 1 else min(m, p)
    )  # chunks' micro-batches
    return {
        "weights": 2 * own * share(3),
        "gradients": layout.gradient * own * share(2),
        "optimizer": 12 * own * share(1),
        "activations": 2 * kept * n * ahead * layers / v
        + (6 * n * model.vocabulary / t if p == 1 else 0),
    }
