"""The networks that several chapters train: an MLP, LeNet, and two transformers of the same blocks.

B samples in a batch, T tokens in a sequence, H numbers for each, a heads, d = H / a.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ed_lib import check

RECOMPUTE = ("none", "selective", "full")


def mlp(widths: Sequence[int] = (784, 256, 256, 10), seed: int = 0) -> nn.Sequential:
    """A perceptron (B, widths[0]) → (B, widths[-1]), with a ReLU between its layers."""
    if len(widths) < 2:
        raise ValueError(f"widths is {widths}; wanted at least two")
    widths = [check.count("widths", width) for width in widths]
    layers: list[nn.Module] = []
    with _seeded(seed):
        for n_in, n_out in zip(widths[:-1], widths[1:], strict=True):
            layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def lenet(seed: int = 0) -> nn.Sequential:
    """LeNet in the sizes of d2l's section 13.5, 129,068 parameters: (B, 1, 28, 28) → (B, 10)."""
    with _seeded(seed):
        return nn.Sequential(
            nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2),  # → (B, 20, 26, 26) → (B, 20, 13, 13)
            nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2),  # → (B, 50, 9, 9) → (B, 50, 4, 4)
            nn.Flatten(), nn.Linear(800, 128), nn.ReLU(),  # → (B, 800) → (B, 128)
            nn.Linear(128, 10),  # → (B, 10)
        )  # fmt: skip


def attention(qkv: Tensor, heads: int, core: Callable) -> Tensor:
    """Queries, keys, values (B, T, 3H) → what each token gathers, (B, T, H); core: 3 × (B, a, T, d)
    → 1.
    """
    B, T, width = qkv.shape
    H = width // 3
    # (B, T, 3H) → three of (B, a, T, d)
    each = qkv.view(B, T, 3, heads, H // heads)
    q, k, v = each.permute(2, 0, 3, 1, 4)
    # (B, a, T, d) → (B, T, H)
    return core(q, k, v).transpose(1, 2).reshape(B, T, H)


def from_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention to a token itself and those before it, written out: three of (B, a, T, d) → one."""
    T, d = q.shape[-2:]
    # −∞ where a token must not look: at those after it, (T, T).
    never = torch.full((T, T), float("-inf"), dtype=q.dtype, device=q.device)
    later = never.triu(1)
    # (B, a, T, T)
    scores = q @ k.mT / d**0.5 + later
    return scores.softmax(-1) @ v


class Block(nn.Module):
    """Attention, then two linear layers; each adds to what it was given: (B, T, H) → (B, T, H).

    causal: a token sees those before it, a norm comes before each part (GPT-2); else all, a norm
    after each sum (BERT). recompute: "none"; "selective", the attention's core; or "full", the
    block.
    """

    def __init__(
        self, hidden: int, heads: int, recompute="none", causal: bool = True, eps: float = 1e-5
    ):
        super().__init__()
        if check.count("hidden", hidden) % check.count("heads", heads):
            raise ValueError(f"hidden is {hidden} and heads is {heads}; wanted a multiple of heads")
        check.choice("recompute", recompute, RECOMPUTE)
        self.heads = heads
        self.recompute = recompute
        self.causal = causal
        self.norm1 = nn.LayerNorm(hidden, eps)
        self.norm2 = nn.LayerNorm(hidden, eps)
        self.queries_keys_values = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.wide = nn.Linear(hidden, 4 * hidden)
        self.narrow = nn.Linear(4 * hidden, hidden)

    def forward(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: bool (B, 1, 1, T), which tokens are to be looked at; of a block that sees all."""
        if self.recompute == "full" and torch.is_grad_enabled():
            return checkpoint(self.compute, h, mask, use_reentrant=False)
        return self.compute(h, mask)

    def compute(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.causal:
            h = h + self.attend(self.norm1(h), mask)
            return h + self.expand(self.norm2(h))
        h = self.norm1(h + self.attend(h, mask))
        return self.norm2(h + self.expand(h))

    def attend(self, h: Tensor, mask: Tensor | None) -> Tensor:
        core: Callable = from_before
        if not self.causal:
            core = partial(F.scaled_dot_product_attention, attn_mask=mask)
        mix = partial(attention, heads=self.heads, core=core)
        # (B, T, H) → (B, T, 3H)
        qkv = self.queries_keys_values(h)
        # The scores (B, a, T, T) are most of what a block keeps, and quickly computed again.
        if self.recompute == "selective" and torch.is_grad_enabled():
            return self.out(checkpoint(mix, qkv, use_reentrant=False))
        return self.out(mix(qkv))

    def expand(self, h: Tensor) -> Tensor:
        # (B, T, H) → (B, T, 4H) → (B, T, H)
        return self.narrow(F.gelu(self.wide(h)))


class GPT(nn.Module):
    """Which token comes next: (B, T) of int64 → (B, T, vocabulary). The head is the embedding's
    matrix.
    """

    def __init__(
        self, vocabulary: int, positions: int, hidden: int = 64, heads: int = 4, layers: int = 4,
        recompute: str = "none", seed: int = 0,
    ):  # fmt: skip
        super().__init__()
        check.count("layers", layers)
        with _seeded(seed, self):
            self.tokens = nn.Embedding(vocabulary, hidden)
            self.positions = nn.Embedding(positions, hidden)
            self.blocks = nn.ModuleList(Block(hidden, heads, recompute) for _ in range(layers))
            self.norm = nn.LayerNorm(hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        # One position would be taken for all: broadcast, without an error.
        most = len(self.positions.weight)
        if tokens.shape[1] > most:
            came = f"tokens has the shape {tuple(tokens.shape)}"
            raise ValueError(f"{came}; wanted (B, T) with T of at most {most}")
        # (B, T) → (B, T, H)
        places = self.positions.weight[: tokens.shape[1]]
        h = self.tokens(tokens) + places
        for block in self.blocks:
            h = block(h)
        # (B, T, H) → (B, T, vocabulary)
        return self.norm(h) @ self.tokens.weight.T


class Encoder(nn.Module):
    """BERT-base (Devlin et al., 2019), 109,482,240 parameters, no dropout; and a layer for
    ``classes``.
    """

    def __init__(
        self, layers: int = 12, hidden: int = 768, heads: int = 12, vocabulary: int = 30_522,
        positions: int = 512, classes: int = 3, seed: int = 0, eps: float = 1e-5,
    ):  # fmt: skip
        super().__init__()
        check.count("layers", layers)
        with _seeded(seed, self):
            self.tokens = nn.Embedding(vocabulary, hidden)
            self.positions = nn.Embedding(positions, hidden)
            self.segments = nn.Embedding(2, hidden)
            self.norm = nn.LayerNorm(hidden, eps)
            self.layers = nn.ModuleList(
                Block(hidden, heads, "none", False, eps) for _ in range(layers)
            )
            self.pooler = nn.Linear(hidden, hidden)
            self.classes = nn.Linear(hidden, classes)

    def forward(
        self, tokens: Tensor, segments: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Tokens (B, T), segments of 0 or 1, mask: False for what only fills up → scores (B,
        classes).
        """
        # (B, T, H) → (B, H): the first token stands for the whole text.
        first = self.hidden(tokens, segments, mask)[:, 0]
        return self.classes(torch.tanh(self.pooler(first)))

    def hidden(
        self, tokens: Tensor, segments: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """What the last layer answers for each token: (B, T, H)."""
        kinds = self.segments.weight[0] if segments is None else self.segments(segments)
        places = self.positions.weight[: tokens.shape[1]]
        # (B, T, H)
        h = self.norm(self.tokens(tokens) + places + kinds)
        # (B, 1, 1, T): no query looks at the keys of what only fills up.
        keys = None if mask is None else mask[:, None, None]
        for layer in self.layers:
            h = layer(h, keys)
        return h


@contextlib.contextmanager
def _seeded(seed, net=None):
    """Draws from a generator of this seed alone; ``net``: matrices as GPT-2's and BERT's, of spread
    0.02.
    """
    check.count("seed", seed, least=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
        for matrix in (p for p in net.parameters() if p.dim() == 2) if net else ():
            nn.init.normal_(matrix, 0, 0.02)
