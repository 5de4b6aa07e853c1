"""Bytes of single operators, each a sum made by hand: what its kernel has to read and to write."""

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ed_lib.diagnose import operands, watching

F4, I8, ONE = 4, 8, 4  # bytes of a number in float32, of an index, of a scalar
X = torch.ones(10, 10)
ALL = 100 * F4  # bytes of X
ROWS = torch.tensor([1, 3, 3])
LOGS = torch.zeros(4, 50)
WHICH = torch.arange(4)
IMAGES = torch.ones(2, 3, 8, 8)
POOLED = torch.ones(2, 3, 4, 4)
WHERE = torch.zeros(2, 3, 4, 4, dtype=torch.long)
aten = torch.ops.aten

CASES = {
    # What is written only
    "zeros_like": (lambda: torch.zeros_like(X), ALL),
    "new_ones": (lambda: X.new_ones(10, 10), ALL),
    "zero_": (lambda: X.clone().zero_(), (ALL + ALL) + ALL),
    "normal_": (lambda: torch.empty(10, 10).normal_(), ALL),
    "uniform_": (lambda: torch.empty(10, 10).uniform_(), ALL),
    "bernoulli_": (lambda: torch.empty(10, 10).bernoulli_(0.5), ALL),
    "bernoulli_ of probabilities": (lambda: torch.empty(10, 10).bernoulli_(X), ALL + ALL),
    "_foreach_zero_": (lambda: torch._foreach_zero_([torch.empty(10, 10)] * 1), ALL),
    "_foreach_copy_": (lambda: torch._foreach_copy_([torch.empty(10, 10)], [X]), ALL + ALL),
    # What is read, and what is read and written
    "mul": (lambda: X * X, ALL + ALL),
    "add of a broadcast row": (lambda: X + X[0], ALL + 10 * F4 + ALL),
    "add of an expanded row": (lambda: X + X[0].expand(10, 10), ALL + 10 * F4 + ALL),
    "add_": (lambda: torch.zeros(10, 10).add_(X), ALL + (ALL + ALL + ALL)),
    "mul, out": (lambda: torch.mul(X, 2.0, out=torch.empty(10, 10)), ALL + ALL),
    "to float64": (lambda: X.double(), ALL + 2 * ALL),
    "sum of overlapping windows": (
        lambda: torch.ones(100).unfold(0, 10, 1).sum(),
        100 * F4 + 100 * F4 + ONE,
    ),
    # Rows
    "index": (lambda: X[ROWS], 30 * F4 + 3 * I8 + 30 * F4),
    "index_add_": (
        lambda: torch.empty(10, 10).index_add_(0, ROWS, torch.empty(3, 10)),
        30 * F4 + 3 * I8 + 30 * F4 + 30 * F4,
    ),
    "nll_loss_forward": (
        lambda: nn.functional.nll_loss(LOGS, WHICH),
        4 * F4 + 4 * I8 + ONE + ONE,  # the mean, and the weight of all
    ),
    # What is asked for its shape alone
    "nll_loss_backward": (
        lambda: aten.nll_loss_backward(
            torch.empty(()), LOGS, WHICH, None, 1, -100, torch.empty(())
        ),
        ONE + 4 * I8 + ONE + 200 * F4,
    ),
    "avg_pool2d_backward": (
        lambda: aten.avg_pool2d_backward(POOLED, IMAGES, [2, 2], [2, 2], [0, 0], False, True, None),
        96 * F4 + 384 * F4,
    ),
    "max_pool2d_with_indices_backward": (
        lambda: aten.max_pool2d_with_indices_backward(
            POOLED, IMAGES, [2, 2], [2, 2], [0, 0], [1, 1], False, WHERE
        ),
        96 * F4 + 96 * I8 + 384 * F4,
    ),
    # A result besides what is changed in place: the running mean and variance
    "_native_batch_norm_legit": (
        lambda: aten._native_batch_norm_legit(
            IMAGES, None, None, torch.empty(3), torch.empty(3), True, 0.1, 1e-5
        ),
        384 * F4 + 2 * (3 + 3) * F4 + (384 + 3 + 3) * F4,
    ),
    # No work
    "unsafe_chunk": (lambda: X.unsafe_chunk(2), 0),
    "reshape": (lambda: X.reshape(100), 0),
}


@pytest.mark.oracle
@pytest.mark.parametrize("call, wanted", CASES.values(), ids=CASES)
def test_bytes_of_an_operator(call, wanted):
    assert sum(one.bytes for one in watching.watch(call)) == wanted


def test_an_expanded_dimension_has_its_numbers_once():
    row = torch.ones(3)
    assert operands.addressed(row.expand(5, 3)) == 3 * F4
    assert operands.addressed(row.expand(5, 3)[:, :2]) == 2 * F4
    assert operands.addressed(torch.ones(0, 3)) == 0


def test_the_format_of_an_operator_is_its_results():
    assert operands.dtype_of([X.double(), X]) == "float64"
    assert operands.dtype_of([ROWS]) == "int64"
    assert operands.dtype_of([ROWS, X.half()]) == "float16"
    assert operands.dtype_of([]) == "float32"


@pytest.mark.oracle
def test_leaves_are_those_of_pytorch():
    given = (
        (X, [X, None, 1.5]),
        {"out": (WHICH, []), "dim": [0, 1]},
        torch.return_types.max([X, X]),
    )
    assert [id(leaf) for leaf in operands.leaves(given)] == [
        id(leaf) for leaf in tree_leaves(given)
    ]
