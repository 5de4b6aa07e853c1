"""A GPU's own ways of being given work: streams beside each other, which on a CPU mean nothing, and calls
captured as one CUDA graph, while which no other thread may use its streams. Memory that streams work on is
allocated before the fork and lives until the join: the allocator knows only the stream it was made on.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

CAPTURING = -1  # the number of the stream on which ``capture`` warms up


@contextmanager
def fork(device: torch.device, *priorities: int) -> Iterator[list[Any]]:
    """Streams that start after the current stream's work; what that is given later waits for theirs. Those of
    priority −1 go before those of 0. On a CPU they are PyTorch's, which do nothing.
    """
    if device.type == "cpu":
        yield [torch.cpu.Stream() for _ in priorities]
        return
    with torch.cuda.device(device):
        current = torch.cuda.current_stream()
        streams = [_cuda_stream(device, priority, n) for n, priority in enumerate(priorities)]
        for stream in streams:
            stream.wait_stream(current)
        try:
            yield streams
        finally:
            for stream in streams:
                current.wait_stream(stream)


def on(stream: Any) -> AbstractContextManager:
    """The context in which calls are queued on a stream."""
    return torch.cuda.stream(stream) if isinstance(stream, torch.cuda.Stream) else nullcontext()


@dataclass(frozen=True)
class Graph:
    """A captured CUDA graph: calling it launches all its work as one, on the tensors that the function used,
    at their addresses; so it keeps the function, and all that this refers to.
    """

    graph: Any
    function: Callable

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
