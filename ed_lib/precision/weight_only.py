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
        return -(-self.codes.numel() * self.bits // 8) + 2 * 2 * self.scale.numel()

    def weight(self) -> Tensor:
        """The numbers that the codes stand for, float32 (O, I)."""
        groups = self.codes.unflatten(1, (-1, self.group))  # (O, I / group, group)
        return (groups * self.scale[..., None] + self.least[..., None]).flatten(1)


def grids(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Scale and least number, (O, I / group) each, of grids from each group's smallest number to
    its largest: a scale of 0 where all are equal.
    """
    groups = weight.unflatten(1, (-1, group))  # (O, I / group, group)
    least, most = groups.amin(2), groups.amax(2)
    return (most - least) / (2**bits - 1), least


def encode(column: Tensor, scale: Tensor, least: Tensor, bits: int) -> Tensor:
    """The nearest codes, as floats."""
    return ((column - least) / torch.where(scale > 0, scale, 1.0)).round().clamp(0, 2**bits - 1)


def rtn(weight: Tensor, bits: int = 4, group: int = 128) -> FewBits:
    """Each number of a weight (O, I), float32, by the nearest code (RTN). ValueError if ``group``
    does not divide I, or for NaN and infinity.
    """
    _check(weight, bits, group)
    scale, least = grids(weight, bits, group)
    groups = weight.unflatten(1, (-1, group))
    codes = encode(groups, scale[..., None], least[..., None], bits)  # (O, I / group, group)
    return FewBits(codes.flatten(1).to(torch.uint8), scale, least, bits)


def hessian(inputs: Tensor) -> Tensor:
    """2 XᵀX / N, float64 (I, I), of inputs (N, I): of the mean squared error of a product with
    them.
    """
    x = inputs.double()
    return 2 * x.T @ x / len(x)  # (I, N) @ (N, I)


def gptq(
    weight: Tensor, hessian: Tensor, bits: int = 4, group: int = 128, damping: float = 0.01
) -> FewBits:
    """Rounds a weight (O, I) column after column; the error of each is taken up by the columns to
    come, so as to add the least to the output's error on the inputs behind ``hessian`` (I, I).

    damping: so much of the diagonal's mean is added to it. Weights of an input that was never
    anything but 0 are taken for 0. ValueError as from :func:`rtn`, and for a Hessian of another
    shape or none.
    """
    _check(weight, bits, group)
    check.shape("hessian", tuple(hessian.shape), 2 * weight.shape[1:])
    left, matrix = weight.double().clone(), hessian.double().clone()  # (O, I), (I, I)
    dead = matrix.diagonal() == 0
    left[:, dead] = 0
    matrix.diagonal()[dead] = 1
    matrix.diagonal().add_(damping * matrix.diagonal().mean())
    lower, failed = torch.linalg.cholesky_ex(matrix)
    if failed or not matrix.isfinite().all():
        raise ValueError(
            "hessian holds NaN, infinity or a square below 0; wanted one from hessian(inputs)"
        )
    factor = torch.linalg.cholesky(
        torch.cholesky_inverse(lower), upper=True
    )  # inverse = factorᵀ factor
    codes, kept = torch.empty_like(left), []
    for n in range(weight.shape[1]):
        if n % group == 0:  # a new group: its grid, from what its columns have become by now
            scale, least = grids(left[:, n : n + group].contiguous(), bits, group)  # (O, 1) each
            kept.append((scale, least))
        column = left[:, n : n + 1]  # (O, 1)
        code = codes[:, n : n + 1] = encode(column, scale, least, bits)
        error = (column - code * scale - least) / factor[n, n]
        left[:, n:] -= error * factor[n, n:]  # (O, 1) · (I − n,): to the columns to come
    scale, least = (
        torch.cat(each, dim=1).float() for each in zip(*kept, strict=True)
    )  # (O, I / group) each
    return FewBits(codes.to(torch.uint8), scale, least, bits)


def awq(weight: Tensor, inputs: Tensor, bits: int = 4, group: int = 128) -> tuple[FewBits, Tensor]:
    """→ (the weight (O, I) with its columns multiplied by factors (I,), rounded to the nearest; the
    factors). A product divides its inputs by them first, or the layer before does.

    The factors are the mean size of each input, to that power of 0, 0.05, … 0.95 with the least
    squared error of the output; 1 for an input that is silent. ValueError as from :func:`rtn`.
    """
    _check(weight, bits, group)
    check.shape("inputs", tuple(inputs.shape), ("N", weight.shape[1]))
    size, right = inputs.abs().mean(0), inputs @ weight.T  # (I,), (N, O)
    silent = size == 0  # such an input says nothing of its column, which stays as it is
    found: list[tuple[float, FewBits, Tensor]] = []
    for step in range(20):
        factors = size.clamp(min=1e-8).masked_fill(silent, float(size.max())) ** (step / 20)
        factors = (factors / (factors.max() * factors.min()).sqrt()).masked_fill(
            silent, 1.0
        )  # around 1
        few = rtn(weight * factors, bits, group)
        error = float((inputs @ (few.weight() / factors).T - right).square().sum())
        found.append((error, few, factors))
    return min(found, key=lambda one: one[0])[1:]


class Linear4(nn.Module):
    """A Linear layer whose weight has 4 bits, by PyTorch's operator: (…, I) → (…, O), of x's dtype.

    factors: what AWQ multiplied the columns by, or None.
    """

    def __init__(self, few: FewBits, bias: Tensor | None = None, factors: Tensor | None = None):
        super().__init__()
        if few.bits != 4 or few.group not in (32, 64, 128, 256) or len(few.codes) % 16:
            came = f"few has {few.bits} bits, groups of {few.group} and {len(few.codes)} rows"
            raise ValueError(f"{came}; wanted 4, of 32, 64, 128 or 256, and a multiple of 16")
        self.group = few.group
        self.bias, self.factors = (
            None if each is None else nn.Buffer(each) for each in (bias, factors)
        )
        self.packed = nn.Buffer(
            torch.ops.aten._convert_weight_to_int4pack_for_cpu(few.codes.int(), 1)
        )
        middle = few.least + 8 * few.scale  # the operator's numbers are (code − 8) · scale + middle
        self.grids = nn.Buffer(
            torch.stack([few.scale.T, middle.T], dim=2).contiguous()
        )  # (I / group, O, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows = x if self.factors is None else (x / self.factors).to(x.dtype)
        rows, grids = (
            rows.reshape(-1, x.shape[-1]).contiguous(),
            self.grids.to(x.dtype),
        )  # (…, I) → (N, I)
        product = torch.ops.aten._weight_int4pack_mm_for_cpu  # which knows no empty batch
        y = (
            product(rows, self.packed, self.group, grids)
            if len(rows)
            else rows.new_empty(0, grids.shape[1])
        )
        y = y.view(*x.shape[:-1], grids.shape[1])  # (N, O) → (…, O)
        return y if self.bias is None else y + self.bias


def _check(weight, bits, group):
    check.choice("bits", bits, range(2, 9))
    check.shape("weight", tuple(weight.shape), ("O", "I"))
    if weight.shape[1] % check.count("group", group):
        raise ValueError(
            f"group is {group}; wanted a divisor of {weight.shape[1]}, the inputs of weight"
        )
    if not torch.isfinite(weight).all():
        raise ValueError("weight holds NaN or infinity; wanted finite numbers")
