"""Splitting what does not fit elsewhere: a sequence over ranks (ring attention), and experts over ranks.

b sequences, a heads, T tokens of which a rank has T/p, d numbers a head; n tokens of H numbers. H. Liu, M.
Zaharia and P. Abbeel, "Ring attention" (2023); D. Lepikhin et al., "GShard" (2020).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ed_lib.parallel.ranks.collectives import Traffic, Wire


class Shift(torch.autograd.Function):
    """Each rank's tensor goes to the next rank of the ring; its gradient comes back from there."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, wire: Wire) -> torch.Tensor:
        """What the rank before has."""
        ctx.wire = wire
        return _shifted(x, wire, 1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """To the rank before, that of what came from it."""
        return _shifted(gradient, ctx.wire, -1), None


def ring_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, wire: Wire | None = None
) -> tuple[torch.Tensor, Traffic]:
    """Causal attention of a sequence that is cut over the ranks: (b, a, T/p, d) each → (the same, what this
    rank sent forward).

    Keys and values go round a ring; a rank meets one part of them at a time and keeps, for each of its
    tokens, the largest score so far, the sum of weights and the weighted sum of values. Rank r has part r of
    the sequence. To stay short, it computes the scores of later parts too, and masks them. Gradients are
    exact.
    """
    wire = wire or Wire()
    n, scale = q.shape[2], q.shape[-1] ** -0.5
    place = torch.arange(n, device=q.device)  # in a part
    most = torch.full_like(q[..., :1], float("-inf"))  # (b, a, T/p, 1)
    weight, total = torch.zeros_like(most), torch.zeros_like(q)
    for step in range(wire.size):
        part = (wire.rank - step) % wire.size  # whose keys and values are here
        later = part * n + place[None, :] > wire.rank * n + place[:, None]  # (T/p, T/p)
        scores = (q @ k.mT * scale).masked_fill(later, float("-inf"))  # (b, a, T/p, T/p)
        new = torch.maximum(most, scores.amax(-1, keepdim=True)).detach()
        old, now = torch.exp(most - new), torch.exp(scores - new)
        weight, total = weight * old + now.sum(-1, keepdim=True), total * old + now @ v
        most = new
        if step < wire.size - 1:
            both = Shift.apply(torch.cat([k, v], dim=-1), wire)  # (b, a, T/p, 2d)
            k, v = both.chunk(2, dim=-1)
    return total / weight, wire.traffic


def experts(
    x: torch.Tensor, chosen: torch.Tensor, expert: nn.Module, wire: Wire | None = None
) -> tuple[torch.Tensor, Traffic]:
    """What ``expert`` of rank ``chosen`` makes of each token: (n, H), (n,) of int64 → ((n, H), what was
    sent).

    Every rank has tokens of its own, and one expert. Tokens go to their experts and come back: twice an
    all-to-all, in which a rank sends every other rank something else. Forward only.
    """
    wire = wire or Wire()
    order = chosen.argsort(stable=True)  # tokens, by the rank that they go to
    there = torch.bincount(chosen, minlength=wire.size)  # (p,): how many go to each
    here = torch.empty_like(there)
    dist.all_to_all_single(here, there, group=wire.group)  # how many come from each; not counted
    came = _all_to_all(x[order], there.tolist(), here.tolist(), wire)
    back = _all_to_all(expert(came), here.tolist(), there.tolist(), wire)
    result = torch.empty_like(back)
    result[order] = back
    return result, wire.traffic


def _all_to_all(x, sent, received, wire):
    """Rows of x, ``sent[r]`` of them to rank r, in order → those that came, ordered by rank."""
    out, coming = list(x.split(sent)), [x.new_empty(n, x.shape[1]) for n in received]
    coming[wire.rank] = out[wire.rank]
    for step in range(1, wire.size):  # to the rank so far ahead, from the one so far behind
        to, source = (wire.rank + step) % wire.size, (wire.rank - step) % wire.size
        wire.exchange(out[to].contiguous(), to, coming[source], source)
    return torch.cat(coming)


def _shifted(x, wire, by):
    received = torch.empty_like(x, memory_format=torch.contiguous_format)
    wire.exchange(x.contiguous(), (wire.rank + by) % wire.size, received, (wire.rank - by) % wire.size)
    return received
