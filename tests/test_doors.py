"""Bad input at the doors, one table: what is called, the kind of error, and the words that its message holds.

A door is what a reader calls from a cell. Its error names the argument, what came and what was wanted.
"""

import numpy as np
import pytest
import torch

from ed_lib import data, models, training
from tests.lstm.doors import LSTM
from tests.parallel.doors import PARALLEL
from tests.precision.doors import PRECISION

# Each entry: (what it is, a function that makes the call, the error, words of the message, in their order)

TWO = np.eye(2), np.arange(2)  # images and labels

GROUND = [
    ("data: unknown", lambda: data.load("MNIST"), ValueError, "name is 'MNIST'; wanted one of 'mnist'"),
    ("text: unknown", lambda: data.text("hamlet"), ValueError, "name is 'hamlet'; wanted one of"),
    ("inputs: floats", lambda: data.as_inputs(np.zeros((2, 28, 28))), TypeError, "wanted a NumPy array"),
    ("inputs: a list", lambda: data.as_inputs([[[0]]]), TypeError, "images is a list"),
    ("inputs: flat", lambda: data.as_inputs(np.zeros((2, 784), np.uint8)), ValueError, "(2, 784); wanted (N"),
    ("one_hot: ten", lambda: data.one_hot([0, 10]), ValueError, "labels has [0, 10]; wanted"),
    ("one_hot: below", lambda: data.one_hot([-1, 0]), ValueError, "labels has [-1, 0]"),
    ("one_hot: floats", lambda: data.one_hot([0.0, 1.0]), ValueError, "labels has [0.0, 1.0]; wanted"),
    ("pick: twice", lambda: data.pick(*TWO, [0, 0]), ValueError, "classes is [0, 0]; wanted"),
    ("pick: other", lambda: data.pick(*TWO, [5]), ValueError, "classes is [5]; wanted"),
    ("pick: none", lambda: data.pick(*TWO, []), ValueError, "classes is []; wanted"),
    ("stretches: short", lambda: next(data.stretches(torch.arange(20), 1, 20, seed=0)), ValueError,
     "steps is 20; wanted fewer than the text's 20"),
    ("train: labels", lambda: training.train(models.mlp(), None, torch.ones(3, 784), torch.zeros(2).long()),
     ValueError, "there are 3 images and 2 labels; wanted a label for each"),
]  # fmt: skip

ED = []

TOOLS = []

DOORS = [*GROUND, *ED, *PARALLEL, *PRECISION, *LSTM, *TOOLS]


@pytest.mark.parametrize("what, call, error, words", DOORS, ids=[door[0] for door in DOORS])
def test_bad_input_is_named(what, call, error, words):
    with pytest.raises(error) as raised:
        call()
    message = str(raised.value)
    for word in [words] if isinstance(words, str) else words:
        assert word in message, f"{message!r} does not say {word!r}"
