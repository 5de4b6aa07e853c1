"""CUDA streams for work that does not wait for each other, and their join.

Memory that streams work on has to live until they join: PyTorch's allocator knows only the stream
that it was made on.
"""

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


@contextmanager
def fork(device: torch.device, *priorities: int) -> Iterator[list[Any]]:
    """Streams that start after the current stream's work; what that is given later waits for
    theirs. Those of priority −1 go before those of 0. On a CPU they are PyTorch's, which do
    nothing.
    """
    if device.type == "cpu":
        yield [torch.cpu.Stream() for _ in priorities]
        return
    with torch.cuda.device(device):
        current = torch.cuda.current_stream()
        streams = [_cuda_stream(device, priority, n) for n, priority in enumerate(priorities)]
        for stream in streams:
            stream.wait_stream(current)
        # After an error too: the allocator may give the memory away once this block is left.
        try:
            yield streams
        finally:
            for stream in streams:
                current.wait_stream(stream)


@functools.cache
def _cuda_stream(device, priority, number):
    """The same stream at every call: each that is used keeps a workspace for its products."""
    return torch.cuda.Stream(device, priority=priority)


def on(stream: Any) -> AbstractContextManager:
    """The context in which calls are queued on a stream."""
    return torch.cuda.stream(stream) if isinstance(stream, torch.cuda.Stream) else nullcontext()
