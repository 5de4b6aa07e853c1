"""The CPU's rungs against torch.nn.LSTM: packed weights, threads; and products of bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

numba = pytest.importorskip("numba")

from ed_lib.lstm import lstm_on_cpu  # noqa: E402
from ed_lib.lstm.lstm_on_cpu import Buffers, Packed, Weights  # noqa: E402
from ed_lib.registers import LANES, product_in_numpy  # noqa: E402

SIZE, HIDDEN = st.integers(1, 9), st.integers(1, 40)
THREADS = st.integers(1, numba.get_num_threads())
FEWER = settings(
    max_examples=15
)  # threads that wait for each other are slow where others want their cores
CLOSE = {torch.float64: 1e-12, torch.float32: 2e-6}
NOT_NUMBERS = {  # what is set to what
    "an infinite input": ("x", (0, 0, 0), torch.inf),
    "an infinite input in the middle": ("x", (2, 1, 1), -torch.inf),
    "an input": ("x", (1, 0, 1), torch.nan),
    "a bias": ("bias_ih_l0", 0, torch.nan),
    "the bias of an output gate": ("bias_hh_l0", -1, torch.nan),
    "a cell": ("c", (0, 1, 0), torch.nan),
}
VNNI = pytest.mark.skipif(not lstm_on_cpu.VNNI, reason="needs AVX-512 VNNI")


def grouped(x, *arrays):
    """Arguments of ``forward`` as those of ``part``."""
    weights, buffers = Weights(*arrays[:4]), Buffers(*arrays[4:8])
    return x, weights, buffers, *arrays[8:]


@pytest.fixture
def bytes_in_python(monkeypatch):
    """``part`` as Python runs it, its products by their specification in NumPy: eight bits, and
    float32 too, on any processor.
    """

    def forward(*arguments):
        with np.errstate(invalid="ignore"):  # infinity times 0, in the tests that want it
            return part.py_func(0, *grouped(*arguments))

    part = lstm_on_cpu.part
    monkeypatch.setattr(lstm_on_cpu, "VNNI", True)
    monkeypatch.setattr(lstm_on_cpu, "product", product_in_numpy)
    monkeypatch.setattr(lstm_on_cpu, "forward", forward)


def drawn(steps, batch, inputs, hidden, layers=1, dtype=torch.float64, **options):
    """torch.nn.LSTM, an input and a state for it."""
    torch.manual_seed(steps)
    module = torch.nn.LSTM(inputs, hidden, layers, dtype=dtype, **options)
    x = torch.randn(steps, batch, inputs, dtype=dtype)
    return module, x, tuple(2 * torch.rand(2, layers, batch, hidden, dtype=dtype) - 1)


def check_not_numbers(where, hidden, bits):
    """NaN where torch.nn.LSTM has it, and numbers where it has numbers."""
    name, index, value = NOT_NUMBERS[where]
    module, x, (h, c) = drawn(4, 2, 3, hidden, dtype=torch.float32)
    tensors = dict(module.named_parameters()) | {"x": x, "c": c}
    with torch.no_grad():
        tensors[name][index] = value
        right, (right_h, right_c) = module(x, (h, c))
    found, (found_h, found_c) = Packed(module, bits=bits)(x, (h, c))
    close = 2e-6 if bits == 32 else 0.02
    for ours, theirs in ((found, right), (found_h, right_h), (found_c, right_c)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=close, equal_nan=True)


@pytest.mark.oracle
@FEWER
@given(
    steps=st.integers(1, 6), batch=SIZE, inputs=SIZE, hidden=HIDDEN, layers=st.integers(1, 4),
    threads=THREADS, dtype=st.sampled_from(list(CLOSE)), zeros=st.booleans(),
)  # fmt: skip
def test_packed_equals_pytorch(steps, batch, inputs, hidden, layers, threads, dtype, zeros):
    module, x, state = drawn(steps, batch, inputs, hidden, layers, dtype)
    state = None if zeros else state
    packed = Packed(module, threads=threads)
    with torch.no_grad():
        theirs, ours = module(x, state), packed(x, state)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=CLOSE[dtype])
        kept = [tensor.clone() for tensor in (ours[0], *ours[1])]
        module.weight_hh_l0.zero_()
        again = packed(x, state)  # in memory that is used again
        packed(-x, state)
    assert all(map(torch.equal, (again[0], *again[1]), kept)), "its weights stay as they were"
    assert all(map(torch.equal, (ours[0], *ours[1]), kept)), "an answer stays as it was"


@pytest.mark.oracle
@VNNI
@FEWER
@given(batch=SIZE, inputs=SIZE, hidden=HIDDEN, threads=THREADS)
def test_a_step_in_eight_bits_is_that_of_the_rounded_numbers(batch, inputs, hidden, threads):
    module, x, (h, c) = drawn(1, batch, inputs, hidden, dtype=torch.float32)
    found = Packed(module, threads=threads, bits=8)(x, (h, c))
    w = module.weight_hh_l0.data
    unit = w.abs().amax(1, keepdim=True) / 127
    w.copy_((w / unit).round() * unit)
    with torch.no_grad():
        right = module(x, ((127 * h).round() / 127, c))
    torch.testing.assert_close(found, right, rtol=0, atol=2e-6)


@pytest.mark.oracle
@pytest.mark.usefixtures("bytes_in_python")
@pytest.mark.parametrize("hidden, batch", [(1, 1), (2, 3), (LANES, 2), (LANES + 5, 1)])
def test_eight_bits_are_near_by_their_specification_on_any_processor(hidden, batch):
    module, x, (h, c) = drawn(4, batch, 3, hidden, layers=2, dtype=torch.float32)
    found = Packed(module, bits=8)(x, (h, c))
    with torch.no_grad():
        right = module(x, (h, c))
    torch.testing.assert_close(found, right, rtol=0, atol=0.02)


@pytest.mark.oracle
@pytest.mark.usefixtures("bytes_in_python")
@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("hidden", [2, LANES, LANES + 1])
@pytest.mark.parametrize("where", NOT_NUMBERS)
def test_what_is_no_number_stays_none_by_the_specification(where, hidden, bits):
    check_not_numbers(where, hidden, bits)


@pytest.mark.oracle
@pytest.mark.parametrize("bits", [32, pytest.param(8, marks=VNNI)])
@pytest.mark.parametrize("hidden", [1, LANES, LANES + 1])
@pytest.mark.parametrize("where", NOT_NUMBERS)
def test_what_is_no_number_stays_none(where, hidden, bits):
    check_not_numbers(where, hidden, bits)


def test_an_infinite_input_is_that_of_pytorch():
    module = torch.nn.LSTM(1, 1)
    x = torch.tensor([[[torch.inf]], [[0.0]]])
    with torch.no_grad():
        torch.testing.assert_close(Packed(module)(x), module(x), rtol=0, atol=2e-6)


@pytest.mark.oracle
@VNNI
@pytest.mark.parametrize("hidden, batch", [(256, 1), (100, 5)])
def test_eight_bits_stay_near(hidden, batch):
    module, x, _ = drawn(100, batch, hidden, hidden, dtype=torch.float32)
    with torch.no_grad():
        found, right = Packed(module, bits=8)(x)[0], module(x)[0]
    assert (found - right).abs().max() < 0.005


@pytest.mark.oracle
@given(hidden=HIDDEN, inputs=SIZE)
def test_every_weight_is_packed_once(hidden, inputs):
    shapes = (4 * hidden, inputs), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)
    w_ih, w_hh, b, zero = (torch.arange(1.0, 1 + np.prod(shape)).view(shape) for shape in shapes)
    packed = lstm_on_cpu.pack((w_ih, w_hh, b, 0 * zero))
    for array, weight in zip(packed[:3], (w_ih, b, w_hh), strict=True):
        assert sorted(array[array != 0]) == weight.flatten().tolist()
        assert array.size % LANES == 0 and array.ctypes.data % 16 == 0


def test_a_module_that_changes_later_makes_no_difference():
    module = torch.nn.LSTM(1, 1)
    x = torch.ones(1, 1, 1)
    packed = Packed(module)
    with torch.no_grad():
        right = module(x)
        module.double()
        for weight in module.parameters():
            weight.zero_()
    torch.testing.assert_close(packed(x), right, rtol=0, atol=2e-6)


@pytest.mark.parametrize("inputs, hidden", [(1, LANES), (1, 1), (2, 2 * LANES)])
def test_packed_weights_are_copies(inputs, hidden):
    """Also where the order in which they are read is their own already."""
    module = torch.nn.LSTM(inputs, hidden)
    weights = lstm_on_cpu.pack(tuple(module.all_weights[0]))
    kept = [array.copy() for array in weights]
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(1)
    for array, before in zip(weights, kept, strict=True):
        np.testing.assert_array_equal(array, before)


def test_fewer_threads_at_a_later_call_are_told(monkeypatch):
    x = torch.ones(1, 1, 1)
    monkeypatch.setattr(lstm_on_cpu, "get_num_threads", lambda: 2)
    packed = Packed(torch.nn.LSTM(1, 1), threads=2)
    monkeypatch.setattr(lstm_on_cpu, "get_num_threads", lambda: 1)
    with pytest.raises(ValueError, match="threads is 2; wanted at most 1, as many as Numba has"):
        packed(x)


def test_a_thread_that_dies_is_not_waited_for_forever(monkeypatch):
    module, x, _ = drawn(3, 1, 5, 2 * LANES, dtype=torch.float32)
    counters = []

    def alone(*arguments):  # thread 0, with another that never comes
        counters.append(arguments[-3])
        return lstm_on_cpu.part(0, *grouped(*arguments[:-1]), 1000)

    monkeypatch.setattr(lstm_on_cpu, "forward", alone)
    monkeypatch.setattr(lstm_on_cpu, "get_num_threads", lambda: 2)
    with pytest.raises(RuntimeError, match="a thread did not come"):
        Packed(module, threads=2)(x)
    assert counters[0][:, 0].tolist() == [1, 0], "it did its first step, and no more"


@numba.njit
def over(x, sigmoid, tanh):
    for j in range(x.size):
        sigmoid[j], tanh[j] = lstm_on_cpu.sigmoid(x[j]), lstm_on_cpu.tanh(x[j])


@pytest.mark.oracle
@pytest.mark.parametrize("dtype, close", [(np.float32, 3e-7), (np.float64, 1e-15)])
def test_sigmoid_and_tanh_keep_their_digits(dtype, close):
    x = np.logspace(-30, 2, 2000)
    x = np.concatenate([-x, x]).astype(dtype)
    sigmoid, tanh = np.empty((2, x.size), dtype)
    over(x, sigmoid, tanh)
    exact = torch.from_numpy(x).double()
    np.testing.assert_allclose(sigmoid, exact.sigmoid().numpy(), rtol=close, atol=1e-37)
    np.testing.assert_allclose(tanh, exact.tanh().numpy(), rtol=close)
    some = np.array([np.nan, np.inf, -np.inf], dtype)
    over(some, sigmoid, tanh)
    assert np.isnan(sigmoid[0]) and np.isnan(tanh[0]) and tanh[1:3].tolist() == [1, -1]


@pytest.mark.oracle
@pytest.mark.parametrize("size", [1e-8, 1e-6, 1e-3, 1.0, 100.0])
def test_small_and_large_inputs_keep_their_digits(size):
    """Without biases, small outputs are in the order of x."""
    module, x, _ = drawn(5, 2, 6, 20, dtype=torch.float32)
    for bias in (module.bias_ih_l0, module.bias_hh_l0):
        torch.nn.init.zeros_(bias)
    exact = torch.nn.LSTM(6, 20, dtype=torch.float64)
    exact.load_state_dict(module.state_dict())
    found, right = Packed(module)(size * x)[0], exact(size * x.double())[0]
    assert (found - right).abs().max() < 2e-6 * right.abs().max()
