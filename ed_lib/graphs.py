"""A GPU's own ways of being given work: streams beside each other, which on a CPU mean nothing, and calls
captured as one CUDA graph, while which no other thread may use its streams. Memory that streams work on is
allocated before the fork and lives until the join: the allocator knows only the stream it was made on.
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
    """Streams, by priority, that start after the current stream's work; what it is given later waits."""
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
    """A captured CUDA graph: calling it launches all its work as one, on the tensors that the function used,
    at their addresses; so it keeps the function, and all that this refers to.
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
