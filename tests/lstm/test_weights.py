"""The orders of the gates, and ONNX's weights by onnxruntime's answers."""

import numpy as np
import pytest
import torch
from torch import nn

from ed_lib.lstm import weights

MODULES = {"lstm": nn.LSTM, "gru": nn.GRU}


def module_of(cell, i, h, layers=1, directions=1, **options):
    torch.manual_seed(i + 10 * h)
    return MODULES[cell](i, h, layers, bidirectional=directions == 2, **options)


@pytest.mark.oracle
def test_the_orders_of_the_gates():
    a = torch.arange(8.0).view(4, 2)
    assert weights.reorder("lstm", a, "cudnn", "miopen")[:, 0].tolist() == [0, 2, 6, 4]
    assert torch.equal(weights.reorder("lstm", a, "keras", "cudnn"), a)
    b = torch.arange(6.0).view(3, 2)
    assert weights.reorder("gru", b, "keras", "cudnn")[:, 0].tolist() == [2, 0, 4]
    for cell, tensor in (("lstm", a), ("gru", b)):
        for name in weights.ORDERS:
            there = weights.reorder(cell, tensor, "cudnn", name)
            assert torch.equal(weights.reorder(cell, there, name, "cudnn"), tensor)


@pytest.mark.oracle
def test_miopens_orders_are_those_of_its_documentation_and_of_pytorch():
    """miopenGetRNNLayerParamSize numbers the parameters: of an LSTM 0 is the input gate, 1 the
    forget gate, 2 the output gate, 3 the new memory; of a GRU 0 is the update gate, 1 the reset
    gate, 2 the new memory. (An early header had other numbers for both.) PyTorch, where it calls
    MIOpen, puts its own rows into the order 0, 1, 3, 2 for an LSTM and 1, 0, 2 for a GRU
    (permute_wei_for_miopen in its RNN_miopen.cpp).
    """
    names = {"i": "input", "f": "forget", "o": "output", "g": "new memory"}
    assert [names[gate] for gate in weights.ORDERS["miopen"]["lstm"]] == [
        "input", "forget", "output", "new memory"]  # fmt: skip
    names = {"z": "update", "r": "reset", "n": "new memory"}
    assert [names[gate] for gate in weights.ORDERS["miopen"]["gru"]] == [
        "update", "reset", "new memory"]  # fmt: skip
    for cell, order in (("lstm", [0, 1, 3, 2]), ("gru", [1, 0, 2])):
        rows = torch.arange(2.0 * len(order)).view(-1, 1)  # H = 2
        wanted = torch.cat([rows.chunk(len(order))[n] for n in order])
        assert weights.reorder(cell, rows, "cudnn", "miopen").tolist() == wanted.tolist()


@pytest.mark.oracle
def test_a_grus_rows_are_pytorchs():
    """The order "cudnn", by what nn.GRUCell computes: r, z, n of x alone, where h is 0."""
    cell = torch.nn.GRUCell(3, 4).double()
    x, h = torch.randn(5, 3).double(), torch.zeros(5, 4).double()
    ours = weights.reorder("gru", cell.weight_ih, "cudnn", "keras").chunk(3)  # z, r, n
    biases = [
        weights.reorder("gru", b, "cudnn", "keras").chunk(3) for b in (cell.bias_ih, cell.bias_hh)
    ]
    z, r = (torch.sigmoid(x @ ours[n].t() + biases[0][n] + biases[1][n]) for n in (0, 1))
    new = torch.tanh(x @ ours[2].t() + biases[0][2] + r * biases[1][2])
    torch.testing.assert_close(cell(x, h), (1 - z) * new)


def onnx_of(cell, i, h, arrays, directions, file):
    """ONNX's operator with W, R and, unless it has none, B, saved, as a session of onnxruntime."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    held = zip(("W", "R", "B"), arrays, strict=False)
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in held]
    options = {"hidden_size": h, "direction": ("forward", "bidirectional")[directions - 1]}
    options |= {"linear_before_reset": 1} if cell == "gru" else {}
    node = onnx.helper.make_node(cell.upper(), ["X", *(t.name for t in tensors)], ["Y"], **options)
    x = onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, [None, None, i])
    y = onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, [None, directions, None, h])
    graph = onnx.helper.make_graph([node], "one", [x], [y], tensors)
    opset = onnx.helper.make_opsetid("", 14)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), file)
    return runtime.InferenceSession(file, providers=["CPUExecutionProvider"])


@pytest.mark.oracle
@pytest.mark.parametrize("cell", MODULES)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_onnx_answers_alike_both_ways(cell, directions, bias, tmp_path):
    i, h = 3, 5
    module = module_of(cell, i, h, 1, directions, bias=bias)
    arrays, x = weights.to_onnx(cell, module.state_dict()), torch.randn(6, 3, i)
    session = onnx_of(cell, i, h, arrays, directions, str(tmp_path / "one.onnx"))
    theirs = torch.from_numpy(session.run(None, {"X": x.numpy()})[0])  # (T, D, B, H)
    torch.testing.assert_close(module(x)[0], theirs.transpose(1, 2).flatten(2), rtol=0, atol=1e-6)
    random = np.random.default_rng(1)
    arrays = [random.normal(size=array.shape).astype(np.float32) for array in arrays]
    session = onnx_of(cell, i, h, arrays, directions, str(tmp_path / "two.onnx"))
    module.load_state_dict(weights.from_onnx(cell, arrays))
    theirs = torch.from_numpy(session.run(None, {"X": x.numpy()})[0])
    torch.testing.assert_close(module(x)[0], theirs.transpose(1, 2).flatten(2), rtol=0, atol=1e-6)
    back = weights.to_onnx(cell, module.state_dict())
    assert all(map(np.array_equal, back, arrays))


@pytest.mark.oracle
def test_a_second_layer_of_onnx():
    state = module_of("lstm", 3, 5, 2, 2).state_dict()
    found = {}
    for layer in (0, 1):
        found |= weights.from_onnx("lstm", weights.to_onnx("lstm", state, layer), layer)
    assert found.keys() == state.keys() and all(
        torch.equal(found[name], state[name]) for name in state
    )


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("cell", "library", "order"),
    [
        ("lstm", "miopen", [0, 1, 3, 2]),  # PyTorch's permute_wei_for_miopen, in RNN_miopen.cpp
        ("gru", "miopen", [1, 0, 2]),
        ("lstm", "keras", [0, 1, 2, 3]),  # keras/src/layers/rnn: z0 to z3; z, r, h
        ("gru", "keras", [1, 0, 2]),
        ("lstm", "onnx", [0, 3, 1, 2]),  # the operators' W[iofc] and W[zrh]
        ("gru", "onnx", [1, 0, 2]),
    ],
)
def test_the_published_orders(cell, library, order):
    """Which of PyTorch's gates stands in each place of another library."""
    gates = torch.arange(float(len(order)))
    assert weights.reorder(cell, gates, "cudnn", library).tolist() == order
