"""What a training step sends, for each way to cut the same stack of layers: by formula, and counted.

L linear layers, W × W, without biases, and B samples; sums by a ring. All ranks send 2(p − 1) times: "data",
a part of the batch each, L·W² numbers; "tensor", a cut through the layers, in blocks of two, B·W numbers for
each of L/2 sums forward and L/2 − 1 back; "pipeline", a cut between layers, B·W numbers.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ed_lib import check
from ed_lib.parallel import replica
from ed_lib.parallel.collectives import Traffic
from ed_lib.parallel.pipeline import Pipeline, cut
from ed_lib.parallel.schedules import one_f_one_b
from ed_lib.parallel.tensor_parallel import ParallelMLP

CUTS = ("data", "tensor", "pipeline")


def bytes_sent(way: str, layers: int, width: int, batch: int, p: int, itemsize: int = 4) -> int:
    """The bytes that all p ranks together send in a step, by the formulas above. ``layers``: an even L."""
    check.choice("way", way, CUTS)
    if layers % 2:
        raise ValueError(f"layers is {layers}; wanted an even number, since blocks have two")
    numbers = {"data": layers * width**2, "tensor": (layers - 1) * batch * width, "pipeline": batch * width}
    return 2 * (p - 1) * numbers[way] * itemsize


def counted(layers: int, width: int, batch: int) -> dict[str, Traffic]:
    """For ``launch``: what this rank sends in a step → {way: Traffic}.

    In float64, from the same weights and batch; gradients are compared, so that it is the same work.
    """
    torch.manual_seed(0)
    rank, p = dist.get_rank(), dist.get_world_size()
    loss = nn.functional.mse_loss
    found: dict[str, Traffic] = {}
    model: Any = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))).double()
    x, target = torch.randn(2, batch, width, dtype=torch.float64)

    rows = replica.shard(torch.arange(batch))
    (loss(model(x[rows]), target[rows]) * len(rows)).backward()
    weights = list(model.parameters())
    found["data"] = replica.reduce_each(weights, batch)
    wanted = [weight.grad.clone() for weight in weights]  # L times (W, W)

    blocks = [ParallelMLP(model[i], model[i + 1], nn.Identity()) for i in range(0, layers, 2)]
    loss(nn.Sequential(*blocks)(x), target).backward()
    found["tensor"] = sum((each for b in blocks for sums in b.sent.values() for each in sums), Traffic())
    for n, block in enumerate(blocks):
        torch.testing.assert_close(block.first.weight.grad, wanted[2 * n].tensor_split(p)[rank])
        torch.testing.assert_close(block.second.weight.grad, wanted[2 * n + 1].tensor_split(p, 1)[rank])

    model.zero_grad()
    worker = Pipeline(cut(model, p), loss, x.shape, 2, one_f_one_b)
    found["pipeline"] = sum(worker.run(x, target).sent.values(), Traffic())
    for weight, gradient in zip(weights, wanted, strict=True):
        if weight.grad is not None:  # it is in this rank's part
            torch.testing.assert_close(weight.grad, gradient)
    return found


def counted_each(shapes: Sequence[tuple[int, int, int]]) -> list[dict[str, Traffic]]:
    """:func:`counted` for each of several (layers, width, batch), in one launch."""
    return [counted(*shape) for shape in shapes]
