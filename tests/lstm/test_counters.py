"""What each rung gives the device to do, a step and in all, counted and compared with the published
program's numbers and with sums made by hand.
"""

import pytest
import torch

from ed_lib.lstm import LSTM, RUNGS, counters, ladder
from ed_lib.lstm.counters import Counts

LAUNCHES = {  # products and pointwise launches of a step
    "baseline": (8, 23),
    "combined_gemms": (2, 23),
    "streamed_gemms": (2, 23),
    "fused_pointwise": (2, 1),
    "pretransposed": (2, 1),
    "combined_inputs": (1.25, 1),  # with the input products of four steps at once
    "wavefront": (1.25, 1),
}


def counts(rung, steps, batch=3, inputs=5, hidden=4, layers=1, combine=4):
    module = LSTM(inputs, hidden, layers, rung=rung, combine=combine)
    x = torch.zeros(steps, batch, inputs)
    with torch.no_grad():
        return counters.count_work(lambda: module(x))


@pytest.mark.oracle
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("layers", [1, 3])
def test_launches_of_a_step(rung, layers):
    few, many = (counts(rung, steps, layers=layers) for steps in (8, 16))
    products, pointwise = LAUNCHES[rung]
    assert many.products - few.products == 8 * products * layers
    assert many.pointwise - few.pointwise == 8 * pointwise * layers


@pytest.mark.oracle
@pytest.mark.parametrize("layers, steps, wanted", [(1, 1, 31), (4, 100, 12_400)])
def test_the_published_program_has_thirty_one_launches_a_step_and_a_layer(layers, steps, wanted):
    few, many = (counts("baseline", n, layers=layers) for n in (1, 1 + steps))
    assert many.launches - few.launches == wanted


@pytest.mark.oracle
@pytest.mark.parametrize("rung", RUNGS)
def test_bytes_of_a_step(rung):
    steps, batch, inputs, hidden, size = 8, 3, 5, 4, 4
    few, many = (counts(rung, n, batch, inputs, hidden, combine=4) for n in (steps, 2 * steps))
    row, bias = batch * hidden * size, hidden * size  # bytes of one (B, H), and of one bias
    x, w_ih, w_hh = batch * inputs * size, 4 * hidden * inputs * size, 4 * hidden * hidden * size
    products = (
        x + w_ih + 4 * row + row + w_hh + 4 * row
    )  # x, W_ih and their product; h, W_hh and theirs
    if rung == "baseline":
        products += 3 * x + 3 * row  # x and h are read for each gate
    elif rung in ("combined_inputs", "wavefront"):
        products -= w_ih * 3 // 4
    sums, activations = 4 * (3 + 2 + 2) * row + 8 * bias, 4 * 2 * row
    separate = sums + activations + (3 + 3 + 3 + 2 + 2 + 3 + 3) * row
    fused = (
        (4 + 4 + 4) * row + 8 * bias + 4 * row
    )  # gates read and written, recurrent; biases; c and h twice
    pointwise = separate if RUNGS.index(rung) < 3 else fused
    assert many.bytes - few.bytes == steps * (products + pointwise)


def test_pretransposing_is_two_copies_a_layer():
    before, after = counts("fused_pointwise", 6, layers=2), counts("pretransposed", 6, layers=2)
    assert (after.products, after.pointwise) == (before.products, before.pointwise + 4)


A, B, C = torch.ones(2, 3), torch.ones(3, 4), torch.ones(2, 4)
MANY_A, MANY_B, MANY_C = torch.ones(5, 2, 3), torch.ones(5, 3, 4), torch.ones(5, 2, 4)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "call, wanted",
    [
        (lambda: A @ B, Counts(1, 0, 4 * (6 + 12 + 8))),
        (lambda: A.t()[1:].view(-1, 2), Counts()),
        (lambda: torch.empty(3), Counts()),
        (lambda: A.clone().add_(A), Counts(0, 2, 4 * (12 + 18))),
        # What an operator is given twice comes from memory once.
        (lambda: torch.add(A, A), Counts(0, 1, 4 * 12)),
        (lambda: torch.empty(2, 3).copy_(A), Counts(0, 1, 4 * 12)),
        (lambda: torch.mm(A, B, out=torch.empty(2, 4)), Counts(1, 0, 4 * (6 + 12 + 8))),
        # Five products at once are one launch; what they are added to is read as well.
        (lambda: torch.bmm(MANY_A, MANY_B), Counts(1, 0, 4 * 5 * (6 + 12 + 8))),
        (lambda: torch.addmm(C, A, B), Counts(1, 0, 4 * (6 + 12 + 8 + 8))),
        (lambda: torch.baddbmm(MANY_C, MANY_A, MANY_B), Counts(1, 0, 4 * 5 * (6 + 12 + 8 + 8))),
        (lambda: torch.addbmm(C, MANY_A, MANY_B), Counts(1, 0, 4 * (5 * (6 + 12) + 8 + 8))),
        (lambda: C.addmm_(A, B, beta=0), Counts(1, 0, 4 * (6 + 12 + 8 + 8))),
        (lambda: MANY_C.baddbmm_(MANY_A, MANY_B, beta=0), Counts(1, 0, 4 * 5 * (6 + 12 + 8 + 8))),
        (lambda: torch.empty_strided((2, 3), (1, 2)), Counts()),
        (lambda: A.new_empty_strided((2, 3), (1, 2)), Counts()),
        (lambda: torch.empty_permuted((2, 3), (1, 0)), Counts()),
    ],
)
def test_what_counts(call, wanted):
    assert counters.count_work(call) == wanted


@pytest.mark.oracle
def test_flops_as_published():
    one, four = ladder.LSTMRun(), ladder.LSTMRun(layers=4)
    assert one.flops == 100 * 8 * 2 * 512 * 64 * 513 and four.flops == 4 * one.flops
    assert round(four.flops / 27.81e-3 / 1e9) == 3869  # GFLOP/s, from the published milliseconds


@pytest.mark.oracle
@pytest.mark.parametrize("layers", [1, 3])
def test_weights(layers):
    module = torch.nn.LSTM(5, 7, layers)
    shape = ladder.LSTMRun(6, 3, 5, 7, layers)
    assert shape.weights == sum(p.numel() for p in module.parameters())
