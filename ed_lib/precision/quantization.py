"""Affine quantization: numbers as small whole numbers, of which a scale and a zero point say what they mean.

    code = clamp(round(x / scale) + zero_point, low, high)        x ≈ (code − zero_point) · scale

After Jacob et al. (2018) and Krishnamoorthi (2018). A number is rounded to the nearest, ties to even, as
``torch.quantize_per_tensor`` does it.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ed_lib import check

LAYERS = (nn.Conv2d, nn.Linear)  # the layers that have a weight to quantize: products
LARGEST, TINY = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny  # 1 / TINY is still finite


class Grid(nn.Module):
    """The numbers that codes stand for. ``scale`` float32 and ``zero_point`` int32 have the shape () for one
    grid, or (C,) for one in each slice along ``axis``; codes run from ``low`` to ``high``.

    A module, so that a model that holds grids saves them, and takes them along to another device.
    """

    def __init__(self, scale: Tensor, zero_point: Tensor, low: int, high: int, axis: int | None = None):
        super().__init__()
        self.scale, self.zero_point = nn.Buffer(scale), nn.Buffer(zero_point)
        self.low, self.high, self.axis = low, high, axis

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.low, self.high])

    def set_extra_state(self, state: Tensor) -> None:
        self.low, self.high = state.tolist()

    @property
    def bits(self) -> int:
        """Bits that a code takes."""
        return (self.high - self.low).bit_length()

    def along(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and zero point, shaped so that they broadcast against x."""
        shape = [-1 if n == self.axis else 1 for n in range(x.dim())]  # (C,) → (1, …, C, …, 1)
        return self.scale.view(shape), self.zero_point.view(shape)


def choose_grid(
    x: Tensor, bits: int = 8, *, scheme: str = "symmetric", axis: int | None = None, span: str = "min-max"
) -> Grid:
    """The :class:`Grid` for a float32 tensor, of any shape; with ``axis``, one for each slice along it.

    scheme: "symmetric" has its zero point at 0 and 2^bits − 1 codes, from −(2^(bits−1) − 1) up; "asymmetric"
    has the codes 0 to 2^bits − 1, and its zero point where the numbers are. 0 is always on the grid. span, of
    what is not clipped: "min-max", all; "mse", those hundredths of it that make the squared error least.
    """
    _check(x)
    check.choice("bits", bits, range(2, 9))
    check.choice("scheme", scheme, ("symmetric", "asymmetric"))
    check.choice("span", span, ("min-max", "mse"))
    check.choice("axis", axis, (None, *range(x.dim())))
    symmetric, rows = scheme == "symmetric", x.detach().movedim(axis or 0, 0)
    rows = rows.reshape(1 if axis is None else len(rows), -1)  # (1 or C, …)
    high = 2 ** (bits - symmetric) - 1
    least, most = rows.amin(dim=1).clamp(max=0), rows.amax(dim=1).clamp(min=0)  # (1 or C,)
    error = scale = zero_point = torch.zeros_like(least)
    for share in (100, *range(1, 100)) if span == "mse" else (100,):
        a, b = least * (share / 100), most * (share / 100)
        wide = torch.maximum(-a, b) / high if symmetric else b / high - a / high  # which cannot overflow
        wide = wide.clamp(min=TINY)
        zero = torch.zeros_like(wide) if symmetric else (-a / wide).round().clamp(0, high)
        grid = Grid(wide, zero.to(torch.int32), -high if symmetric else 0, high, 0)
        near = dequantize(rounded(rows, grid).clamp_(grid.low, high), grid)
        its = (near - rows).square_().sum(dim=1)  # (1 or C, …) → (1 or C,)
        better = (its < error) | (share == 100)
        pairs = (its, error), (wide, scale), (grid.zero_point, zero_point)
        error, scale, zero_point = (torch.where(better, new, old) for new, old in pairs)
    zero_point = zero_point.to(torch.int32)
    return Grid(*((scale[0], zero_point[0]) if axis is None else (scale, zero_point)), grid.low, high, axis)


def rounded(x: Tensor, grid: Grid) -> Tensor:
    """round(x / scale) + zero_point in float32, not clamped yet; by a product with 1 / scale, as in torch."""
    scale, zero_point = grid.along(x)
    return (x * (1 / scale)).round_().add_(zero_point)


def quantize(x: Tensor, grid: Grid) -> Tensor:
    """The codes, int8 or (if they begin at 0) uint8, of a float32 tensor; the first or last one outside."""
    _check(x)
    return rounded(x, grid).clamp_(grid.low, grid.high).to(torch.int8 if grid.low < 0 else torch.uint8)


def dequantize(codes: Tensor, grid: Grid) -> Tensor:
    """The float32 numbers that codes stand for, shaped as they are; finite, where torch's may overflow."""
    scale, zero_point = grid.along(codes)
    return ((codes.to(torch.float32) - zero_point) * scale).clamp_(-LARGEST, LARGEST)


class StraightThrough(torch.autograd.Function):
    """dequantize(quantize(x)), for training. The gradient goes *straight through* the rounding, as if it were
    not there (Bengio et al., 2013), and is 0 where x lies outside the grid.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, grid: Grid) -> Tensor:
        codes = rounded(x, grid)
        ctx.save_for_backward((codes >= grid.low) & (codes <= grid.high))
        return dequantize(codes.clamp_(grid.low, grid.high), grid)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:  # type: ignore[override]
        return gradient * ctx.saved_tensors[0], None


class Quantized(nn.Module):
    """A Conv2d or Linear layer that computes with the numbers of a grid, and trains with them: its float32
    weights stay, and are rounded at each call. The products are float32: nothing gets faster by this.
    ``weights``, ``inputs``: their :class:`Grid`, or None for inputs left in float32.
    """

    def __init__(self, layer: nn.Module, weights: Grid, inputs: Grid | None = None):
        super().__init__()
        self.layer, self.weights, self.inputs = layer, weights, inputs

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.inputs is None else StraightThrough.apply(x, self.inputs)
        weight = StraightThrough.apply(self.layer.weight, self.weights)
        return functional_call(self.layer, {"weight": weight}, (x,))

    def codes(self) -> Tensor:
        """The codes of the weights: int8, shaped as they are."""
        weight: Any = self.layer.weight
        return quantize(weight.detach(), self.weights)


def quantize_model(
    model: nn.Module, bits: int = 8, *, inputs: int | None = None, images: Tensor | None = None,
    span: str = "min-max",
) -> nn.Module:  # fmt: skip
    """A copy of a model whose Conv2d and Linear layers are :class:`Quantized`, on grids that then stay: used
    as it is, quantized after training (PTQ); trained, quantization-aware.

    Weights: symmetric, ``bits`` bits, a grid for each filter or neuron, as ``span`` says. inputs: None, or
    the bits of the layers' inputs, whose asymmetric min-max grids come from a pass of ``images`` (N, …).
    """
    if (inputs is None) != (images is None):
        raise ValueError("one of inputs and images is None; wanted both or neither")
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LAYERS)}
    if not layers or any(isinstance(module, Quantized) for module in model.modules()):
        raise ValueError("model has no Conv2d or Linear layer, or is quantized; wanted one in float32")
    seen: dict[str, Grid] = {}  # of the layers' inputs
    if inputs is not None:
        watched = copy.deepcopy(model).eval()
        for name in layers:

            def keep(layer, args, name=name):
                seen[name] = choose_grid(args[0], inputs, scheme="asymmetric")

            watched.get_submodule(name).register_forward_pre_hook(keep)
        with torch.no_grad():
            watched(images)
    model = copy.deepcopy(model)
    for name in layers:
        layer: Any = model.get_submodule(name)
        grid = choose_grid(layer.weight, bits, axis=0, span=span)
        model = replaced(model, name, Quantized(layer, grid, seen.get(name)))
    return model


def unpacked(model: nn.Module) -> nn.Module:
    """A copy whose quantized layers are ordinary again, with the numbers of their grids for weights: how
    a network that is *stored* in few bits computes in float32.
    """
    model = copy.deepcopy(model)
    for name, module in [(n, m) for n, m in model.named_modules() if isinstance(m, Quantized)]:
        if module.inputs is not None:
            raise ValueError(f"the inputs of layer {name} are quantized; wanted weights only")
        layer: Any = module.layer
        layer.weight = nn.Parameter(dequantize(module.codes(), module.weights))
        model = replaced(model, name, layer)
    return model


def replaced(model: nn.Module, name: str, new: nn.Module) -> Any:
    """The model with ``new`` in the place of its submodule ``name``; "" is the model itself."""
    if not name:
        return new
    model.set_submodule(name, new)
    return model


def sizes(weight: Any, bits: int) -> dict[str, int]:
    """Bytes of a weight (rows, …), whose numbers have so many bits, stored in three forms: {form: bytes}. All
    numbers ("dense"); a bit for each that says whether it is zero, and the others ("bitmap"); or row starts
    of 4 bytes, and for each that is not zero its column, of 2 bytes, or 4 from 2¹⁶ on, and itself ("csr").
    """
    rows, n, there = len(weight), weight.reshape(-1).shape[0], int((weight != 0).sum())
    values, column = -(-there * bits // 8), 2 if n <= rows * 2**16 else 4
    bitmap, csr = -(-n // 8) + values, 4 * (rows + 1) + column * there + values
    return {"dense": -(-n * bits // 8), "bitmap": bitmap, "csr": csr}


def stored_bytes(model: Any) -> int:
    """Bytes of a model's parameters: weights in their smallest form, quantized ones as codes with their
    scales (4 bytes each; for inputs 5, with a zero point), all else as it is. ``model`` may have masks.
    """
    layer = model.layer if isinstance(model, Quantized) else model
    if not isinstance(layer, LAYERS):
        inside = sum(p.nbytes for p in model.parameters(recurse=False))
        return inside + sum(stored_bytes(module) for module in model.children())
    total = 0 if layer.bias is None else layer.bias.nbytes
    if layer is model:
        return total + min(sizes(layer.weight, 8 * layer.weight.element_size()).values())
    total += model.weights.scale.nbytes + (0 if model.inputs is None else 5)
    return total + min(sizes(model.codes(), model.weights.bits).values())


def _check(x):
    if not isinstance(x, Tensor) or x.dtype != torch.float32:
        raise TypeError(f"x is of {getattr(x, 'dtype', type(x).__name__)}; wanted a tensor of float32")
    if not x.numel() or not torch.isfinite(x).all():
        raise ValueError(f"x {tuple(x.shape)} is empty, or holds NaN or infinity; wanted finite numbers")
