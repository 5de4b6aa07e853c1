"""The messages of part I, for the table of tests/test_doors.py."""

from functools import partial

import numpy as np
import torch

from ed_lib.ed import EDNetwork, learner, rivals
from ed_lib.ed.language import EDTransformer
from ed_lib.ed.learner import Learner
from ed_lib.ed.relatives import Perceptron

X, T, BAD_X = np.full((4, 3), 0.5), np.ones((4, 1)), np.full((4, 3), np.inf)
NUMPY, TORCH = EDNetwork(3, 2, 1), EDNetwork(7, 4, 2, 3, backend="torch")
STATE = NUMPY.state_dict()
LEARNER, SEVEN, THREE = Learner(TORCH, "squared", "adam"), torch.ones(6, 7), torch.ones(6, 3)
FLIPPED = STATE | {"hidden.weight": -STATE["hidden.weight"]}
HUGE = STATE | {"input.weight": STATE["input.weight"].astype(float) * 1e39}
NAN = STATE | {"input.bias": STATE["input.bias"] * np.nan}
GPT = partial(EDTransformer, vocabulary=5, context=6, layers=1, heads=2, width=8)
IMAGES = np.zeros((6, 784), "float32"), np.zeros(6, int)


def network(**change):
    return EDNetwork(**{"n_inputs": 3, "width": 2, "depth": 1} | change)


def ran(net=NUMPY):
    net.forward(X)
    return net


def fit(**change):
    return learner.fit(
        EDNetwork(784, 2, 0, 3), **{"train_set": IMAGES, "test_set": IMAGES} | change
    )


def rival(kind, **change):
    return kind(EDNetwork(3, 2, 1, **{"rule": "signed"} | change))


ED = [
    (
        "EDNetwork: n_inputs",
        lambda: network(n_inputs=0),
        ValueError,
        "n_inputs is 0; wanted at least 1",
    ),
    (
        "EDNetwork: width",
        lambda: network(width=2.0),
        TypeError,
        "width is 2.0; wanted a whole number",
    ),
    ("EDNetwork: depth", lambda: network(depth=-1), ValueError, "depth is -1; wanted at least 0"),
    (
        "EDNetwork: rule",
        lambda: network(rule="hebb"),
        ValueError,
        "rule is 'hebb'; wanted one of 'kaneko'",
    ),
    ("EDNetwork: init", lambda: network(init="xavier"), ValueError, "init is 'xavier'"),
    ("EDNetwork: bias", lambda: network(bias="none"), ValueError, "bias is 'none'"),
    ("EDNetwork: backend", lambda: network(backend="jax"), ValueError, "backend is 'jax'"),
    ("EDNetwork: dtype", lambda: network(dtype="float16"), ValueError, "dtype is 'float16'"),
    (
        "EDNetwork: device",
        lambda: network(device="cuda"),
        ValueError,
        "device is 'cuda'; wanted 'cpu' with",
    ),
    (
        "EDNetwork: no CuPy",
        lambda: network(backend="cupy", device="cuda"),
        ValueError,
        "backend is 'cupy'; CuPy is not installed here (pip install",
    ),
    (
        "EDNetwork: CuPy's",
        lambda: network(backend="cupy"),
        ValueError,
        "device is 'cpu'; wanted 'cuda'",
    ),
    ("EDNetwork: alpha", lambda: network(alpha=float("nan")), ValueError, "alpha is nan"),
    ("EDNetwork: u0", lambda: network(u0="0.4"), TypeError, "u0 is '0.4'"),
    (
        "EDNetwork: alpha beyond the dtype",
        lambda: network(alpha=1e39),
        ValueError,
        "alpha is 1e+39; wanted a finite number of float32",
    ),
    (
        "EDNetwork: u0 beyond the dtype",
        lambda: network(u0=1e-39),
        ValueError,
        "u0 is 1e-39; wanted 2 / u0 to be a finite number of float32",
    ),
    (
        "EDNetwork: path",
        lambda: network(path="fast"),
        ValueError,
        "path is 'fast'; wanted one of 'auto', 'l",
    ),
    (
        "EDNetwork: path in float64",
        lambda: network(path="kernel", dtype="float64"),
        ValueError,
        "path is 'kernel', which on a CPU needs float32, not float64",
    ),
    (
        "step: x",
        lambda: NUMPY.step(X[:, :2], T),
        ValueError,
        "x has the shape (4, 2); wanted (B, 3)",
    ),
    (
        "step: target",
        lambda: NUMPY.step(X, T[:3]),
        ValueError,
        "target has the shape (3, 1); wanted (4, 1)",
    ),
    ("step: infinity", lambda: NUMPY.step(BAD_X, T), ValueError, "x holds NaN or infinity"),
    ("step: NaN", lambda: NUMPY.step(X, T * np.nan), ValueError, "target holds NaN or infinity"),
    (
        "step: beyond 1",
        lambda: NUMPY.step(X, T + 0.5),
        ValueError,
        "target has values outside [0, 1]",
    ),
    (
        "step: below 0",
        lambda: NUMPY.step(-X, T),
        ValueError,
        "x has values below 0; the rule 'kaneko' wants",
    ),
    (
        "step: complex",
        lambda: NUMPY.step(X.astype(complex), T),
        TypeError,
        "x has the dtype complex128",
    ),
    (
        "step: a tensor",
        lambda: NUMPY.step(torch.ones(4, 3), T),
        TypeError,
        ["x is a <class 'torch.Tensor'>; wanted", "numpy.ndarray'>, as asarray() makes it"],
    ),
    (
        "update: first",
        lambda: network().update(T),
        RuntimeError,
        "needs the activations of a forward",
    ),
    ("update: infinity", lambda: ran().update(T * np.inf), ValueError, "error holds NaN"),
    (
        "update: shape",
        lambda: ran().update(T[:2]),
        ValueError,
        "error has the shape (2, 1); wanted (4, 1)",
    ),
    (
        "state: signs",
        lambda: NUMPY.load_state_dict(FLIPPED),
        ValueError,
        "hidden.weight'] has weights of",
    ),
    ("state: NaN", lambda: NUMPY.load_state_dict(NAN), ValueError, "state['input.bias'] holds NaN"),
    (
        "state: beyond the dtype",
        lambda: NUMPY.load_state_dict(HUGE),
        ValueError,
        "state['input.weight'] holds NaN or infinity; wanted finite numbers of float32",
    ),
    (
        "state: complex",
        lambda: NUMPY.load_state_dict(STATE | {"input.bias": STATE["input.bias"] + 1j}),
        TypeError,
        "state['input.bias'] has the dtype complex64; wanted real numbers",
    ),
    (
        "state: keys",
        lambda: NUMPY.load_state_dict({"input.bias": T}),
        ValueError,
        "state has the keys",
    ),
    (
        "Learner: method",
        lambda: Learner(TORCH, "bp"),
        ValueError,
        "method is 'bp'; wanted one of 'ed'",
    ),
    (
        "Learner: optimizer",
        lambda: Learner(TORCH, optimizer="sdg"),
        ValueError,
        "optimizer is 'sdg'",
    ),
    (
        "Learner: rate",
        lambda: Learner(TORCH, rate=0),
        ValueError,
        "rate is 0; wanted a finite number",
    ),
    ("Learner: steps", lambda: Learner(TORCH, steps=0), ValueError, "steps is 0"),
    (
        "Learner: backend",
        lambda: Learner(NUMPY),
        ValueError,
        "net is of the backend 'numpy'; wanted 'torch'",
    ),
    ("Learner: NaN", lambda: LEARNER.step(SEVEN * np.nan, THREE), ValueError, "x holds NaN"),
    (
        "Learner: beyond 1",
        lambda: LEARNER.step(SEVEN, THREE + 2),
        ValueError,
        "target has values outside",
    ),
    (
        "Learner: layers",
        lambda: Learner(TORCH, layers=["inputs"]),
        ValueError,
        "layers is 'inputs'; wanted",
    ),
    (
        "fit: inputs",
        lambda: fit(train_set=(X, IMAGES[1])),
        ValueError,
        "inputs has the shape (4, 3)",
    ),
    (
        "fit: labels",
        lambda: fit(train_set=(IMAGES[0], IMAGES[1][:5])),
        ValueError,
        "has the shape (5,);",
    ),
    (
        "fit: classes",
        lambda: fit(train_set=(IMAGES[0], IMAGES[1] + 3)),
        ValueError,
        "labels has [3]; wanted",
    ),
    ("fit: NaN", lambda: fit(train_set=(IMAGES[0] * np.nan, IMAGES[1])), ValueError, "x holds NaN"),
    (
        "learner.accuracy: a column of labels",
        lambda: learner.accuracy(NUMPY, np.eye(3), np.zeros((3, 1), int)),
        ValueError,
        "labels has the shape (3, 1); wanted (3,)",
    ),
    (
        "learner.accuracy: one label",
        lambda: learner.accuracy(NUMPY, np.eye(3), np.zeros(1, int)),
        ValueError,
        "labels has the shape (1,); wanted (3,)",
    ),
    (
        "learner.accuracy: no inputs",
        lambda: learner.accuracy(NUMPY, np.zeros((0, 3)), np.zeros(0, int)),
        ValueError,
        "len(inputs) is 0; wanted at least 1",
    ),
    (
        "learner.accuracy: batch",
        lambda: learner.accuracy(NUMPY, np.eye(3), np.arange(3), batch=0),
        ValueError,
        "batch is 0; wanted at least 1",
    ),
    ("fit: epochs", lambda: fit(epochs=0), ValueError, "epochs is 0"),
    (
        "article: outputs",
        lambda: rival(rivals.ArticleNetwork, n_outputs=2),
        ValueError,
        "net is unlike",
    ),
    (
        "article: rule",
        lambda: rival(rivals.ArticleNetwork, rule="kaneko"),
        ValueError,
        "net is unlike",
    ),
    ("Backprop: bias", lambda: rival(rivals.Backprop, bias="cells"), ValueError, "net has bias="),
    (
        "Backprop: rate",
        lambda: rivals.Backprop(NUMPY, rate=-1.0),
        ValueError,
        "rate is -1.0; wanted a finite number above 0",
    ),
    (
        "Backprop: first",
        lambda: rival(rivals.Backprop).chain(T),
        RuntimeError,
        "chain() needs the activations of net.forward(x)",
    ),
    (
        "Backprop: one error for two networks",
        lambda: rivals.Backprop(ran(EDNetwork(3, 2, 1, 2))).chain(T),
        ValueError,
        "error has the shape (4, 1); wanted (4, 2)",
    ),
    (
        "Perceptron: one target",
        lambda: Perceptron((3, 4, 2)).step(torch.ones(4, 3), torch.ones(1, 2)),
        ValueError,
        "target has the shape (1, 2); wanted (4, 2)",
    ),
    ("Perceptron: rule", lambda: Perceptron((3, 4, 2), "guess"), ValueError, "rule is 'guess'"),
    ("Perceptron: one width", lambda: Perceptron((3,)), ValueError, "widths is [3]"),
    ("Perceptron: widths", lambda: Perceptron((3, 0, 2)), ValueError, "widths is 0"),
    ("GPT: attention", lambda: GPT(attention="guess"), ValueError, "attention is 'guess'"),
    ("GPT: mlp", lambda: GPT(mlp="guess"), ValueError, "mlp is 'guess'"),
    (
        "GPT: heads",
        lambda: GPT(heads=3),
        ValueError,
        "heads is 3; wanted a divisor of the width, 8",
    ),
    ("GPT: layers", lambda: GPT(layers=-1), ValueError, "layers is -1; wanted at least 1"),
    (
        "GPT: long",
        lambda: GPT().forward(torch.zeros(1, 7, dtype=torch.int64)),
        ValueError,
        "x has shape (1, 7); wanted (B, T) with T of at most 6",
    ),
    (
        "GPT: numbers",
        lambda: GPT().forward(torch.arange(6)[None]),
        ValueError,
        "x runs from 0 to 5; wanted",
    ),
    (
        "GPT: target turned",
        lambda: GPT().step(torch.zeros(3, 6).long(), torch.zeros(6, 3).long()),
        ValueError,
        "target has the shape (6, 3); wanted (3, 6)",
    ),
]
