"""A small GPT whose blocks forget what they can compute again.

Letters: b sequences, T tokens, H hidden, a heads, d = H / a.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ed_lib import check

RECOMPUTE = ("none", "selective", "full")


class Recompute(torch.autograd.Function):
    """Keeps a function's input instead of all that its backward pass needs, and computes it once more then.

    T. Chen and others, "Training deep nets with sublinear memory cost" (2016). Randomness is repeated.
    """

    @staticmethod
    def forward(ctx: Any, function: Callable, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        """``function(x)``, of which autograd sees nothing; parameters: those that it uses."""
        ctx.function, ctx.parameters, ctx.random = function, parameters, torch.get_rng_state()
        ctx.save_for_backward(x)
        return function(x)  # without gradients: here autograd is off

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple:
        """The gradients of x and of the parameters, after a second forward pass."""
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.random)
            y = ctx.function(x)
        return None, *torch.autograd.grad(y, (x, *ctx.parameters), dy, allow_unused=True)


def recompute(function: Callable, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    """``function(x)``, computed once more in the backward pass. On a CPU."""
    return Recompute.apply(function, x, *parameters)


class Block(nn.Module):
    """Attention to what came before, then two linear layers; a norm before each: (b, T, H) → (b, T, H).

    recompute: "none"; "selective", the attention's core, whose softmax is T numbers for each token and head;
    or "full", the block. All three compute the same numbers.
    """

    def __init__(self, hidden: int, heads: int, recompute: str = "none"):
        super().__init__()
        if check.count("hidden", hidden) % check.count("heads", heads):
            raise ValueError(f"hidden is {hidden} and heads is {heads}; wanted a multiple of heads")
        check.choice("recompute", recompute, RECOMPUTE)
        self.heads, self.recompute = heads, recompute
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.queries_keys_values, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.wide, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if self.recompute == "full" and torch.is_grad_enabled():
            return recompute(self.compute, h, *self.parameters())
        return self.compute(h)

    def compute(self, h: torch.Tensor) -> torch.Tensor:
        qkv = self.queries_keys_values(self.norm1(h))  # (b, T, H) → (b, T, 3H)
        if self.recompute == "selective" and torch.is_grad_enabled():
            h = h + self.out(recompute(self.attend, qkv))
        else:
            h = h + self.out(self.attend(qkv))
        return h + self.narrow(F.gelu(self.wide(self.norm2(h))))

    def attend(self, qkv: torch.Tensor) -> torch.Tensor:
        """(b, T, 3H) → (b, T, H)."""
        b, T, H = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        q, k, v = qkv.view(b, T, 3, self.heads, H // self.heads).permute(2, 0, 3, 1, 4)  # 3 × (b, a, T, d)
        later = torch.full((T, T), float("-inf"), dtype=qkv.dtype).triu(1)  # what a token must not see
        scores = q @ k.mT / q.shape[-1] ** 0.5 + later  # (b, a, T, T)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, T, H)


class GPT(nn.Module):
    """Which token comes next: (b, T) of int64 → (b, T, vocabulary). The head is the embedding's matrix."""

    def __init__(
        self, vocabulary: int, positions: int, hidden: int = 64, heads: int = 4, layers: int = 4,
        recompute: str = "none", seed: int = 0,
    ):  # fmt: skip
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(positions, hidden)
            self.blocks = nn.ModuleList(Block(hidden, heads, recompute) for _ in range(layers))
            self.norm = nn.LayerNorm(hidden)
            for matrix in (p for p in self.parameters() if p.dim() == 2):
                nn.init.normal_(matrix, 0, 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]  # (b, T) → (b, T, H)
        for block in self.blocks:
            h = block(h)
        return self.norm(h) @ self.tokens.weight.T  # (b, T, H) → (b, T, vocabulary)
