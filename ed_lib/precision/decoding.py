"""Decoding: a GPT that writes one token after another, with the keys and values of those before
kept.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ed_lib.models import GPT, attention


@torch.no_grad()
def decode_step(net: GPT, tokens: Tensor, caches: list[list[Tensor]]) -> Tensor:
    """One more token of each text, (B,) → the scores of the one after it, (B, vocabulary).

    caches: a list for each block, empty at the start of a text, then its keys and values, (B, a, t,
    d) each, which do not change; the new token's are added. ValueError when all positions are full.
    """
    at = caches[0][0].shape[2] if caches[0] else 0
    if at == len(net.positions.weight):
        raise ValueError(f"{at} tokens are read; wanted fewer than the positions, {at}")
    h = net.tokens(tokens)[:, None] + net.positions.weight[at]  # (B,) → (B, 1, H)
    blocks: Any = net.blocks
    for block, cache in zip(blocks, caches, strict=True):

        def of_all(q, *new, cache=cache):  # three of (B, a, 1, d) → (B, a, 1, d)
            cache[:] = (
                [torch.cat(pair, 2) for pair in zip(cache, new, strict=True)] if cache else new
            )
            return F.scaled_dot_product_attention(q, *cache)

        h = h + block.out(attention(block.queries_keys_values(block.norm1(h)), block.heads, of_all))
        h = h + block.expand(block.norm2(h))
    return net.norm(h)[:, 0] @ net.tokens.weight.T  # (B, 1, H) → (B, vocabulary)
