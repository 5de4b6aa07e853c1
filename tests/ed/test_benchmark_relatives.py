"""The benchmark of the relatives: the whole at a tiny size, and that the test images choose nothing."""

import numpy as np
import pytest
import torch

from benchmarks import relatives
from ed_lib.ed.relatives import Perceptron
from tests.benchmark import measured
from tools import measurements


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return measured(relatives, relatives.TINY, tmp_path_factory.mktemp("records"))


def test_a_record_has_every_rule_and_rate(record):
    size = relatives.TINY
    for task in relatives.TASKS:
        rows = record.select(table=task)
        cases = [(r.case["rule"], r.case["one_signed"], r.case["rate"]) for r in rows]
        assert cases == [(rule, o, rate) for rule in size.rules for o in (False, True) for rate in size.rates]
        for row in rows:
            assert {len(row.results[name]) for name in ("kept", "test", "cosine")} == {size.seeds}
    assert "## MNIST\n" in measurements.page(record)


def test_the_kept_images_choose_the_rate(record):
    rows = record.select(table="MNIST")
    for (rule, one_signed), row in relatives.best(rows).items():
        others = [r for r in rows if (r.case["rule"], r.case["one_signed"]) == (rule, one_signed)]
        assert np.mean(row.results["kept"]) == max(np.mean(r.results["kept"]) for r in others)


def test_the_gradients_cosine_with_itself_is_one():
    net = Perceptron((6, 5, 3), dtype=torch.float64)
    x, target = torch.randn(4, 6, dtype=torch.float64), torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0]]
    assert relatives.cosines(net, x, target) == pytest.approx([1, 1])
    net.rule = "direct"
    assert abs(relatives.cosines(net, x, target)[0]) < 1 - 1e-6
