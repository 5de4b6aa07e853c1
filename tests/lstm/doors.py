"""The messages of part IV, for the table of tests/test_doors.py."""

from unittest import mock

import numpy as np
import torch
from torch import nn

from ed_lib.lstm import LSTM as Rungs
from ed_lib.lstm import lstm_on_cpu, scans, weights


def scanned(steps, numbers, dtype=torch.float32):
    a, b, h = (torch.ones(shape, dtype=dtype) for shape in ((steps, 2), (4, 2), (numbers,)))
    return scans.solve(a, b, h)


def packed_without_vnni():
    with mock.patch.object(lstm_on_cpu, "VNNI", False):
        return lstm_on_cpu.Packed(TWO_LAYERS, bits=8)


def packed_with_vnni():
    with mock.patch.object(lstm_on_cpu, "VNNI", True):  # the door is before the instruction
        return lstm_on_cpu.Packed(TWO_LAYERS, bits=8)


def packed_of_infinity():
    module = nn.LSTM(3, 4, 2)
    nn.init.constant_(module.weight_hh_l1, torch.inf)
    with mock.patch.object(lstm_on_cpu, "VNNI", True):
        return lstm_on_cpu.Packed(module, bits=8)


def packed_for_two_threads():
    with mock.patch.object(lstm_on_cpu, "get_num_threads", lambda: 2):
        return lstm_on_cpu.Packed(TWO_LAYERS, threads=2)


def called_with_one_thread(packed):
    with mock.patch.object(lstm_on_cpu, "get_num_threads", lambda: 1):
        return packed(SEQUENCE)


TWO_LAYERS, SEQUENCE = nn.LSTM(3, 4, 2), torch.zeros(5, 2, 3)  # x (T, B, I)
ZEROS = torch.zeros(2, 2, 4)  # of a state (L, B, H)

LSTM = [
    ("LSTM: sizes", lambda: Rungs(0, 4), ValueError, "input_size is 0"),
    ("LSTM: floats", lambda: Rungs(3, 2.0), TypeError, "hidden_size is 2.0"),
    ("LSTM: combine", lambda: Rungs(3, 4, combine=0), ValueError, "combine is 0"),
    (
        "LSTM: rung",
        lambda: Rungs(3, 4, rung="eighth"),
        ValueError,
        "rung is 'eighth'; wanted one of",
    ),
    (
        "from_torch: directions",
        lambda: Rungs.from_torch(nn.LSTM(3, 4, bidirectional=True)),
        ValueError,
        "module has bidirectional=True; wanted bidirectional=False",
    ),
    (
        "from_torch: a GRU",
        lambda: Rungs.from_torch(nn.GRU(3, 4)),
        TypeError,
        "module is a GRU; wanted",
    ),
    (
        "from_torch: batch",
        lambda: Rungs.from_torch(nn.LSTM(3, 4, batch_first=True)),
        ValueError,
        "module has batch_first=",
    ),
    (
        "LSTM: axes",
        lambda: Rungs(3, 4)(SEQUENCE[:, 0]),
        ValueError,
        "x has the shape (5, 3); wanted (T",
    ),
    (
        "LSTM: no steps",
        lambda: Rungs(3, 4)(SEQUENCE[:0]),
        ValueError,
        "x has the shape (0, 2, 3); wanted",
    ),
    (
        "LSTM: state",
        lambda: Rungs(3, 4, 2)(SEQUENCE, (ZEROS, ZEROS[:, :1])),
        ValueError,
        "c0 has the shape (2, 1, 4); wanted (2, 2, 4)",
    ),
    (
        "LSTM: dtype",
        lambda: Rungs(3, 4)(SEQUENCE.double()),
        ValueError,
        "x.dtype is torch.float64; wanted",
    ),
    ("LSTM: a list", lambda: Rungs(3, 4)([[1.0]]), TypeError, "x is a list; wanted a torch.Tensor"),
    (
        "LSTM: no pair",
        lambda: Rungs(3, 4, 2)(SEQUENCE, ZEROS),
        TypeError,
        "state is Tensor; wanted the pair",
    ),
    (
        "Packed: threads",
        lambda: lstm_on_cpu.Packed(TWO_LAYERS, threads=1000),
        ValueError,
        "threads is 1000; wanted",
    ),
    (
        "Packed: no threads",
        lambda: lstm_on_cpu.Packed(TWO_LAYERS, threads=0),
        ValueError,
        "threads is 0; wanted at",
    ),
    (
        "Packed: bits",
        lambda: lstm_on_cpu.Packed(TWO_LAYERS, bits=4),
        ValueError,
        "bits is 4; wanted one of 32",
    ),
    (
        "Packed: bits of float64",
        lambda: lstm_on_cpu.Packed(nn.LSTM(3, 4).double(), bits=8),
        ValueError,
        "bits is 8; wanted one of 32",
    ),
    (
        "Packed: no VNNI",
        packed_without_vnni,
        ValueError,
        "wanted 32 on a processor without AVX-512",
    ),
    (
        "Packed: a state beyond 1",
        lambda: packed_with_vnni()(SEQUENCE, (ZEROS + 2, ZEROS)),
        ValueError,
        "h0 has a number beyond 1; with bits=8",
    ),
    (
        "Packed: bits of an infinity",
        packed_of_infinity,
        ValueError,
        "W_hh holds NaN or infinity; with bits=8 wanted",
    ),
    (
        "Packed: threads at a call",
        lambda: called_with_one_thread(packed_for_two_threads()),
        ValueError,
        "threads is 2; wanted at most 1",
    ),
    (
        "Packed: dtype",
        lambda: lstm_on_cpu.Packed(nn.LSTM(3, 4).bfloat16()),
        ValueError,
        "weights' dtype is torch.bfloat16; wanted one of torch.float32",
    ),
    (
        "Packed: biases",
        lambda: lstm_on_cpu.Packed(nn.LSTM(3, 4, bias=False)),
        ValueError,
        "module has bias=False",
    ),
    (
        "Packed: directions",
        lambda: lstm_on_cpu.Packed(nn.LSTM(3, 4, bidirectional=True)),
        ValueError,
        "module has bidirectional=True",
    ),
    (
        "Packed: device",
        lambda: lstm_on_cpu.Packed(nn.LSTM(3, 4, device="meta")),
        ValueError,
        "weights' device is 'meta'; wanted",
    ),
    (
        "Packed: no steps",
        lambda: lstm_on_cpu.Packed(TWO_LAYERS)(SEQUENCE[:0]),
        ValueError,
        "x has the shape (0, 2, 3); wanted",
    ),
    (
        "Packed: no samples",
        lambda: lstm_on_cpu.Packed(TWO_LAYERS)(SEQUENCE[:, :0]),
        ValueError,
        "x has the shape (5, 0, 3); wanted",
    ),
    ("scan: shapes", lambda: scanned(3, 2), ValueError, "a is (3, 2), b (4, 2), h (2,); wanted"),
    (
        "scan: compiled half",
        lambda: scanned(4, 2, torch.float16),
        ValueError,
        "torch.float16 on cpu; wanted float32 or float64 on a CPU",
    ),
    (
        "ONNX: R",
        lambda: weights.from_onnx("gru", [np.zeros((1, 12, 3)), np.zeros((1, 20, 4))]),
        ValueError,
        "R has the shape (1, 20, 4); wanted (D, 12, H)",
    ),
    (
        "ONNX: B",
        lambda: weights.from_onnx("gru", [*np.zeros((2, 1, 12, 4)), np.zeros((1, 12))]),
        ValueError,
        "B has the shape (1, 12); wanted (1, 24)",
    ),
]
