"""What :mod:`.step_model` computes: a transformer, and how a step of its training is split.

Devices form a mesh, data × pipeline × context × tensor: those that share a layer's products are
neighbours, and the copies of the model stand furthest apart.
"""

from dataclasses import dataclass

from ed_lib import check


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
        # Queries and attention's output have H numbers a token each; keys and values may have less.
        attention = 2 * self.hidden + 2 * self.keys
        feed_forward = (2 + self.gated) * self.wide
        return self.hidden * (attention + feed_forward)

    @property
    def parameters(self) -> int:
        """Of all layers' products and one matrix of the vocabulary."""
        return self.layers * self.weights + self.vocabulary * self.hidden

    @property
    def attention(self) -> float:
        """FLOPs of a token's scores and weighted sums in one layer, forward."""
        computed = 0.5 if self.causal else 1
        return 4 * self.tokens * self.hidden * computed


COUNTS = "devices tensor pipeline batch context micro chunks gradient".split()


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
        for name in COUNTS:
            check.count(name, getattr(self, name))
        check.choice("stage", self.stage, (0, 1, 2, 3))
        _whole("devices", self.devices, self.copy, "tensor × context × pipeline")
        _whole("batch", self.batch, self.data * self.micro, "copies × micro")
        if self.chunks > 1:
            # An interleaved pipeline goes by groups of as many micro-batches as it has stages.
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
        """Of each copy, in a step."""
        return self.batch // (self.data * self.micro)

    def layers(self, model: Model) -> tuple[int, bool]:
        """Layers in a chunk; whether first and last device have one less, as in Llama 3. Or
        ValueError.
        """
        _whole("heads", model.heads, self.tensor, "tensor")
        _whole("tokens", model.tokens, self.context, "context")
        cuts = self.pipeline * self.chunks
        # The first device has the embedding and the last one the product with the vocabulary, so
        # that a layer less on each evens them out.
        uneven = model.layers % cuts > 0
        short = uneven and (model.layers + 2) % cuts == 0 and model.layers > 2
        _whole("layers", model.layers + 2 * short, cuts, "pipeline × chunks, or two less")
        return -(-model.layers // cuts), short


def _whole(name, value, of, what):
    if value % of:
        raise ValueError(f"{name} is {value}; wanted a multiple of {of}, {what}")
