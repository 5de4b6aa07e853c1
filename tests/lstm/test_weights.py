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


def load(module, parameters):
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


@cells
@sizes
def test_there_and_back(cell, i, h, layers, directions):
    module, pieces = module_of(cell, i, h, layers, directions), weights.layout(cell, i, h, layers, directions)
    flat = weights.pack(pieces, weights.split_gates(cell, module.state_dict()))
    back = weights.join_gates(cell, weights.unpack(pieces, flat))
    assert set(back) == set(module.state_dict())
    assert all(torch.equal(back[name], tensor) for name, tensor in module.state_dict().items())


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


def test_what_loses_the_buffer():
    def flat():
        module = module_of("lstm", 3, 5)
        weights.flatten(module)
        return module

    copied, converted = copy.deepcopy(flat()), flat().float()
    loaded, assigned, replaced = flat(), flat(), flat()
    loaded.load_state_dict(module_of("lstm", 3, 5).state_dict())  # copies into what is there
    assigned.load_state_dict(module_of("lstm", 3, 5).state_dict(), assign=True)  # and this does not
    replaced.bias_hh_l0 = nn.Parameter(torch.zeros(20, dtype=torch.float64))
    assert weights.is_flat(loaded)
    assert not any(weights.is_flat(module) for module in (copied, assigned, replaced, converted))


def test_neighbours_by_chance_are_no_buffer():
    """Two storages whose storage offsets happen to fit are told apart."""
    module = module_of("lstm", 3, 5)
    flat = weights.flatten(module)
    module.weight_hh_l0.data = flat.clone()[60:160].view(20, 5)  # the right offset, another storage
    assert module.weight_hh_l0.storage_offset() == weights.parameter_offsets(module)["weight_hh_l0"]
    assert not weights.is_flat(module)


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
    module = load(module_of(cell, i, h), weights.from_keras(cell, layer.get_weights()))
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
    module = load(module_of(cell, i, h, 2, 2), parameters)
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
        module = load(module_of(cell, i, h), weights.join_gates(cell, weights.unpack(pieces, flat)))
        outputs[transpose] = module(x)[0]
    assert len(lengths) == 1  # nothing that counts numbers sees it
    torch.testing.assert_close(outputs[True], run_keras(layer, x), rtol=0, atol=1e-12)
    assert (outputs[False] - run_keras(layer, x)).abs().max() > 0.1


def test_a_square_matrix_hides_what_a_shape_check_would_catch():
    for i, h, raises in ((3, 5, True), (4, 4, False)):
        gates = weights.split_gates("lstm", module_of("lstm", i, h).state_dict())
        gates["weight_ih_l0.f"] = gates["weight_ih_l0.f"].T
        if raises:
            with pytest.raises(ValueError, match=r"weight_ih_l0\.f has the shape \(3, 5\); wanted \(5, 3\)"):
                weights.pack(weights.layout("lstm", i, h), gates)
        else:
            weights.pack(weights.layout("lstm", i, h), gates)


# Two biases


@pytest.mark.oracle
def test_an_lstms_biases_add():
    module, x = module_of("lstm", 3, 5), sequence(3)
    wanted = module(x)[0]
    p = module.state_dict()
    p["bias_ih_l0"], p["bias_hh_l0"] = weights.merge_biases("lstm", p["bias_ih_l0"], p["bias_hh_l0"])
    assert not p["bias_hh_l0"].any()
    torch.testing.assert_close(load(module, p)(x)[0], wanted, rtol=0, atol=1e-14)


@pytest.mark.oracle
def test_a_grus_biases_add_for_r_and_z_only():
    module, x = module_of("gru", 3, 5), sequence(3)
    p = module.state_dict()
    with pytest.raises(ValueError, match="candidate n: in a GRU the reset gate multiplies"):
        weights.merge_biases("gru", p["bias_ih_l0"], p["bias_hh_l0"])
    wanted, b_i, b_h = module(x)[0], p["bias_ih_l0"].clone(), p["bias_hh_l0"].clone()
    both = b_i + b_h
    partly = p | {
        "bias_ih_l0": torch.cat([both[:10], b_i[10:]]),
        "bias_hh_l0": torch.cat([0 * both[:10], b_h[10:]]),
    }
    torch.testing.assert_close(load(module, partly)(x)[0], wanted, rtol=0, atol=1e-14)
    wholly = p | {"bias_ih_l0": both, "bias_hh_l0": 0 * both}
    assert (load(module, wholly)(x)[0] - wanted).abs().max() > 1e-3
    b_h[10:] = 0  # the condition under which they do add
    load(module, p | {"bias_ih_l0": b_i, "bias_hh_l0": b_h})
    wanted = module(x)[0]
    merged = dict(zip(("bias_ih_l0", "bias_hh_l0"), weights.merge_biases("gru", b_i, b_h), strict=True))
    torch.testing.assert_close(load(module, p | merged)(x)[0], wanted, rtol=0, atol=1e-14)


def test_a_gru_with_the_reset_before_the_product_is_refused():
    layer = keras_of("gru", 3, 5, reset_after=False)
    with pytest.raises(ValueError, match=r"the bias has the shape \(15,\); wanted \(2, 15\)"):
        weights.from_keras("gru", layer.get_weights())


# The persistent kernel


@pytest.mark.oracle
def test_the_conditions_of_the_persistent_kernel():
    fits = {"input_size": 256, "hidden_size": 512}
    call = {"batch": 64, "dtype": torch.float16}
    assert weights.why_not_persistent(nn.LSTM(**fits), **call) == []
    assert weights.algorithm(nn.LSTM(**fits), **call) == "persistent"
    wrong = {
        "one layer": nn.LSTM(**fits, num_layers=2),
        "one direction": nn.LSTM(**fits, bidirectional=True),
        "no projection": nn.LSTM(**fits, proj_size=128),
        "input size a multiple of 128": nn.LSTM(28, 512),
        "an LSTM": nn.GRU(**fits),
    } | {h: nn.LSTM(256, h) for h in (200, 1152)}
    for name, module in wrong.items():
        name = "hidden size 128, 256, … 1024" if isinstance(name, int) else name
        assert weights.why_not_persistent(module, **call) == [name]
        assert weights.algorithm(module, **call) == "standard"
    for name, change in (
        ("float16", {"dtype": torch.bfloat16}),
        ("float16", {"dtype": torch.float32}),
        ("not packed", {"packed": True}),
        ("batch 8, 16, … 128", {"batch": 60}),
        ("batch 8, 16, … 128", {"batch": 136}),
    ):
        assert weights.why_not_persistent(nn.LSTM(**fits), **(call | change)) == [name]


@pytest.mark.oracle
def test_the_small_persistent_kernel_is_asked_for_first():
    for h, dtype, packed, proj, wanted in (
        (128, torch.float16, False, 0, "small persistent"),
        (192, torch.float32, False, 0, "small persistent"),
        (193, torch.float32, False, 0, "standard"),
        (128, torch.float64, False, 0, "standard"),
        (128, torch.float32, True, 0, "standard"),
        (128, torch.float32, False, 64, "standard"),
        (256, torch.float16, False, 0, "persistent"),
    ):
        assert weights.algorithm(nn.LSTM(128, h, proj_size=proj), 64, dtype, packed) == wanted
    for h, forward, backward in (
        (128, "small persistent", "small persistent"),
        (129, "small persistent", "standard"),
        (192, "small persistent", "standard"),
        (256, "persistent", "persistent"),
    ):
        module = nn.LSTM(128, h)
        assert weights.algorithm(module, 64, torch.float16) == forward
        assert weights.algorithm(module, 64, torch.float16, backward=True) == backward


# Bad input

PIECES = weights.layout("lstm", 3, 5)
GATES = weights.split_gates("lstm", module_of("lstm", 3, 5).state_dict())
SHORT = {name: gate for name, gate in GATES.items() if name != "bias_hh_l0.o"}
FLAT = weights.pack(PIECES, GATES)
ARRAYS = [np.zeros(shape) for shape in ((3, 20), (5, 20), (20,))]  # as Keras has them
BAD = [
    ("cell is 'rnn'", lambda: weights.layout("rnn", 3, 5)),
    ("hidden_size is 0", lambda: weights.layout("lstm", 3, 0)),
    ("directions is 3", lambda: weights.layout("lstm", 3, 5, 1, 3)),
    ("gates lacks bias_hh_l0.o", lambda: weights.pack(PIECES, SHORT)),
    ("gates holds weight_hr_l0", lambda: weights.pack(PIECES, GATES | {"weight_hr_l0": FLAT})),
    (r"weight_hh_l0.g has the shape \(4, 5\); wanted \(5, 5\)",
     lambda: weights.pack(PIECES, GATES | {"weight_hh_l0.g": FLAT[:20].view(4, 5)})),
    ("gates have the dtypes torch.float.*; wanted one",
     lambda: weights.pack(PIECES, GATES | {"bias_ih_l0.f": torch.zeros(5)})),
    (r"flat has the shape \(199,\); wanted \(200,\)", lambda: weights.unpack(PIECES, FLAT[1:])),
    (r"a has the shape \(7, 2\)", lambda: weights.split_gates("lstm", {"a": torch.zeros(7, 2)})),
    ("gates lacks a.f", lambda: weights.join_gates("lstm", {"a.i": torch.zeros(2)})),
    ("source is 'tf'", lambda: weights.reorder("lstm", torch.zeros(4), "tf", "cudnn")),
    (r"the kernel has the shape \(3, 19\); wanted \(I, 20\)",
     lambda: weights.from_keras("lstm", [ARRAYS[0][:, 1:], *ARRAYS[1:]])),
    (r"the kernel has the shape \(3, 20\)", lambda: weights.from_keras("gru", ARRAYS)),
    (r"the recurrent kernel has the shape \(5, 20, 1\)",
     lambda: weights.from_keras("lstm", [ARRAYS[0], ARRAYS[1][..., None], ARRAYS[2]])),
    ("wanted an nn.LSTM or nn.GRU", lambda: weights.layout_of(nn.RNN(2, 2))),
    ("wanted an nn.LSTM or nn.GRU", lambda: weights.algorithm(nn.Linear(2, 2), 8, torch.float16)),
    ("without projection", lambda: weights.layout_of(nn.LSTM(2, 4, proj_size=2))),
    ("with biases", lambda: weights.layout_of(nn.LSTM(2, 4, bias=False))),
]  # fmt: skip


@pytest.mark.parametrize(("message", "call"), BAD, ids=[message for message, _ in BAD])
def test_bad_input_is_named(message, call):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
