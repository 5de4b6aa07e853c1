"""Weight-only quantization by rounding to nearest, GPTQ and AWQ, and the product with weights of
four bits.

A row of a Linear layer's weight (O, I) is cut into groups of so many neighbours along I, and each
group has a grid of its own: weight ≈ code · scale + least, with codes from 0 to 2^bits − 1. Three
ways to choose the codes: to the nearest (RTN); GPTQ (Frantar and others, arXiv 2210.17323), which
lets each column make up for those before it; AWQ (Lin and others, arXiv 2306.00978), which first
makes important columns larger.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ed_lib import check
from ed_lib.precision.packed_layer import PackedHere, buffer_of
from ed_lib.precision.quantization import packed_bytes

POWERS = 20  # of the inputs' sizes that AWQ tries: 0, 1 / 20, 2 / 20, …
TINY = 1e-8  # for an input's size, so that no factor is 0
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # that the operator has products for


@dataclass(frozen=True)
class FewBits:
    """A weight: ``codes`` uint8 (O, I) of ``bits`` bits; ``scale``, ``least`` float32 (O, I /
    group).
    """

    codes: Tensor
    scale: Tensor
    least: Tensor
    bits: int

    @property
    def group(self) -> int:
        """How many neighbours share a grid."""
        return self.codes.shape[1] // self.scale.shape[1]

    @property
    def bytes(self) -> int:
        """Of the codes, packed, and of scales and least numbers in 16 bits each."""
        codes = packed_bytes(self.codes.numel(), self.bits)
        return codes + packed_bytes(self.scale.numel() + self.least.numel(), 16)

    def weight(self) -> Tensor:
        """The numbers that the codes stand for, float32 (O, I)."""
        # (O, I / group, group)
        groups = self.codes.unflatten(1, (-1, self.group))
        scale = self.scale[..., None]
        least = self.least[..., None]
        return (groups * scale + least).flatten(1)


def grids(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Scale and least number, (O, I / group) each, of grids from each group's smallest number to
    its largest: a scale of 0 where all are equal.
    """
    # (O, I / group, group)
    groups = weight.unflatten(1, (-1, group))
    least = groups.amin(2)
    most = groups.amax(2)
    return (most - least) / (2**bits - 1), least


def encode(column: Tensor, scale: Tensor, least: Tensor, bits: int) -> Tensor:
    """The nearest codes, as floats."""
    # Where all numbers of a group are equal, they are its least one, and their code is 0.
    step = torch.where(scale > 0, scale, 1.0)
    return ((column - least) / step).round().clamp(0, 2**bits - 1)


def rtn(weight: Tensor, bits: int = 4, group: int = 128) -> FewBits:
    """Each number of a weight (O, I), float32, by the nearest code (RTN). ValueError if ``group``
    does not divide I, or for NaN and infinity, and for a group whose span is beyond float32's
    largest number; TypeError for another dtype.
    """
    weight = _checked(weight, bits, group)
    scale, least = grids(weight, bits, group)
    # (O, I / group, group)
    groups = weight.unflatten(1, (-1, group))
    codes = encode(groups, scale[..., None], least[..., None], bits)
    codes = codes.flatten(1).to(torch.uint8)
    return FewBits(codes, scale, least, bits)


def hessian(inputs: Tensor) -> Tensor:
    """2 XᵀX / N, float64 (I, I), of inputs (N, I): of the mean squared error of a product with
    them.
    """
    x = inputs.detach().double()
    # (I, N) @ (N, I)
    return 2 * x.T @ x / len(x)


def gptq(
    weight: Tensor, hessian: Tensor, bits: int = 4, group: int = 128, damping: float = 0.01
) -> FewBits:
    """Rounds a weight (O, I) column after column; the error of each is taken up by the columns to
    come, so as to add the least to the output's error on the inputs behind ``hessian`` (I, I).

    damping: so much of the diagonal's mean is added to it. Weights of an input that was never
    anything but 0 are taken for 0. ValueError as from :func:`rtn`, and for a Hessian of another
    shape or none.
    """
    weight = _checked(weight, bits, group)
    check.shape("hessian", tuple(hessian.shape), 2 * weight.shape[1:])
    # What is still to be rounded, (O, I). The errors of many columns add up in it: in float64.
    left = weight.double().clone()
    matrix = hessian.detach().double().clone()
    # An input that was always 0 says nothing of its weight, and makes the Hessian singular.
    dead = matrix.diagonal() == 0
    left[:, dead] = 0
    matrix.diagonal()[dead] = 1
    factor = _factor_of_inverse(matrix, damping)
    codes = torch.empty_like(left)
    scales, leasts = [], []
    for n in range(weight.shape[1]):
        # A new group has its grid from what its columns have become by now: (O, 1) each.
        if n % group == 0:
            columns = left[:, n : n + group].contiguous()
            scale, least = grids(columns, bits, group)
            scales.append(scale)
            leasts.append(least)
        column = left[:, n : n + 1]
        code = encode(column, scale, least, bits)
        codes[:, n : n + 1] = code
        # The columns to come take up the error: (O, 1) · (I − n,). Row n of the factor says how
        # much each of them takes, when those before n are fixed.
        error = (column - code * scale - least) / factor[n, n]
        left[:, n:] -= error * factor[n, n:]
    # (O, I / group) each
    scale = torch.cat(scales, dim=1).float()
    least = torch.cat(leasts, dim=1).float()
    if not (scale.isfinite().all() and least.isfinite().all()):
        raise ValueError("weight grows beyond float32 while columns make up for others")
    return FewBits(codes.to(torch.uint8), scale, least, bits)


def _factor_of_inverse(matrix, damping):
    """The upper triangle U with Uᵀ U = the inverse of a Hessian (I, I), once it is damped."""
    matrix.diagonal().add_(damping * matrix.diagonal().mean())
    lower, failed = torch.linalg.cholesky_ex(matrix)
    if failed or not matrix.isfinite().all():
        raise ValueError(
            "hessian holds NaN, infinity or a square below 0; wanted one from hessian(inputs)"
        )
    return torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)


def awq(weight: Tensor, inputs: Tensor, bits: int = 4, group: int = 128) -> tuple[FewBits, Tensor]:
    """→ (the weight (O, I) with its columns multiplied by factors (I,), rounded to the nearest; the
    factors). A product divides its inputs by them first, or the layer before does.

    The factors are the mean size of each input, to that power of 0, 0.05, … 0.95 with the least
    squared error of the output; 1 for an input that is silent. Errors as from :func:`rtn`, for
    inputs (N, I) too.
    """
    weight = _checked(weight, bits, group)
    check.shape("inputs", tuple(inputs.shape), ("N", weight.shape[1]))
    inputs = _finite("inputs", inputs)
    # How large each input is, (I,), and what the layer answers, (N, O).
    size = inputs.abs().mean(0)
    right = inputs @ weight.T
    # A silent input says nothing of its column, which stays as it is.
    silent = size == 0
    size = size.clamp(min=TINY).masked_fill(silent, float(size.max()))
    found: list[tuple[float, FewBits, Tensor]] = []
    for step in range(POWERS):
        factors = size ** (step / POWERS)
        # Around 1, as the authors have it.
        factors = factors / (factors.max() * factors.min()).sqrt()
        factors = factors.masked_fill(silent, 1.0)
        few = rtn(weight * factors, bits, group)
        answer = inputs @ (few.weight() / factors).T
        error = (answer - right).square().sum()
        found.append((float(error), few, factors))
    _, few, factors = min(found, key=lambda one: one[0])
    return few, factors


class Linear4(PackedHere):
    """A Linear layer whose weight has 4 bits, by PyTorch's operator on a CPU: (…, I) → (…, O), of
    x's dtype, one of DTYPES; TypeError for others.

    factors: what AWQ multiplied the columns by, or None. Its state holds the codes in a byte each,
    the same on every processor.
    """

    def __init__(self, few: FewBits, bias: Tensor | None = None, factors: Tensor | None = None):
        super().__init__()
        if few.bits != 4 or few.group not in (32, 64, 128, 256) or len(few.codes) % 16:
            came = f"few has {few.bits} bits, groups of {few.group} and {len(few.codes)} rows"
            raise ValueError(f"{came}; wanted 4, of 32, 64, 128 or 256, and a multiple of 16")
        rows, columns = few.codes.shape
        for name, vector, wanted in (("bias", bias, rows), ("factors", factors, columns)):
            if vector is not None:
                check.shape(name, tuple(vector.shape), (wanted,))
        self.group = few.group
        self.bias = buffer_of(bias)
        self.factors = buffer_of(factors)
        self.codes = buffer_of(few.codes)
        # The operator's numbers are (code − 8) · scale + middle.
        middle = few.least + 8 * few.scale
        # (I / group, O, 2)
        grids = torch.stack([few.scale.T, middle.T], dim=2)
        self.grids = nn.Buffer(grids.contiguous())
        self.pack()

    def pack(self) -> None:
        """Lays the codes out, two in a byte, as the operator reads them on this processor."""
        inner = 1  # for tiles of tensor cores; a CPU does not look at it
        pack = torch.ops.aten._convert_weight_to_int4pack_for_cpu
        self.packed = pack(self.codes.int(), inner)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype not in DTYPES:
            raise TypeError(f"x is of {x.dtype}; wanted one of {', '.join(map(str, DTYPES))}")
        rows = x
        if self.factors is not None:
            rows = (x / self.factors).to(x.dtype)
        # (…, I) → (N, I)
        rows = rows.reshape(-1, x.shape[-1]).contiguous()
        grids = self.grids.to(x.dtype)
        # The operator knows no empty batch.
        if len(rows):
            product = torch.ops.aten._weight_int4pack_mm_for_cpu
            y = product(rows, self.packed, self.group, grids)
        else:
            y = rows.new_empty(0, grids.shape[1])
        # (N, O) → (…, O)
        y = y.view(*x.shape[:-1], grids.shape[1])
        if self.bias is not None:
            # the buffer is in float32, and the answer in the dtype of x
            y = y + self.bias.to(y.dtype)
        return y


def _checked(weight, bits, group):
    """The weight without its graph, once it is known that its groups have grids."""
    check.choice("bits", bits, range(2, 9))
    check.shape("weight", tuple(weight.shape), ("O", "I"))
    if weight.shape[1] % check.count("group", group):
        raise ValueError(
            f"group is {group}; wanted a divisor of {weight.shape[1]}, the inputs of weight"
        )
    weight = _finite("weight", weight)
    groups = weight.unflatten(1, (-1, group))
    if not (groups.amax(2) - groups.amin(2)).isfinite().all():
        raise ValueError("weight spans more than float32's largest number within a group")
    return weight


def _finite(name, x):
    """The float32 numbers without their graph."""
    if x.dtype != torch.float32:
        raise TypeError(f"{name} is of {x.dtype}; wanted a tensor of float32")
    if not torch.isfinite(x).all():
        raise ValueError(f"{name} holds NaN or infinity; wanted finite numbers")
    return x.detach()
