"""The benchmark of the relatives: the whole at a tiny size, and that the test images choose nothing."""

import pytest
import torch

from benchmarks import relatives
from ed_lib.ed.relatives import Perceptron
from tests.benchmark import measured
from benchmarks import old_pages as measurements


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return measured(relatives, relatives.TINY, tmp_path_factory.mktemp("records"))


def test_a_record_has_every_rule(record):
    size = relatives.TINY
    for task in relatives.TASKS:
        rows = record.select(table=task)
        assert [(row.case["network"], row.case["rule"]) for row in rows] == list(size.cases)
        for row in rows:
            assert {len(row.results[name]) for name in ("test", "before", "cosine")} == {size.seeds}
    assert "## MNIST\n" in measurements.page(record)


def test_the_kept_images_choose_the_rate(record):
    for row in record.select(table="MNIST"):
        right = dict(zip(row.results["rates"], row.results["kept"], strict=True))
        assert right[row.case["rate"]] == max(right.values())


def test_searching_never_sees_the_test_images(monkeypatch):
    size, seen = relatives.TINY, []
    monkeypatch.setattr(relatives, "accuracy", lambda net, x, labels: seen.append(len(x)) or 0.5)
    for searching in (True, False):
        relatives.run("MNIST", "free", "backprop", 1e-3, 0, searching, size)
    _, (test, _) = relatives.images("mnist", True)
    assert seen == [size.kept, len(test)]


def test_the_gradients_cosine_with_itself_is_one():
    net = Perceptron((6, 5, 3), dtype=torch.float64)
    x, target = torch.randn(4, 6, dtype=torch.float64), torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0]]
    assert relatives.cosines(net, x, target) == pytest.approx([1, 1])
    net.rule = "direct"
    assert abs(relatives.cosines(net, x, target)[0]) < 1 - 1e-6
