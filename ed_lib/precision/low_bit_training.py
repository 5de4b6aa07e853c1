"""Training with products of 8- and 4-bit numbers: how matrices are scaled and rounded before a
product.

A linear layer multiplies three times a step. With x (N, I), weights w (I, O) and the gradient g (N,
O) of x w:

    x w, summed over I        g wᵀ, summed over O        xᵀ g, summed over N

Numbers that share a scale lie along the axis that is summed over, so that a product of blocks is
multiplied by its scales once. So each matrix is rounded twice, along one axis and along the other.
Hardware that has such products sums them in float32; here the rounded numbers are float32 numbers,
and so are their products.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ed_lib import check
from ed_lib.precision.formats import FORMATS, nearest, power

HADAMARD = 16  # so many neighbours a Hadamard transform mixes, 2⁴ of them
LARGEST = torch.finfo(torch.float32).max
TINY = 2.0**-126  # 1 / TINY is still finite


@dataclass(frozen=True)
class Scaling:
    """How a matrix is brought into a format of few bits.

    format: a key of FORMATS, "float32" for no rounding. block: (across, along) the axis that is
    summed over: so many neighbours have a scale, for None all; without: one scale for all. scale:
    what takes the largest number of a block to the format's largest. "float32": exactly. "floor"
    and "ceil": a power of two, rounded down (as OCP's MX formats have it, 2023: the largest may
    saturate) or up (Mishra and others, arXiv 2506.08027). "e4m3": rounded to E4M3. "two-level": the
    same, after one scale of float32 for the whole matrix (NVFP4, arXiv 2509.25149). "none": no
    scale. history: delayed scaling: the largest of the last so many steps in place of this one's;
    0: this one's. stochastic: rounded up or down at random, so that the mean is right.
    """

    format: str = "e4m3"
    block: tuple[int | None, int | None] | None = None
    scale: str = "float32"
    history: int = 0
    stochastic: bool = False

    def __post_init__(self):
        check.choice("format", self.format, FORMATS)
        check.choice("scale", self.scale, ("none", "float32", "floor", "ceil", "e4m3", "two-level"))
        check.count("history", self.history, least=0)
        # These have float32's range: there is nothing to bring into it.
        if self.format in ("tf32", "bfloat16") and self.scale != "none":
            raise ValueError(f"scale is {self.scale!r}; wanted 'none' for {self.format}")
        for size in filter(lambda size: size is not None, self.block or ()):
            check.count("block", size)


@dataclass(frozen=True)
class Recipe:
    """How ``x``, ``w`` and ``g`` are scaled. hadamard: for xᵀ g both are first mixed along N, in
    sixteens, by the same random orthogonal matrix of ± 1/4: the product stays, outliers are spread
    over their neighbours.
    """

    x: Scaling = Scaling()
    w: Scaling = Scaling()
    g: Scaling = Scaling()
    hadamard: bool = False


AS_IT_IS = Scaling(scale="none")
E5M2 = Scaling("e5m2")
LATER = Scaling(history=16)
ROWS = Scaling(block=(1, 128))
FOUR = Scaling("e2m1", (1, 16), "two-level")
A_ROW = Scaling("e2m1", (1, None))  # one for each sum of a product: a row of x, a column of w
# The same scaling for x, w and g.
EVERYWHERE = {
    "bfloat16": Scaling("bfloat16", scale="none"),
    "E4M3, no scale": AS_IT_IS,
    "E4M3, per tensor": Scaling(),
    "MXFP8, floor": Scaling(block=(1, 32), scale="floor"),
    "MXFP8, ceil": Scaling(block=(1, 32), scale="ceil"),
    "MXFP4": Scaling("e2m1", (1, 32), "floor"),
    "E2M1, per row": A_ROW,
    "NVFP4, to nearest": FOUR,
}
# Gradients in E5M2, which has more range; weights in squares, which turned are the same.
RECIPES = {name: Recipe(how, how, how) for name, how in EVERYWHERE.items()} | {
    "hybrid, no scale": Recipe(AS_IT_IS, AS_IT_IS, replace(E5M2, scale="none")),
    "hybrid, per tensor": Recipe(g=E5M2),
    "hybrid, delayed": Recipe(LATER, LATER, replace(E5M2, history=16)),
    "E4M3, blocks of 128": Recipe(ROWS, replace(ROWS, block=(128, 128)), ROWS),
    "NVFP4": Recipe(FOUR, replace(FOUR, block=(16, 16)), replace(FOUR, stochastic=True), True),
}


def scaled(
    x: Tensor, how: Scaling, axis: int = 1, *, largest: Tensor | None = None,
    random: torch.Generator | None = None,
) -> Tensor:  # fmt: skip
    """A matrix (R, C) of float32 as it comes back from few bits: divided by its scales, rounded,
    multiplied.

    axis: the one that products sum over. largest: () in place of the largest of x, where that is
    finite. random: what stochastic rounding draws from. Blocks of zeros stay zeros; NaN or infinity
    make a block NaN.
    """
    f = FORMATS[how.format]
    draw = random if how.stochastic else None
    if x.ndim != 2 or x.dtype != torch.float32:
        raise ValueError(f"x is {x.dtype} of shape {tuple(x.shape)}; wanted a matrix of float32")
    if how.format == "float32" or not x.numel():
        return x
    if how.scale == "none":
        # Eight bits saturate; sixteen overflow, as they do in hardware.
        return nearest(x, how.format, draw, saturate=f.bits <= 8)
    blocks = _blocks(x, how.block, axis)
    most = blocks.abs().amax(dim=(1, 3), keepdim=True)  # (R / r, 1, C / c, 1)
    if largest is not None:
        most = most.where(~most.isfinite(), largest)
    scale = _scales(most, f, how.scale).where(most.isfinite(), torch.nan)
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    rounded = nearest(blocks * inverse, how.format, draw) * scale
    # What is rounded up may lie a step above the largest that x had: beyond float32.
    return rounded.clamp_(-LARGEST, LARGEST).view(x.shape)


def _blocks(x, block, axis):
    """A matrix (R, C) in blocks of r rows and c columns: (R / r, r, C / c, c)."""
    across, along = block or (None, None)
    across = x.shape[1 - axis] if across is None else across
    along = x.shape[axis] if along is None else along
    r, c = (across, along) if axis == 1 else (along, across)
    if x.shape[0] % r or x.shape[1] % c:
        wanted = f"a multiple of its blocks, {(r, c)}"
        raise ValueError(f"x has the shape {tuple(x.shape)}; wanted {wanted}")
    return x.reshape(x.shape[0] // r, r, x.shape[1] // c, c)


def _scales(most, f, kind):
    """The largest of each block → what the block is divided by; of a block of zeros 0."""
    if kind == "float32":
        return torch.where(most == 0, 0.0, (most / f.largest).clamp(min=TINY))
    if kind in ("floor", "ceil"):
        scale = power(most) / power(most.new_tensor(f.largest))
        if kind == "ceil":
            scale = torch.where(most > scale * f.largest, 2 * scale, scale)
        # The powers of two that E8M0 has, the format of MX's scales.
        return torch.where(most == 0, 0.0, scale.clamp(2.0**-127, 2.0**127))
    overall = most.new_ones(())
    if kind == "two-level":
        # The largest block's scale becomes E4M3's largest number.
        overall = most.max() / (f.largest * FORMATS["e4m3"].largest)
    wanted = torch.where(overall == 0, 0.0, most / f.largest / overall)
    scale = nearest(wanted, "e4m3") * overall
    # Such a product may be a subnormal number, and its inverse infinite: 0 · inf would be NaN.
    return torch.where(scale == 0, 0.0, scale.clamp(min=TINY))


def mixed(x: Tensor, signs: Tensor) -> Tensor:
    """Each sixteen neighbours of the first axis by a random Hadamard matrix: x (16 n, C), else a
    ValueError, signs (16,) of ± 1 → (16 n, C). Orthogonal: mixed(x, s)ᵀ mixed(y, s) = xᵀ y.
    """
    if len(x) % HADAMARD:
        raise ValueError(f"x has {len(x)} rows; wanted a multiple of {HADAMARD}")
    # (16, 16), of ± 1: its rows are orthogonal, and of length 4.
    H = reduce(torch.kron, 4 * [torch.tensor([[1.0, 1.0], [1.0, -1.0]])])
    matrix = (H * signs).to(x.device) / HADAMARD**0.5
    # (N / 16, 16, C) → (N, C)
    return (matrix @ x.view(-1, HADAMARD, x.shape[1])).view(x.shape)


class low_bits(TorchFunctionMode):  # lower case, as autocast
    """``with low_bits(recipe, weights):`` makes each product x @ w inside, and the two of its
    backward pass, products of few bits, wherever w is one of the ``weights``: {name: matrix (I,
    O)}. All else stays. ValueError for a product that writes into ``out``.

    A delayed scale begins with the first step's own largest number. seed: of what is random.
    """

    def __init__(self, recipe: Recipe, weights: Mapping[str, Tensor], seed: int = 0):
        super().__init__()
        self.recipe = recipe
        self.names = {id(w): (name, w) for name, w in weights.items()}  # w, or its id is free again
        self.random = torch.Generator().manual_seed(seed)
        self.signs = torch.randint(2, (HADAMARD,), generator=self.random) * 2.0 - 1
        # {(name, role): the largest numbers of the last steps}
        self.seen: dict[tuple[str, str], deque] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.__name__ not in ("matmul", "__matmul__"):
            return func(*args, **kwargs)
        x, w, out = _operands(*args, **kwargs)
        if id(w) not in self.names:
            return func(*args, **kwargs)
        name, _ = self.names[id(w)]
        if out is not None:
            raise ValueError(f"the product with {name} has out; wanted one without")
        return Product.apply(x, w, self, name)

    def round(self, name: str, role: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """A matrix in a role, "x", "w" or "g", of the weights of this name → it, for a product that
        sums over its second axis, and for one that sums over its first.
        """
        how = getattr(self.recipe, role)
        largest = None
        if how.history and x.numel():
            seen = self.seen.setdefault((name, role), deque(maxlen=how.history))
            largest = self.largest_before(seen, x.abs().max())
        turned = mixed(x, self.signs) if self.recipe.hadamard and role != "w" else x
        second = scaled(x, how, 1, largest=largest, random=self.random)
        # Square blocks have the same scales along either axis.
        if turned is x and (how.block is None or how.block[0] == how.block[1]):
            return second, second
        return second, scaled(turned, how, 0, largest=largest, random=self.random)

    @staticmethod
    def largest_before(seen: deque, now: Tensor) -> Tensor:
        """The largest number of the last steps, once this one's is noted for the next."""
        before = torch.stack([*seen]).max() if seen else now
        # An infinity would leave no scale to the steps to come; a 0 stands for no number.
        seen.append(now.where(now.isfinite(), 0.0))
        return torch.where(before > 0, before, now)


def _operands(input, other, *, out=None):
    """What a product is given, whether by place or by torch's names."""
    return input, other, out


class Product(torch.autograd.Function):
    """x (…, I), w (I, O) → x w (…, O), by three products of few bits in all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, mode: low_bits, name: str) -> Tensor:
        # (…, I) → (N, I), of a vector N = 1, and (I, O); each is rounded along either of its axes.
        x_along_i, x_along_n = mode.round(name, "x", x.reshape(-1, x.shape[-1]))
        w_along_o, w_along_i = mode.round(name, "w", w)
        ctx.save_for_backward(x_along_n, w_along_o)
        ctx.shape = x.shape
        ctx.mode, ctx.name = mode, name
        # (N, O) → (…, O)
        return (x_along_i @ w_along_i).view(*x.shape[:-1], w.shape[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:  # type: ignore[override]
        x_along_n, w_along_o = ctx.saved_tensors
        # (…, O) → (N, O), rounded along O for the one product and along N for the other
        g_along_o, g_along_n = ctx.mode.round(ctx.name, "g", g.reshape(-1, g.shape[-1]))
        # g wᵀ, summed over O: (N, I) → (…, I)
        x_gradient = (g_along_o @ w_along_o.t()).view(ctx.shape)
        # xᵀ g, summed over N: (I, O)
        w_gradient = x_along_n.t() @ g_along_n
        return x_gradient, w_gradient, None, None


class Bfloat16Weights:
    """Keeps an optimizer's parameters at numbers of bfloat16: from here on each step's sum is
    rounded.

    how: "nearest"; "stochastic": up or down at random, right in the mean; "kahan": to nearest, and
    what was rounded off is kept, in bfloat16 too, and added at the next step (Kahan summation; P.
    Zamirai and others, "Revisiting BFloat16 training", arXiv 2010.06192). Bytes a weight: 2, 2 and
    4; with a master copy 6.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, how: str, seed: int = 0):
        check.choice("how", how, ("nearest", "stochastic", "kahan"))
        self.how = how
        self.random = torch.Generator().manual_seed(seed) if how == "stochastic" else None
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.rest = [torch.zeros_like(p) for p in self.parameters]  # what was rounded off
        for p in self.parameters:
            p.data.copy_(p.data.bfloat16())
        optimizer.register_step_pre_hook(self.remember)
        optimizer.register_step_post_hook(self.round)

    def remember(self, *_: Any) -> None:
        """Before a step: the weights as they are."""
        self.before = [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def round(self, *_: Any) -> None:
        """After a step, whose sums are in float32."""
        for p, before, rest in zip(self.parameters, self.before, self.rest, strict=True):
            update = p - before + rest
            total = before + update if self.how == "kahan" else p
            p.copy_(nearest(total, "bfloat16", self.random, saturate=False))
            if self.how == "kahan":
                # p − before is what the weight has really moved by.
                rest.copy_((update - (p - before)).bfloat16())
