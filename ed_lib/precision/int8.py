"""Products of 8-bit numbers that a CPU really computes as such, by oneDNN's operations inside PyTorch.

A quantized product is a product of whole numbers: Σ (a − a₀) s · w t = s t (Σ a w − a₀ Σ w), where a and w
are codes, s and t scales and a₀ the zero point of the inputs. A CPU adds up four products of bytes with one
instruction, where it has VNNI; without, two products go into 16 bits, and what is too large is cut off.
"""

import copy
import functools
from typing import Any

import torch
from torch import nn

from ed_lib.precision import quantization

ops = torch.ops.onednn
OUT: tuple = (1.0, 0, torch.float32, "none", [], "")  # not quantized, and nothing done to it after


class Int8(nn.Module):
    """A :class:`quantization.Quantized` layer with quantized inputs, computed in 8 bits: float32 in and out,
    sums of whole numbers inside, scaled once at the end. Equal to the layer that it is made of, whose state
    it has, but for the rounding of float32. It cannot be trained.
    """

    def __init__(self, quantized: Any):
        super().__init__()
        padding, mode = (getattr(quantized.layer, name, "zeros") for name in ("padding", "padding_mode"))
        if padding in ("same", "valid") or mode != "zeros":
            raise ValueError(f"padding is {padding!r}, {mode}; wanted numbers, zeros")
        if quantized.inputs is None:
            raise ValueError("model has inputs in float32; wanted one whose inputs are quantized too")
        self.quantized = quantized.requires_grad_(False)
        self.register_load_state_dict_post_hook(lambda layer, _: layer.pack())
        self.pack()

    def pack(self) -> None:
        """Lays the codes out as oneDNN reads them."""
        layer, weights, inputs = self.quantized.layer, self.quantized.weights, self.quantized.inputs
        self.high, self.inverse = inputs.high, float(1 / inputs.scale)
        self.inputs_at, self.convolution = (float(inputs.scale), int(inputs.zero_point)), []
        if isinstance(layer, nn.Conv2d):
            self.convolution = [list(layer.stride), list(layer.padding), list(layer.dilation), layer.groups]
            how = (weights.scale, *self.inputs_at, *self.convolution, None)
            packed = ops.qconv_prepack(self.quantized.codes(), *how)
        else:
            packed = ops.qlinear_prepack(self.quantized.codes(), None)
        self.grids = (*self.inputs_at, packed, weights.scale, weights.zero_point, layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = x.mul(self.inverse).round_()  # as quantization.quantize, in fewer calls
        codes = codes.add_(self.inputs_at[1]) if self.inputs_at[1] else codes
        codes = codes.clamp_(0, self.high).to(torch.uint8)
        product = ops.qconv_pointwise if self.convolution else ops.qlinear_pointwise
        return product(codes, *self.grids, *self.convolution, *OUT)


def to_int8(model: nn.Module) -> nn.Module:
    """A copy of a quantized model whose quantized layers compute in 8 bits, on a CPU."""
    if not available():
        raise RuntimeError("no products of 8 bits here whose sums are right; wanted a CPU of x86 with VNNI")
    model = copy.deepcopy(model)
    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, quantization.Quantized)]
    if not layers:
        raise ValueError("model has no quantized layer; wanted one that was quantized")
    for name, layer in layers:
        model = quantization.replaced(model, name, Int8(layer))
    return model


@functools.cache
def available() -> bool:
    """Whether this PyTorch has the operations, and this CPU's sums of the largest codes are right."""
    if not (torch.backends.mkldnn.is_available() and hasattr(ops, "qconv_pointwise")):
        return False
    weights = ops.qlinear_prepack(torch.full((16, 64), 127, dtype=torch.int8), None)
    grids = 1.0, 0, weights, torch.ones(16), torch.zeros(16, dtype=torch.int32), None
    sums = ops.qlinear_pointwise(torch.full((4, 64), 255, dtype=torch.uint8), *grids, *OUT)
    return bool((sums == 64 * 255 * 127).all())
