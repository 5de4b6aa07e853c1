"""EDNetwork: one step against plain loops, the same on every library, signs, errors."""

import copy
import pickle

import numpy as np
import pytest
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


@given(shape=shapes, seed=st.integers(0, 999), scale=st.sampled_from([0.1, 1.0, 100.0]))
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
        if name.endswith(grows):
            assert (np.abs(value) >= np.abs(before[name])).all(), f"{name} shrank"


@given(shape=shapes, seed=st.integers(0, 999))
def test_kanekos_rule_keeps_every_sign_for_negative_data_too(shape, seed):
    rng = np.random.default_rng(seed)
    net = EDNetwork(**{**shape, "rule": "kaneko", "init": "fan_in"}, alpha=5.0)
    for _ in range(10):
        x = rng.normal(size=(4, net.n_inputs))
        net.step(net.asarray(x), net.asarray(rng.random((4, net.n_outputs))))
    assert net.signs_hold()


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
    (dict(width=-1), ValueError, "width is -1"),
    (dict(depth=-1), ValueError, "depth is -1; wanted at least 0"),
    (dict(n_outputs=0), ValueError, "n_outputs is 0"),
    (dict(width=2.0), TypeError, "width is 2.0; wanted a whole number"),
    (dict(depth=True), TypeError, "depth is True"),
    (dict(rule="hebb"), ValueError, "rule is 'hebb'; wanted one of 'kaneko', 'signed'"),
    (dict(init="xavier"), ValueError, "init is 'xavier'"),
    (dict(bias="none"), ValueError, "bias is 'none'"),
    (dict(backend="jax"), ValueError, "backend is 'jax'"),
    (dict(dtype="float16"), ValueError, "dtype is 'float16'"),
    (dict(device="tpu"), ValueError, "device is 'tpu'"),
    (dict(device="cuda"), ValueError, "device 'cuda' with the backend 'numpy'"),
    (dict(backend="cupy"), ValueError, "device 'cpu' with the backend 'cupy'"),
    (dict(backend="torch", device="cuda:99"), ValueError, "device is 'cuda:99'; torch sees"),
    (dict(alpha=0), ValueError, "alpha is 0"),
    (dict(alpha=float("nan")), ValueError, "alpha is nan"),
    (dict(alpha="0.8"), TypeError, "alpha is '0.8'"),
    (dict(u0=-1), ValueError, "u0 is -1"),
    (dict(seed=-1), ValueError, "seed is -1"),
]


@pytest.mark.parametrize("argument, error, message", BAD_ARGUMENTS)
def test_a_bad_argument_is_named(argument, error, message):
    with pytest.raises(error, match=message.replace("(", r"\(")):
        EDNetwork(**{**GOOD, **argument})


X, T = np.full((4, 3), 0.5), np.ones((4, 1))
NAN = np.where(np.arange(12).reshape(4, 3) == 5, np.nan, 0.5)
BAD_STEPS = [
    (X[:, :2], T, ValueError, r"x has the shape \(4, 2\); wanted \(B, 3\)"),
    (X[0], T, ValueError, r"x has the shape \(3,\)"),
    (X[:0], T[:0], ValueError, r"x has the shape \(0, 3\)"),
    (X, T[:3], ValueError, r"target has the shape \(3, 1\); wanted \(4, 1\)"),
    (X, T[:, 0], ValueError, r"target has the shape \(4,\)"),
    (NAN, T, ValueError, "x holds NaN or infinity"),
    (np.where(X > 0, np.inf, 0), T, ValueError, "x holds NaN or infinity"),
    (X, T * np.nan, ValueError, "target holds NaN or infinity"),
    (X, T + 0.5, ValueError, r"target has values outside \[0, 1\]"),
    (X.astype(complex), T, TypeError, "x has the dtype complex128"),
    (X.tolist(), T, TypeError, r"x is a builtins.list; wanted an array of the backend 'numpy'"),
]


@pytest.mark.parametrize("x, target, error, message", BAD_STEPS)
def test_a_bad_step_is_named_and_changes_nothing(x, target, error, message):
    net = EDNetwork(**GOOD)
    before = net.state_dict()
    with pytest.raises(error, match=message):
        net.step(x, target)
    assert all((before[n] == v).all() for n, v in net.state_dict().items())


def test_a_bad_error_is_named_and_changes_nothing():
    net = EDNetwork(**GOOD)
    before = net.state_dict()
    with pytest.raises(RuntimeError, match="needs the activations of a forward"):
        net.update(T)
    net.forward(X)
    for error, message in (
        (T * np.inf, "error holds NaN"),
        (T[:2], r"error has the shape \(2, 1\); wanted \(4, 1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            net.update(error)
    assert all((before[n] == v).all() for n, v in net.state_dict().items())


def test_an_array_of_another_library_or_device_is_named():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"x is a torch.Tensor; wanted an array of the backend 'numpy'"):
        EDNetwork(**GOOD).forward(torch.ones(4, 3))
    with pytest.raises(TypeError, match=r"x is a numpy.ndarray; wanted an array of the backend 'torch'"):
        EDNetwork(**GOOD, backend="torch").forward(X)
    with pytest.raises(ValueError, match=r"x is on the device meta; wanted cpu"):
        EDNetwork(**GOOD, backend="torch").forward(torch.ones(4, 3, device="meta"))


def test_a_tensor_that_autograd_follows_leaves_no_graph_behind():
    torch = pytest.importorskip("torch")
    net = EDNetwork(**GOOD, backend="torch")
    output = net.step(torch.ones(4, 3, requires_grad=True), torch.ones(4, 1))
    assert not output.requires_grad and not net.parameters["input.weight"].requires_grad


def test_a_bad_state_is_named_and_changes_nothing():
    net = EDNetwork(**GOOD)
    before = net.state_dict()
    flipped = {**before, "hidden.weight": -before["hidden.weight"]}
    broken = {**before, "output.weight": before["output.weight"] * np.nan}
    short = {**before, "input.bias": before["input.bias"][..., :1]}
    missing = {n: v for n, v in before.items() if n != "input.bias"}
    for state, message in (
        (flipped, "weights of the wrong sign"),
        (broken, "NaN or infinity"),
        (short, r"state\['input.bias'\] has the shape"),
        (missing, "state has the keys"),
    ):
        with pytest.raises(ValueError, match=message):
            net.load_state_dict(state)
    assert all((before[n] == v).all() for n, v in net.state_dict().items())
    EDNetwork(**GOOD, rule="signed").load_state_dict(flipped)  # that rule promises no signs


def test_the_inhibitory_output_cell_is_never_read(rng):
    """The source article trains it all the same; so does this network, as part of one formula."""
    net = EDNetwork(3, 2, 1)
    state = net.state_dict()
    state["output.weight"][:, 1] = 0
    x = net.asarray(rng.random((4, 3)))
    before = net.forward(x)
    net.load_state_dict(state)
    np.testing.assert_array_equal(net.forward(x), before)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("how", ["copy", "deepcopy", "pickle"])
def test_copies_are_whole_and_share_no_weight(backend, how):
    options = dict(rule="signed", bias="cells", alpha=0.3, u0=0.7, seed=5, dtype="float64")
    net = EDNetwork(3, 4, 2, 2, backend=backend, **options)
    ways = {"copy": copy.copy, "deepcopy": copy.deepcopy}
    ways["pickle"] = lambda net: pickle.loads(pickle.dumps(net))
    other, rng = ways[how](net), np.random.default_rng(0)
    x, target = (net.asarray(rng.random(shape)) for shape in ((5, 3), (5, 2)))
    np.testing.assert_array_equal(net.forward(x), other.forward(x))
    before = net.state_dict()
    other.step(x, target)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    net.step(x, target)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, other.state_dict()[name])
