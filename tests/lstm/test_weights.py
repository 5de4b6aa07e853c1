"""The forms of the weights, against nn.LSTM and nn.GRU, against Keras, and against PyTorch's own buffer."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np
import pytest
import torch
from torch import nn

from ed_lib.lstm import weights

EXACT = 1e-6  # Keras before 3.14 multiplies in float32 on a CPU, whatever a layer's dtype
MODULES = {"lstm": nn.LSTM, "gru": nn.GRU}
SIZES = [(3, 5, 1, 1), (5, 3, 3, 1), (7, 2, 1, 2), (4, 4, 2, 2), (1, 1, 2, 2)]  # I, H, L, D
cells = pytest.mark.parametrize("cell", weights.CELLS)
sizes = pytest.mark.parametrize(("i", "h", "layers", "directions"), SIZES)


def module_of(cell, i, h, layers=1, directions=1, **options):
    torch.manual_seed(i + 10 * h)
    return MODULES[cell](i, h, layers, bidirectional=directions == 2, dtype=torch.float64, **options)


def keras_of(cell, i, h, seed=0, **options):
    """A Keras layer in float64 with random weights, biases too."""
    keras = pytest.importorskip("keras")
    random = np.random.default_rng(seed)
    kind = keras.layers.LSTM if cell == "lstm" else keras.layers.GRU
    layer = kind(h, dtype="float64", return_sequences=True, **options)
    layer.build((None, None, i))
    layer.set_weights([random.normal(size=w.shape) for w in layer.get_weights()])
    return layer


def loaded(cell, parameters, i, h, *sizes):
    module = module_of(cell, i, h, *sizes)
    module.load_state_dict(parameters)
    return module


def run_keras(layer, x):
    """x (T, B, I) → (T, B, H), as PyTorch has its axes."""
    keras = pytest.importorskip("keras")
    return torch.as_tensor(keras.ops.convert_to_numpy(layer(x.transpose(0, 1).numpy()))).transpose(0, 1)


def sequence(i, steps=6, batch=3):
    return torch.randn(steps, batch, i, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


# The table, and the buffer


@pytest.mark.oracle
@cells
@sizes
def test_the_table_covers_every_number_once(cell, i, h, layers, directions):
    pieces = weights.layout(cell, i, h, layers, directions)
    module = module_of(cell, i, h, layers, directions)
    assert [p.offset for p in pieces] == [0, *(p.end for p in pieces[:-1])]  # no gap, no overlap
    assert pieces[-1].end == sum(p.numel() for p in module.parameters())
    assert pieces == weights.layout_of(module)
    flat = weights.pack(pieces, weights.split_gates(cell, module.state_dict()))  # there, and back
    back = weights.join_gates(cell, weights.unpack(pieces, flat))
    assert set(back) == set(module.state_dict())
    assert all(torch.equal(back[name], tensor) for name, tensor in module.state_dict().items())


@pytest.mark.oracle
def test_the_order_of_two_layers_in_two_directions():
    """The order that JAX's documentation describes, written out."""
    pieces = weights.layout("lstm", 3, 5, 2, 2)
    names = list(dict.fromkeys(piece.name.partition(".")[0] for piece in pieces))
    places = ["l0", "l0_reverse", "l1", "l1_reverse"]
    assert names == [
        f"{kind}_{side}_{p}" for kind in ("weight", "bias") for p in places for side in ("ih", "hh")
    ]
    assert [piece.name[-1] for piece in pieces] == list("ifgo") * 16
    start = {piece.name: piece.offset for piece in pieces}
    assert start["weight_hh_l0.i"] == 4 * 5 * 3
    assert start["weight_ih_l0_reverse.i"] == 4 * 5 * (3 + 5)
    both = 2 * 4 * 5 * (3 + 5)  # directions of layer 0; layer 1 reads both
    assert start["weight_hh_l1.f"] == both + 4 * 5 * 10 + 5 * 5
    assert start["bias_ih_l0.i"] == 2 * 4 * 5 * (3 + 5) + 2 * 4 * 5 * (10 + 5)


@pytest.mark.oracle
@cells
def test_one_layer_written_out(cell):
    """As the sources describe it, from separate matrices: by hand, with NumPy."""
    i, h, random = 3, 4, np.random.default_rng(0)
    order = weights.ORDERS["cudnn"][cell]
    w, u = {g: random.normal(size=(h, i)) for g in order}, {g: random.normal(size=(h, h)) for g in order}
    b, c = {g: random.normal(size=h) for g in order}, {g: random.normal(size=h) for g in order}
    wanted = np.concatenate([part[g].ravel() for part in (w, u, b, c) for g in order])
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    named = zip(names, (w, u, b, c), strict=True)
    gates = {f"{name}.{g}": torch.tensor(part[g]) for name, part in named for g in order}
    flat = weights.pack(weights.layout(cell, i, h), dict(reversed(gates.items())))  # order of the dict: any
    assert np.array_equal(flat.numpy(), wanted)


@pytest.mark.oracle
@cells
def test_without_biases_the_table_has_none(cell):
    module = module_of(cell, 3, 5, 2, 2, bias=False)
    pieces = weights.layout_of(module)
    assert pieces[-1].end == sum(p.numel() for p in module.parameters())
    flat = weights.pack(pieces, weights.split_gates(cell, module.state_dict()))
    back = weights.join_gates(cell, weights.unpack(pieces, flat))
    assert all(torch.equal(back[name], tensor) for name, tensor in module.state_dict().items())


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has a flat buffer on a GPU only")
@cells
@sizes
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_pytorchs_own_buffer_on_a_gpu(cell, i, h, layers, directions, dtype):
    module = module_of(cell, i, h, layers, directions).to("cuda", dtype)  # flattens
    first = min(p.data_ptr() for p in module.parameters())
    for piece in weights.layout_of(module):
        name, gate = piece.name.split(".")
        n = weights.ORDERS["cudnn"][cell].index(gate)
        place = getattr(module, name).chunk(len(weights.ORDERS["cudnn"][cell]))[n]
        assert (place.data_ptr() - first) // place.element_size() == piece.offset, piece


# Keras


@pytest.mark.oracle
@cells
@pytest.mark.parametrize(("i", "h"), [(3, 5), (5, 3), (4, 4), (1, 2)])
def test_from_keras_and_back(cell, i, h):
    layer, x = keras_of(cell, i, h), sequence(i)
    module = loaded(cell, weights.from_keras(cell, layer.get_weights()), i, h)
    torch.testing.assert_close(module(x)[0], run_keras(layer, x), rtol=0, atol=EXACT)
    back = weights.to_keras(cell, module.state_dict())
    assert all(np.array_equal(a, b) for a, b in zip(back, layer.get_weights(), strict=True))


@pytest.mark.oracle
@cells
def test_keras_without_a_bias(cell):
    layer, x = keras_of(cell, 3, 5, use_bias=False), sequence(3)
    module = module_of(cell, 3, 5, bias=False)
    module.load_state_dict(weights.from_keras(cell, layer.get_weights()))
    torch.testing.assert_close(module(x)[0], run_keras(layer, x), rtol=0, atol=EXACT)
    back = weights.to_keras(cell, module.state_dict())
    assert all(np.array_equal(a, b) for a, b in zip(back, layer.get_weights(), strict=True))


@pytest.mark.oracle
@cells
def test_to_keras_adds_what_pytorch_learned_in_two_biases(cell):
    module, layer, x = module_of(cell, 3, 5), keras_of(cell, 3, 5), sequence(3)
    layer.set_weights(weights.to_keras(cell, module.state_dict()))
    torch.testing.assert_close(run_keras(layer, x), module(x)[0], rtol=0, atol=EXACT)


@pytest.mark.oracle
@cells
def test_two_directions_and_two_layers_of_keras(cell):
    keras = pytest.importorskip("keras")
    i, h, x = 3, 4, sequence(3)
    layers = [keras.layers.Bidirectional(keras_of(cell, n, h), dtype="float64") for n in (i, 2 * h)]
    parameters, out = {}, x
    for number, layer in enumerate(layers):
        layer.build((None, None, (i, 2 * h)[number]))
        rng = np.random.default_rng(number)
        layer.set_weights([rng.normal(size=w.shape) for w in layer.get_weights()])
        for way, suffix in ((layer.forward_layer, ""), (layer.backward_layer, "_reverse")):
            parameters |= weights.from_keras(cell, way.get_weights(), f"l{number}{suffix}")
        out = run_keras(layer, out)
    module = loaded(cell, parameters, i, h, 2, 2)
    torch.testing.assert_close(module(x)[0], out, rtol=0, atol=EXACT)


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


# ONNX


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
@cells
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_onnx_answers_alike_both_ways(cell, directions, bias, tmp_path):
    i, h = 3, 5
    module = module_of(cell, i, h, 1, directions, bias=bias).float()
    arrays, x = weights.to_onnx(cell, module.state_dict()), sequence(i).float()
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
    assert found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)


# The bug of 2017: Keras flattened (I, H) where cuDNN reads (H, I)


def buffer_of_2017(cell, keras_weights, transpose):
    """The flat buffer from Keras' arrays, gate by gate, with the transposition or without it."""
    kernel, recurrent, _ = keras_weights
    gates = weights.split_gates(cell, weights.from_keras(cell, keras_weights))
    parts = {"weight_ih_l0": kernel, "weight_hh_l0": recurrent}
    for name, array in parts.items():
        count = len(weights.ORDERS["keras"][cell])
        for gate, part in zip(weights.ORDERS["keras"][cell], np.split(array, count, axis=1), strict=True):
            right = part.T.copy() if transpose else part.reshape(part.shape[::-1])
            gates[f"{name}.{gate}"] = torch.tensor(right)
    return weights.pack(weights.layout(cell, kernel.shape[0], recurrent.shape[0]), gates)


@pytest.mark.oracle
@cells
@pytest.mark.parametrize(("i", "h"), [(3, 5), (4, 4)])
def test_the_missing_transpose_is_caught_by_values_and_not_by_shapes(cell, i, h):
    layer, x, pieces = keras_of(cell, i, h), sequence(i), weights.layout(cell, i, h)
    outputs, lengths = {}, set()
    for transpose in (True, False):
        flat = buffer_of_2017(cell, layer.get_weights(), transpose)
        lengths.add(flat.shape)
        module = loaded(cell, weights.join_gates(cell, weights.unpack(pieces, flat)), i, h)
        outputs[transpose] = module(x)[0]
    assert len(lengths) == 1  # nothing that counts numbers sees it
    torch.testing.assert_close(outputs[True], run_keras(layer, x), rtol=0, atol=EXACT)
    assert (outputs[False] - run_keras(layer, x)).abs().max() > 0.1


def test_a_square_matrix_hides_what_a_shape_check_would_catch():
    gates = weights.split_gates("lstm", module_of("lstm", 4, 4).state_dict())
    gates["weight_ih_l0.f"] = gates["weight_ih_l0.f"].T
    weights.pack(weights.layout("lstm", 4, 4), gates)
