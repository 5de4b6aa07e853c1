"""The messages of a diagnosis, for the table of tests/test_doors.py."""

import itertools
from unittest import mock

import torch
from torch import nn

from ed_lib import diagnose
from ed_lib.diagnose import diagnosing, operators
from tests.diagnose import made_up

X = torch.ones(4, 3)


class Training:
    """A model whose step can be made to go wrong, with batches that grow."""

    def __init__(self, raises=None):
        self.model = nn.Linear(3, 2)
        self.rows = itertools.count(4)
        self.raises = raises

    def step(self, x=X):
        self.model.zero_grad()
        self.model(x).sum().backward()
        if self.raises:
            with torch.no_grad():
                self.model.weight.zero_()
            raise self.raises

    def growing(self):
        self.step(torch.ones(next(self.rows), 3))


def diagnosed(step=None, **options):
    """As few steps as may be, on a machine whose prices are made up."""
    with (
        mock.patch.object(diagnosing, "SECONDS", 0.0),
        mock.patch.object(operators, "prices", made_up.prices),
    ):
        return diagnose.step(step or Training().step, **options)


def untouched(error):
    """A step that raises this error, which changed the model before; the model was put back."""
    training = Training(error)
    before = training.model.weight.clone()
    try:
        diagnosed(training.step, restore=[training.model])
    finally:
        assert torch.equal(training.model.weight, before)
        assert training.model.weight.grad is None


DIAGNOSE = [
    (
        "diagnose: called",
        lambda: diagnosed(Training().step() or torch.ones(1)),
        TypeError,
        "step is a Tensor; wanted a function to call",
    ),
    (
        "diagnose: nothing runs",
        lambda: diagnosed(lambda: sum(range(9))),
        ValueError,
        "step ran no operator of PyTorch's; wanted a function that trains once",
    ),
    ("diagnose: raises", lambda: untouched(KeyError("its own")), KeyError, "its own"),
    (
        "diagnose: out of memory",
        lambda: untouched(torch.OutOfMemoryError("out of made-up memory")),
        torch.OutOfMemoryError,
        "out of made-up memory",
    ),
    (
        "diagnose: no argument",
        lambda: diagnosed(lambda batch: None),
        TypeError,
        "missing 1 required positional argument: 'batch'",
    ),
    (
        "diagnose: batches end in the warm-up",
        lambda: diagnosed(batches=[X]),
        ValueError,
        "batches ended after 1; wanted at least 11",
    ),
    (
        "diagnose: batches end",
        lambda: diagnosed(batches=iter([X] * 8)),
        ValueError,
        "batches ended after 8; wanted at least 11",
    ),
    ("diagnose: no batch", lambda: diagnosed(batches=[]), ValueError, "batches ended after 0"),
    (
        "diagnose: batches",
        lambda: diagnosed(batches=64),
        TypeError,
        "batches is a int; wanted several, such as a loader",
    ),
    (
        "diagnose: shapes",
        lambda: diagnosed(Training().growing),
        ValueError,
        ["step did", "FLOPs in one run and", "in another; wanted the same work each time"],
    ),
    (
        "diagnose: a model alone",
        lambda: diagnosed(restore=nn.Linear(3, 2)),
        TypeError,
        "restore is a Linear; wanted several, such as [model, optimizer]",
    ),
    (
        "diagnose: parameters",
        lambda: diagnosed(restore=nn.Linear(3, 2).parameters()),
        TypeError,
        "restore[0] is of Parameter; wanted a model, an optimizer or what else has a state_dict",
    ),
    (
        "diagnose: a class",
        lambda: diagnosed(restore=[nn.Linear(3, 2), nn.Linear]),
        TypeError,
        "restore[1] is of type; wanted a model",
    ),
    (
        "diagnose: gpu",
        lambda: diagnosed(device="gpu"),
        ValueError,
        "device is 'gpu'; wanted one of 'cpu', 'cuda'",
    ),
    (
        "diagnose: a GPU that is not there",
        lambda: diagnosed(device=torch.device("cuda:99")),
        ValueError,
        "device is 'cuda:99'; wanted a GPU, of which PyTorch sees",
    ),
    (
        "diagnose: compared with a number",
        lambda: diagnosed().compare(2.0),
        TypeError,
        "other is of float; wanted a Diagnosis",
    ),
]
