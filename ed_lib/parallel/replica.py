"""Data parallelism over processes: every rank holds a replica and a shard, and the gradients are
summed.

They are kept in a few flat buckets, and a bucket's sum is started while the backward pass still
computes the next: S. Li and others, "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training" (2020). Losses are summed over samples, gradients over ranks, and the result is divided by
the size of the global batch: so shards may be uneven, or empty.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ed_lib import check
from ed_lib.parallel import collectives, random_states
from ed_lib.parallel.units import check_memory

# as in PyTorch; a smaller network fits into one bucket, and then nothing overlaps
BUCKET_BYTES = 25 * 2**20


class Bucket:
    """Gradients of parameters side by side, ``flat`` (n,), of which each one's ``grad`` is a
    view.
    """

    def __init__(self, params: Sequence[torch.Tensor]):
        sizes = [p.numel() for p in params]
        self.flat = params[0].new_zeros(sum(sizes))
        parts = zip(params, self.flat.split(sizes), strict=True)
        self.views = {p: part.view(p.shape) for p, part in parts}
        # those whose gradient this step has not computed yet
        self.awaited = set(params)
        self.put_in_place()

    def put_in_place(self) -> None:
        """Makes each parameter's gradient its view."""
        for p, view in self.views.items():
            p.grad = view

    def is_in_place(self) -> bool:
        """Whether each gradient is where it was put."""
        places = ((p.grad, view) for p, view in self.views.items())
        return all(grad is not None and grad.data_ptr() == view.data_ptr() for grad, view in places)


class Replica:
    """A module that all ranks train together, each on its shard of the batch.

    A step: ``zero_grad()``, the backward pass of a loss *summed* over this rank's samples,
    ``finish(B)`` with B the samples of all ranks, and then any optimizer's step.

    It starts from rank 0's parameters and buffers. From then on each rank draws its own random
    numbers, so that dropout differs, unless ``equal_draws``. Gradients lie in ``buckets``, of at
    most ``bucket_bytes`` bytes, or of one larger parameter, from the last parameter to the first.
    With ``overlap`` a bucket is summed as soon as it is complete and all before it have been
    started, else in ``finish``. ``calls`` and ``bytes`` count what was summed. If the ranks'
    parameters differ, every rank gets a ValueError.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        bucket_bytes: int = BUCKET_BYTES,
        overlap: bool = True,
        equal_draws: bool = False,
    ):
        named = dict([*module.named_parameters(), *module.named_buffers()])
        kinds = [
            f"{name} {t.dtype} {tuple(t.shape)} {t.requires_grad}" for name, t in named.items()
        ]
        # asked before the check: a rank that raised by itself would leave the others waiting
        collectives.agree(f"Replica({', '.join(kinds)}, {bucket_bytes!r}, {overlap!r})")
        check.count("bucket_bytes", bucket_bytes)
        check_memory(named)
        for tensor in named.values():
            collectives.copy_from_0(tensor)
        random_states.part_ways(equal_draws)
        trained = [p for p in module.parameters() if p.requires_grad]
        self.module = module
        self.calls = 0
        self.bytes = 0
        # backwards, since the last layer's gradients come first
        self.buckets = [Bucket(params) for params in grouped(trained[::-1], bucket_bytes)]
        self._bucket_of = {p: bucket for bucket in self.buckets for p in bucket.views}
        # what ranks ask each other beside the sums, which are under way in the other group
        self._group: Any = dist.new_group()
        # one for each bucket that was started in this step
        self._requests: list[Any] = []
        if overlap:
            for p in trained:
                p.register_post_accumulate_grad_hook(self.ready)

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def zero_grad(self) -> None:
        """Sets the gradients to zero, in the buckets, where they are. After a backward pass that
        raised, all ranks call it before the next one.
        """
        begun = self._requests or any(len(b.awaited) < len(b.views) for b in self.buckets)
        if begun:
            # others wait in sums that this rank has not come to, and those may still be written
            self.start_all()
            self.wait()
        for bucket in self.buckets:
            bucket.flat.zero_()
            bucket.put_in_place()

    def finish(self, samples: int) -> None:
        """Waits until all gradients are summed over the ranks, and divides them by ``samples``.

        A parameter that got no gradient, on some ranks or on all, counts as 0 there. ValueError if
        ``samples`` is below one. If ranks pass different ``samples``, every rank gets a ValueError.
        RuntimeError if a ``grad`` is no longer in its bucket, as after an optimizer's
        ``zero_grad()``.
        """
        self.start_all()
        self.check_finish(samples)
        self.wait()
        if not all(bucket.is_in_place() for bucket in self.buckets):
            raise RuntimeError("a parameter's grad was replaced; use zero_grad() of the Replica")
        for bucket in self.buckets:
            bucket.flat /= samples

    def check_finish(self, samples: int) -> None:
        """The ValueErrors of :meth:`finish`."""
        # ranks that divided by different numbers would drift apart, without a word. Not by agree():
        # its all-reduce would stand in a trace among the gradients' sums
        call = f"finish({samples!r}) after {self.calls} sums"
        collectives.check_alike(collectives.gathered(call, self._group))
        check.count("samples", samples)

    def ready(self, parameter: torch.Tensor) -> None:
        """Called when the backward pass has computed the gradient of a parameter."""
        bucket = self._bucket_of[parameter]
        if parameter not in bucket.awaited:
            raise RuntimeError("a second backward pass before finish(); wanted one for each step")
        bucket.awaited.remove(parameter)
        # one that is complete too early waits: all ranks start the buckets in one order
        for bucket in self.buckets[len(self._requests) :]:
            if bucket.awaited:
                break
            self.start()

    def start_all(self) -> None:
        while len(self._requests) < len(self.buckets):
            self.start()

    def wait(self) -> None:
        """Until the sums that were started are there; with them this backward pass is over."""
        for request in self._requests:
            request.wait()
        self._requests = []
        for bucket in self.buckets:
            bucket.awaited = set(bucket.views)

    def start(self) -> None:
        """Starts the sum of the next bucket. All ranks start them in one order, since they meet in
        it.
        """
        bucket = self.buckets[len(self._requests)]
        self._requests.append(dist.all_reduce(bucket.flat, async_op=True))
        self.calls += 1
        self.bytes += bucket.flat.nbytes


def local_rows(rows: torch.Tensor) -> torch.Tensor:
    """This rank's part of a global batch, (B, …) → (b, …). The first ranks may have one row
    more.
    """
    return rows.tensor_split(dist.get_world_size())[dist.get_rank()]


def grouped(params: Sequence[torch.Tensor], bucket_bytes: int) -> list[list[torch.Tensor]]:
    """Cuts parameters into lists, a bucket each: of one dtype and device, and not too large if
    possible.
    """
    groups: list[list[torch.Tensor]] = []
    for p in params:
        last = groups[-1] if groups else []
        alike = all((q.dtype, q.device) == (p.dtype, p.device) for q in last)
        if last and alike and sum(q.nbytes for q in last) + p.nbytes <= bucket_bytes:
            last.append(p)
        else:
            groups.append([p])
    return groups
