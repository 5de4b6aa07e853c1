"""Compiled sequences against torch.nn.LSTM: rungs with gradients, frozen, shared by threads, in few bits."""

import os
import types

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

numba = pytest.importorskip("numba")

from ed_lib.lstm import LSTM, ON_CPU, atomics, cpu_cell, cpu_kernels, cpu_ladder, packing  # noqa: E402
from ed_lib.lstm.frozen import SPLITS, Frozen, by_onednn  # noqa: E402

SIZE, HIDDEN = st.integers(1, 9), st.integers(1, 40)
THREADS = st.integers(1, numba.get_num_threads())
FEWER = settings(max_examples=15)  # threads that wait for each other are slow where others want their cores
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-5}


def drawn(steps, batch, inputs, hidden, layers=1, dtype=torch.float64):
    """torch.nn.LSTM, an input and a state for it."""
    torch.manual_seed(steps)
    module = torch.nn.LSTM(inputs, hidden, layers, dtype=dtype)
    x = torch.randn(steps, batch, inputs, dtype=dtype)
    return module, x, tuple(torch.randn(2, layers, batch, hidden, dtype=dtype))


@pytest.mark.oracle
@pytest.mark.parametrize("rung", ON_CPU)
@FEWER
@given(
    steps=st.integers(1, 6), batch=SIZE, inputs=SIZE, hidden=HIDDEN, layers=st.integers(1, 3),
    threads=THREADS, dtype=st.sampled_from(list(CLOSE)), zeros=st.booleans(),
)  # fmt: skip
def test_a_rung_equals_pytorch(rung, steps, batch, inputs, hidden, layers, threads, dtype, zeros):
    module, x, state = drawn(steps, batch, inputs, hidden, layers, dtype)
    found = []
    for one in (module, LSTM.from_torch(module, rung=rung, threads=threads)):
        leaves = [leaf.clone().requires_grad_() for leaf in (x, *state)]
        y, (h, c) = one(leaves[0], None if zeros else tuple(leaves[1:]))
        loss = (y * x.sum(2, keepdim=True)).sum() + h.sin().sum() + (c * state[1]).sum()
        wanted = [leaves[0], *([] if zeros else leaves[1:]), *one.parameters()]
        found.append([y, h, c, *torch.autograd.grad(loss, wanted)])
    for ours, theirs in zip(*found, strict=True):
        tolerance = CLOSE[dtype] * max(1, theirs.detach().abs().max().item())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


@pytest.mark.oracle
@pytest.mark.parametrize("split", SPLITS)
@FEWER
@given(
    steps=st.integers(1, 6), batch=SIZE, inputs=SIZE, hidden=HIDDEN, layers=st.integers(1, 5),
    threads=THREADS, dtype=st.sampled_from(list(CLOSE)), zeros=st.booleans(),
)  # fmt: skip
def test_frozen_equals_pytorch(split, steps, batch, inputs, hidden, layers, threads, dtype, zeros):
    module, x, state = drawn(steps, batch, inputs, hidden, layers, dtype)
    frozen = Frozen(module, threads=threads, split=split)
    with torch.no_grad():
        theirs = module(x, None if zeros else state)
        ours = frozen(x, None if zeros else state)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=CLOSE[dtype])
        module.weight_hh_l0.zero_()
    assert torch.equal(frozen(x, None if zeros else state)[0], ours[0]), "its weights stay as they were"


@pytest.mark.oracle
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")
@FEWER
@given(steps=st.lists(st.integers(1, 6), min_size=1, max_size=3), batch=SIZE, inputs=SIZE, hidden=HIDDEN)
def test_onednn_with_its_weights_packed_equals_pytorch(steps, batch, inputs, hidden):
    module = drawn(1, batch, inputs, hidden, dtype=torch.float32)[0]
    ours = by_onednn(module)
    with torch.no_grad():
        for n in steps:  # of one shape and of others
            x = torch.randn(n, batch, inputs)
            torch.testing.assert_close(ours(x), module(x), rtol=0, atol=1e-6)


@given(hidden=HIDDEN, threads=st.integers(1, 5))
def test_every_weight_is_packed_once(hidden, threads):
    weight = np.arange(1.0, 4 * hidden**2 + 1).reshape(4 * hidden, hidden)
    there, back = packing.pack(weight, threads), packing.pack_back(weight, threads)
    assert there.shape[:2] == (threads, hidden) and back.shape[:2] == (threads, 4 * hidden)
    for packed in (there, back):
        assert packed.flags.c_contiguous and sorted(packed[packed != 0]) == weight.ravel().tolist()


@pytest.mark.oracle
@pytest.mark.parametrize("bits", [8, 16])
@FEWER
@given(steps=st.integers(1, 6), batch=SIZE, hidden=HIDDEN, threads=THREADS)
def test_weights_in_few_bits_are_the_rounded_weights(bits, steps, batch, hidden, threads):
    module, x, state = drawn(steps, batch, 3, hidden, dtype=torch.float32)
    found, w = Frozen(module, threads=threads, bits=bits)(x, state), module.weight_hh_l0.data
    if bits == 8:
        few, scale = packing.in_few_bits(w.numpy(), bits)
        rounded = torch.from_numpy(few.astype(np.float32) * scale[:, None])
        assert (rounded - w).abs().max() <= scale.max() / 2 * (1 + 1e-5), "rounded to nearest"
    else:
        rounded = w.bfloat16().float()
    w.copy_(rounded)
    with torch.no_grad():
        torch.testing.assert_close(found, module(x, state), rtol=0, atol=2e-5)


def test_a_thread_that_does_not_come_is_not_waited_for_forever():
    steps, batch, hidden = 3, 1, 4
    gates, counters = np.zeros((steps, batch, 4 * hidden)), np.zeros((2, 8), np.int64)
    state, cells = np.zeros((2, steps + 1, batch, hidden))
    packed, scale = packing.pack(np.ones((4 * hidden, hidden)), 2), np.ones((2, 2 * hidden))
    counters[1, 0] = 1  # the other did the inputs, and no step
    assert not cpu_kernels.forward_part(0, 0, gates, state, cells, packed, scale, counters, 1000)
    assert counters[0, 0] == 2, "it did its first step, and no more"
    with pytest.raises(RuntimeError, match="a thread did not come"):
        cpu_ladder.arrived(False)


def test_a_younger_callee_makes_numba_compile_the_caller_again(tmp_path):
    outer, inner = tmp_path / "outer.py", tmp_path / "inner.py"
    for path in (outer, inner):
        path.write_text("")
        os.utime(path, (1000, 1000))
    used = types.SimpleNamespace(__file__=str(inner))
    atomics.compiled_anew(str(outer), used)
    assert os.path.getmtime(outer) == 1000
    os.utime(inner, (2000, 2000))
    atomics.compiled_anew(str(outer), used)
    assert os.path.getmtime(outer) > 2000


@pytest.mark.oracle
def test_the_series_is_a_sigmoid_everywhere():
    x = np.concatenate([np.linspace(-30, 30, 4001), [-1e4, 1e4, 0]]).astype(np.float32)
    found = np.array([cpu_cell.series(value) for value in x])
    right = 1 / (1 + np.exp(-np.maximum(x, -80).astype(float)))
    np.testing.assert_allclose(found, right, rtol=5e-6, atol=1e-34)  # of x log₂ e, rounded
    near = np.abs(x) < 1
    np.testing.assert_allclose(found[near], right[near], rtol=3e-7)
