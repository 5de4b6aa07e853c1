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
ROWS = torch.zeros(12, 2)  # (G·H, …), of an LSTM with H = 3 or a GRU with H = 4
ONE_LAYER = nn.LSTM(3, 4).state_dict()
ONNX = weights.to_onnx("lstm", ONE_LAYER)  # W (1, 16, 3), R (1, 16, 4), B (1, 32)


def without(name, directions=1):
    """The parameters of a layer, but for one."""
    parameters = nn.LSTM(3, 4, bidirectional=directions == 2).state_dict()
    del parameters[name]
    return parameters


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
        "Packed: an input in float64",
        lambda: lstm_on_cpu.Packed(TWO_LAYERS)(SEQUENCE.double()),
        ValueError,
        "x.dtype is torch.float64; wanted one of torch.float32",
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
        "scan: a list",
        lambda: scans.solve(torch.ones(4, 2), [[1.0]], torch.ones(2)),
        TypeError,
        "b is a list; wanted a torch.Tensor",
    ),
    (
        "scan: dtypes",
        lambda: scans.solve(torch.ones(4, 2), torch.ones(4, 2), torch.ones(2).double()),
        ValueError,
        "a is torch.float32, b torch.float32, h torch.float64; wanted one dtype",
    ),
    (
        "scan: compiled half",
        lambda: scanned(4, 2, torch.float16),
        ValueError,
        "torch.float16 on cpu; wanted float32 or float64 on a CPU",
    ),
    (
        "reorder: cell",
        lambda: weights.reorder("rnn", ROWS, "cudnn", "keras"),
        ValueError,
        "cell is 'rnn'; wanted one of 'lstm', 'gru'",
    ),
    (
        "reorder: source",
        lambda: weights.reorder("lstm", ROWS, "tensorflow", "keras"),
        ValueError,
        "source is 'tensorflow'; wanted one of 'cudnn', 'keras', 'miopen', 'onnx'",
    ),
    (
        "reorder: target",
        lambda: weights.reorder("lstm", ROWS, "cudnn", "jax"),
        ValueError,
        "target is 'jax'; wanted one of 'cudnn'",
    ),
    (
        "reorder: seven rows",
        lambda: weights.reorder("lstm", ROWS[:7], "cudnn", "keras"),
        ValueError,
        "stacked has the shape (7, 2); wanted (4 · H, …) for 'lstm'",
    ),
    (
        "reorder: no rows",
        lambda: weights.reorder("gru", ROWS[:0], "cudnn", "keras"),
        ValueError,
        "stacked has the shape (0, 2); wanted (3 · H, …) for 'gru'",
    ),
    (
        "reorder: a number",
        lambda: weights.reorder("gru", torch.tensor(1.0), "cudnn", "keras"),
        ValueError,
        "stacked has the shape (); wanted (3 · H, …)",
    ),
    (
        "reorder: an array",
        lambda: weights.reorder("lstm", ROWS.numpy(), "cudnn", "keras"),
        TypeError,
        "stacked is a ndarray; wanted a torch.Tensor",
    ),
    (
        "to_onnx: cell",
        lambda: weights.to_onnx("LSTM", ONE_LAYER),
        ValueError,
        "cell is 'LSTM'; wanted one of 'lstm', 'gru'",
    ),
    (
        "to_onnx: projections",
        lambda: weights.to_onnx("lstm", nn.LSTM(3, 4, proj_size=2).state_dict()),
        ValueError,
        "parameters has weight_hr_l0; ONNX's lstm has no place for it",
    ),
    (
        "to_onnx: an LSTM as a GRU",
        lambda: weights.to_onnx("gru", ONE_LAYER),
        ValueError,
        "weight_ih_l0 has the shape (16, 3); wanted (12, 3)",
    ),
    (
        "to_onnx: a GRU as an LSTM",
        lambda: weights.to_onnx("lstm", nn.GRU(3, 4).state_dict()),
        ValueError,
        "weight_ih_l0 has the shape (12, 3); wanted (16, 3)",
    ),
    (
        "to_onnx: a layer that is not there",
        lambda: weights.to_onnx("lstm", ONE_LAYER, 1),
        ValueError,
        "parameters has no weight_ih_l1, weight_hh_l1; there are weight_ih_l0, weight_hh_l0, bias",
    ),
    (
        "to_onnx: a layer below the first",
        lambda: weights.to_onnx("lstm", ONE_LAYER, -1),
        ValueError,
        "layer is -1; wanted at least 0",
    ),
    (
        "to_onnx: one bias missing",
        lambda: weights.to_onnx("lstm", without("bias_ih_l0")),
        ValueError,
        "parameters has no bias_ih_l0; there are weight_ih_l0",
    ),
    (
        "to_onnx: the other bias missing",
        lambda: weights.to_onnx("lstm", without("bias_hh_l0")),
        ValueError,
        "parameters has bias_ih_l0; ONNX's lstm has no place for it",
    ),
    (
        "to_onnx: a direction without its inputs",
        lambda: weights.to_onnx("lstm", without("weight_ih_l0_reverse", directions=2)),
        ValueError,
        "parameters has no weight_ih_l0_reverse; there are",
    ),
    (
        "to_onnx: a matrix cut off",
        lambda: weights.to_onnx("lstm", ONE_LAYER | {"weight_ih_l0": torch.zeros(15, 3)}),
        ValueError,
        "weight_ih_l0 has the shape (15, 3); wanted (16, 3)",
    ),
    (
        "to_onnx: a number for a matrix",
        lambda: weights.to_onnx("lstm", ONE_LAYER | {"weight_hh_l0": torch.tensor(1.0)}),
        ValueError,
        "weight_hh_l0 has the shape (); wanted (4 · H, H)",
    ),
    (
        "to_onnx: a module",
        lambda: weights.to_onnx("lstm", nn.LSTM(3, 4)),
        TypeError,
        "parameters is a LSTM; wanted a mapping, as state_dict() gives",
    ),
    (
        "from_onnx: cell",
        lambda: weights.from_onnx("rnn", ONNX),
        ValueError,
        "cell is 'rnn'; wanted one of 'lstm', 'gru'",
    ),
    (
        "from_onnx: an LSTM as a GRU",
        lambda: weights.from_onnx("gru", ONNX),
        ValueError,
        "R has the shape (1, 16, 4); wanted (D, 12, H)",
    ),
    (
        "from_onnx: peepholes",
        lambda: weights.from_onnx("lstm", [*ONNX, np.zeros((1, 12))]),
        ValueError,
        "weights holds 4 arrays; wanted W, R and B, or W and R",
    ),
    (
        "from_onnx: one array",
        lambda: weights.from_onnx("lstm", ONNX[:1]),
        ValueError,
        "weights holds 1 arrays; wanted W, R and B, or W and R",
    ),
    (
        "from_onnx: three directions",
        lambda: weights.from_onnx("lstm", [np.zeros((3, 16, 3)), np.zeros((3, 16, 4))]),
        ValueError,
        "R's directions is 3; wanted one of 1, 2",
    ),
    (
        "from_onnx: W",
        lambda: weights.from_onnx("lstm", [np.zeros((1, 12, 3)), np.zeros((1, 16, 4))]),
        ValueError,
        "W has the shape (1, 12, 3); wanted (1, 16, I)",
    ),
    (
        "from_onnx: layer",
        lambda: weights.from_onnx("lstm", ONNX, layer=-1),
        ValueError,
        "layer is -1; wanted at least 0",
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
