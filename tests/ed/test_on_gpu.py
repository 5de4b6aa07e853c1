"""A network's calls on a GPU, or on a stand-in for one: right, refused without a wait, and few launches."""

import numpy as np
import pytest
import torch

from ed_lib import arrays, devices
from ed_lib.ed import EDNetwork, kernels, paths, sweeps
from ed_lib.lstm import counters
from tests.gpu import Kernels, gpu

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch):
    monkeypatch.setattr(sweeps, "WALKED", 1)
    with gpu():
        yield


CASES = [("kaneko", "cells", 4, path, "torch") for path in paths.PATHS]
CASES += [("signed", "free", 3, path, "torch") for path in ("kernel", "sweeps")]
CASES += [("kaneko", "free", 0, "kernel", "torch")]
CASES += [("signed", "free", 3, path, "cupy") for path in ("layers", "graph", "kernel")]


def network(path="kernel", backend="torch", depth=4, **options):
    options = dict(init="fan_in", seed=3, n_outputs=2) | options
    return EDNetwork(6, 4, depth, **options, backend=backend, device="cuda", path=path)


def a_batch(net, size=5, seed=0):
    x, target = RNG(seed).random((size, 6)), RNG(seed).integers(0, 2, (size, 2)).astype(float)
    return net.asarray(x), net.asarray(target)


def same(one, other):
    return all(np.array_equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("rule, bias, depth, path, backend", CASES)
def test_all_calls_are_right_and_keep_being_so(rule, bias, depth, path, backend):
    if not arrays.gpu_count(backend):
        pytest.skip("this GPU has no CuPy")
    options = dict(rule=rule, bias=bias, init="fan_in", seed=3, n_outputs=2)
    exact = EDNetwork(6, 4, depth, **options, dtype="float64", path="layers")
    net = network(path, backend, depth, rule=rule, bias=bias)
    for step, size in enumerate((5, 5, 2)):
        x, target = RNG(step).normal(size=(size, 6)), RNG(step).integers(0, 2, (size, 2)).astype(float)
        if step == 1:
            exact.alpha = net.alpha = 0.3
        right = exact.step(x, target)
        found = net.step(net.asarray(x), net.asarray(target))
        kind = net.space.library.Tensor if backend == "torch" else net.space.library.ndarray
        assert isinstance(found, kind)
        np.testing.assert_allclose(arrays.to_numpy(found), right, rtol=1e-4, atol=1e-5)
        found = net.forward(net.asarray(x))
        np.testing.assert_allclose(arrays.to_numpy(found), exact.forward(x), rtol=1e-4, atol=1e-5)
        net.update(net.asarray(target) - found)
        exact.update(target - exact.forward(x))
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(value, exact.state_dict()[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("path", paths.PATHS)
def test_recording_changes_no_weight(path):
    net, other = network(path), network("layers")
    x, target = a_batch(net)
    net.forward(x)
    assert same(net.state_dict(), other.state_dict())
    net.update(target * 0)  # no error
    assert same(net.state_dict(), other.state_dict())


def test_an_answer_stays_what_it_was():
    net = network()
    x, target = a_batch(net)
    first = net.forward(x)
    kept = first.clone()
    net.forward(a_batch(net, seed=1)[0])
    assert torch.equal(first, kept)


SPOILED = {
    "x": lambda x, target: (x * float("nan"), target),
    "an x": lambda x, target: (x / (x != x.flatten()[4]), target),  # one infinity
    "target": lambda x, target: (x, target + 1.5),
    "a target": lambda x, target: (x, target * float("nan")),
}


@pytest.mark.parametrize("path", ["layers", "kernel"])
def test_a_bad_value_changes_no_weight_and_is_reported_by_the_next_call(path):
    net = network(path, rule="kaneko")
    x, target = a_batch(net)
    for name, spoil in SPOILED.items():
        net.step(x, target)  # counts, whatever came before
        before = net.state_dict()
        net.step(*spoil(x, target))  # says nothing, since it does not wait
        with pytest.raises(ValueError, match="of an earlier call .* No weight has changed since"):
            net.state_dict()
        assert same(net.state_dict(), before), name
    error = target - net.forward(x)
    error[1, 1] = float("inf")
    net.update(error)
    with pytest.raises(ValueError, match="earlier call"):
        net.forward(x) if not arrays.gpu_count() else net.state_dict()
    assert same(net.state_dict(), before)
    net.step(x, target)
    assert not same(net.state_dict(), before)


def test_shapes_are_refused_at_once():
    net = network()
    x, target = a_batch(net)
    with pytest.raises(ValueError, match=r"x has the shape \(5, 5\); wanted \(B, 6\)"):
        net.forward(x[:, :5])
    with pytest.raises(ValueError, match=r"target has the shape \(4, 2\); wanted \(5, 2\)"):
        net.step(x, target[:4])
    with pytest.raises(RuntimeError, match="needs the activations of a forward"):
        net.update(target)


# What a call gives the device to do: {call: (copies in and out and the graph, launches inside the graph)}
LAUNCHES = {
    "kernel": {"forward": (3, 14), "update": (2, 11), "step": (4, 25)},
    "sweeps": {"forward": (3, 37), "update": (2, 11), "step": (4, 48)},
}


@pytest.mark.parametrize("path", LAUNCHES)
def test_how_much_is_launched_and_that_nothing_waits(path, monkeypatch):
    net = network(path, rule="signed", n_outputs=1)
    x, target = net.asarray(RNG(0).random((5, 6))), net.asarray(np.ones((5, 1)))
    calls = {"forward": (x,), "update": (target,), "step": (x, target)}
    for name, arguments in calls.items():
        getattr(net, name)(*arguments)  # records it
    stub = Kernels()
    for name in ("forward_kernel", "update_kernel", "sweep_kernel"):
        monkeypatch.setattr(kernels, name, stub)
    found = {}
    for name, arguments in calls.items():
        inside = counters.count(net.gpu.graphs[name].function)
        by_kernels, stub.launched = stub.launched, 0
        replayed = []
        with monkeypatch.context() as patch:
            patch.setattr(devices.Graph, "__call__", lambda graph, seen=replayed: seen.append(graph))
            outside = counters.count(lambda name=name, arguments=arguments: getattr(net, name)(*arguments))
        assert len(replayed) == 1 and inside.waits == outside.waits == 0
        found[name] = outside.launches + 1, inside.launches + by_kernels
    assert found == LAUNCHES[path]
