"""The benchmark of fine-tuning: the whole at a tiny size."""

import pytest

from benchmarks import finetuning
from benchmarks import old_pages as measurements
from tests.benchmark import measured


def test_a_record_has_every_format(tmp_path):
    for name in ("tokenizers", "safetensors"):
        pytest.importorskip(name)
    try:
        train, _ = finetuning.load(finetuning.TINY)
    except OSError as error:
        pytest.skip(f"no data: {error}")
    record = measured(finetuning, finetuning.TINY, tmp_path)
    assert [row.case["format"] for row in record.rows] == ["float32", "bfloat16"]
    for row in record.rows:
        assert len(row.results["accuracy"]) == 1 and len(row.results["loss"][0]) == 2
        assert row.case["pairs"] == len(train) == 16 and 0 < row.floor < row.completion.median
    full, low = (row.results for row in record.rows)
    assert low["activations"] < full["activations"] and full["casts"] == [0] != low["casts"]
    assert full["loss"] != low["loss"] and record.rows[0].flops == record.rows[1].flops
    assert "bfloat16" in measurements.page(record)
