"""Decoding: a GPT that writes one token after another, with the keys and values of those before kept."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ed_lib.models import GPT, Block


@torch.no_grad()
def step(net: GPT, tokens: Tensor, caches: list[list[Tensor]]) -> Tensor:
    """One more token of each text, (B,) → the scores of the one after it, (B, vocabulary).

    caches: a list for each block, empty at the start of a text. ValueError when all positions are full.
    """
    at, most = caches[0][0].shape[2] if caches[0] else 0, len(net.positions.weight)
    if at == most:
        raise ValueError(f"{at} tokens are read; wanted fewer than the positions, {most}")
    h = net.tokens(tokens)[:, None] + net.positions.weight[at]  # (B,) → (B, 1, H)
    blocks: Any = net.blocks
    for block, cache in zip(blocks, caches, strict=True):
        h = h + attend(block, block.norm1(h), cache)
        h = h + block.expand(block.norm2(h))
    return net.norm(h)[:, 0] @ net.tokens.weight.T  # (B, 1, H) → (B, vocabulary)


def attend(block: Block, h: Tensor, cache: list[Tensor]) -> Tensor:
    """A block's attention of the newest token, (B, 1, H) → (B, 1, H).

    cache: keys and values of the tokens before it, (B, a, t, d) each, which do not change; its own are added.
    """
    qkv = block.queries_keys_values(h).view(len(h), 3, block.heads, 1, -1)
    q, *new = qkv.unbind(1)  # three of (B, a, 1, d)
    cache[:] = [torch.cat(pair, 2) for pair in zip(cache, new, strict=True)] if cache else new
    k, v = cache  # (B, a, t + 1, d) each
    return block.out(F.scaled_dot_product_attention(q, k, v).view(h.shape))  # (B, a, 1, d) → (B, 1, H)
