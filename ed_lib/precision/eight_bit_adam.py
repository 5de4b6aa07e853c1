"""Adam whose two averages are kept in eight bits each: 2 bytes a weight in place of 8.

T. Dettmers and others, "8-bit optimizers via block-wise quantization" (2021), arXiv 2110.02861. An average is
cut into blocks, each with a scale, its largest magnitude. A code is a number from −1 to 1, times that.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ed_lib import check

KINDS = "dynamic", "linear"
KEYS = "mean", "square"
SMALL = 4096  # parameters of fewer numbers keep averages in float32, as in bitsandbytes and torchao


def numbers(kind: str, signed: bool) -> Tensor:
    """What the 256 codes stand for, ascending, float32 (256,). "linear": evenly spaced. "dynamic": half of
    them between 0.1 and 1, half of the rest in the decade below, and so on down to 10⁻⁷; and 0 and 1.
    """
    if kind == "linear":
        return torch.arange(-127, 129) / 127 if signed else torch.arange(256) / 255
    found = [torch.tensor([0.0, 1.0])]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (6 - decade + (not signed)) + 1)
        middles = 10.0**-decade * (edges[1:] + edges[:-1]) / 2
        found += [middles, -middles] if signed else [middles]
    return torch.cat(found).sort().values


def encode(x: Tensor, table: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """x of n numbers → the nearest codes, uint8 (blocks, block), filled up with 0, and scales (blocks,). NaN
    counts as 0 and infinity as the largest number, so that they do not reach their neighbours.
    """
    rows = torch.nn.functional.pad(x.flatten().nan_to_num(), (0, -x.numel() % block)).view(-1, block)
    scale = rows.abs().amax(1)  # (blocks,)
    middles = (table[1:] + table[:-1]) / 2  # from here on the next code is nearer
    share = rows / scale.clamp(min=1e-38)[:, None]  # −1 to 1
    return torch.bucketize(share, middles, right=True).to(torch.uint8), scale


def decode(codes: Tensor, scale: Tensor, table: Tensor, like: Tensor) -> Tensor:
    """The numbers of :func:`encode`'s codes, in the shape of ``like``."""
    return (table[codes.int()] * scale[:, None]).flatten()[: like.numel()].view(like.shape)


class Adam8bit(torch.optim.Optimizer):
    """``torch.optim.Adam``, with averages in eight bits. kind: of the codes, "dynamic" or "linear"; block: so
    many neighbours share a scale, or None: a whole parameter does.
    """

    def __init__(
        self, params: Iterable, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, kind: str = "dynamic", block: int | None = 2048,
    ):  # fmt: skip
        check.choice("kind", kind, KINDS)
        self.block = None if block is None else check.count("block", block)
        self.tables = numbers(kind, True), numbers(kind, False)  # of the average, of that of squares
        super().__init__(params, dict(lr=check.positive("lr", lr), betas=betas, eps=eps))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Each weight by Adam's formula; the averages are float32 only while they are at work."""
        for group in self.param_groups:
            for p in [p for p in group["params"] if p.grad is not None]:
                self.move(p, p.grad, self.state[p], **group)

    def move(self, p: Tensor, g: Tensor, state: Any, lr: float, betas: tuple, eps: float, **_: Any) -> None:
        """One step of a parameter with the gradient g."""
        n = state["step"] = state.get("step", 0) + 1
        averages: list[Tensor] = []
        for key, table, beta, new in zip(KEYS, self.tables, betas, (g, g**2), strict=True):
            table, kept = table.to(p.device), [*state.get(key, [torch.zeros_like(p)])]
            before = kept[0] if len(kept) == 1 else decode(kept[0], kept[1], table, p)
            average = beta * before + (1 - beta) * new
            state[key] = encode(average, table, self.block or p.numel()) if p.numel() >= SMALL else (average,)
            averages.append(average / (1 - beta**n))
        mean, square = averages
        p.sub_(lr * mean / (square.sqrt() + eps))

    def bytes(self) -> int:
        """Of the averages."""
        return sum(t.nbytes for s in self.state.values() for key in KEYS for t in s[key])
