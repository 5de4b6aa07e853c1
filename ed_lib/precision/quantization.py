"""Quantization: numbers as small whole numbers, the codes, and a scale that says what they mean.

    code = clamp(round(x / scale), −high, high)      x ≈ code · scale      high = 2^(bits − 1) − 1

After Jacob et al. (2018) and Krishnamoorthi (2018). Each row of a weight, which makes one output,
has a scale of its own. A number is rounded to the nearest, ties to even, as
``torch.quantize_per_channel`` does it.
"""

import copy
import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ed_lib import check
from ed_lib.precision.formats import power
from ed_lib.precision.packed_layer import PackedHere, buffer_of

# The layers that have a weight to quantize: products.
TYPES = (nn.Conv2d, nn.Linear)
# Modules that use the weights of layers inside without calling these.
READERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
LARGEST = torch.finfo(torch.float32).max
# The least scale: 1 / TINY is still finite.
TINY = torch.finfo(torch.float32).tiny
# Of a row's start, and of a column's number where 2 are too few.
INDEX_BYTES = 4


def choose_scale(weight: Tensor, bits: int = 8, span: str = "min-max") -> Tensor:
    """The scale of each row of a float32 weight (C, …), shaped (C, 1, …) so that it broadcasts
    against it.

    span, of what is not clipped: "min-max", all; "mse", those hundredths of a row's largest
    absolute value that make its squared error least. ValueError for a weight without rows, for
    NaN and infinity; TypeError for another dtype.
    """
    check.choice("bits", bits, range(2, 9))
    check.choice("span", span, ("min-max", "mse"))
    if weight.dim() < 2:
        raise ValueError(f"weight has the shape {tuple(weight.shape)}; wanted rows: (C, n) or more")
    if weight.dtype != torch.float32:
        raise TypeError(f"weight is of {weight.dtype}; wanted a tensor of float32")
    _check("weight", weight)
    # (C, n), and the largest of each row, (C, 1)
    rows = weight.detach().flatten(1)
    largest = rows.abs().amax(1, keepdim=True)
    # The whole span comes first: of equal errors the first is taken.
    shares = (100, *range(1, 100)) if span == "mse" else (100,)
    spans = [largest * (share / 100) for share in shares]
    scales = [(each / _high(bits)).clamp(min=TINY) for each in spans]
    # (shares, C)
    errors = torch.stack([_squared_error(rows, scale, bits) for scale in scales])
    best = errors.argmin(0)
    scale = torch.stack(scales)[best, torch.arange(len(rows))]
    return scale.view(-1, *[1] * (weight.dim() - 1))


def _squared_error(rows, scale, bits):
    """What rounding costs each row: (C, n), (C, 1) → (C,)."""
    near = dequantize(_codes(rows, scale, bits), scale)
    # Relative to a row's largest number: squares of 1e-23 would be 0, and those of 1e20 infinite.
    # A power of two changes no bit of the others.
    unit = power(rows.abs().amax(1, keepdim=True)).clamp_(min=TINY)
    return ((near - rows) / unit).square_().sum(1)


def quantize(x: Tensor, scale: Tensor, bits: int) -> Tensor:
    """The codes, int8, of float32 numbers, the first or last one for those outside. ValueError for
    NaN, and for more bits than an int8 has.
    """
    check.choice("bits", bits, range(2, 9))
    _check("x", x)
    return _codes(x.detach(), scale, bits).to(torch.int8)


def dequantize(codes: Tensor, scale: Tensor) -> Tensor:
    """The float32 numbers that codes stand for, shaped as they are; finite, where torch's may
    overflow.
    """
    return (codes * scale).clamp_(-LARGEST, LARGEST)


def _high(bits):
    return 2 ** (bits - 1) - 1


def _codes(x, scale, bits):
    # By a product and not by a division, as in torch: they differ in halfway cases.
    steps = x * (1 / scale)
    high = _high(bits)
    return steps.round_().clamp_(-high, high)


def _check(name, x):
    if not (x.numel() and torch.isfinite(x).all()):
        raise ValueError(
            f"{name} {tuple(x.shape)} is empty, or holds NaN or infinity; wanted numbers"
        )


class StraightThrough(torch.autograd.Function):
    """dequantize(quantize(x)), for training. The gradient goes *straight through* the rounding, as
    if it were not there (Bengio et al., 2013), and is 0 where x was clipped.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, bits: int) -> Tensor:
        not_clipped = (x * (1 / scale)).round_().abs() <= _high(bits)
        ctx.save_for_backward(not_clipped)
        # Other than quantize() it lets NaN pass, so that a loss shows it.
        return dequantize(_codes(x, scale, bits), scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:  # type: ignore[override]
        (not_clipped,) = ctx.saved_tensors
        # x has a gradient; scale and bits have none.
        return gradient * not_clipped, None, None


class Quantized(nn.Module):
    """A Conv2d or Linear layer that computes with the numbers of a grid, and trains with them: its
    float32 weights stay, and are rounded at each call. The product is float32's: nothing gets
    faster by this.
    """

    def __init__(self, layer: nn.Module, scale: Tensor, bits: int):
        super().__init__()
        self.layer: Any = layer
        # Buffers, so that a state_dict says what the codes mean.
        self.scale = nn.Buffer(scale)
        self.bits = nn.Buffer(torch.tensor(bits))

    def forward(self, x: Tensor) -> Tensor:
        weight = StraightThrough.apply(self.layer.weight, self.scale, self.bits)
        return functional_call(self.layer, {"weight": weight}, (x,))

    def codes(self) -> Tensor:
        """The codes of the weights: int8, shaped as they are."""
        return quantize(self.layer.weight, self.scale, int(self.bits))


def quantize_model(model: nn.Module, bits: int = 8, span: str = "min-max") -> nn.Module:
    """A copy of a model whose Conv2d and Linear layers are :class:`Quantized`, with scales that
    then stay: used as it is, quantized after training (PTQ); trained, quantization-aware (QAT).

    A layer that is used in several places stays one. ValueError for a model that has no such layer
    inside, that is quantized, or that holds torch's attention, which reads its layers' weights
    itself.
    """
    model = copy.deepcopy(model)
    # By each of its names: a layer may stand in several places.
    named = [*model.named_modules(remove_duplicate=False)]
    layers: dict[str, Any] = {name: m for name, m in named if name and isinstance(m, TYPES)}
    if not layers or any(isinstance(module, Quantized) for _, module in named):
        raise ValueError(
            "model has no Conv2d or Linear layer inside, or is quantized; wanted one in float32"
        )
    for name, module in named:
        if isinstance(module, READERS):
            came = f"model's {name or 'outside'} is a {type(module).__name__}"
            raise ValueError(f"{came}, which reads weights itself; wanted layers that are called")
    made: dict[int, Quantized] = {}
    for name, layer in layers.items():
        if id(layer) not in made:
            scale = choose_scale(layer.weight, bits, span)
            made[id(layer)] = Quantized(layer, scale, bits)
        model.set_submodule(name, made[id(layer)])
    return model


class W8A8(PackedHere):
    """A Linear layer whose weights *and* inputs have eight bits, multiplied as such by a CPU:
    float32 (…, I) → (…, O). A row of the weight (O, I) has a scale t, and each token, when it
    comes, a scale s (dynamic): Σ (q − 128) s · p t = s t (Σ q p − 128 Σ p), with codes q of the
    inputs and p of the weights.

    oneDNN's operation in PyTorch sums whole numbers: with VNNI four products by one instruction.
    RuntimeError where there is none, and two products go into 16 bits, which cut off what is too
    large.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        super().__init__()
        scale = choose_scale(weight)
        # (O, I) of int8, and (O,)
        self.codes = nn.Buffer(quantize(weight, scale, 8))
        self.scale = nn.Buffer(scale[:, 0])
        self.bias = buffer_of(bias)
        self.pack()

    def pack(self) -> None:
        """Lays the codes out as oneDNN reads them here; RuntimeError where its sums are wrong."""
        if not has_vnni():
            raise RuntimeError(
                "no sums of 8-bit products that are right here; wanted a CPU of x86 with VNNI"
            )
        self.packed = torch.ops.onednn.qlinear_prepack(self.codes, None)

    def forward(self, x: Tensor) -> Tensor:
        # (…, I) → (N, I), a row a token
        rows = x.reshape(-1, x.shape[-1])
        # Each token's own scale, (N, 1). A token of zeros has one too, to be divided by.
        step = rows.abs().amax(1, keepdim=True).clamp_(min=TINY) / 127
        # −127 to 127, moved up by 128: the operation takes inputs without a sign.
        codes = (rows / step).round_().add_(128).to(torch.uint8)
        # Whole numbers are summed, then multiplied by the scale of their row and of their token.
        y = _multiplied(codes, self.packed, self.scale) * step
        if self.bias is not None:
            y = y + self.bias
        # (N, O) → (…, O)
        return y.view(*x.shape[:-1], len(self.scale))


def _multiplied(codes: Tensor, packed: Any, scale: Tensor) -> Tensor:
    """(codes (N, I) − 128) @ packedᵀ · scale (O,), (N, O) in float32."""
    inputs = (codes, 1.0, 128)
    weights = (packed, scale, torch.zeros(len(scale), dtype=torch.int32))
    bias = None
    # The result's scale and zero, its type, and an operation on it, its arguments and its kind.
    out = (1.0, 0, torch.float32, "none", list[float](), "")
    return torch.ops.onednn.qlinear_pointwise(*inputs, *weights, bias, *out)


@functools.cache
def has_vnni() -> bool:
    """Whether this PyTorch has the operation, and this CPU's sums of the largest codes are
    right.
    """
    if not (
        torch.backends.mkldnn.is_available() and hasattr(torch.ops.onednn, "qlinear_pointwise")
    ):
        return False
    # Two products of 255 · 127 are too large for the 16 bits of a CPU without VNNI.
    weights = torch.full((16, 64), 127, dtype=torch.int8)
    inputs = torch.full((4, 64), 255, dtype=torch.uint8)
    packed = torch.ops.onednn.qlinear_prepack(weights, None)
    sums = _multiplied(inputs, packed, torch.ones(16))
    return bool((sums == 64 * 127 * 127).all())


def sizes(weight: Any, bits: int) -> dict[str, int]:
    """{form: bytes} of a weight (rows, …), whose numbers have so many bits: all numbers ("dense");
    a bit for each that says whether it is zero, and the others ("bitmap"); or row starts of 4
    bytes, and for each that is not zero its column, of 2 bytes, or 4 from 2¹⁶ on, and itself
    ("csr").
    """
    rows = len(weight)
    n = weight.reshape(-1).shape[0]
    there = int((weight != 0).sum())
    values = packed_bytes(there, bits)
    # The starts of all rows, and the end of the last one.
    starts = INDEX_BYTES * (rows + 1)
    column = 2 if n <= rows * 2**16 else INDEX_BYTES
    return {
        "dense": packed_bytes(n, bits),
        "bitmap": packed_bytes(n, 1) + values,
        "csr": starts + column * there + values,
    }


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of so many numbers of so many bits each, one behind the other."""
    return -(-count * bits // 8)


def stored_bytes(model: Any) -> int:
    """Bytes of a model's parameters: weights in their smallest form, quantized ones as codes with
    their scales of 4 bytes each, all else as it is. What stands in several places is stored once.
    """
    # {id of a parameter: its bytes}
    stored: dict[int, int] = {}
    for module in model.modules():
        # A weight that is met as codes is not met again as the layer's own.
        if isinstance(module, Quantized):
            few = min(sizes(module.codes(), int(module.bits)).values())
            stored.setdefault(id(module.layer.weight), few + module.scale.nbytes)
        elif isinstance(module, TYPES):
            bits = 8 * module.weight.element_size()
            few = min(sizes(module.weight, bits).values())
            stored.setdefault(id(module.weight), few)
        for p in module.parameters(recurse=False):
            stored.setdefault(id(p), p.nbytes)
    return sum(stored.values())
