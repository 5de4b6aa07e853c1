"""Decoding: a GPT that writes one token after another, with the keys and values of those before
kept. B texts, t tokens of each so far, H numbers for each, a heads, d = H / a.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ed_lib.models import GPT, attention


@torch.no_grad()
def decode_step(net: GPT, tokens: Tensor, caches: list[list[Tensor]]) -> Tensor:
    """One more token of each text, (B,) → the scores of the one after it, (B, vocabulary).

    ``caches`` has a list for each block. A list is empty at the start of a text. Then it holds the
    keys and the values of the t tokens so far, (B, a, t, d) each, for a heads of d numbers. The new
    token's are added. ValueError when all positions are full, and if there are not as many lists
    as blocks.
    """
    blocks: Any = net.blocks
    lists = len({*map(id, caches)})
    if not lists == len(caches) == len(blocks):
        raise ValueError(
            f"caches holds {lists} lists in {len(caches)} places; "
            f"wanted one of its own for each of {len(blocks)} blocks"
        )
    # So many tokens have been read: a cache holds keys and values, (B, a, t, d) each.
    at = caches[0][0].shape[2] if caches[0] else 0
    if at == len(net.positions.weight):
        raise ValueError(f"{at} tokens are read; wanted fewer than the positions, {at}")
    # (B,) → (B, 1, H): a text of one token, at its place.
    h = net.tokens(tokens)[:, None] + net.positions.weight[at]
    for block, cache in zip(blocks, caches, strict=True):
        # The one query (B, a, 1, d) looks at the keys and values of all tokens up to its own, so
        # no mask is needed.
        def of_all(query, key, value, cache=cache):
            if cache:
                key = torch.cat([cache[0], key], 2)
                value = torch.cat([cache[1], value], 2)
            cache[:] = key, value
            return F.scaled_dot_product_attention(query, key, value)

        qkv = block.queries_keys_values(block.norm1(h))
        h = h + block.out(attention(qkv, block.heads, of_all))
        h = h + block.expand(block.norm2(h))
    # (B, 1, H) → (B, vocabulary)
    return net.norm(h)[:, 0] @ net.tokens.weight.T
