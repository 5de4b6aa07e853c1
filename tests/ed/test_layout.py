"""A step allocates nothing large beside the arrays that are there. What it computes:
``test_network``.
"""

import tracemalloc

import numpy as np
import pytest

from ed_lib import machine
from ed_lib.ed import EDNetwork, rules


def peak_of(call):
    """The most memory, in bytes, that was taken at once during ``call()``, beyond what was taken
    before.
    """
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


SHAPES = [
    (20, 8, 50, 3, 64),
    (784, 32, 0, 10, 64),
    (784, 32, 600, 1, 64),
]  # n_inputs, width, depth, K, batch


@pytest.mark.parametrize("rule", rules.RULES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_step_takes_at_most_the_weights_and_the_activations_in_extra_memory(shape, rule, rng):
    """By the path "layers", all of whose memory is NumPy's, so that tracemalloc sees it."""
    n_inputs, width, depth, k, batch = shape
    net = EDNetwork(n_inputs, width, depth, k, rule=rule, path="layers")
    x, target = net.asarray(rng.random((batch, n_inputs))), net.asarray(np.ones((batch, k)))
    weights = sum(array.nbytes for array in net.parameters.values())
    first = peak_of(lambda: net.step(x, target))  # allocates the activations
    activations, slack = (
        net.states.nbytes,
        60_000,
    )  # slack, bytes: the checks of a batch, Python's objects
    again = peak_of(lambda: net.step(x, target))
    assert again <= weights + activations + slack
    if depth == 600:  # a network that no cache holds: the temporaries no longer count
        assert first <= 1.1 * activations and again <= 0.1 * activations


def test_updates_write_into_the_arrays_that_are_there(backend, rng):
    net = EDNetwork(5, 3, 2, 2, **backend)
    before = {name: (id(array), array.shape) for name, array in net.parameters.items()}
    net.step(net.asarray(rng.random((4, 5))), net.asarray(rng.random((4, 2))))
    states = net.states
    net.step(net.asarray(rng.random((4, 5))), net.asarray(rng.random((4, 2))))
    assert before == {name: (id(array), array.shape) for name, array in net.parameters.items()}
    assert net.states is states


def test_a_network_beyond_memory_is_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(machine, "memory", lambda device="cpu": 10 * 2**30)
    message = (
        r"the weights of EDNetwork\(784, 32, 4096, 1000\) needs .*GiB of memory on cpu; 10.0 GiB is"
    )
    with pytest.raises(MemoryError, match=message):
        EDNetwork(784, 32, 4096, 1000)
    net = EDNetwork(784, 32, 100)
    monkeypatch.setattr(machine, "memory", lambda device="cpu": 2**20)
    before = net.state_dict()
    with pytest.raises(MemoryError, match="the activations for a batch of 64 of .* is available"):
        net.forward(np.zeros((64, 784), np.float32))
    assert all((before[name] == value).all() for name, value in net.state_dict().items())
