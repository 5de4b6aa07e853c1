"""Subnormal numbers are zeros inside the compiled functions, in every thread, and nowhere else."""

import numba
import numpy as np
import pytest
import torch

from ed_lib import flush_to_zero
from ed_lib.ed import EDNetwork
from ed_lib.flush_to_zero import DAZ, FTZ, mode, set_mode, without_subnormals
from ed_lib.lstm.lstm_on_cpu import Packed
from ed_lib.registers import LANES

pytestmark = pytest.mark.skipif(not flush_to_zero.X86, reason="MXCSR is a register of x86")
THREADS = numba.get_num_threads()
TINY = np.float32(1e-41)
CONTROL = np.uint32(0xFFC0)  # what a caller sets; the bits below tell what has happened


@numba.njit
def halve(x, fail):
    for j in range(x.size):
        x[j] *= np.float32(0.5)
    if fail:
        raise ValueError("the function's own error")
    return x.size


@numba.njit(parallel=True)
def halve_in_all_threads(x, fail, sizes):
    for k in numba.prange(len(x)):
        sizes[k] = without_subnormals(halve, (x[k], fail))
        x[k, 0] = TINY * np.float32(x[k, 1] + 0.5)


@numba.njit(parallel=True)
def modes(found):
    for k in numba.prange(len(found)):
        found[k] = mode()


@numba.njit(parallel=True)
def set_modes(wanted):
    for k in numba.prange(len(wanted)):
        set_mode(wanted[k])


def control():
    """What each of Numba's threads is set to; the first of them is the caller's."""
    found = np.zeros(THREADS, np.uint32)
    modes(found)
    return (found & CONTROL).tolist()


@pytest.fixture(params=[0, FTZ, DAZ, FTZ | DAZ])
def bits(request):
    """What a caller has set, in all threads."""
    before = np.zeros(THREADS, np.uint32)
    modes(before)
    set_modes(before & ~np.uint32(FTZ | DAZ) | np.uint32(request.param))
    yield request.param
    set_modes(before)


@pytest.mark.parametrize("fail", [False, True])
def test_every_thread_flushes_inside_alone_and_is_set_back(bits, fail):
    before = control()
    assert [one & (FTZ | DAZ) for one in before] == THREADS * [bits]
    x = np.full((THREADS, 100), TINY)
    sizes = np.zeros(THREADS, np.int64)
    if fail:
        # Numba wraps an error of a parallel loop
        with pytest.raises(SystemError) as raised:
            halve_in_all_threads(x, True, sizes)
        assert str(raised.value.__cause__) == "the function's own error"
    else:
        halve_in_all_threads(x, False, sizes)
        assert sizes.tolist() == THREADS * [100]
        # after the call, half of a subnormal number is one again, if the caller has it so
        outside = np.float32(0 if bits else 0.5e-41)
        assert x[:, 0].view(np.int32).tolist() == THREADS * [outside.view(np.int32)]
    assert (x[:, 1:].view(np.int32) == 0).all(), "zeros inside, whatever the caller has"
    assert control() == before


def test_an_error_of_the_callers_own_thread_sets_it_back(bits):
    @numba.njit
    def call(x, fail):
        return without_subnormals(halve, (x, fail))

    before = control()
    with pytest.raises(ValueError, match="the function's own error"):
        call(np.full(3, TINY), True)
    assert control() == before
    assert call(np.full(3, TINY), False) == 3
    assert control() == before


def test_ed_makes_no_subnormal_numbers(bits):
    network = EDNetwork(6, 5, 2 * THREADS, rule="signed", init="fan_in", path="kernel")
    network.forward(np.ones((4, 6), np.float32))
    before = control()
    kept = {name: 0 * value for name, value in network.parameters.items()}
    network.add_direction(kept, np.ones((4, 1), np.float32), 1e-39)
    assert {name: np.count_nonzero(value) for name, value in kept.items()} == dict.fromkeys(kept, 0)
    assert control() == before


@pytest.mark.parametrize("threads", [1, THREADS])
def test_an_lstm_makes_no_subnormal_numbers(bits, threads):
    module = torch.nn.LSTM(1, LANES * THREADS)
    for weight in module.parameters():
        torch.nn.init.constant_(weight, 0)
    torch.nn.init.constant_(module.weight_ih_l0, 1e-30)
    before = control()
    # g = tanh(1e-40), and so the cell and h
    output, (_, cell) = Packed(module, threads=threads)(torch.full((3, 1, 1), 1e-10))
    assert (output.count_nonzero(), cell.count_nonzero()) == (0, 0)
    assert control() == before
