"""A ring all-reduce and its halves, built from sends and receives between two ranks, and counted.

Every rank of a group (None: of all) calls the same function with a tensor of the same shape and
dtype, which is changed in place. What each costs stands in :mod:`.links`. Sources: R. Thakur, R.
Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH" (2005); P.
Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations"
(2009).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ed_lib.parallel.launcher import device

# What a ring can add up; PyTorch adds neither other unsigned integers nor floats of eight bits.
SUMMED = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
)  # fmt: skip


@dataclass(frozen=True)
class Traffic:
    """What one rank has sent: how many messages, and the bytes in them. ``sum(…, Traffic())`` adds
    them.
    """

    messages: int = 0
    bytes: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.messages + other.messages, self.bytes + other.bytes)


def all_reduce(tensor: torch.Tensor, group: Any = None) -> Traffic:
    """The sum of all ranks' tensors, into each of them, in place, by a ring → what this rank sent.

    tensor: any shape, integers or floats, contiguous or not, dense. Every rank ends with the same
    bits. TypeError, ValueError, on all of them, for a tensor that cannot be summed in place, or if
    what the ranks were called with differs, where they would wait for ever.
    """
    agree(f"all_reduce of {_described(tensor)}", group)
    _check_summed(tensor)
    wire = Wire(group)
    tensor = tensor.detach()
    flat = tensor.contiguous().view(-1)
    ring(flat, wire)
    if flat.data_ptr() != tensor.data_ptr():
        tensor.copy_(flat.view_as(tensor))
    return wire.traffic


def _described(tensor):
    """What all ranks must have alike, in words."""
    if not isinstance(tensor, torch.Tensor):
        return f"a {type(tensor).__name__}"
    shape = tuple(tensor.shape)
    words = f"{tensor.dtype} {shape} {tensor.device.type} {tensor.layout}"
    return f"{words} expanded" if is_expanded(tensor) else words


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether several elements along an axis are one number in memory."""
    if tensor.layout is not torch.strided:
        return False
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    return any(length > 1 and stride == 0 for length, stride in axes)


def _check_summed(tensor):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor is a {type(tensor).__name__}; wanted a torch.Tensor")
    if tensor.layout is not torch.strided:
        raise TypeError(f"tensor has the layout {tensor.layout}; wanted torch.strided, dense")
    if tensor.dtype not in SUMMED:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in SUMMED)
        raise TypeError(f"tensor has the dtype {tensor.dtype}; wanted one of {names}")
    if is_expanded(tensor):
        came = f"tensor is expanded to {tuple(tensor.shape)}"
        raise ValueError(f"{came}; wanted memory for every element, as tensor.clone() has")
    if tensor.device.type != device().type:
        raise ValueError(f"tensor is on {tensor.device}; wanted it on {device().type}")


class Wire:
    """The connection of this rank to the others of a group; counts what was sent. Empty messages
    are not.
    """

    def __init__(self, group: Any = None):
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.traffic = Traffic()

    def send(self, tensor: torch.Tensor, to: int) -> None:
        self.exchange(tensor, to)

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        self.exchange(None, 0, tensor, source)

    def exchange(self, *tensors_and_ranks: Any) -> None:
        """:meth:`start`, until both are done."""
        for request in self.start(*tensors_and_ranks):
            request.wait()

    def start(self, sent: Any, to: int, received: Any = None, source: int = 0) -> list:
        """Sends one tensor and receives another, at the same time, or one of them, with None for
        the other → requests to wait for; until then the tensors must stay.
        """
        operations = []
        if sent is not None and sent.numel():
            send = dist.P2POp(dist.isend, sent, group=self.group, group_peer=to)
            operations.append(send)
            self.traffic += Traffic(1, sent.nbytes)
        if received is not None and received.numel():
            receive = dist.P2POp(dist.irecv, received, group=self.group, group_peer=source)
            operations.append(receive)
        if not operations:
            return []
        return dist.batch_isend_irecv(operations)


def ring(flat: torch.Tensor, wire: Wire) -> None:
    """The sum travels around a ring in p parts: first being added up, then being copied."""
    ring_reduce_scatter(flat, wire)
    ring_all_gather(flat, wire)


def ring_reduce_scatter(flat: torch.Tensor, wire: Wire) -> None:
    """Part r starts at rank r + 1, goes around once, is added to by each, and ends at rank r."""
    p = wire.size
    following = (wire.rank + 1) % p
    previous = (wire.rank - 1) % p
    # p parts of n/p numbers; where p does not divide n, the first ones have one more.
    parts = flat.tensor_split(p)
    buffer = torch.empty_like(parts[0])
    for step in range(1, p):
        out = parts[(wire.rank - step) % p]
        into = parts[(wire.rank - step - 1) % p]
        received = buffer[: len(into)]
        wire.exchange(out, following, received, previous)
        into += received


def ring_all_gather(flat: torch.Tensor, wire: Wire) -> None:
    """Part r starts at rank r and goes around once, copied by each."""
    p = wire.size
    following = (wire.rank + 1) % p
    previous = (wire.rank - 1) % p
    parts = flat.tensor_split(p)
    for step in range(p - 1):
        # What was received in the step before is sent on.
        out = parts[(wire.rank - step) % p]
        into = parts[(wire.rank - step - 1) % p]
        wire.exchange(out, following, into, previous)


def copy_from_0(tensor: torch.Tensor, group: Any = None) -> None:
    """Rank 0's values into the tensor of every rank: any dtype and strides, in place, but not
    expanded.
    """
    tensor = tensor.detach()
    # As bytes: gloo knows few dtypes. A copy, since only what lies without gaps is bytes.
    flat = tensor.clone(memory_format=torch.contiguous_format).view(-1)
    sent = flat.view(torch.uint8)
    dist.broadcast(sent, group=group, group_src=0)
    received = sent.view(tensor.dtype).view(tensor.shape)
    tensor.copy_(received)


def gathered(mine: Any, group: Any = None) -> list[Any]:
    """What each rank of the group has, by rank: anything that pickle knows."""
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, mine, group)
    return found


def check_alike(texts: Sequence[str]) -> None:
    """ValueError unless the texts of all ranks, by rank, are the same."""
    if len(set(texts)) > 1:
        listed = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(texts))
        raise ValueError(f"the ranks call different things; wanted the same on each. {listed}")


def agree(call: str, group: Any = None) -> None:
    """ValueError, on every rank, unless all ranks of the group pass the same text. A collective
    itself.
    """
    number = int.from_bytes(hashlib.sha256(call.encode()).digest()[:7])
    # Of all ranks' numbers the largest, and minus the smallest: they cancel if all are the same.
    # Two numbers are sent in place of texts, since every call of a collective asks.
    ends = torch.tensor([number, -number], device=device())
    dist.all_reduce(ends, dist.ReduceOp.MAX, group=group)
    if ends.sum() != 0:
        check_alike(gathered(call, group))
