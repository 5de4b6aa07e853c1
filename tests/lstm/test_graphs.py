"""A captured graph keeps what it works on, and is captured on one stream; with a device that is none."""

import gc
import weakref
from contextlib import nullcontext

import pytest
import torch

from ed_lib import arrays
from ed_lib.lstm import graphs


class Owner:
    """Something with an array that a function works on, as a model has."""

    def __init__(self):
        self.array, self.runs = torch.zeros(3), 0

    def run(self):
        self.runs += 1


@pytest.fixture
def no_gpu(monkeypatch):
    """CUDA's graphs and streams, by classes that do nothing."""

    class Nothing:
        def wait_stream(self, other):
            pass

        def replay(self):
            self.replayed = True

    made = []
    monkeypatch.setattr(graphs, "_cuda_stream", lambda *which: made.append(which) or Nothing())
    for name in ("device", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *arguments: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", Nothing)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Nothing)
    return made


def test_a_graph_keeps_its_function_and_so_its_arrays_alive(no_gpu):
    owner = Owner()
    alive = weakref.ref(owner)
    graph = graphs.capture(owner.run, owner.array)
    del owner
    gc.collect()
    assert alive() is not None and alive().runs == 2  # once before the capture, once in it
    graph()
    assert graph.graph.replayed and alive().runs == 2
    del graph
    gc.collect()
    assert alive() is None


def test_every_capture_takes_the_same_stream_and_none_of_those_that_fork_makes(no_gpu):
    for _ in range(40):
        graphs.capture(lambda: None, torch.zeros(1))
    assert set(no_gpu) == {(torch.device("cpu"), 0, graphs.CAPTURING)} and graphs.CAPTURING < 0


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.skipif(not arrays.gpu_count(), reason="needs a GPU")
def test_a_graph_of_a_function_that_nobody_else_holds_answers_right():
    def graph_of(weight):
        answer = torch.zeros(64, 64, device="cuda")
        return graphs.capture(lambda: torch.mm(weight, weight, out=answer), weight), answer

    graph, answer = graph_of(torch.eye(64, device="cuda"))
    gc.collect()
    torch.cuda.empty_cache()  # memory that nothing held would be gone
    other = torch.full((64, 64), float("nan"), device="cuda")
    graph()
    assert torch.equal(answer, torch.eye(64, device="cuda")) and other.isnan().all()
