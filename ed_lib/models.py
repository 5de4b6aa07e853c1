"""The three networks that part III trains: an MLP, LeNet, and an encoder of the shape of BERT-base.

B samples in a batch, T tokens in a sequence, H cells of the encoder.
"""

import contextlib
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from ed_lib import check


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
            nn.Conv2d(1, 20, 3),  # (B, 1, 28, 28) → (B, 20, 26, 26)
            nn.ReLU(),
            nn.AvgPool2d(2),  # → (B, 20, 13, 13)
            nn.Conv2d(20, 50, 5),  # → (B, 50, 9, 9)
            nn.ReLU(),
            nn.AvgPool2d(2),  # → (B, 50, 4, 4)
            nn.Flatten(),  # → (B, 800)
            nn.Linear(800, 128),  # → (B, 128)
            nn.ReLU(),
            nn.Linear(128, 10),  # → (B, 10)
        )


class Encoder(nn.Module):
    """An encoder for sentences in the sizes of BERT-base (Devlin et al., 2019), 109,482,240 parameters, and a
    linear layer for the ``classes``: tokens (B, T) of int64 → scores (B, classes).

    Its weights are random: it is here to be timed. Dropout is left out.
    """

    def __init__(
        self, layers: int = 12, hidden: int = 768, heads: int = 12, vocabulary: int = 30_522,
        positions: int = 512, classes: int = 3, seed: int = 0,
    ):  # fmt: skip
        super().__init__()
        check.count("layers", layers)
        if check.count("hidden", hidden) % check.count("heads", heads):
            raise ValueError(f"hidden is {hidden} and heads is {heads}; wanted a multiple of heads")
        with _seeded(seed):
            self.tokens = nn.Embedding(vocabulary, hidden)
            self.positions = nn.Embedding(positions, hidden)
            self.segments = nn.Embedding(2, hidden)
            self.norm = nn.LayerNorm(hidden)
            self.layers = nn.ModuleList(EncoderLayer(hidden, heads) for _ in range(layers))
            self.pooler = nn.Linear(hidden, hidden)
            self.classes = nn.Linear(hidden, classes)
            for matrix in (p for p in self.parameters() if p.dim() == 2):
                nn.init.normal_(matrix, 0, 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        T = tokens.shape[1]
        h = self.tokens(tokens) + self.positions.weight[:T] + self.segments.weight[0]  # (B, T) → (B, T, H)
        h = self.norm(h)
        for layer in self.layers:
            h = layer(h)
        h = torch.tanh(self.pooler(h[:, 0]))  # (B, T, H) → (B, H)
        return self.classes(h)  # → (B, classes)


class EncoderLayer(nn.Module):
    """Attention, then two linear layers; a sum and a LayerNorm after each: (B, T, H) → (B, T, H)."""

    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm1 = nn.LayerNorm(hidden)
        self.wide = nn.Linear(hidden, 4 * hidden)
        self.narrow = nn.Linear(4 * hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        B, T, H = h.shape
        qkv = self.queries_keys_values(h).view(B, T, 3, self.heads, -1)  # (B, T, 3H) → (B, T, 3, heads, d)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # → three of (B, heads, T, d)
        mixed = F.scaled_dot_product_attention(q, k, v)
        mixed = mixed.transpose(1, 2).reshape(B, T, H)  # (B, heads, T, d) → (B, T, H)
        h = self.norm1(h + self.out(mixed))
        return self.norm2(h + self.narrow(F.gelu(self.wide(h))))


@contextlib.contextmanager
def _seeded(seed):
    """Draws from torch's generator of this seed, and leaves the global one as it was."""
    check.count("seed", seed, least=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
