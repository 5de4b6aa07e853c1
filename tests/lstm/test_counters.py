"""What each rung gives the device to do, a step and in all, counted and compared with the published program's
numbers and with sums made by hand.
"""

import pytest
import torch

from ed_lib.lstm import LSTM, RUNGS, costs, counters
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


def counts(rung, steps, batch=3, inputs=5, hidden=4, layers=1, combine=4, bidirectional=False):
    module = LSTM(inputs, hidden, layers, rung=rung, combine=combine, bidirectional=bidirectional)
    x = torch.zeros(steps, batch, inputs)
    with torch.no_grad():
        return counters.count(lambda: module(x))


@pytest.mark.oracle
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("layers, directions", [(1, 1), (3, 1), (2, 2)])
def test_launches_of_a_step(rung, layers, directions):
    few, many = (counts(rung, steps, layers=layers, bidirectional=directions == 2) for steps in (8, 16))
    products, pointwise = LAUNCHES[rung]
    assert many.products - few.products == 8 * products * layers * directions
    assert many.pointwise - few.pointwise == 8 * pointwise * layers * directions


@pytest.mark.oracle
def test_the_baseline_has_thirty_one_launches_a_step():
    few, many = counts("baseline", 1), counts("baseline", 2)
    assert many.launches - few.launches == 31


@pytest.mark.oracle
def test_the_published_run_has_twelve_thousand_four_hundred_launches():
    few, many = (counts("baseline", steps, layers=4) for steps in (1, 101))
    assert many.launches - few.launches == 12_400


@pytest.mark.oracle
@pytest.mark.parametrize("rung", RUNGS)
def test_bytes_of_a_step(rung):
    steps, batch, inputs, hidden, size = 8, 3, 5, 4, 4
    few, many = (counts(rung, n, batch, inputs, hidden, combine=4) for n in (steps, 2 * steps))
    row = batch * hidden * size  # bytes of one (B, H)
    x, w_ih, w_hh = batch * inputs * size, 4 * hidden * inputs * size, 4 * hidden * hidden * size
    bias = hidden * size
    recurrent = row + w_hh + 4 * row  # h, W_hh, its product
    if rung == "baseline":
        products = 4 * (x + w_ih // 4 + row) + 4 * (row + w_hh // 4 + row)
    elif rung in ("combined_inputs", "wavefront"):
        products = x + w_ih / 4 + 4 * row + recurrent
    else:
        products = x + w_ih + 4 * row + recurrent
    sums, activations, state = (
        4 * (3 + 2 + 2) * row + 8 * bias,
        4 * 2 * row,
        (3 + 3 + 3 + 2 + 2 + 3 + 3) * row,
    )
    separate = sums + activations + state
    fused = (
        (4 + 4 + 4) * row + 8 * bias + 4 * row
    )  # gates read and written, recurrent; biases; c twice, h twice
    pointwise = separate if RUNGS.index(rung) < 3 else fused
    assert many.bytes - few.bytes == steps * (products + pointwise)


def test_pretransposing_is_two_copies_a_layer():
    before, after = counts("fused_pointwise", 6, layers=2), counts("pretransposed", 6, layers=2)
    assert (after.products, after.pointwise) == (before.products, before.pointwise + 4)


@pytest.mark.oracle
def test_the_batched_wavefront_has_three_launches_a_slot_however_many_layers():
    for layers in (2, 4):
        few, many = (counts("batched_wavefront", steps, layers=layers) for steps in (8, 16))
        assert (many.products - few.products, many.pointwise - few.pointwise) == (16, 8)


@pytest.mark.oracle
def test_what_counts():
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    assert counters.count(lambda: a @ b) == Counts(1, 0, 4 * (6 + 12 + 8))
    assert counters.count(lambda: a.t()[1:].view(-1, 2)) == Counts()
    assert counters.count(lambda: torch.empty(3)) == Counts()
    assert counters.count(lambda: a.add_(a)) == Counts(0, 1, 4 * 18)
    assert counters.count(lambda: torch.add(a, a)) == Counts(0, 1, 4 * 18)
    assert counters.count(lambda: a.copy_(a.clone())) == Counts(0, 2, 4 * (12 + 12))
    assert counters.count(lambda: torch.mm(a, b, out=torch.empty(2, 4))) == Counts(1, 0, 4 * (6 + 12 + 8))
    assert Counts(2, 3).launches == 5


@pytest.mark.oracle
def test_flops_as_published():
    one, four = costs.Shape(), costs.Shape(layers=4)
    assert costs.flops(one) == 100 * 8 * 2 * 512 * 64 * 513
    assert costs.flops(four) == 4 * costs.flops(one)
    assert round(costs.flops(four) / 27.81e-3 / 1e9) == 3869  # GFLOP/s, from the published milliseconds
    assert list(costs.PUBLISHED) == list(RUNGS)


@pytest.mark.oracle
@pytest.mark.parametrize("layers, directions", [(1, 1), (3, 2), (2, 1)])
def test_weights_and_least_bytes(layers, directions):
    module = torch.nn.LSTM(5, 7, layers, bidirectional=directions == 2)
    shape = costs.Shape(6, 3, 5, 7, layers, directions, itemsize=2)
    assert shape.weights == sum(p.numel() for p in module.parameters())
    x = torch.zeros(6, 3, 5)
    assert costs.least_bytes(shape) == 2 * (shape.weights + x.numel() + module(x)[0].numel())
