"""The CUDA kernels against ``rules`` in float64: by CuPy, or on a CPU where there is no GPU."""

import itertools
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ed_lib import arrays, records
from ed_lib.ed import cuda_on_cpu, ed_on_gpu, layout, network, rules
from ed_lib.ed.space import DTYPES, Space, library, space, to_numpy
from tests import cuda
from tests.ed.test_network import RULES_AND_BIASES, assert_same_after_steps, twins

PLACE = ("cupy", "cuda") if arrays.gpu_count("cupy") else ("numpy", "cpu")
SPACES = {dtype: space(*PLACE, dtype) for dtype in DTYPES}
TOLERANCE = {"float32": dict(rtol=2e-5, atol=2e-6), "float64": dict(rtol=1e-11, atol=1e-13)}

# width, batch, K, D, n, dtype, rule: every size with others, not each with each; then a scale of
# the weights
CASES = [
    (1, 1, 1, 1, 1, "float64", "kaneko"),
    (1, 64, 3, 5, 2, "float32", "signed"),
    (16, 48, 2, 2, 2, "float32", "signed"),
    (17, 63, 3, 1, 2, "float64", "signed"),
    (17, 1, 1, 5, 1, "float32", "kaneko"),
    (32, 64, 1, 5, 1, "float32", "signed"),
    (32, 64, 3, 1, 2, "float32", "kaneko"),
    (32, 130, 1, 1, 1, "float64", "kaneko"),
    (65, 63, 1, 1, 2, "float32", "kaneko"),
    (256, 5, 1, 2, 1, "float64", "signed"),  # all threads that a block may have
    (3, 5, 2, 0, 1, "float32", "signed"),
    (3, 5, 1, 1, 1, "float32", "kaneko", 1e6),  # large sums give 0 and 1, and no NaN
    (3, 5, 1, 1, 1, "float64", "kaneko", 1e6),
]


def fold_states(y):
    """(..., p, b, o) → (..., b, p·o)."""
    y = np.moveaxis(y, -3, -2)
    return y.reshape(*y.shape[:-2], 2 * y.shape[-1])


CHAPTERS = [
    json.loads(path.read_text())["cells"] for path in sorted(records.ROOT.glob("book/*/*.ipynb"))
]
CELLS = ["".join(cell["source"]) for cells in CHAPTERS for cell in cells]
SHOWN = dict(
    match for cell in CELLS for match in re.findall(r'^(\w+) = r"""(.*?)"""', cell, re.M | re.S)
)
OURS = {"forward": ed_on_gpu.FORWARD, "update": ed_on_gpu.UPDATE}
SOURCES = OURS | SHOWN
# Those that chapters show are written for one type.
COMPILED = [*itertools.product(OURS, DTYPES), *((name, "float64") for name in SHOWN)]


class Case:
    """Random arrays in the plain layout, float64 but rounded to ``dtype``; and folded ones."""

    def __init__(self, width, batch, networks, depth, n, dtype, rule, scale=1.0):
        rng = np.random.default_rng(width + 7 * batch + 31 * depth)
        self.dtype, self.rule, self.batch, self.cells = dtype, rule, batch, n == 2
        self.u0 = 3.0 if self.cells else 0.4
        rounded = lambda a: np.asarray(a, dtype).astype(float)  # noqa: E731
        weight = rng.normal(size=(depth, networks, 2, 2, width, width))
        self.weight = rounded(scale * weight / np.sqrt(2 * width) / 2)
        self.bias = rounded(0.1 * rng.normal(size=(depth, networks, 2, n, width)))
        self.states = rounded(rng.random((depth + 1, networks, 2, batch, width)))
        self.error = rounded(rng.uniform(-1, 1, (batch, networks)))

    def folded(self):
        """weight, bias, states, gains, bias gains."""
        gains = rules.gains(self.error, self.rule)[..., 0] * 0.8 / self.batch  # (K, 2, B)
        of_bias = (
            rules.BIAS_CELL * gains if self.cells else self.error.T[:, None] * 0.8 / self.batch
        )
        plain = (
            layout.fold(self.weight),
            self.fold_bias(self.bias),
            fold_states(self.states),
            gains,
            of_bias,
        )
        return [SPACES[self.dtype].asarray(a) for a in plain]

    def fold_bias(self, bias):
        """(D, K, p, n, o) → (D, K, n, p·o), times s_p: n senders of one cell each."""
        return layout.fold(bias[..., None, :])

    def forward(self):
        """The states that follow from states[0], with the sum over n as the bias."""
        states = [self.states[0]]
        for weight, bias in zip(self.weight, self.bias.sum(axis=3, keepdims=True), strict=True):
            states.append(rules.layer(states[-1], weight, bias, self.u0))
        return np.stack(states)

    def update(self):
        """Weight and bias after one step."""
        x, y = self.states[:-1], self.states[1:]
        if self.cells:  # a bias cell is a sender that is constant
            constant = np.full((*x.shape[:-1], 1), rules.BIAS_CELL)
            change = rules.weight_update(constant, y, self.error, 0.8, self.rule)[..., 0, :]
        else:
            slope = self.error.T[:, None, :, None] * y * (1 - y)  # (D, K, p, B, o)
            change = 0.8 * slope.mean(3, keepdims=True)
        return self.weight + rules.weight_update(
            x, y, self.error, 0.8, self.rule
        ), self.bias + change


def assert_kernels_are_right(case):
    """Both, each array in the middle of a larger buffer of sevens, which nobody writes to."""
    arrays, buffers = zip(*map(guarded, case.folded()), strict=True)
    weight, bias, states, *gains = arrays
    before = [to_numpy(a).copy() for a in (states, *gains)]
    ed_on_gpu.update(weight, bias, states, *gains)
    wanted = case.update()
    for ours, right in ((weight, layout.fold(wanted[0])), (bias, case.fold_bias(wanted[1]))):
        np.testing.assert_allclose(to_numpy(ours), right, **TOLERANCE[case.dtype])
    assert all((to_numpy(a) == b).all() for a, b in zip((states, *gains), before, strict=True))
    weight[...], bias[...] = case.folded()[:2]
    states[1:] = float("nan")
    ed_on_gpu.forward(states, weight, bias.sum(2, keepdims=True), case.u0)
    np.testing.assert_allclose(
        to_numpy(states), fold_states(case.forward()), **TOLERANCE[case.dtype]
    )
    np.testing.assert_array_equal(to_numpy(states[0]), before[0][0])
    for buffer in buffers:
        assert (buffer[:256] == 7).all() and (buffer[-256:] == 7).all()


def guarded(array):
    """A copy of an array in the middle of a larger buffer of sevens → (copy, buffer)."""
    buffer = library(array).full(array.size + 512, 7, array.dtype)
    inside = buffer[256:-256].reshape(array.shape)
    inside[...] = array
    return inside, buffer


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_kernels_equal_the_rules_and_write_nothing_else(case):
    assert_kernels_are_right(Case(*case))


@pytest.mark.oracle
@settings(max_examples=15)
@given(
    sizes=st.tuples(*(st.integers(1, n) for n in (12, 9, 3, 4, 2))),
    rule=st.sampled_from(rules.RULES),
)
def test_both_kernels_equal_the_rules_for_any_sizes(sizes, rule):
    """In float64: width, batch, K, D, n."""
    assert_kernels_are_right(Case(*sizes, "float64", rule))


def test_no_kernel_is_left_out():
    """All of ed_lib and of the chapters are in SOURCES, by their names."""
    modules = [path.read_text() for path in records.ROOT.glob("ed_lib/**/*.py")]
    begun = sum(text.count('extern "C" __global__ void') for text in [*modules, *CELLS])
    assert begun == len(SOURCES) == 4


@pytest.mark.oracle
@pytest.mark.parametrize("capability", cuda.CAPABILITIES)
@pytest.mark.parametrize("name, dtype", COMPILED)
def test_nvrtc_compiles_the_kernels_and_those_that_chapters_show(name, dtype, capability):
    options = ed_on_gpu.options(dtype)
    registers, shared = cuda.compiled(SOURCES[name], capability, options)
    assert shared == 0, "all that a block shares is asked for at its launch"
    threads = cuda.THREADS if name in SHOWN else ed_on_gpu.BLOCK
    assert registers * threads <= cuda.REGISTERS


class Launches:
    """In the place of a RawKernel: notes the threads of a block, and the bytes that they share."""

    def __init__(self):
        self.blocks = []

    def __call__(self, grid, block, arguments, shared_mem=0):
        self.blocks.append((block[0] * block[1], shared_mem))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_has_threads_and_shares_memory_as_any_gpu_allows(dtype, monkeypatch):
    launches = Launches()
    monkeypatch.setattr(ed_on_gpu, "kernel", lambda *name: launches)
    for width in range(1, ed_on_gpu.BLOCK // 2 + 1):
        states = np.empty((2, 1, 64, 2 * width), dtype)
        weight, bias, gains = np.empty((1, 1)), np.empty((1, 1, 1, 1)), np.empty(1)
        ed_on_gpu.forward(states, weight, bias, 0.4)
        ed_on_gpu.update(weight, bias, states, gains, gains)
    threads, shared = map(max, zip(*launches.blocks, strict=True))
    assert threads == ed_on_gpu.BLOCK <= cuda.THREADS and 0 < shared <= cuda.SHARED


def test_the_chapters_update_refuses_what_a_block_has_no_room_for():
    launches = Launches()
    (cell,) = (cell for cell in CELLS if "def update_all(" in cell)
    exec(cell, there := {"np": np, "update_kernel": launches})
    refused = set()
    for batch, width in itertools.product((1, 23, 24, 25, 63, 64, 128), (1, 32, 48, 49, 128, 129)):
        arrays = np.empty((1, 1)), None, np.empty((2, 2, batch, width)), None
        try:
            there["update_all"](*arrays)
        except ValueError as error:
            refused.add((batch, width))
            assert f"B is {batch} and W {width}; wanted B * W up to 3,072" in str(error)
    threads, shared = map(max, zip(*launches.blocks, strict=True))
    assert (threads, shared) == (cuda.THREADS, cuda.SHARED)
    assert {(64, 49), (128, 32), (25, 128), (1, 129)} <= refused and not {(64, 48)} & refused


@RULES_AND_BIASES
def test_a_network_learns_the_same_by_the_cuda_kernels(monkeypatch, rule, bias):
    monkeypatch.setattr(network.EDNetwork, "compute", ed_on_gpu)
    assert_same_after_steps(*twins("kernel", 5, 3, 2, rule=rule, bias=bias), 7)


def test_what_is_taken_on_a_gpu():
    cupy = Space("cupy", "cuda", "float32")
    assert network.obstacle(cupy, 256) is None and "up to 256 pairs" in network.obstacle(cupy, 257)
    assert [network.choose("auto", cupy, width, 2) for width in (32, 600)] == ["kernel", "layers"]
    with pytest.raises(
        ValueError, match="path is 'kernel', which takes up to 256 pairs of cells, not 600"
    ):
        network.choose("kernel", cupy, 600, 2)


SCALE = """
extern "C" __global__ void scale(float* a, float by, int n) { if (threadIdx.x < n) a[threadIdx.x] *= by; }
"""


@pytest.mark.parametrize(
    "arguments", [(2.0, np.int32(3)), (np.float32(2), 3), (np.float32(2),)], ids=str
)
def test_an_argument_that_a_gpu_would_misread_is_refused(arguments):
    """Python's float is a double, in CuPy too, and its int a long long."""
    array = np.ones(4, np.float32)
    with pytest.raises(TypeError, match="scale does not compile, or not for these"):
        cuda_on_cpu.RawKernel(SCALE, "scale")((1,), (4,), (array, *arguments))
    cuda_on_cpu.RawKernel(SCALE, "scale")((1,), (4,), (array, np.float32(2), np.int32(3)))
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
    cuda_on_cpu.RawKernel(TRANSPOSE, "transpose")((3, 3), (4, 4), (a, b, np.int32(10)))
    np.testing.assert_array_equal(b, a.T)


def test_a_missing_compiler_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="a CUDA kernel on a CPU needs the compiler g\\+\\+"):
        cuda_on_cpu.compile_kernel(SCALE, "scale", ())
