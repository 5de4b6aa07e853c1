"""The Triton kernels against formulas in float64, in Triton's interpreter where there is no GPU."""

import os

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

pytest.importorskip("triton")
from ed_lib import arrays  # noqa: E402
from ed_lib.ed import EDNetwork, gpu, network, rules  # noqa: E402
from tests.ed.test_network import assert_same_after_steps, twins  # noqa: E402
from tests.ed.test_rules import loop_layer, loop_update, sigma  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIGN = np.array([1.0, -1.0])
TOLERANCE = {"float32": dict(rtol=2e-5, atol=2e-6), "float64": dict(rtol=1e-11, atol=1e-13)}

# width, batch, K, D, n, dtype, rule: every size with others, not each with each
CASES = [
    (1, 1, 1, 1, 1, "float64", "kaneko"),
    (1, 64, 3, 5, 2, "float32", "signed"),
    (17, 63, 3, 1, 2, "float64", "signed"),
    (17, 1, 1, 5, 1, "float32", "kaneko"),
    (32, 64, 1, 5, 1, "float32", "signed"),
    (32, 64, 3, 1, 2, "float32", "kaneko"),
    (32, 130, 1, 1, 1, "float64", "kaneko"),
    (65, 63, 1, 1, 2, "float32", "kaneko"),
    (3, 5, 2, 0, 1, "float32", "signed"),
]
SMALL = (3, 5, 2, 2, 2, "float64", "kaneko")


def fold_weight(w):
    """(..., p, q, i, o) → (..., q·i, p·o), times s_p."""
    w = np.moveaxis(w * SIGN[:, None, None, None], -4, -2)  # (..., q, i, p, o)
    return w.reshape(*w.shape[:-4], w.shape[-4] * w.shape[-3], 2 * w.shape[-1])


def fold_bias(b):
    """(D, K, p, n, o) → (D, K, n, p·o), times s_p."""
    b = np.moveaxis(b * SIGN[:, None, None], 2, 3)  # (D, K, n, p, o)
    return b.reshape(*b.shape[:3], 2 * b.shape[-1])


def fold_states(y):
    """(..., p, b, o) → (..., b, p·o)."""
    y = np.moveaxis(y, -3, -2)
    return y.reshape(*y.shape[:-2], 2 * y.shape[-1])


def tensor(array, dtype):
    array = np.ascontiguousarray(array).reshape(np.shape(array))  # the first makes () to (1,)
    return torch.as_tensor(array, dtype=getattr(torch, dtype)).to(DEVICE)


class Case:
    """Random arrays in the plain layout, float64 but rounded to ``dtype``; and folded ones, as tensors."""

    def __init__(self, width, batch, networks, depth, n, dtype, rule, scale=1.0):
        rng = np.random.default_rng(width + 7 * batch + 31 * depth)
        self.dtype, self.rule, self.depth, self.batch = dtype, rule, depth, batch
        rounded = lambda a: np.asarray(a, dtype).astype(float)  # noqa: E731
        weight = rng.normal(size=(depth, networks, 2, 2, width, width))
        self.weight = rounded(scale * weight / np.sqrt(2 * width) / 2)
        self.bias = rounded(0.1 * rng.normal(size=(depth, networks, 2, n, width)))
        self.states = rounded(rng.random((depth + 1, networks, 2, batch, width)))
        self.error = rounded(rng.uniform(-1, 1, (batch, networks)))
        self.gains = rules.gains(self.error, rule)[..., 0] * 0.8 / batch  # (K, 2, B)
        self.bias_gains = rules.BIAS_CELL * self.gains if n == 2 else self.error.T[:, None] * 0.8 / batch

    def folded(self):
        """weight, bias, states, gains, bias gains."""
        plain = fold_weight(self.weight), fold_bias(self.bias), fold_states(self.states)
        return [tensor(a, self.dtype) for a in (*plain, self.gains, self.bias_gains)]

    def forward(self):
        """The states that follow from states[0], with the sum over n as the bias."""
        states = [self.states[0]]
        for weight, bias in zip(self.weight, self.bias.sum(axis=3, keepdims=True), strict=True):
            total = np.einsum("kqbi,kpqio->kpbo", states[-1], weight) + bias
            states.append(1 / (1 + np.exp(-2 / 0.4 * SIGN[:, None, None] * total)))
        return np.stack(states)

    def update(self):
        """Weight and bias after one step."""
        x, y = self.states[:-1], self.states[1:]
        slope = y * (1 - y)
        dw = np.einsum("dkqbi,kqb,dkpbo->dkpqio", x, self.gains, slope, optimize=True)
        return self.weight + dw, self.bias + np.einsum("knb,dkpbo->dkpno", self.bias_gains, slope)


@pytest.mark.oracle
@pytest.mark.parametrize("rule", rules.RULES)
def test_the_formulas_here_equal_plain_loops(rule):
    case = Case(*SMALL[:-1], rule)
    weight, bias = case.update()
    states = case.forward()
    for d in range(case.depth):
        b = case.bias[d].sum(axis=2, keepdims=True)
        np.testing.assert_allclose(states[d + 1], loop_layer(states[d], case.weight[d], b, 0.4), rtol=1e-12)
        x, y = case.states[d], case.states[d + 1]
        wanted = case.weight[d] + loop_update(x, y, case.error, 0.8, rule)
        np.testing.assert_allclose(weight[d], wanted, rtol=1e-12, atol=1e-14)
        sent = np.full((*x.shape[:3], 1), 0.8)  # a bias cell is a sender that is constant
        wanted = case.bias[d] + loop_update(sent, y, case.error, 0.8, rule)[:, :, :, 0]
        np.testing.assert_allclose(bias[d], wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_equals_the_formula(case):
    if DEVICE == "cuda" and (reason := gpu.obstacle(case[0], case[5])):
        pytest.skip(reason)
    case = Case(*case)
    weight, bias, states, *_ = case.folded()
    first = states[0].clone()
    states[1:] = float("nan")
    gpu.forward(states, weight, bias.sum(dim=2, keepdim=True), 0.4)
    np.testing.assert_allclose(states.cpu(), fold_states(case.forward()), **TOLERANCE[case.dtype])
    assert torch.equal(states[0], first)


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_update_equals_the_formula_and_leaves_the_states(case):
    case = Case(*case)
    weight, bias, *read = case.folded()
    before = [a.clone() for a in read]
    gpu.update(weight, bias, *read)
    for ours, wanted in zip((weight, bias), case.update(), strict=True):
        fold = fold_weight if wanted.ndim == 6 else fold_bias
        np.testing.assert_allclose(ours.cpu(), fold(wanted), **TOLERANCE[case.dtype])
    assert all(torch.equal(a, b) for a, b in zip(read, before, strict=True))


def guarded(array):
    """A copy of a tensor in the middle of a larger buffer of sevens → (copy, buffer)."""
    buffer = torch.full((array.numel() + 512,), 7.0, dtype=array.dtype, device=array.device)
    inside = buffer[256:-256].view(array.shape)
    inside.copy_(array)
    return inside, buffer


@pytest.mark.gpu
@pytest.mark.parametrize("width, batch", [(17, 63), (16, 48)])  # with numbers outside, and without
def test_nothing_is_written_outside_the_arrays(width, batch):
    arrays = Case(width, batch, 2, 2, 2, "float32", "signed").folded()
    inside, buffers = zip(*map(guarded, arrays), strict=True)
    weight, bias, states, *gains = inside
    gpu.forward(states, weight, bias[:, :, :1].clone(), 0.4)
    gpu.update(weight, bias, states, *gains)
    for buffer in buffers:
        assert (buffer[:256] == 7).all() and (buffer[-256:] == 7).all()


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_sums_give_0_and_1_and_no_nan(dtype):
    case = Case(3, 5, 1, 1, 1, dtype, "kaneko", scale=1e6)
    weight, bias, states, *_ = case.folded()
    with np.errstate(over="ignore"):
        gpu.forward(states, weight, bias, 0.4)
        wanted = fold_states(case.forward())
    np.testing.assert_array_equal(states[1].cpu(), wanted[1])
    assert set(wanted[1].ravel()) == {0.0, 1.0}


@pytest.mark.oracle
@pytest.mark.gpu
def test_u0_sets_the_width_of_the_sigmoid():
    states = tensor(np.ones((2, 1, 1, 2)), "float64")
    weight, bias = tensor(np.eye(2)[None, None], "float64"), tensor(np.zeros((1, 1, 1, 2)), "float64")
    gpu.forward(states, weight, bias, 3)
    np.testing.assert_allclose(states[1].cpu(), sigma(1, 3), rtol=1e-14)


@pytest.mark.gpu
@pytest.mark.parametrize("rule, bias", [("kaneko", "free"), ("signed", "cells")])
@pytest.mark.parametrize("backend, path", [("torch", "layers"), ("torch", "kernel"), ("cupy", "layers")])
def test_a_network_on_a_gpu(backend, path, rule, bias):
    if not arrays.gpu_count(backend):
        pytest.skip("needs a GPU, and this machine has none")
    options = dict(rule=rule, bias=bias, backend=backend, device="cuda")
    assert_same_after_steps(*twins(path, 17, 20, 3, **options), 63)


@pytest.mark.gpu
def test_a_step_on_a_gpu_takes_at_most_the_weights_and_the_activations_in_extra_memory(rng):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU, and this machine has none")
    for path in ("layers", "kernel"):
        net = EDNetwork(20, 32, 200, 2, backend="torch", device="cuda", path=path)
        x, target = net.asarray(rng.random((64, 20))), net.asarray(np.ones((64, 2)))
        net.step(x, target)
        weights = sum(array.nbytes for array in net.parameters.values())
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        net.step(x, target)
        extra = torch.cuda.max_memory_allocated() - before
        assert extra <= weights + net.states.nbytes, path


def test_the_width_that_fits_a_gpu_and_what_is_taken_where_it_does_not():
    assert gpu.obstacle(64, torch.float32) is None and gpu.obstacle(32, np.dtype("float64")) is None
    needed = "{} KiB of shared memory for the width {} in {}; at most 64"
    assert needed.format(256, 65, "float32") in gpu.obstacle(65, torch.float32)
    assert needed.format(128, 33, "float64") in gpu.obstacle(33, "float64")
    on_gpu = arrays.Space("torch", torch, "cuda:0", torch.float32)
    assert network.choose("auto", on_gpu, 32, 2) == "kernel"
    with pytest.warns(UserWarning, match="taking the path 'layers': .* shared memory for the width 300"):
        assert network.choose("auto", on_gpu, 300, 2) == "layers"
