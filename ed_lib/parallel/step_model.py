"""The seconds and the bytes of one training step of a transformer on any number of devices, by a
model.

Each layer's products, what else moves memory, and every message are counted; seconds follow from a
machine's rates and links. Training is in 16 bits: two bytes a number. Sources: D. Narayanan et al.
(2021), V. Korthikanti et al. (2022), A. Grattafiori et al. (2024).

Letters: t, tensor: devices that share a layer's products; c, context: that share a sequence; p,
pipeline: stages of the chain of layers; v, chunks: parts of the chain on a device; m: micro-batches
of a copy in a step; n: tokens of a micro-batch on a device.
"""

from ed_lib.parallel import schedules
from ed_lib.parallel.hardware import A100, H100, REACHED, Machine
from ed_lib.parallel.workload import Layout, Model

__all__ = [
    "A100", "H100", "REACHED", "Layout", "Machine", "Model",
    "device_memory", "exposed", "layer_seconds", "step_seconds",
]  # fmt: skip

FORWARD_AND_BACKWARD = 3  # passes: the backward one computes twice as much
LOGIT_MOVES = 16  # bytes of memory that a logit moves: float32, a few times
LOGIT_BYTES = 6  # that are kept of a logit: in float32, and in 16 bits
STATE_MOVES = 30  # bytes of memory that a parameter's update moves
STATE_BYTES = 12  # of the optimizer a parameter: a float32 copy and Adam's two moments


def layer_seconds(model: Model, machine: Machine, layout: Layout) -> dict[str, float]:
    """Seconds of a layer for a micro-batch, all passes: products, memory, and what is sent within
    it.
    """
    t = layout.tensor
    c = layout.context
    n = layout.micro * model.tokens // c
    # The backward pass counts as two passes; recomputing adds one.
    passes = FORWARD_AND_BACKWARD + layout.recompute

    # With few tokens a product takes as long as reading the weights.
    computed = 2 * n * model.weights / machine.rate
    read = 2 * model.weights / machine.memory
    products = max(computed, read)
    # Fused attention computes its scores a second time, recomputed or not.
    attention_passes = 3.5 if model.causal else passes
    attention = attention_passes * n * model.attention

    # Bytes of memory that a token moves. narrow: for norms, residual sums and dropout, which each
    # of the t devices computes whole, unless ``sequence`` divides them. wide: for the feed-forward
    # part and what surrounds the products. scores: fused attention never writes them.
    narrow: float = 22 * model.hidden
    if layout.sequence:
        narrow = narrow / t
    wide = (4 + 2 * model.gated) * model.wide + 8 * model.hidden
    scores = 0 if model.causal else 13 * model.tokens * model.heads
    moved = narrow + (wide + scores) / t
    # Gradients of several micro-batches are read, added up and written.
    accumulation = 0.0
    if layout.microbatches > 1:
        accumulation = 3 * layout.gradient * model.weights / t

    # All-reduces over t: two forward, two backward, and two where forward is repeated.
    sums = 2 * (passes - 1)
    # together: how many of the t devices stand in one server.
    together = machine.together(t, 1, layout.devices)
    one_sum = machine.all_reduce(2 * n * model.hidden, t, together)
    # Keys and values go around a ring of c, forward, and with their gradients backward.
    hops = 2 * (c - 1)
    one_hop = machine.link(t * c, layout.devices).seconds(4 * n * model.keys / t)
    return {
        "products": (passes * products + attention / machine.rate) / t,
        "memory": (passes * n * moved + accumulation) / machine.memory,
        "tensor": sums * one_sum,
        "context": hops * one_hop,
    }


def step_seconds(model: Model, machine: Machine, layout: Layout) -> dict[str, float]:
    """The seconds of a step, in parts that add up to it → {part: seconds}.

    "products", "memory", "tensor" and "context" are `layer_seconds`'s on a device with nothing to
    wait for; "vocabulary": the product with it, for which all stages wait that do not have it, less
    the layer that the last one may lack; "stages": messages between them; "bubble"; "copies":
    gradients and sharded weights, as far as nothing hides them; "optimizer".
    """
    m = layout.microbatches
    p = layout.pipeline
    v = layout.chunks
    count, short = layout.layers(model)
    one = layer_seconds(model, machine, layout)
    layer = sum(one.values())
    chunk = count * layer
    message = _stage_message(model, machine, layout)
    # The last stage works so much longer, with every micro-batch.
    longer = max(0.0, _vocabulary(model, machine, layout) - short * layer)

    parts = {name: m * v * count * seconds for name, seconds in one.items()}
    parts["vocabulary"] = m * longer
    parts["stages"] = m * v * 2 * message
    # The bubble is a share of the whole time, and the work is the rest of it.
    work = m * v * (chunk + 2 * message)
    share = schedules.bubble(p, m, v)
    parts["bubble"] = work * share / (1 - share)
    parts["copies"] = _copies(model, machine, layout, chunk)
    parts["optimizer"] = STATE_MOVES * _updated(model, layout) / machine.memory
    return parts


def _stage_message(model, machine, layout):
    """Seconds of one micro-batch's activations on their way to the next stage, unless hidden."""
    if layout.pipeline == 1 or layout.overlap:
        return 0.0
    t = layout.tensor
    size = 2 * _tokens(model, layout) * model.hidden
    # Each of t devices sends its part of them to the next stage, where all gather the whole: half
    # of an all-reduce.
    send = machine.link(layout.copy, layout.devices).seconds(size / t)
    gather = machine.all_reduce(size, t, machine.together(t, 1, layout.devices)) / 2
    return send + gather


def _vocabulary(model, machine, layout):
    """Seconds of the product with the vocabulary and of its logits, for a micro-batch."""
    t = layout.tensor
    n = _tokens(model, layout)
    # Two FLOPs a number: nothing here is recomputed.
    product = 2 * FORWARD_AND_BACKWARD * n * model.hidden * model.vocabulary / t / machine.rate
    logits = LOGIT_MOVES * n * model.vocabulary / t / machine.memory
    return product + logits


def _updated(model, layout):
    """Parameters that a device's optimizer updates."""
    own = model.parameters / (layout.tensor * layout.pipeline)
    if layout.stage == 0:
        return own
    return own / (layout.data * layout.context)


def _tokens(model, layout):
    """Of a micro-batch, on a device."""
    return layout.micro * model.tokens // layout.context


def _pieces(model, layout):
    """In how many pieces a device's weights travel between copies, and after (or before) how many
    micro-batches each of them → (count, group).
    """
    if layout.chunks > 1:
        # An interleaved pipeline takes p micro-batches through a chunk before it takes the next.
        return layout.chunks, layout.pipeline
    layers, _ = layout.layers(model)
    return layers, 1


def _copies(model, machine, layout, chunk):
    """Seconds of messages between the copies that nothing hides; ``chunk``: seconds of computing
    one, for a micro-batch.
    """
    stage = layout.stage
    pieces, group = _pieces(model, layout)
    # Halves of an all-reduce of a piece: gathering weights, of two bytes, and scattering sums of
    # gradients.
    weights = model.parameters / (layout.tensor * layout.pipeline * pieces)
    # Copies, and parts of a sequence, have the same weights.
    ranks = layout.data * layout.context
    in_one_server = _in_one_server(machine, layout)
    gather = machine.all_reduce(2 * weights, ranks, in_one_server) / 2
    scatter = machine.all_reduce(layout.gradient * weights, ranks, in_one_server) / 2

    if stage == 0:
        # Every copy updates all weights: sums are scattered, and gathered, after the backward pass.
        before_forward = 0.0
        after_backward = 2 * scatter
    elif stage == 3:
        # Weights are gathered whenever they are needed, forward and backward.
        before_forward = gather
        after_backward = scatter + gather
    else:
        before_forward = gather
        after_backward = scatter
    # Stage 3 keeps no whole weights from one round to the next, and from stage 2 on no gradients.
    rounds = layout.microbatches // group
    forward_rounds = rounds if stage == 3 else 1
    backward_rounds = rounds if stage >= 2 else 1

    forward = group * chunk / (FORWARD_AND_BACKWARD + layout.recompute)
    if layout.chunks == 1:
        forward = forward / pieces
    # What may travel beside the forward pass of a piece; the other passes are of the backward one.
    window = layout.overlap * forward
    other_passes = FORWARD_AND_BACKWARD - 1 + layout.recompute
    first = exposed(before_forward, window, pieces * forward_rounds)
    second = exposed(after_backward, other_passes * window, pieces * backward_rounds)
    return first + second


def _in_one_server(machine, layout):
    """Of the devices with the same weights, those that stand in one server."""
    c = layout.context
    parts = machine.together(c, layout.tensor, layout.devices)
    # Copies share a server only if each has all parts of its sequences there.
    if parts < c:
        return parts
    return parts * machine.together(layout.data, layout.copy, layout.devices)


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
    t = layout.tensor
    p = layout.pipeline
    v = layout.chunks
    m = layout.microbatches
    count, short = layout.layers(model)
    # The first device has the embedding too.
    layers = v * count - short
    own = (layers * model.weights + model.vocabulary * model.hidden) / t
    pieces, _ = _pieces(model, layout)

    def share(since):
        """Of what is sharded from this stage of ZeRO on: the device's part, and pieces at work."""
        if layout.stage < since:
            return 1
        at_work = (since - 1) / pieces
        return min(1.0, 1 / (layout.data * layout.context) + at_work)

    n = _tokens(model, layout)
    # Inputs of the two norms, which tensor parallelism alone leaves whole.
    norm = model.hidden / (t if layout.sequence else 1)
    attention = 2 * model.hidden + 2 * model.keys
    feed_forward = (1 + model.gated) * model.wide
    kept = norm
    if not layout.recompute:
        kept = norm + (norm + (attention + feed_forward) / t)
    # Micro-batches whose activations the first device keeps, counted once for each of its chunks:
    # those of the forward passes before its first backward pass, and of the next one.
    ahead = min(m * v, schedules.warmup(0, p, m, v) + 1)
    logits = LOGIT_BYTES * n * model.vocabulary / t if p == 1 else 0
    return {
        "weights": 2 * own * share(3),
        "gradients": layout.gradient * own * share(2),
        "optimizer": STATE_BYTES * own * share(1),
        "activations": 2 * kept * n * ahead * layers / v + logits,
    }
