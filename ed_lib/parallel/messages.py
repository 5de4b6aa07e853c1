"""What stages of :mod:`.pipeline` send each other: tensors (b, …), and before the first one of a
kind a header that says what one sample is.
"""

import functools
from typing import Any

import torch
import torch.distributed as dist

from ed_lib.parallel.launcher import device

KINDS = ("activation", "gradient")
# What stages send each other has one of these dtypes; a header names it by its place here.
SENDABLE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
AXES = 8  # of a sample, at most
HEADER = 2 + AXES  # numbers: dtype, how many axes, and their lengths

Sample = tuple[tuple[int, ...], torch.dtype]  # the shape and the dtype of one sample


def channel(what: str, sender: int, receiver: int) -> Any:
    """The group in which messages of a kind travel from one rank to another. Nothing else does: so
    the n-th that is sent is the n-th that is received.

    Tags would tell messages apart as well, but NCCL ignores them. And NCCL may run all messages of
    a group one after another: in a larger group, a send could wait for a receive that was posted
    before it, and whose message comes only after that send.
    """
    return _channels(dist.group.WORLD)[what, sender, receiver]


@functools.cache
def _channels(world):
    """{(kind, sender, receiver): group}; all ranks make all groups, in one order."""
    stages = dist.get_world_size()
    found = {}
    for what, step in zip(KINDS, (1, -1), strict=True):
        for sender in range(stages):
            # Between chunks the chain goes on from the last rank to the first.
            receiver = (sender + step) % stages
            if receiver != sender:
                found[what, sender, receiver] = dist.new_group([sender, receiver])
    return found


def prepare() -> None:
    """Makes the channels, on all ranks."""
    _channels(dist.group.WORLD)


def sample_of(tensor: torch.Tensor) -> Sample:
    return tuple(tensor.shape[1:]), tensor.dtype


def header(tensor: torch.Tensor) -> torch.Tensor:
    """(HEADER,) numbers that say what one sample of a tensor is."""
    shape, dtype = sample_of(tensor)
    # The shape comes last, and zeros after it: all headers have one length.
    numbers = [SENDABLE.index(dtype), len(shape), *shape]
    numbers += [0] * (HEADER - len(numbers))
    return torch.tensor(numbers).to(device())


def empty_header() -> torch.Tensor:
    return torch.empty(HEADER, dtype=torch.int64, device=device())


def read(header: torch.Tensor) -> Sample:
    """What a header says."""
    dtype, axes, *shape = header.tolist()
    return tuple(shape[:axes]), SENDABLE[dtype]


def fault(y: Any, rows: int, first: Sample | None, goes_on: bool) -> str:
    """What is wrong with what a part gives for so many samples, or "". first: what it gave for
    micro-batches before; goes_on: whether it is sent to another part.
    """
    if not isinstance(y, torch.Tensor):
        return f"a {type(y).__name__}; wanted a tensor"
    shape = tuple(y.shape)
    if not shape or shape[0] != rows:
        return f"the shape {shape} for {rows} samples; wanted ({rows}, …)"
    if goes_on and y.dtype not in SENDABLE:
        names = ", ".join(map(str, SENDABLE))
        return f"the dtype {y.dtype}; wanted one of {names}"
    if len(shape) > 1 + AXES:
        return f"the shape {shape}; wanted at most {1 + AXES} axes"
    if first not in (None, sample_of(y)):
        return f"the shape {shape} and {y.dtype}; wanted a sample as those before it, {first}"
    return ""


def gradient(x: torch.Tensor) -> torch.Tensor | None:
    """Of a part's input: zeros where the part does not use it; None of a batch's own inputs."""
    if x.requires_grad and x.grad is None:
        return torch.zeros_like(x)
    return x.grad
