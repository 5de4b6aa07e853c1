"""What each cure may gain at the most: Amdahl's law over what was counted. A bound is no
promise.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import prod

from ed_lib import machine
from ed_lib.diagnose import repetition, verdict
from ed_lib.diagnose.operators import Operator
from ed_lib.diagnose.verdict import Measured

MOST = 0.99  # of a step that a cure may save
LEAST = 1.02  # times: a bound below is not offered
SMALL_KERNEL = 2e-4  # seconds of its floor: below, a kernel has too little work for its threads
TIMES = 4  # the examples of a larger batch
FLOAT32 = 4  # bytes
SOME = 0.01  # a share that is worth a word
# These compute more for each number than a few sums and products.
FUNCTIONS = {"exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "gelu", "silu", "gelu_backward"}
FUNCTIONS |= {"silu_backward", "softplus", "_softmax", "_log_softmax", "log1p", "expm1", "mish"}
CONVOLUTIONS = ("convolution", "convolution_backward", "cudnn_convolution", "mkldnn_convolution")


@dataclass(frozen=True)
class Cure:
    """``bound``: at most so many times as fast; ``why``: what it would save."""

    name: str
    bound: float
    why: str


def cures(measured: Measured) -> list[Cure]:
    """The cures that may gain something, the largest bound first."""
    found = []
    for name, saved, why in _savings(measured):
        bound = measured.seconds / (measured.seconds - min(saved, MOST * measured.seconds))
        if bound >= LEAST:
            found.append(Cure(name, bound, why))
    return sorted(found, key=lambda cure: -cure.bound)


def _savings(measured: Measured) -> Iterator[tuple[str, float, str]]:
    """(cure, seconds that it saves at the most, what these are)."""
    parts = measured.parts
    on_gpu = measured.price.device != "cpu"
    yield "loader workers and pinned memory", _of_workers(measured), "saves the wait for batches"
    for place, _ in measured.waits.most_common(1):
        yield "less work for a batch", parts[verdict.DATA], f"saves the wait at {place}"
    waits = parts[verdict.SYNCHRONISATION] + parts[verdict.COPIES]
    yield "no synchronisation", waits, "saves the GPU's waits for Python"
    yield "less work outside PyTorch", parts[verdict.OUTSIDE], "saves Python and other libraries"
    larger = f"{TIMES} times the examples, in time per example"
    yield "a larger batch", _of_a_larger_batch(measured), larger
    if measured.profile.compiled is None:
        yield "torch.compile", _of_compiling(measured), "saves calls, and traffic between products"
        yield (
            "one call in place of many",
            repetition.of_one_call(measured),
            "for a loop that uses the same weights each time",
        )
        seconds, place = repetition.of_computing_once(measured)
        yield "compute it once", seconds, f"the same from the same numbers, at {place}"
    if on_gpu:
        graphs = parts[verdict.CALLS] + parts[verdict.REST]
        yield "CUDA graphs", graphs, "saves Python's time for launches"
    passes = "updates all weights in a single pass"
    yield "a fused optimizer", _of_a_fused_optimizer(measured), passes
    yield "float32 in place of float64", *_of_float32(measured)
    yield "bfloat16", _of_bfloat16(measured), "faster products, half the bytes, casts counted"
    yield "a fused attention", _of_fused_attention(measured), "saves reading and writing the scores"
    layouts = "brings convolutions to their floors"
    yield "channels last", _of_channels_last(measured), layouts
    if not on_gpu:
        yield "more threads", _of_more_threads(measured), "more threads share the kernels' work"
        yield "flush subnormal numbers", *_of_flushing(measured)
        yield "keep memory", parts[verdict.FRESH], "saves fresh memory"


def _in_passes(measured):
    """The operators of forward and backward pass."""
    return [one for one in measured.operators if one.phase != "optimizer"]


def _multiplies(operator: Operator) -> bool:
    return operator.flops > 0


def _of_workers(measured):
    """The wait for batches. What the loader computes has to be computed then too, beside the step,
    on the cores that there are.
    """
    computed = measured.processing / machine.threads()
    return measured.seconds - max(measured.seconds - measured.parts[verdict.DATA], computed)


def _of_a_larger_batch(measured):
    """All but one part in :data:`TIMES` of what does not grow with the batch: calls, Python, the
    optimizer, sums of gradients, the time of products that wait for their weights, what small
    kernels take above their floors, and the layouts of convolutions' weights.
    """
    price = measured.price
    weights = {
        shape for call in measured.calls if call.phase == "optimizer" for shape in call.shapes
    }
    small = 0.0
    sums = 0.0
    layouts = 0.0
    for call in measured.calls:
        if call.phase == "backward" and not call.flops and weights.issuperset(call.shapes):
            sums += call.own
            continue
        floor = max(price.memory(call), price.arithmetic(call))
        above = max(0.0, call.own - floor)
        if call.phase != "optimizer" and floor < SMALL_KERNEL:
            small += above
        elif call.operator in CONVOLUTIONS:
            layouts += min(above, _of_weights_layouts(call, price))
    fixed = sum(measured.parts[name] for name in (verdict.CALLS, verdict.OUTSIDE, verdict.REST))
    products = [one for one in _in_passes(measured) if _multiplies(one)]
    waiting = sum(one.seconds * one.memory / one.floor for one in products if one.floor)
    optimizing = sum(one.seconds for one in measured.operators if one.phase == "optimizer")
    return (1 - 1 / TIMES) * (fixed + max(waiting, small) + sums + layouts + optimizing)


def _of_weights_layouts(call, price):
    """Seconds in which a convolution of oneDNN's copies its weights into a layout of its own, and
    back; its backward pass does so for two gradients.
    """
    weights = call.shapes[2 if call.phase == "backward" else 1]
    passes = 2 * (2 if call.phase == "backward" else 1)
    return passes * FLOAT32 * prod(weights) / price.bandwidth


def _of_compiling(measured):
    """Of forward and backward pass: the calls, Python, and for a convolution the copies into the
    layout that it likes. Of all that stands between two products of one pass, what its functions
    such as tanh compute is left, or once the traffic of the largest operator.
    """
    passes = [call for call in measured.calls if call.phase != "optimizer"]
    calls = [call for call in passes if not call.sends and not call.moves_between]
    saved = 0.0
    for (multiplies, _), run in groupby(calls, key=lambda call: (call.flops > 0, call.phase)):
        members = list(run)
        if not multiplies:
            once = max(measured.price.memory(call) for call in members)
            computed = sum(_of_function(call, measured.price) for call in members)
            saved += max(0.0, sum(call.own for call in members) - max(once, computed))
    convolutions = [one for one in _in_passes(measured) if one.name in CONVOLUTIONS]
    bandwidth = measured.price.bandwidth
    layouts = sum(min(one.above, one.bytes / bandwidth) for one in convolutions)
    return saved + layouts + measured.around_the_passes


def _of_function(call, price):
    """Seconds in which an operator computes a function such as tanh, fresh memory left out."""
    if call.operator not in FUNCTIONS:
        return 0.0
    return max(0.0, call.own - call.pages * price.pages.given)


def _of_a_fused_optimizer(measured):
    """One pass has to read every number of parameters, gradients and state once."""
    if not measured.can_fuse:
        return 0.0
    calls = [call for call in measured.calls if call.phase == "optimizer"]
    sizes: dict[int, int] = {}
    for call in calls:
        for address, touch in zip(call.reads, call.touches, strict=False):
            sizes[address] = max(sizes.get(address, 0), touch.bytes)
    all_bytes = sum(sizes.values())
    return measured.optimizing - all_bytes / measured.price.speed(all_bytes)


def _of_float32(measured):
    """(seconds, why with the line): half of what float64 takes, and the casts between the two."""
    found = [one for one in measured.operators if one.dtype == "float64"]
    if not found:
        return 0.0, ""
    casts = [one for one in measured.operators if one.name == "_to_copy"]
    double = [one for one in found if one not in casts]
    saved = sum(one.seconds for one in double) / 2 + sum(one.seconds for one in casts)
    # Products may come nearer to float32's rate than they came to that of float64.
    products = [one for one in double if _multiplies(one)]
    rate = measured.price.rate("float32")
    saved += sum(max(0.0, one.seconds / 2 - one.flops / rate) for one in products)
    return saved, f"half the bytes, and no casts, at {found[0].place}"


def _of_bfloat16(measured):
    """Products at bfloat16's rate in place of their own, other traffic halved; the weights are
    cast, and their gradients are cast back: each is read and written, 6 bytes a number.
    """
    passes = _in_passes(measured)
    if not any(_multiplies(one) and one.dtype == "float32" for one in passes):
        return 0.0
    ratio = measured.price.rate("float32") / measured.price.rate("bfloat16")
    if ratio >= 1:
        return 0.0
    products = sum(one.seconds for one in passes if _multiplies(one) and one.dtype == "float32")
    others = sum(one.seconds for one in passes if not _multiplies(one) and one.dtype == "float32")
    casts = 2 * measured.held.parameters / 4 * 6 / measured.price.bandwidth
    return (1 - ratio) * products + others / 2 - casts


def _of_fused_attention(measured):
    """The traffic of all that has as many numbers as the scores: their scale, mask, softmax and
    dropout, and their gradients. Products that read them are above their arithmetic for it.
    """
    scores = [call for call in measured.calls if call.operator in ("_softmax", "_safe_softmax")]
    squares = {prod(call.shapes[0]) for call in scores if _is_square(call.shapes[0])}
    if not squares:
        return 0.0
    saved = 0.0
    for call in measured.calls:
        if any(prod(shape) in squares and len(shape) > 1 for shape in call.shapes):
            saved += max(0.0, call.own - measured.price.arithmetic(call))
    return saved


def _is_square(shape):
    return len(shape) > 2 and shape[-1] == shape[-2]


def _of_channels_last(measured):
    return sum(one.above for one in measured.operators if one.name in CONVOLUTIONS)


def _of_more_threads(measured):
    there = machine.threads()
    used = measured.price.threads
    computing = [one for one in measured.operators if not one.sends and not one.copies]
    work = sum(one.seconds for one in computing)
    return work * (1 - used / there) if used < there else 0.0


def _of_flushing(measured):
    """(seconds, the operator where most of them go): what operators that are given subnormal
    numbers take above their floors.
    """
    slow: dict[str, float] = {}
    for call in measured.calls:
        if call.subnormal > SOME:
            floor = max(measured.price.memory(call), measured.price.arithmetic(call))
            told = f"{call.subnormal:.0%} of what {call.operator} reads at {call.place}"
            slow[told] = slow.get(told, 0.0) + max(0.0, call.own - floor)
    worst = max(slow, key=slow.__getitem__, default="")
    return sum(slow.values()), worst
