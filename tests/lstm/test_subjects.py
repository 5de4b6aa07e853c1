"""What the benchmarks of part IV time: counts against torch's, and what is wrong or stands beside
what.
"""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import lstm
from benchmarks.lstm import NN, Subject
from ed_lib.lstm import LSTM, RUNGS, counters, ladder


def tiny(layers=2):
    return lstm.subject_of(lstm.TINY, "cpu", layers)


@pytest.mark.oracle
@pytest.mark.parametrize("layers", [1, 3])
def test_operations_are_those_that_torch_counts_and_two_for_each_bias(layers):
    subject = tiny(layers)
    biases = 2 * subject.shape.steps * subject.shape.batch * layers * 8 * subject.shape.hidden
    ours = LSTM.from_torch(subject.module, rung="pretransposed")
    with FlopCounterMode(display=False) as counter:
        ours(subject.x)
    assert subject.shape.flops == counter.get_total_flops() + biases


@pytest.mark.oracle
def test_bytes_are_those_of_the_arrays():
    subject = tiny(3)
    arrays = *subject.module.parameters(), subject.x, subject.right()[0].float()
    assert subject.version(NN).cost[0] == sum(array.nbytes for array in arrays)


def test_what_is_wrong_gets_no_row(monkeypatch, capsys):
    right = ladder.pretransposed

    def wrong(layer):
        right(layer)
        layer.output[-1, -1, -1] += 1e-2

    monkeypatch.setattr(ladder, "pretransposed", wrong)
    subject = tiny()
    versions = [subject.version(what) for what in ("pretransposed", "combined_gemms")]
    rows = lstm.measure(versions, "cpu", 0.001)
    assert [row["what"] for row in rows] == ["combined_gemms"]
    assert "'what': 'pretransposed', 'layers': 2" in capsys.readouterr().out


def test_tolerances_tell_float32_from_tf32():
    """TF32 by hand: numbers rounded to 10 bits behind the point before each product; so are the
    rungs' h.
    """

    def rounded(tensor):
        return ((tensor.detach().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    subject = Subject(ladder.LSTMRun(10, 8, 128, 128), "cpu")
    assert subject.version(NN).error < lstm.TOLERANCE / 10
    for parameter in subject.module.parameters():
        parameter.data = rounded(parameter)
    with torch.no_grad():
        output, (h, c) = subject.module(rounded(subject.x))
    error = lstm.deviation((output, h, c), subject.right())
    assert lstm.TOLERANCE < error < 1e-2


def test_launches_of_the_ladder_are_counted():
    launches = [counters.count_work(tiny().version(what).call) for what in RUNGS]
    assert [one.products for one in launches] == [
        2 * n for n in (48, 12, 12, 12, 12, 9, 9)
    ]  # 6 steps
