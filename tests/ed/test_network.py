"""EDNetwork: one step against plain loops, the same on every library, signs, errors."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ed_lib import arrays
from ed_lib.ed import EDNetwork
from tests.ed.test_rules import loop_layer, loop_update

shapes = st.fixed_dictionaries(
    {
        "n_inputs": st.integers(1, 5),
        "width": st.integers(1, 4),
        "depth": st.integers(0, 3),
        "n_outputs": st.integers(1, 3),
        "bias": st.sampled_from(["free", "cells"]),
        "rule": st.sampled_from(["kaneko", "signed"]),
        "init": st.sampled_from(["uniform", "half_normal", "fan_in"]),
    }
)


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


def batch(rng, net, size=4):
    x = rng.random((size, net.n_inputs))
    return x, rng.integers(0, 2, (size, net.n_outputs)).astype(float)


@pytest.mark.oracle
@given(shape=shapes, seed=st.integers(0, 999))
def test_one_step_equals_plain_loops_for_every_weight(shape, seed):
    net = EDNetwork(**shape, seed=seed, dtype="float64")
    before = net.state_dict()
    x, target = batch(np.random.default_rng(seed), net)
    output = net.step(x, target)
    wanted, after = loop_step(before, x, target, depth=net.depth, bias=net.bias, rule=net.rule)
    np.testing.assert_allclose(output, wanted, rtol=1e-12, atol=1e-15)
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(value, after[name], rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    "shape", [dict(depth=3, bias="free", rule="signed"), dict(depth=0, bias="cells", rule="kaneko")]
)
def test_every_library_gives_the_same_network(shape, backend, rng):
    ours = EDNetwork(7, 5, n_outputs=3, **shape, dtype="float64")
    theirs = EDNetwork(7, 5, n_outputs=3, **shape, dtype="float64", **backend)
    for _ in range(3):
        x, target = batch(rng, ours)
        a = ours.step(x, target)
        b = theirs.step(theirs.asarray(x), theirs.asarray(target))
        np.testing.assert_allclose(arrays.to_numpy(b), a, rtol=1e-12)
    for name, value in ours.state_dict().items():
        np.testing.assert_allclose(theirs.state_dict()[name], value, rtol=1e-12, atol=1e-12, err_msg=name)


def test_float32_stays_float32_and_within_rounding(backend, rng):
    exact, net = EDNetwork(7, 5, 2, dtype="float64"), EDNetwork(7, 5, 2, **backend)
    net.load_state_dict(exact.state_dict())
    x, target = batch(rng, net)
    exact.step(x, target)
    assert "float32" in str(net.step(net.asarray(x), net.asarray(target)).dtype)
    for name, value in net.state_dict().items():
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, exact.state_dict()[name], rtol=2e-6, atol=2e-6, err_msg=name)


@given(shape=shapes, seed=st.integers(0, 999))
def test_the_order_of_a_batch_does_not_matter(shape, seed):
    rng = np.random.default_rng(seed)
    one, other = EDNetwork(**shape, dtype="float64"), EDNetwork(**shape, dtype="float64")
    x, target = batch(rng, one, size=6)
    order = rng.permutation(6)
    one.step(x, target)
    other.step(x[order], target[order])
    for name, value in one.state_dict().items():
        np.testing.assert_allclose(other.state_dict()[name], value, rtol=1e-12, atol=1e-13, err_msg=name)


@given(shape=shapes, seed=st.integers(0, 999), scale=st.sampled_from([0.1, 1.0, 100.0, -1.0]))
def test_kanekos_rule_keeps_every_sign_for_any_data(shape, seed, scale):
    """On inputs ≥ 0, which is what cells send, no weight even shrinks."""
    rng = np.random.default_rng(seed)
    net = EDNetwork(**{**shape, "rule": "kaneko"}, alpha=5.0)
    before = net.state_dict()
    for _ in range(10):
        x, target = batch(rng, net)
        net.step(net.asarray(scale * x), net.asarray(target))
    assert net.signs_hold()
    grows = ("weight", "bias") if net.bias == "cells" else ("weight",)
    for name, value in net.state_dict().items():
        if name.endswith(grows) and not (name == "input.weight" and scale < 0):
            assert (np.abs(value) >= np.abs(before[name])).all(), f"{name} shrank"


def test_the_signed_rule_lets_weights_cross_zero(rng):
    net = EDNetwork(6, 4, 1, rule="signed")
    for _ in range(60):
        x, _ = batch(rng, net)
        net.step(net.asarray(x), net.asarray(np.zeros((4, 1))))
    assert not net.signs_hold()


def test_k_outputs_are_k_independent_networks(rng):
    """Output k of a network of three is the network that has its weights alone."""
    net = EDNetwork(5, 4, 2, 3, dtype="float64")
    single = EDNetwork(5, 4, 2, 1, dtype="float64")
    x, target = batch(rng, net)
    cut = {n: v[:, 1:2] if n.startswith("hidden") else v[1:2] for n, v in net.state_dict().items()}
    single.load_state_dict(cut)
    np.testing.assert_allclose(single.step(x, target[:, 1:2]), net.step(x, target)[:, 1:2], rtol=1e-13)
    for name, value in net.state_dict().items():
        mine = value[:, 1:2] if name.startswith("hidden") else value[1:2]
        np.testing.assert_allclose(single.state_dict()[name], mine, rtol=1e-12, atol=1e-13)


def test_a_fan_in_start_keeps_sums_of_order_one_and_the_others_grow(rng):
    x = rng.random((64, 784))
    total = {}
    for init in ("uniform", "half_normal", "fan_in"):
        weight = EDNetwork(784, 32, 0, init=init, dtype="float64").state_dict()["input.weight"]
        total[init] = (x @ (weight[0, 0, 0] + weight[0, 0, 1])).std()
    assert 0.2 < total["fan_in"] < 2 and total["uniform"] > 4 and total["half_normal"] > 10


def test_the_start_is_the_same_for_a_seed_and_another_for_another(backend):
    a, b, c = (EDNetwork(3, 2, 1, seed=s, **backend).state_dict() for s in (1, 1, 2))
    assert all((a[n] == b[n]).all() for n in a) and any((a[n] != c[n]).any() for n in a)


def test_state_survives_a_round_trip_and_is_a_copy(backend, rng):
    net, other = EDNetwork(3, 2, 1, **backend), EDNetwork(3, 2, 1, seed=5, **backend)
    state = net.state_dict()
    other.load_state_dict(state)
    x, target = batch(rng, net)
    other.step(other.asarray(x), other.asarray(target))
    assert all((state[n] == net.state_dict()[n]).all() for n in state)
    assert (state["input.weight"] != other.state_dict()["input.weight"]).any()


GOOD = dict(n_inputs=3, width=2, depth=1)
BAD_ARGUMENTS = [
    (dict(n_inputs=0), ValueError, "n_inputs is 0; wanted at least 1"),
    (dict(width=2.0), TypeError, "width is 2.0; wanted a whole number"),
    (dict(depth=-1), ValueError, "depth is -1; wanted at least 0"),
    (dict(depth=True), TypeError, "depth is True"),
    (dict(n_outputs=0), ValueError, "n_outputs is 0"),
    (dict(rule="hebb"), ValueError, "rule is 'hebb'; wanted one of 'kaneko', 'signed'"),
    (dict(init="xavier"), ValueError, "init is 'xavier'"),
    (dict(bias="none"), ValueError, "bias is 'none'"),
    (dict(backend="jax"), ValueError, "backend is 'jax'"),
    (dict(dtype="float16"), ValueError, "dtype is 'float16'"),
    (dict(device="cuda"), ValueError, "device 'cuda' with the backend 'numpy'"),
    (dict(backend="torch", device="cuda:99"), ValueError, "device is 'cuda:99'; torch sees"),
    (dict(alpha=float("nan")), ValueError, "alpha is nan"),
    (dict(u0="0.4"), TypeError, "u0 is '0.4'"),
    (dict(seed=-1), ValueError, "seed is -1"),
]


@pytest.mark.parametrize("argument, error, message", BAD_ARGUMENTS)
def test_a_bad_argument_is_named(argument, error, message):
    with pytest.raises(error, match=message):
        EDNetwork(**{**GOOD, **argument})


X, T = np.full((4, 3), 0.5), np.ones((4, 1))
STATE = EDNetwork(**GOOD).state_dict()
FLIPPED = STATE | {"hidden.weight": -STATE["hidden.weight"]}
BAD_CALLS = [
    (lambda net: net.step(X[:, :2], T), ValueError, r"x has the shape \(4, 2\); wanted \(B, 3\)"),
    (lambda net: net.step(X[:0], T[:0]), ValueError, r"x has the shape \(0, 3\)"),
    (lambda net: net.step(X, T[:3]), ValueError, r"target has the shape \(3, 1\); wanted \(4, 1\)"),
    (lambda net: net.step(np.where(X > 0, np.inf, 0), T), ValueError, "x holds NaN or infinity"),
    (lambda net: net.step(X, T * np.nan), ValueError, "target holds NaN or infinity"),
    (lambda net: net.step(X, T + 0.5), ValueError, r"target has values outside \[0, 1\]"),
    (lambda net: net.step(X.astype(complex), T), TypeError, "x has the dtype complex128"),
    (lambda net: net.step(torch.ones(4, 3), T), TypeError, "x is a torch.Tensor; wanted .* 'numpy', as asar"),
    (lambda net: net.update(T), RuntimeError, "needs the activations of a forward"),
    (lambda net: (net.forward(X), net.update(T * np.inf)), ValueError, "error holds NaN"),
    (
        lambda net: (net.forward(X), net.update(T[:2])),
        ValueError,
        r"error has the shape \(2, 1\); wanted \(4",
    ),
    (lambda net: net.load_state_dict(FLIPPED), ValueError, "state.'hidden.weight'. has weights of the wrong"),
    (
        lambda net: net.load_state_dict(STATE | {"input.bias": T * np.nan}),
        ValueError,
        "state.'input.bias'. has",
    ),
    (lambda net: net.load_state_dict({"input.bias": T}), ValueError, "state has the keys"),
]


@pytest.mark.parametrize("call, error, message", BAD_CALLS)
def test_a_bad_call_is_named_and_changes_nothing(call, error, message):
    net = EDNetwork(**GOOD)
    with pytest.raises(error, match=message):
        call(net)
    assert all((STATE[n] == v).all() for n, v in net.state_dict().items())


def test_the_signed_rule_takes_over_any_signs():
    EDNetwork(**GOOD, rule="signed").load_state_dict(FLIPPED)


def test_a_tensor_that_autograd_follows_leaves_no_graph_behind():
    net = EDNetwork(**GOOD, backend="torch")
    output = net.step(torch.ones(4, 3, requires_grad=True), torch.ones(4, 1))
    assert not output.requires_grad and not net.parameters["input.weight"].requires_grad


def test_the_inhibitory_output_cell_is_never_read(rng):
    """The source article trains it all the same; so does this network, as part of one formula."""
    net = EDNetwork(3, 2, 1)
    state = net.state_dict()
    state["output.weight"][:, 1] = 0
    x = net.asarray(rng.random((4, 3)))
    before = net.forward(x)
    net.load_state_dict(state)
    np.testing.assert_array_equal(net.forward(x), before)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_are_whole_and_share_no_weight(how, backend):
    options = dict(rule="signed", bias="cells", alpha=0.3, u0=0.7, seed=5, dtype="float64")
    net = EDNetwork(3, 4, 2, 2, **backend, **options)
    other, rng = how(net), np.random.default_rng(0)
    x, target = (net.asarray(rng.random(shape)) for shape in ((5, 3), (5, 2)))
    np.testing.assert_array_equal(*(arrays.to_numpy(one.forward(x)) for one in (net, other)))
    before = net.state_dict()
    other.step(x, target)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    net.step(x, target)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, other.state_dict()[name])
