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
    """The group in which messages of a kind travel, up or down the ranks.

    Between two ranks it has those of one kind and of one direction: so the n-th that is sent is
    the n-th that is received. Tags would tell kinds apart as well, but NCCL ignores them. And
    within one group NCCL runs the messages of two ranks one after another: with both directions in
    one group, the two ranks could wait for each other.
    """
    return _channels(dist.group.WORLD)[what, sender < receiver]


@functools.cache
def _channels(world):
    """{(kind, whether up): group}, of the group of all ranks, which make them together."""
    found = {}
    for what in KINDS:
        for up in (True, False):
            found[what, up] = dist.new_group()
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
