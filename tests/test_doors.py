"""Bad input at the doors, one table: what is called, the kind of error, and the words that its
message holds.

A door is what a reader calls from a cell. Its error names the argument, what came and what was
wanted.
"""

from unittest import mock

import numpy as np
import pytest
import torch

from ed_lib import (
    arrays,
    chapter,
    data,
    figures,
    gates,
    gpu_cells,
    machine,
    models,
    needs,
    published,
    roofline,
    timing,
    training,
    transformer,
)
from ed_lib.roofline import Ceilings
from tests.diagnose.doors import DIAGNOSE
from tests.ed.doors import ED
from tests.lstm.doors import LSTM
from tests.parallel.doors import PARALLEL
from tests.precision.doors import PRECISION
from tools import repository


def a_transformer(**options):
    sizes = {"vocabulary": 5, "context": 6, "layers": 1, "heads": 2, "width": 8}
    return transformer.Transformer(**sizes | options)


# Each entry: (what it is, a function that makes the call, the error, words of the message, in their
# order)

TWO = np.eye(2), np.arange(2)  # images and labels


def compared_by_events_without_a_gpu():
    with mock.patch.object(arrays, "gpu_count", lambda: 0):
        timing.compare({"int": int}, events=True)


GROUND = [
    (
        "%%gpu: no capability",
        lambda: gpu_cells.run("x", ""),
        ValueError,
        "the argument of %%gpu is 'x'; wanted a compute capability, such as 8.0",
    ),
    ("%%gpu: no decimal", lambda: gpu_cells.run("80", ""), ValueError, "%%gpu is '80'; wanted"),
    (
        "data: unknown",
        lambda: data.load("MNIST"),
        ValueError,
        "name is 'MNIST'; wanted one of 'mnist'",
    ),
    ("needs: none", lambda: needs.run("", ""), ValueError, "line of %%needs is empty; wanted"),
    (
        "needs: unknown",
        lambda: needs.run("SICK SIKC", ""),
        ValueError,
        "name is 'sikc'; wanted one of 'mnist'",
    ),
    (
        "minilm: unknown",
        lambda: data.minilm("config.json"),
        ValueError,
        "file is 'config.json'; wanted one of 'model.safetensors', 'tokenizer.json'",
    ),
    (
        "published: unknown",
        lambda: published.find("cifar", "data"),
        ValueError,
        "name is 'cifar'; wanted one of 'mnist', 'fashion-mnist'",
    ),
    (
        "batches: size",
        lambda: data.batches(10, 0, seed=0),
        ValueError,
        "size is 0; wanted at least 1",
    ),
    (
        "inputs: floats",
        lambda: data.as_inputs(np.zeros((2, 28, 28))),
        TypeError,
        "wanted a NumPy array",
    ),
    ("inputs: a list", lambda: data.as_inputs([[[0]]]), TypeError, "images is a list"),
    (
        "inputs: flat",
        lambda: data.as_inputs(np.zeros((2, 784), np.uint8)),
        ValueError,
        "(2, 784); wanted (N",
    ),
    ("one_hot: ten", lambda: data.one_hot([0, 10]), ValueError, "labels has [0, 10]; wanted"),
    ("one_hot: below", lambda: data.one_hot([-1, 0]), ValueError, "labels has [-1, 0]"),
    (
        "one_hot: floats",
        lambda: data.one_hot([0.0, 1.0]),
        ValueError,
        "labels has [0.0, 1.0]; wanted",
    ),
    ("pick: twice", lambda: data.pick(*TWO, [0, 0]), ValueError, "classes is [0, 0]; wanted"),
    ("pick: other", lambda: data.pick(*TWO, [5]), ValueError, "classes is [5]; wanted"),
    ("pick: none", lambda: data.pick(*TWO, []), ValueError, "classes is []; wanted"),
    (
        "stretches: short",
        lambda: next(data.stretches(torch.arange(20), 1, 20, seed=0)),
        ValueError,
        "steps is 20; wanted fewer than the text's 20",
    ),
    (
        "train: labels",
        lambda: training.train(models.mlp(), None, torch.ones(3, 784), torch.zeros(2).long()),
        ValueError,
        "there are 3 images and 2 labels; wanted a label for each",
    ),
    (
        "accuracy: a column of labels",
        lambda: training.accuracy(torch.nn.Identity(), torch.eye(3), torch.zeros(3, 1).long()),
        ValueError,
        "labels has the shape (3, 1); wanted (3,)",
    ),
    (
        "accuracy: one label",
        lambda: training.accuracy(torch.nn.Identity(), torch.eye(3), torch.zeros(1).long()),
        ValueError,
        "labels has the shape (1,); wanted (3,)",
    ),
    (
        "accuracy: scores of tokens",
        lambda: training.accuracy(torch.nn.Identity(), torch.ones(3, 3, 3), torch.zeros(3).long()),
        ValueError,
        "what model gives has the shape (3, 3, 3); wanted (3, classes)",
    ),
    (
        "accuracy: no images",
        lambda: training.accuracy(torch.nn.Identity(), torch.ones(0, 3), torch.zeros(0).long()),
        ValueError,
        "len(images) is 0; wanted at least 1",
    ),
    *(
        (f"transformer: {name}", lambda options=options: a_transformer(**options), error, words)
        for name, options, error, words in [
            ("vocabulary", {"vocabulary": 0}, ValueError, "vocabulary is 0; wanted at least 1"),
            ("context", {"context": 0}, ValueError, "context is 0; wanted at least 1"),
            ("layers", {"layers": -1}, ValueError, "layers is -1; wanted at least 1"),
            ("no layers", {"layers": 0}, ValueError, "layers is 0; wanted at least 1"),
            ("half a layer", {"layers": 1.5}, TypeError, "layers is 1.5; wanted a whole number"),
            ("heads", {"heads": -2}, ValueError, "heads is -2; wanted at least 1"),
            ("more heads", {"heads": 3}, ValueError, "heads is 3; wanted a divisor of the width"),
            ("width", {"width": 0}, ValueError, "width is 0; wanted at least 1"),
            ("rate", {"rate": 0.0}, ValueError, "rate is 0.0; wanted a finite number above 0"),
            ("steps", {"steps": 0}, ValueError, "steps is 0; wanted at least 1"),
            ("seed", {"seed": -1}, ValueError, "seed is -1; wanted at least 0"),
        ]
    ),
    (
        "transformer: long",
        lambda: a_transformer().forward(torch.zeros(1, 7, dtype=torch.int64)),
        ValueError,
        "x has shape (1, 7); wanted (B, T) with T of at most 6",
    ),
    (
        "transformer: numbers",
        lambda: a_transformer().forward(torch.arange(6)[None]),
        ValueError,
        "x runs from 0 to 5; wanted the numbers of 5 characters",
    ),
    (
        "transformer: target turned",
        lambda: a_transformer().step(torch.zeros(3, 6).long(), torch.zeros(6, 3).long()),
        ValueError,
        "target has the shape (6, 3); wanted (3, 6)",
    ),
    (
        "transformer: no places",
        lambda: transformer.held_out_loss(a_transformer(), torch.zeros(25).long(), 0),
        ValueError,
        "places is 0; wanted at least 1",
    ),
    (
        "encoder: heads",
        lambda: models.Encoder(hidden=10, heads=3),
        ValueError,
        "hidden is 10 and heads is 3",
    ),
    ("encoder: layers", lambda: models.Encoder(layers=0), ValueError, "layers is 0"),
    (
        "gpt: layers",
        lambda: models.GPT(5, 5, layers=-1),
        ValueError,
        "layers is -1; wanted at least 1",
    ),
    (
        "gpt: more tokens than places",
        lambda: models.GPT(5, 1)(torch.zeros(1, 3).long()),
        ValueError,
        "tokens has the shape (1, 3); wanted (B, T) with T of at most 1",
    ),
    (
        "gpt: recompute",
        lambda: models.GPT(5, 5, recompute="some"),
        ValueError,
        "recompute is 'some'; wanted",
    ),
    ("mlp: one", lambda: models.mlp((5,)), ValueError, "widths is (5,); wanted at least two"),
    ("mlp: nothing", lambda: models.mlp((5, 0, 2)), ValueError, "widths is 0; wanted at least 1"),
    ("lenet: seed", lambda: models.lenet(seed=1.5), TypeError, "seed is 1.5"),
]

MEASURE = [
    *(
        (f"machine: {device!r}", lambda device=device: machine.memory(device), ValueError, "wanted")
        for device in ("tpu", "cuda:99", "cuda:x", None, 0)
    ),
    (
        "machine: no GPU",
        lambda: machine.name("cuda:99"),
        ValueError,
        "device is 'cuda:99'; wanted a GPU",
    ),
    ("floor: below 0", lambda: ROOF.floor(-1, 0), ValueError, "bytes is -1; wanted a"),
    ("floor: NaN", lambda: ROOF.floor(0, float("nan")), ValueError, "flops is nan; wanted a"),
    ("floor: text", lambda: ROOF.floor("1", 0), TypeError, "bytes is '1'; wanted a"),
    ("floor: none", lambda: ROOF.floor(None, 0), TypeError, "bytes is None; wanted a number"),
    (
        "floor: 0 is allowed",
        lambda: timing.floor(0, -2, bandwidth=1, rate=1),
        ValueError,
        "flops is -2; wanted a finite number, at least 0",
    ),
    (
        "floor: no rate",
        lambda: timing.floor(1, 1, bandwidth=1, rate=0),
        ValueError,
        "rate is 0; wanted a finite number above 0",
    ),
    (
        "floor: no bandwidth",
        lambda: timing.floor(1, 1, bandwidth=float("inf"), rate=1),
        ValueError,
        "bandwidth is inf; wanted a finite number above 0",
    ),
    ("ceilings: 0", lambda: Ceilings("x", "float32", 0, 1), ValueError, "bandwidth is 0"),
    ("ceilings: device", lambda: roofline.probe("tpu"), ValueError, "device is 'tpu'; wanted"),
    (
        "ceilings: dtype",
        lambda: roofline.probe(dtype="int8"),
        ValueError,
        "dtype is 'int8'; wanted",
    ),
    ("ceilings: seconds", lambda: roofline.probe(seconds=0), ValueError, "seconds is 0; wanted"),
    ("compare: rounds", lambda: timing.compare({}, rounds=0), ValueError, "rounds is 0"),
    ("compare: half a round", lambda: timing.compare({}, rounds=2.5), TypeError, "rounds is 2.5"),
    (
        "compare: no function",
        lambda: timing.compare({"sum": sum([1, 2])}),
        TypeError,
        "functions['sum'] is a int; wanted a function to call",
    ),
    (
        "measure: no function",
        lambda: timing.measure(torch.ones(2)),
        TypeError,
        "function is a Tensor; wanted a function to call",
    ),
    (
        "apart: no function",
        lambda: timing.apart(None),
        TypeError,
        "function is a NoneType; wanted a function to call",
    ),
    (
        "compare: events",
        compared_by_events_without_a_gpu,
        ValueError,
        "events is True; wanted a GPU, of which PyTorch sees 0",
    ),
    (
        "measure: no time",
        lambda: timing.measure(int, min_seconds=0),
        ValueError,
        "min_seconds is 0; wanted",
    ),
    (
        "apart: text",
        lambda: timing.apart(int, min_seconds="1"),
        TypeError,
        "min_seconds is '1'; wanted",
    ),
    (
        "apart: runs",
        lambda: timing.apart(int, min_runs=0),
        ValueError,
        "min_runs is 0; wanted at least 1",
    ),
    (
        "gates: no floor",
        lambda: gates.floors({"a": 1.0, "b": 2.0}, {"a": 0.5}),
        ValueError,
        "floor has ['a']; wanted one for ['b'] as well",
    ),
    (
        "gates: no time",
        lambda: gates.order({"slow": 2.0, "fast": 1.0}, "slow", "fsat"),
        ValueError,
        "names is 'fsat'; wanted one of 'slow', 'fast'",
    ),
    ("figure: no text", lambda: figures.to_html(None, "  "), ValueError, "alt is empty"),
    ("table: no rows", lambda: chapter.table([], "nothing"), ValueError, "rows is empty"),
]
ROOF = Ceilings("a machine", "float32", bandwidth=1e9, rate=4e9)

URLS = "", "github.com/a/b", "https://github.com", 'https://github.com/a/b" # x', "git@host:a/b"
TOOLS = [
    (
        f"URL: {url!r}",
        lambda url=url: repository.change(url),
        ValueError,
        "wanted an address like https://",
    )
    for url in URLS
]

DOORS = [*GROUND, *DIAGNOSE, *MEASURE, *ED, *PARALLEL, *PRECISION, *LSTM, *TOOLS]


@pytest.mark.parametrize("what, call, error, words", DOORS, ids=[door[0] for door in DOORS])
def test_bad_input_is_named(what, call, error, words):
    with pytest.raises(error) as raised:
        call()
    message = str(raised.value)
    for word in [words] if isinstance(words, str) else words:
        assert word in message, f"{message!r} does not say {word!r}"
