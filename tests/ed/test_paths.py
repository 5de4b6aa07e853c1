"""Every way through the hidden layers gives the same network; which way is taken, and what is said of it."""

import warnings

import numpy as np
import pytest
import torch

from ed_lib import arrays
from ed_lib.ed import EDNetwork, network


def twins(path, width, depth, k, *, rule="kaneko", bias="free", backend="numpy", device="cpu"):
    """The same network by the path "layers" in float64, and by ``path`` in float32."""
    options = dict(rule=rule, bias=bias, init="fan_in", seed=3)
    exact = EDNetwork(6, width, depth, k, **options, dtype="float64", path="layers")
    return exact, EDNetwork(6, width, depth, k, **options, backend=backend, device=device, path=path)


def assert_same_after_steps(exact, net, batch, steps=2):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        x, target = rng.random((batch, 6)), rng.integers(0, 2, (batch, exact.n_outputs)).astype(float)
        output = net.step(net.asarray(x), net.asarray(target))
        np.testing.assert_allclose(arrays.to_numpy(output), exact.step(x, target), rtol=5e-5, atol=1e-6)
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(value, exact.state_dict()[name], rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize(
    "width, depth, k, batch", [(1, 5, 3, 1), (17, 1, 1, 63), (65, 5, 2, 130), (4, 0, 3, 130)]
)
@pytest.mark.parametrize("rule, bias", [("kaneko", "free"), ("signed", "cells")])
def test_numbas_kernels_on_a_cpu(width, depth, k, batch, rule, bias, backend):
    pytest.importorskip("numba")
    assert_same_after_steps(*twins("kernel", width, depth, k, rule=rule, bias=bias, backend=backend), batch)


def test_large_sums_become_zero_or_one_and_never_nan():
    pytest.importorskip("numba")
    exact, net = (EDNetwork(6, 5, 20, path=path) for path in ("layers", "kernel"))
    x = np.full((40, 6), 1e6, np.float32)
    np.testing.assert_allclose(net.forward(x), exact.forward(x), atol=1e-6)
    assert np.isfinite(net.states).all()


def test_a_new_batch_size_and_a_new_state_are_taken_over():
    pytest.importorskip("numba")
    exact, net = twins("kernel", 5, 20, 2)
    for batch in (7, 40, 7):
        assert_same_after_steps(exact, net, batch, steps=1)
    fresh = EDNetwork(6, 5, 20, 2, init="fan_in", seed=9, dtype="float64", path="layers")
    exact.load_state_dict(fresh.state_dict())
    net.load_state_dict(fresh.state_dict())
    assert_same_after_steps(exact, net, 7)


def test_on_a_cpu_deep_networks_take_the_kernel_and_others_the_layers():
    pytest.importorskip("numba")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert EDNetwork(3, 2, 2).path == "layers"
        assert EDNetwork(3, 2, 2, dtype="float64").path == "layers"
        assert EDNetwork(3, 2, 100).path == "kernel"
    with pytest.warns(UserWarning, match="taking the path 'layers': .* needs float32 on a CPU"):
        assert EDNetwork(3, 2, 100, dtype="float64").path == "layers"


def test_a_missing_compiler_is_said_and_the_next_best_path_taken(monkeypatch):
    monkeypatch.setattr(network.importlib.util, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="taking the path 'layers': .* needs numba: pip install numba"):
        assert EDNetwork(3, 2, 100).path == "layers"
    on_gpu = arrays.Space("torch", torch, "cuda:0", torch.float32)
    with pytest.warns(UserWarning, match="taking the path 'layers': .* needs triton: pip install triton"):
        assert network.choose("auto", on_gpu, 32, 2) == "layers"


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(path="fast"), "path is 'fast'; wanted one of 'auto', 'layers', 'kernel', 'sweeps'"),
        (dict(path="kernel", dtype="float64"), "path is 'kernel'; the path 'kernel' needs float32 on a CPU"),
    ],
)
def test_a_path_that_is_not_possible_is_refused_by_name(options, message):
    pytest.importorskip("numba")
    with pytest.raises(ValueError, match=message):
        EDNetwork(3, 2, 100, **options)
