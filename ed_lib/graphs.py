"""A GPU's own ways of being given work: streams beside each other, and calls captured as one CUDA graph. On a
CPU, which works in the order of the calls, streams mean nothing, and the same lines do.

Memory that streams work on is allocated before the fork and lives until the join: PyTorch's allocator knows
only the stream that a tensor was made on. While a graph is captured, no other thread may use its streams.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

CAPTURING = -1  # the number of the stream on which ``capture`` warms up


class Stream:
    """A CUDA stream; ``priority`` −1 goes before 0, ``number`` tells those of one priority apart."""

    def __init__(self, device, priority, number):
        self.stream = _cuda_stream(device, priority, number) if device.type == "cuda" else None

    def use(self) -> AbstractContextManager:
        """The context in which calls are queued on it."""
        return torch.cuda.stream(self.stream) if self.stream else nullcontext()

    def record(self) -> torch.cuda.Event | None:
        """An event that happens once what this stream was given so far is done."""
        return self.stream.record_event() if self.stream else None

    def wait(self, event: torch.cuda.Event | None) -> None:
        """What this stream is given from now on waits for an event."""
        if self.stream:
            self.stream.wait_event(event)


@contextmanager
def fork(device: torch.device, *priorities: int) -> Iterator[list[Stream]]:
    """Streams, one for each priority, that start after what the current stream was given; what it is given
    after this context waits for them.
    """
    forked = [Stream(device, priority, n) for n, priority in enumerate(priorities)]
    current: Any = torch.cuda.current_stream(device) if device.type == "cuda" else None
    with torch.cuda.device(device) if current else nullcontext():
        streams = [stream.stream for stream in forked if stream.stream]
        for stream in streams:
            stream.wait_stream(current)
        try:
            yield forked
        finally:
            for stream in streams:
                current.wait_stream(stream)


class Graph:
    """A captured CUDA graph: calling it launches all its work as one. It works on the tensors that the
    function used, at their addresses, and so keeps it, and all that it refers to, for as long as it lives.
    """

    def __init__(self, graph, function):
        self.graph, self.function = graph, function

    def __call__(self):
        self.graph.replay()


def capture(function: Callable[[], object], like: torch.Tensor) -> Graph:
    """``function`` as a :class:`Graph` on the GPU of the tensor ``like``; it runs once before, too."""
    with torch.cuda.device(like.device):
        stream, current = _cuda_stream(like.device, 0, CAPTURING), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            function()  # so that cuBLAS takes its workspace, and Triton compiles, outside the graph
        current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
    return Graph(graph, function)


@functools.cache
def _cuda_stream(device, priority, number):
    """The same stream at every call: each that is used keeps a workspace for its products."""
    return torch.cuda.Stream(device, priority=priority)
