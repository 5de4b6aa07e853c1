"""EDNetwork: one step against plain loops, the same on every library, signs, errors."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ed_lib.ed import EDNetwork, layout
from ed_lib.ed.network import INITS
from ed_lib.ed.space import to_numpy
from tests.ed import doors
from tests.ed.test_rules import loop_layer, loop_update

shapes = st.fixed_dictionaries({
    "n_inputs": st.integers(1, 5), "width": st.integers(1, 4), "depth": st.integers(0, 3),
    "n_outputs": st.integers(1, 3), "rule": st.sampled_from(["kaneko", "signed"]),
    "bias": st.sampled_from(["free", "cells"]), "init": st.sampled_from(INITS),
    "backend": st.sampled_from(["numpy", "torch"]),
})  # fmt: skip
RULES_AND_BIASES = pytest.mark.parametrize("rule, bias", [("kaneko", "free"), ("signed", "cells")])


def loop_step(state, x, target, *, depth, bias, rule, alpha=0.8, u0=0.4):
    """One step of the whole network in float64, one layer after another → (output, new state)."""
    state = {name: value.astype(float) for name, value in state.items()}
    k = len(state["output.weight"])
    layers = [("input", ()), *[("hidden", (d,)) for d in range(depth)], ("output", ())]
    senders, activations = np.broadcast_to(x, (k, 2, *x.shape)), []
    for name, at in layers:
        b = state[f"{name}.bias"][at]
        if bias == "cells":
            b = (0.8 * b).sum(axis=2)
        answer = loop_layer(senders, state[f"{name}.weight"][at], b, u0)
        activations.append((senders, answer))
        senders = answer
    output = senders[:, 0, :, 0].T
    error = target - output
    for (name, at), (sent, answer) in zip(layers, activations, strict=True):
        state[f"{name}.weight"][at] += loop_update(sent, answer, error, alpha, rule)
        if bias == "cells":
            constant = np.full((k, 2, len(x), 1), 0.8)
            state[f"{name}.bias"][at] += loop_update(constant, answer, error, alpha, rule)
        else:
            for i, p in np.ndindex(k, 2):
                free = error[:, i, None] * answer[i, p] * (1 - answer[i, p])
                state[f"{name}.bias"][at][i, p, 0] += alpha * free.mean(axis=0)
    return output, state


def assert_state(net, state, rtol=1e-12, atol=1e-12):
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(value, state[name], rtol=rtol, atol=atol, err_msg=name)


def signs_hold(net):
    """Whether W[p, 0] ≥ 0 ≥ W[p, 1], of bias cells too."""
    names = [name for name in net.parameters if "weight" in name or net.bias == "cells"]
    return all(layout.signs_hold(net.parameters[name]) for name in names)


def batch(rng, net, size=4):
    x = rng.random((size, net.n_inputs))
    return x, rng.integers(0, 2, (size, net.n_outputs)).astype(float)


@pytest.mark.oracle
@given(shape=shapes, seed=st.integers(0, 999))
def test_one_step_equals_plain_loops_for_every_weight(shape, seed):
    net = EDNetwork(**shape, seed=seed, dtype="float64")
    before = net.state_dict()
    x, target = batch(np.random.default_rng(seed), net)
    output = to_numpy(net.step(net.asarray(x), net.asarray(target)))
    wanted, after = loop_step(before, x, target, depth=net.depth, bias=net.bias, rule=net.rule)
    np.testing.assert_allclose(output, wanted, rtol=1e-12, atol=1e-15)
    assert_state(net, after)


@given(shape=shapes, seed=st.integers(0, 999), scale=st.sampled_from([0.1, 1.0, 100.0]))
def test_kanekos_rule_keeps_every_sign_for_any_data(shape, seed, scale):
    """No weight even shrinks."""
    rng = np.random.default_rng(seed)
    net = EDNetwork(**{**shape, "rule": "kaneko"}, alpha=5.0)
    before = net.state_dict()
    for _ in range(10):
        x, target = batch(rng, net)
        net.step(net.asarray(scale * x), net.asarray(target))
    assert signs_hold(net)
    grows = ("weight", "bias") if net.bias == "cells" else ("weight",)
    for name, value in net.state_dict().items():
        if name.endswith(grows):
            assert (np.abs(value) >= np.abs(before[name])).all(), f"{name} shrank"


def test_a_fan_in_start_keeps_sums_of_order_one_and_the_others_grow(rng):
    x = rng.random((64, 784))
    total = {}
    for init in ("uniform", "half_normal", "fan_in"):
        weight = EDNetwork(784, 32, 0, init=init, dtype="float64").state_dict()["input.weight"]
        total[init] = (x @ (weight[0, 0, 0] + weight[0, 0, 1])).std()
    assert 0.2 < total["fan_in"] < 2 and total["uniform"] > 4 and total["half_normal"] > 10


def test_a_seed_gives_one_start(backend):
    net, twin, other = (EDNetwork(3, 2, 1, seed=seed, **backend).state_dict() for seed in (1, 1, 2))
    assert all((net[n] == v).all() for n, v in twin.items()) and any(
        (net[n] != other[n]).any() for n in net
    )


def loaded(net):
    """A network that began otherwise, with the state of ``net``."""
    options = {name: getattr(net, name) for name in ("rule", "bias", "alpha", "u0", "device")}
    sizes = net.n_inputs, net.width, net.depth, net.n_outputs
    other = EDNetwork(
        *sizes, **options, seed=6, backend=net.space.backend, dtype=net.space.precision
    )
    other.load_state_dict(net.state_dict())
    return other


def test_what_is_refused_changes_nothing():
    kept = doors.TORCH.state_dict()
    for what, call, error, _ in doors.ED:
        with pytest.raises(error):
            call()
        for net, state in ((doors.NUMPY, doors.STATE), (doors.TORCH, kept)):
            assert all((state[n] == v).all() for n, v in net.state_dict().items()), what


def test_a_state_is_written_into_the_arrays_that_are_there(backend):
    """So that an optimizer, or a view, goes on with the weights that were loaded."""
    net, other = (EDNetwork(3, 4, 2, 2, seed=seed, **backend) for seed in (0, 1))
    arrays = dict(net.parameters)
    net.forward(net.asarray(np.full((4, 3), 0.5)))
    net.load_state_dict(other.state_dict())
    assert all(net.parameters[name] is array for name, array in arrays.items())
    assert_state(net, other.state_dict(), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="needs the activations of a forward"):
        net.update(net.asarray(np.ones((4, 2))))


def test_float64_takes_over_what_float32_cannot_hold():
    net = EDNetwork(3, 2, 1, dtype="float64", alpha=1e39)
    net.load_state_dict(doors.HUGE)
    assert net.state_dict()["input.weight"].max() > 1e38


def test_the_signed_rule_takes_over_any_signs():
    doors.network(rule="signed").load_state_dict(doors.FLIPPED)


def test_a_tensor_that_autograd_follows_leaves_no_graph_behind():
    net = EDNetwork(3, 2, 1, backend="torch")
    output = net.step(torch.ones(4, 3, requires_grad=True), torch.ones(4, 1))
    assert not output.requires_grad and not net.parameters["input.weight"].requires_grad


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net)), loaded]
)
def test_copies_are_whole_and_share_no_weight(how, backend):
    options = dict(rule="signed", bias="cells", alpha=0.3, u0=0.7, seed=5, dtype="float64")
    net = EDNetwork(3, 4, 2, 2, **backend, **options)
    other, rng = how(net), np.random.default_rng(0)
    x, target = (net.asarray(rng.random(shape)) for shape in ((5, 3), (5, 2)))
    np.testing.assert_array_equal(*(to_numpy(one.forward(x)) for one in (net, other)))
    before = net.state_dict()
    other.step(x, target)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    net.step(x, target)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, other.state_dict()[name])


def twins(path, width, depth, k, **options):
    """The same network by the path "layers" in float64, and by ``path`` in float32."""
    start = dict(init="fan_in", seed=3) | {
        n: options.pop(n) for n in ("rule", "bias") if n in options
    }
    exact = EDNetwork(6, width, depth, k, **start, dtype="float64", path="layers")
    return exact, EDNetwork(6, width, depth, k, **start, path=path, **options)


def assert_same_after_steps(exact, net, batch, steps=2):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        x, target = (
            rng.random((batch, 6)),
            rng.integers(0, 2, (batch, exact.n_outputs)).astype(float),
        )
        output = net.step(net.asarray(x), net.asarray(target))
        assert "float32" in str(output.dtype)
        np.testing.assert_allclose(to_numpy(output), exact.step(x, target), rtol=5e-5, atol=1e-6)
    assert_state(net, exact.state_dict(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("path, width, depth, k, size", [
    ("layers", 5, 2, 1, 4), ("kernel", 1, 5, 3, 1), ("kernel", 17, 1, 1, 63),
])  # fmt: skip
@RULES_AND_BIASES
def test_float32_stays_within_rounding_by_every_path(
    path, width, depth, k, size, rule, bias, backend
):
    assert_same_after_steps(*twins(path, width, depth, k, rule=rule, bias=bias, **backend), size)


# Numba compiles the kernel anew for the strides that tensors give it, for a quarter of a minute.
STRIDES = [
    "numpy",
    pytest.param("torch", marks=pytest.mark.slow),
    pytest.param("cupy", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize("backend", STRIDES, indirect=True)
@pytest.mark.parametrize("width, depth, k, size", [(65, 5, 2, 130), (4, 0, 3, 130)])
@RULES_AND_BIASES
def test_float32_stays_within_rounding_in_several_tiles(width, depth, k, size, rule, bias, backend):
    net = twins("kernel", width, depth, k, rule=rule, bias=bias, **backend)
    assert_same_after_steps(*net, size)


def test_large_sums_become_zero_or_one_and_never_nan():
    exact, net = (EDNetwork(6, 5, 20, path=path) for path in ("layers", "kernel"))
    x = np.full((40, 6), 1e6, np.float32)
    np.testing.assert_allclose(net.forward(x), exact.forward(x), atol=1e-6)
    assert np.isfinite(net.states).all()


def test_a_new_batch_size_and_a_new_state_are_taken_over():
    exact, net = twins("kernel", 5, 20, 2)
    for batch in (7, 40, 7):
        assert_same_after_steps(exact, net, batch, steps=1)
    fresh = EDNetwork(6, 5, 20, 2, init="fan_in", seed=9, dtype="float64", path="layers")
    exact.load_state_dict(fresh.state_dict())
    net.load_state_dict(fresh.state_dict())
    assert_same_after_steps(exact, net, 7)


def test_on_a_cpu_deep_networks_take_the_kernel_and_others_the_layers():
    assert EDNetwork(3, 2, 2).path == EDNetwork(3, 2, 100, dtype="float64").path == "layers"
    assert EDNetwork(3, 2, 100).path == "kernel"
