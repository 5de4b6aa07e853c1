"""Data parallelism over processes: every rank holds a replica and a shard, and the gradients are summed.

They are kept in a few flat buckets, and a bucket's sum is started while the backward pass still computes the
next: S. Li and others, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training"
(2020). Losses are summed over samples, gradients over ranks, and what comes out is divided by the size of the
global batch: so shards may be uneven, or empty.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from ed_lib import check
from ed_lib.parallel import collectives

BUCKET_BYTES = 25 * 2**20  # as in PyTorch; a smaller network fits into one, and then nothing overlaps


@dataclass
class Bucket:
    """Gradients side by side: ``flat`` (n,), and for each parameter the view of it that is its ``grad``."""

    flat: torch.Tensor
    views: dict[torch.Tensor, torch.Tensor] = field(repr=False)  # {parameter: view}
    awaited: set[torch.Tensor] = field(repr=False)  # those whose gradient this step has not computed yet

    @property
    def bytes(self) -> int:
        return self.flat.numel() * self.flat.element_size()


class Replica:
    """A module that all ranks train together, each on its shard of the batch.

    A step: ``zero_grad()``, the backward pass of a loss *summed* over this rank's samples, ``finish(B)`` with
    B the samples of all ranks, and then any optimizer's step.

    It starts from rank 0's parameters and buffers. Gradients lie in ``buckets`` of at most ``bucket_bytes``
    bytes, or of one larger parameter, from the last parameter to the first. With ``overlap`` a bucket is
    summed as soon as it is complete and all before it have been started, else in ``finish``. ``calls`` and
    ``bytes`` count what was summed. If the ranks' parameters differ, every rank gets a ValueError.
    """

    def __init__(self, module: torch.nn.Module, bucket_bytes: int = BUCKET_BYTES, overlap: bool = True):
        collectives.agree(f"Replica({_layout(module)}, {bucket_bytes!r}, {overlap!r})")
        check.count("bucket_bytes", bucket_bytes)
        trained = [p for p in module.parameters() if p.requires_grad]
        for tensor in (*module.parameters(), *module.buffers()):
            collectives.copy_from_0(tensor)
        self.module, self.calls, self.bytes = module, 0, 0
        self.buckets = [_bucket(params) for params in grouped(trained[::-1], bucket_bytes)]
        self._bucket_of = {p: bucket for bucket in self.buckets for p in bucket.views}
        self._requests: list[Any] = []  # one for each bucket that was started in this step
        if overlap:
            for p in trained:
                p.register_post_accumulate_grad_hook(self.ready)

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def zero_grad(self) -> None:
        """Sets the gradients to zero, and leaves them where they are, in the buckets."""
        for bucket in self.buckets:
            bucket.flat.zero_()

    def finish(self, samples: int) -> None:
        """Waits until all gradients are summed over the ranks, and divides them by ``samples``.

        A parameter that got no gradient, on some ranks or on all, counts as 0 there. RuntimeError if a
        ``grad`` is no longer in its bucket, as after an optimizer's ``zero_grad()``.
        """
        while len(self._requests) < len(self.buckets):
            self.start()
        for request in self._requests:
            request.wait()
        self._requests = []
        for bucket in self.buckets:
            bucket.awaited = set(bucket.views)
            if any(p.grad is None or p.grad.data_ptr() != v.data_ptr() for p, v in bucket.views.items()):
                raise RuntimeError("a parameter's grad was replaced; use zero_grad() of the Replica")
            bucket.flat /= samples

    def ready(self, parameter: torch.Tensor) -> None:
        """Called when the backward pass has computed the gradient of a parameter."""
        bucket = self._bucket_of[parameter]
        if parameter not in bucket.awaited:
            raise RuntimeError("a second backward pass before finish(); wanted one for each step")
        bucket.awaited.remove(parameter)
        while len(self._requests) < len(self.buckets) and not self.buckets[len(self._requests)].awaited:
            self.start()

    def start(self) -> None:
        """Starts the sum of the next bucket. All ranks start them in one order, since they meet in it."""
        bucket = self.buckets[len(self._requests)]
        self._requests.append(dist.all_reduce(bucket.flat, async_op=True))
        self.calls, self.bytes = self.calls + 1, self.bytes + bucket.bytes


def reduce_each(parameters: Iterable[torch.nn.Parameter], samples: int) -> collectives.Traffic:
    """The naive way: after the backward pass, one all-reduce for each parameter → what this rank sent."""
    traffic = collectives.Traffic()
    for p in parameters:
        if p.grad is None:  # it had no part in this rank's loss
            p.grad = torch.zeros_like(p)
        traffic += collectives.all_reduce(p.grad)
        p.grad /= samples
    return traffic


def shard(rows: Any, rank: int | None = None, size: int | None = None) -> Any:
    """Rank ``rank``'s part of the rows of a global batch: ``rows.tensor_split(size)[rank]``, for any array.

    Without numbers: those of this process.
    """
    rank = dist.get_rank() if rank is None else rank
    size = dist.get_world_size() if size is None else size
    each, more = divmod(len(rows), size)  # the first `more` parts have one row more
    start = rank * each + min(rank, more)
    return rows[start : start + each + (rank < more)]


def _layout(module):
    """What has to be equal on all ranks, as text."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return ", ".join(f"{name} {t.dtype} {tuple(t.shape)} {t.requires_grad}" for name, t in named)


def grouped(params: Sequence[torch.Tensor], bucket_bytes: int) -> list[list[torch.Tensor]]:
    """Cuts a list of parameters into lists that fit into one bucket each: one dtype, one device, not too
    many bytes unless it is a single parameter."""
    groups: list[list[torch.Tensor]] = []
    used = 0
    for p in params:
        size = p.numel() * p.element_size()
        fits = groups and used + size <= bucket_bytes
        if fits and (groups[-1][-1].dtype, groups[-1][-1].device) == (p.dtype, p.device):
            groups[-1].append(p)
            used += size
        else:
            groups.append([p])
            used = size
    return groups


def _bucket(params):
    """A bucket of zeros for these parameters, whose gradients are views of it from now on."""
    flat = torch.zeros(sum(p.numel() for p in params), dtype=params[0].dtype, device=params[0].device)
    parts = flat.split([p.numel() for p in params])
    views = {p: part.view(p.shape) for p, part in zip(params, parts, strict=True)}
    for p, view in views.items():
        p.grad = view
    return Bucket(flat, views, set(params))
