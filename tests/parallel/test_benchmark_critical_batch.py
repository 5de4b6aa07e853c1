"""The benchmark of the critical batch: the whole at a tiny size, and that its steps are the network's."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks import critical_batch
from benchmarks.old_harness import images
from ed_lib import data, models, training
from tests.benchmark import measured
from benchmarks import old_pages as measurements


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return measured(critical_batch, critical_batch.TINY, tmp_path_factory.mktemp("records"))


def test_a_record_has_every_batch_and_rate(record):
    size = critical_batch.TINY
    rows = record.select(table="steps, SGD")
    cases = [(row.case["batch"], row.case["rate"]) for row in rows]
    assert cases == [(b, rate) for b in size.batches for rate in (0.1, 0.2)]
    assert all(len(row.results["steps"]) == size.seeds for row in rows)
    assert any(all(row.results["steps"]) for row in rows), "some get there"
    assert "## Steps by SGD\n" in measurements.page(record)


@pytest.mark.oracle
def test_the_steps_are_those_after_which_the_target_is_reached(record):
    size = critical_batch.TINY
    row = next(row for row in record.rows if all(row.results["steps"]))
    for seed, steps in enumerate(row.results["steps"]):
        (x, y), (test_x, test_y) = images("fashion-mnist", True, critical_batch.tensors)
        net = models.mlp(size.widths, seed)
        order = [
            rows for e in range(9) for rows in data.batches(len(x), row.case["batch"], seed=1000 * seed + e)
        ]
        for n, rows in enumerate(order[:steps], start=1):
            gradients = torch.autograd.grad(F.cross_entropy(net(x[rows]), y[rows]), net.parameters())
            with torch.no_grad():
                for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                    parameter -= row.case["rate"] * gradient
            right = training.accuracy(net, test_x[: size.looks], test_y[: size.looks])
            assert (right >= size.target) == (n == steps) or n % max(1, n // 50)
