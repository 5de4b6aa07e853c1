"""A layer's sequence in one compiled call against torch.nn.LSTM, alone and shared by threads."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

numba = pytest.importorskip("numba")

from ed_lib.lstm import cpu_kernels, packing  # noqa: E402

SIZE = st.integers(1, 40)
THREADS = st.integers(1, numba.get_num_threads())
FEWER = settings(max_examples=15)  # threads that wait for each other are slow where others want their cores


def both(steps, batch, hidden, threads, dtype):
    """Pairs of ours and torch.nn.LSTM's: output, last cell, the gradients of W_ih x + b and of the state."""
    torch.manual_seed(steps)
    module = torch.nn.LSTM(3, hidden, dtype=dtype)
    x, h, c = (torch.randn(n, batch, size, dtype=dtype) for n, size in ((steps, 3), (1, hidden), (1, hidden)))
    w_ih, w_hh, b_ih, b_hh = (weight.detach() for weight in module.all_weights[0])
    inputs = x @ w_ih.T + b_ih + b_hh  # (T, B, 4H): given to a module that adds nothing to it
    alone = torch.nn.LSTM(4 * hidden, hidden, dtype=dtype)
    zero = torch.zeros(4 * hidden, dtype=dtype)
    state = dict(weight_ih_l0=torch.eye(4 * hidden), weight_hh_l0=w_hh, bias_ih_l0=zero, bias_hh_l0=zero)
    alone.load_state_dict(state)
    leaves = [leaf.requires_grad_() for leaf in (inputs, h, c)]
    y, (_, end) = alone(inputs, (h, c))
    dy, dc = torch.randn_like(y), torch.randn_like(end)
    theirs = [y, end[0], *torch.autograd.grad((y * dy).sum() + (end * dc).sum(), leaves)]

    gates = inputs.detach().numpy().copy()
    states, cells = np.full((2, steps + 1, batch, hidden), np.nan, gates.dtype)
    states[0], cells[0] = h[0].detach(), c[0].detach()
    packed = packing.pack(w_hh.numpy(), threads)
    assert cpu_kernels.forward(gates, states, cells, packed, np.zeros((threads, 8), np.int64))
    dh, dc, dgates = np.zeros_like(cells[0]), dc[0].numpy().copy(), np.empty_like(gates)
    back, zeros = packing.pack_back(w_hh.numpy(), threads), np.zeros((threads, 8), np.int64)
    assert cpu_kernels.backward(gates, cells, dy.numpy(), dh, dc, dgates, back, zeros)
    ours = states[1:], cells[-1], dgates, dh[None], dc[None]
    return [(one, other.detach()) for one, other in zip(ours, theirs, strict=True)]


@FEWER
@given(steps=st.integers(1, 6), batch=st.integers(1, 9), hidden=SIZE, threads=THREADS)
def test_all_steps_equal_pytorch(steps, batch, hidden, threads):
    for ours, theirs in both(steps, batch, hidden, threads, torch.float64):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    for ours, theirs in both(steps, batch, hidden, threads, torch.float32):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-6)


@FEWER
@given(
    steps=st.integers(1, 6),
    batch=st.integers(1, 9),
    hidden=st.integers(1, 9),
    layers=st.integers(1, 5),
    threads=THREADS,
)
def test_layers_side_by_side_equal_pytorch(steps, batch, hidden, layers, threads):
    torch.manual_seed(steps)
    module = torch.nn.LSTM(hidden, hidden, layers, dtype=torch.float64)
    x, h, c = (torch.randn(n, batch, hidden, dtype=torch.float64) for n in (steps, layers, layers))
    with torch.no_grad():
        y, (_, end) = module(x, (h, c))
        w_ih, w_hh, b_ih, b_hh = (torch.stack(some) for some in zip(*module.all_weights, strict=True))
        bias = b_ih + b_hh  # (L, 4H)
        gates = np.empty((layers, steps, batch, 4 * hidden))
        gates[0] = x @ w_ih[0].T + bias[0]
        w_ih, w_hh = (weight.mT.contiguous().numpy() for weight in (w_ih, w_hh))  # (L, H, 4H)
    states, cells = np.full((2, layers, steps + 1, batch, hidden), np.nan)
    states[:, 0], cells[:, 0] = h, c
    counters = np.zeros((layers, 8), np.int64)
    assert cpu_kernels.wavefront(gates, states, cells, w_ih, w_hh, bias.numpy(), counters, threads)
    np.testing.assert_allclose(states[-1, 1:], y, rtol=0, atol=1e-12)
    np.testing.assert_allclose(cells[:, -1], end, rtol=0, atol=1e-12)


@given(hidden=SIZE, threads=st.integers(1, 5))
def test_every_weight_is_packed_once(hidden, threads):
    weight = np.arange(1.0, 4 * hidden**2 + 1).reshape(4 * hidden, hidden)
    there, back = packing.pack(weight, threads), packing.pack_back(weight, threads)
    assert there.shape[:2] == (threads, hidden) and back.shape[:2] == (threads, 4 * hidden)
    for packed in (there, back):
        assert packed.flags.c_contiguous and sorted(packed[packed != 0]) == weight.ravel().tolist()


@pytest.mark.parametrize("bits", [8, 16])
@FEWER
@given(steps=st.integers(1, 6), batch=st.integers(1, 3), hidden=SIZE, threads=THREADS)
def test_weights_in_few_bits_are_the_rounded_weights(bits, steps, batch, hidden, threads):
    torch.manual_seed(steps)
    w = torch.randn(4 * hidden, hidden)
    few, scale = packing.in_few_bits(w.numpy(), bits)
    if bits == 8:
        rounded = few.astype(np.float32) * scale[:, None]
        assert np.abs(rounded - w.numpy()).max() <= scale.max() / 2 * (1 + 1e-5), "rounded to nearest"
    else:
        rounded = w.bfloat16().float().numpy()
    gates = torch.randn(steps, batch, 4 * hidden).numpy()
    found = []
    for weight in (few, rounded):
        states, cells = np.zeros((2, steps + 1, batch, hidden), np.float32)
        packed, zeros = packing.pack(weight, threads), np.zeros((threads, 8), np.int64)
        if weight is few:
            scales = packing.pack_scale(scale, threads)
            assert cpu_kernels.forward_in_few_bits(gates.copy(), states, cells, packed, scales, zeros)
        else:
            assert cpu_kernels.forward(gates.copy(), states, cells, packed, zeros)
        found.append((states, cells))
    np.testing.assert_allclose(*found, rtol=0, atol=2e-4)  # of sums of H terms in another order


def test_a_thread_that_does_not_come_is_not_waited_for_forever():
    steps, batch, hidden = 3, 1, 4
    gates, counters = np.zeros((steps, batch, 4 * hidden)), np.zeros((2, 8), np.int64)
    state, cells = np.zeros((2, steps + 1, batch, hidden))
    packed = packing.pack(np.ones((4 * hidden, hidden)), 2)
    assert not cpu_kernels.forward_part(0, gates, state, cells, packed[0], counters, 1000)
    assert counters[0, 0] == 1, "it did its first step, and no more"


def test_the_series_is_a_sigmoid_everywhere():
    x = np.concatenate([np.linspace(-30, 30, 4001), [-1e4, 1e4, 0]]).astype(np.float32)
    found = np.array([cpu_kernels.series(value) for value in x])
    right = 1 / (1 + np.exp(-np.maximum(x, -80).astype(float)))
    np.testing.assert_allclose(found, right, rtol=5e-6, atol=1e-34)  # of x log₂ e, rounded
    near = np.abs(x) < 1
    np.testing.assert_allclose(found[near], right[near], rtol=3e-7)
