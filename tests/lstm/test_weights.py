"""The forms of the weights, against nn.LSTM and nn.GRU, against Keras, and against PyTorch's own buffer."""

import copy
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np
import pytest
import torch
from torch import nn

from ed_lib.lstm import weights

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
@sizes
def test_a_flattened_module_is_the_same_module(cell, i, h, layers, directions):
    module = module_of(cell, i, h, layers, directions)
    wanted, before = module(sequence(i))[0], list(module.parameters())
    assert not weights.is_flat(module)
    flat = weights.flatten(module)
    assert weights.is_flat(module) and all(p is q for p, q in zip(before, module.parameters(), strict=True))
    assert torch.equal(module(sequence(i))[0], wanted)
    flat.zero_()  # the parameters are views of it
    assert not any(p.any() for p in module.parameters())


def replaced(module):
    module.bias_hh_l0 = nn.Parameter(torch.zeros(20, dtype=torch.float64))


def moved(module):  # to the right offset, in another storage
    module.weight_hh_l0.data = weights.flatten(module).clone()[60:160].view(20, 5)
    assert module.weight_hh_l0.storage_offset() == weights.parameter_offsets(module)["weight_hh_l0"]


STATE = module_of("lstm", 3, 5).state_dict()
EVENTS = {
    "loaded": (True, lambda module: module.load_state_dict(STATE)),  # copies into what is there
    "assigned": (False, lambda module: module.load_state_dict(STATE, assign=True)),  # and this does not
    "copied": (False, copy.deepcopy),
    "converted": (False, lambda module: module.float()),
    "replaced": (False, replaced),
    "moved": (False, moved),
}


@pytest.mark.parametrize("event", EVENTS)
def test_what_loses_the_buffer(event):
    kept, happens = EVENTS[event]
    module = module_of("lstm", 3, 5)
    weights.flatten(module)
    found = happens(module)
    assert weights.is_flat(found if isinstance(found, nn.LSTM) else module) == kept


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has a flat buffer on a GPU only")
@cells
@sizes
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_pytorchs_own_buffer_on_a_gpu(cell, i, h, layers, directions, dtype):
    module = module_of(cell, i, h, layers, directions).to("cuda", dtype)  # flattens
    first = min(p.data_ptr() for p in module.parameters())
    found = {n: (p.data_ptr() - first) // p.element_size() for n, p in module.named_parameters()}
    assert found == weights.parameter_offsets(module)
    assert weights.is_flat(module)
    changed = copy.deepcopy(module)
    assert not weights.is_flat(changed)
    changed.flatten_parameters()
    assert weights.is_flat(changed)


# Keras


@pytest.mark.oracle
@cells
@pytest.mark.parametrize(("i", "h"), [(3, 5), (5, 3), (4, 4), (1, 2)])
def test_from_keras_and_back(cell, i, h):
    layer, x = keras_of(cell, i, h), sequence(i)
    module = loaded(cell, weights.from_keras(cell, layer.get_weights()), i, h)
    torch.testing.assert_close(module(x)[0], run_keras(layer, x), rtol=0, atol=1e-12)
    back = weights.to_keras(cell, module.state_dict())
    assert all(np.array_equal(a, b) for a, b in zip(back, layer.get_weights(), strict=True))


@pytest.mark.oracle
@cells
def test_to_keras_adds_what_pytorch_learned_in_two_biases(cell):
    module, layer, x = module_of(cell, 3, 5), keras_of(cell, 3, 5), sequence(3)
    layer.set_weights(weights.to_keras(cell, module.state_dict()))
    torch.testing.assert_close(run_keras(layer, x), module(x)[0], rtol=0, atol=1e-12)


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
    torch.testing.assert_close(module(x)[0], out, rtol=0, atol=1e-12)


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
    torch.testing.assert_close(outputs[True], run_keras(layer, x), rtol=0, atol=1e-12)
    assert (outputs[False] - run_keras(layer, x)).abs().max() > 0.1


def test_a_square_matrix_hides_what_a_shape_check_would_catch():
    gates = weights.split_gates("lstm", module_of("lstm", 4, 4).state_dict())
    gates["weight_ih_l0.f"] = gates["weight_ih_l0.f"].T
    weights.pack(weights.layout("lstm", 4, 4), gates)


# PyTorch's conditions for cuDNN's persistent kernels

FITS, HALF, SINGLE = {"input_size": 256, "hidden_size": 512}, torch.float16, torch.float32
CALL = {"batch": 64, "dtype": HALF}
MISSED = [
    (None, nn.LSTM(**FITS), {}),
    ("one layer", nn.LSTM(**FITS, num_layers=2), {}),
    ("one direction", nn.LSTM(**FITS, bidirectional=True), {}),
    ("no projection", nn.LSTM(**FITS, proj_size=128), {}),
    ("input size a multiple of 128", nn.LSTM(28, 512), {}),
    ("an LSTM", nn.GRU(**FITS), {}),
    *(("hidden size 128, 256, … 1024", nn.LSTM(256, h), {}) for h in (200, 1152)),
    *(("float16", nn.LSTM(**FITS), {"dtype": dtype}) for dtype in (torch.bfloat16, SINGLE)),
    ("not packed", nn.LSTM(**FITS), {"packed": True}),
    *(("batch 8, 16, … 128", nn.LSTM(**FITS), {"batch": batch}) for batch in (60, 136)),
]


@pytest.mark.oracle
@pytest.mark.parametrize("name, module, change", MISSED)
def test_the_conditions_of_the_persistent_kernel(name, module, change):
    assert weights.why_not_persistent(module, **(CALL | change)) == ([name] if name else [])
    assert weights.algorithm(module, **(CALL | change)) == ("standard" if name else "persistent")


@pytest.mark.oracle
@pytest.mark.parametrize(
    "hidden, dtype, packed, projected, forward, backward",
    [
        (128, HALF, False, 0, "small persistent", "small persistent"),
        (129, HALF, False, 0, "small persistent", "standard"),
        (192, HALF, False, 0, "small persistent", "standard"),
        (192, SINGLE, False, 0, "small persistent", "standard"),
        (193, SINGLE, False, 0, "standard", "standard"),
        (128, torch.float64, False, 0, "standard", "standard"),
        (128, SINGLE, True, 0, "standard", "standard"),
        (128, SINGLE, False, 64, "standard", "standard"),
        (256, HALF, False, 0, "persistent", "persistent"),
    ],
)
def test_the_small_persistent_kernel_is_asked_for_first(hidden, dtype, packed, projected, forward, backward):
    call = nn.LSTM(128, hidden, proj_size=projected), 64, dtype, packed
    assert (weights.algorithm(*call), weights.algorithm(*call, backward=True)) == (forward, backward)
