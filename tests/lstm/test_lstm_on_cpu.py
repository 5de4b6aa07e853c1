"""The CPU's rungs against torch.nn.LSTM: packed weights, threads; and products of bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

numba = pytest.importorskip("numba")

from ed_lib.lstm import lstm_on_cpu  # noqa: E402
from ed_lib.lstm.lstm_on_cpu import Packed  # noqa: E402
from ed_lib.registers import LANES  # noqa: E402

SIZE, HIDDEN = st.integers(1, 9), st.integers(1, 40)
THREADS = st.integers(1, numba.get_num_threads())
FEWER = settings(
    max_examples=15
)  # threads that wait for each other are slow where others want their cores
CLOSE = {torch.float64: 1e-12, torch.float32: 2e-6}
VNNI = pytest.mark.skipif(not lstm_on_cpu.VNNI, reason="needs AVX-512 VNNI")


def drawn(steps, batch, inputs, hidden, layers=1, dtype=torch.float64, **options):
    """torch.nn.LSTM, an input and a state for it."""
    torch.manual_seed(steps)
    module = torch.nn.LSTM(inputs, hidden, layers, dtype=dtype, **options)
    x = torch.randn(steps, batch, inputs, dtype=dtype)
    return module, x, tuple(2 * torch.rand(2, layers, batch, hidden, dtype=dtype) - 1)


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


def test_a_thread_that_dies_is_not_waited_for_forever(monkeypatch):
    module, x, _ = drawn(3, 1, 5, 2 * LANES, dtype=torch.float32)
    counters = []

    def alone(*arrays):  # thread 0, with another that never comes
        counters.append(arrays[-3])
        return lstm_on_cpu.part(0, *arrays[:-1], 1000)

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
