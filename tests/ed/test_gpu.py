"""The CUDA kernels against formulas in float64: by CuPy, or on a CPU where there is no GPU."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ed_lib import arrays
from ed_lib.ed import gpu, network, rules
from ed_lib.ed.layout import fold as fold_weight  # (…, p, q, i, o) → (…, q·i, p·o), times s_p
from ed_lib.ed.space import DTYPES, Space, library, space, to_numpy
from tests import cuda
from tests.ed.test_network import assert_same_after_steps, twins
from tests.ed.test_rules import loop_layer, loop_update, sigma

PLACE = ("cupy", "cuda") if arrays.gpu_count("cupy") else ("numpy", "cpu")
SPACES = {dtype: space(*PLACE, dtype) for dtype in DTYPES}
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


def fold_bias(b):
    """(D, K, p, n, o) → (D, K, n, p·o), times s_p."""
    return fold_weight(b[:, :, :, None])


def fold_states(y):
    """(..., p, b, o) → (..., b, p·o)."""
    y = np.moveaxis(y, -3, -2)
    return y.reshape(*y.shape[:-2], 2 * y.shape[-1])


class Case:
    """Random arrays in the plain layout, float64 but rounded to ``dtype``; and folded ones."""

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
        return [SPACES[self.dtype].asarray(a) for a in (*plain, self.gains, self.bias_gains)]

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


def check(case):
    """Forward from the first states, then one update by the random ones: each against its formula."""
    weight, bias, states, *gains = case.folded()
    answers = SPACES[case.dtype].asarray(to_numpy(states).copy())
    answers[1:] = float("nan")
    gpu.forward(answers, weight, bias.sum(2, keepdims=True), 0.4)
    np.testing.assert_allclose(to_numpy(answers), fold_states(case.forward()), **TOLERANCE[case.dtype])
    np.testing.assert_array_equal(to_numpy(answers[0]), to_numpy(states[0]))
    before = [to_numpy(a).copy() for a in (states, *gains)]
    gpu.update(weight, bias, states, *gains)
    for ours, wanted, fold in zip((weight, bias), case.update(), (fold_weight, fold_bias), strict=True):
        np.testing.assert_allclose(to_numpy(ours), fold(wanted), **TOLERANCE[case.dtype])
    assert all((to_numpy(a) == b).all() for a, b in zip((states, *gains), before, strict=True))


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_kernels_equal_the_formulas_and_leave_what_they_read(case):
    check(Case(*case))


@pytest.mark.oracle
@settings(max_examples=15)
@given(sizes=st.tuples(*(st.integers(1, n) for n in (12, 9, 3, 4, 2))), rule=st.sampled_from(rules.RULES))
def test_both_kernels_equal_the_formulas_for_any_sizes(sizes, rule):
    """In float64: width, batch, K, D, n."""
    check(Case(*sizes, "float64", rule))


def guarded(array):
    """A copy of an array in the middle of a larger buffer of sevens → (copy, buffer)."""
    buffer = library(array).full(array.size + 512, 7, array.dtype)
    inside = buffer[256:-256].reshape(array.shape)
    inside[...] = array
    return inside, buffer


@pytest.mark.gpu
@pytest.mark.parametrize("width, batch", [(17, 63), (16, 48)])  # with a part of a tile, and without
def test_nothing_is_written_outside_the_arrays(width, batch):
    case = Case(width, batch, 2, 2, 2, "float32", "signed")
    inside, buffers = zip(*map(guarded, case.folded()), strict=True)
    weight, bias, states, *gains = inside
    gpu.forward(states, weight, bias[:, :, :1].copy(), 0.4)
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
    np.testing.assert_array_equal(to_numpy(states)[1], wanted[1])
    assert set(wanted[1].ravel()) == {0.0, 1.0}


@pytest.mark.oracle
@pytest.mark.gpu
def test_u0_sets_the_width_of_the_sigmoid():
    asarray = SPACES["float64"].asarray
    states = asarray(np.ones((2, 1, 1, 2)))
    gpu.forward(states, asarray(np.eye(2)[None, None]), asarray(np.zeros((1, 1, 1, 2))), 3)
    np.testing.assert_allclose(to_numpy(states)[1], sigma(1, 3), rtol=1e-14)


@pytest.mark.oracle
@pytest.mark.parametrize("architecture", cuda.ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("source", [gpu.FORWARD, gpu.UPDATE], ids=["forward", "update"])
def test_nvrtc_compiles_the_kernels(source, dtype, architecture):
    assert cuda.cubin_size(source, architecture, gpu.options(dtype)) > 1000


@pytest.mark.parametrize("rule, bias", [("kaneko", "free"), ("signed", "cells")])
def test_a_network_learns_the_same_by_the_cuda_kernels(monkeypatch, rule, bias):
    monkeypatch.setattr(network.EDNetwork, "hidden", gpu)
    assert_same_after_steps(*twins("kernel", 5, 3, 2, rule=rule, bias=bias), 7)


@pytest.mark.gpu
@pytest.mark.parametrize("rule, bias", [("kaneko", "free"), ("signed", "cells")])
@pytest.mark.parametrize("path", ["layers", "kernel"])
def test_a_network_on_a_gpu(path, rule, bias):
    if not arrays.gpu_count("cupy"):
        pytest.skip("needs a GPU, and this machine has none")
    options = dict(rule=rule, bias=bias, backend="cupy", device="cuda")
    assert_same_after_steps(*twins(path, 17, 20, 3, **options), 63)


def test_what_is_taken_on_a_gpu():
    cupy = Space("cupy", "cuda", "float32")
    assert network.obstacle(cupy, 512) is None and "at most 512 pairs" in network.obstacle(cupy, 513)
    assert [network.choose("auto", cupy, width, 2) for width in (32, 600)] == ["kernel", "layers"]
    with pytest.raises(ValueError, match="path is 'kernel', which takes at most 512 pairs of cells, not 600"):
        network.choose("kernel", cupy, 600, 2)


SCALE = """
extern "C" __global__ void scale(float* a, float by, int n) { if (threadIdx.x < n) a[threadIdx.x] *= by; }
"""


@pytest.mark.parametrize("arguments", [(2.0, np.int32(3)), (np.float32(2), 3), (np.float32(2),)], ids=str)
def test_an_argument_that_a_gpu_would_misread_is_refused(arguments):
    """Python's float is a double, in CuPy too, and its int a long long."""
    array = np.ones(4, np.float32)
    with pytest.raises(TypeError, match="scale does not compile, or not for these"):
        gpu.RawKernel(SCALE, "scale")((1,), (4,), (array, *arguments))
    gpu.RawKernel(SCALE, "scale")((1,), (4,), (array, np.float32(2), np.int32(3)))
    np.testing.assert_array_equal(array, [2, 2, 2, 1])


TRANSPOSE = """
extern "C" __global__ void transpose(const double* from, double* to, int n) {
    __shared__ double tile[4][5];
    int x = blockIdx.x * 4 + threadIdx.x, y = blockIdx.y * 4 + threadIdx.y;
    if (x < n && y < n) tile[threadIdx.y][threadIdx.x] = from[y * n + x];
    __syncthreads();
    x = blockIdx.y * 4 + threadIdx.x, y = blockIdx.x * 4 + threadIdx.y;
    if (x < n && y < n) to[y * n + x] = tile[threadIdx.x][threadIdx.y];
}
"""


def test_blocks_and_threads_have_two_axes_and_share_memory_between_barriers(rng):
    a, b = rng.random((10, 10)), np.zeros((10, 10))
    gpu.RawKernel(TRANSPOSE, "transpose")((3, 3), (4, 4), (a, b, np.int32(10)))
    np.testing.assert_array_equal(b, a.T)


def test_a_missing_compiler_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="a CUDA kernel on a CPU needs the compiler g\\+\\+"):
        gpu.compiled(SCALE, "scale", ())
