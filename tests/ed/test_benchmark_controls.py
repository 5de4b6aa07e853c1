"""The benchmark of controls: the whole at a tiny size; what is not to learn does not."""

import pytest
import torch

from benchmarks import controls
from tests.benchmark import measured
from benchmarks import old_pages as measurements


def test_a_record_has_every_control(tmp_path):
    data = pytest.importorskip("ed_lib.data")
    try:
        data.text()
    except OSError as error:
        pytest.skip(f"no text: {error}")
    record, size = measured(controls, controls.TINY, tmp_path), controls.TINY
    for task in ("MNIST", "Fashion-MNIST"):
        rows = record.select(table=task)
        assert [row.case["network"] for row in rows] == ["free", "one-signed"]
        for row in rows:
            kept = dict(zip(row.results["rates"], row.results["kept"], strict=True))
            assert kept[row.case["rate"]] == max(kept.values())
            assert len(row.results["test"]) == size.images.seeds
    assert [row.case["rule"] for row in record.select(table="window")] == ["sign", "local"]
    assert record.find(table="transformer").case["mlp"] == "frozen"
    assert "the last layer only" in measurements.page(record)


@pytest.mark.parametrize("one_signed", [False, True])
def test_only_the_last_layer_learns(one_signed):
    net = controls.LastOnly((6, 5, 4, 3), rate=0.1, one_signed=one_signed)
    before = [weight.clone() for weight in net.weights]
    net.step(torch.rand(8, 6), torch.eye(3)[torch.arange(8) % 3])
    same = [torch.equal(mine, theirs) for mine, theirs in zip(before, net.weights, strict=True)]
    assert same == [True, True, False]
