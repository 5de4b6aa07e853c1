"""The benchmark of weights in few bits: the whole at a tiny size, and ranks against SciPy's."""

import numpy as np
import pytest

from benchmarks import old_pages as measurements
from benchmarks import one_token
from ed_lib import data
from ed_lib.precision import minilm
from tests.benchmark import measured


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    try:
        data.sick(), minilm.tokenizer(), minilm.load(), data.text()
    except (OSError, ImportError) as error:
        pytest.skip(f"no sentences or weights: {error}")
    return measured(one_token, one_token.TINY, tmp_path_factory.mktemp("records"))


def test_every_product_is_timed_once_it_is_right(record):
    rows = record.select(table="products")
    found = [(row.case["format"], row.case["batch"]) for row in rows]
    names = one_token.FORMATS  # the last, this book's own, takes one row of inputs
    assert found == [*((name, 1) for name in names), *((name, 4) for name in names[:-1])]
    assert all(row.error < 0.03 and row.floor > 0 for row in rows)


def test_every_way_of_rounding_has_its_loss(record):
    rows = {(row.case["how"], row.case["group"]): row.results for row in record.select(table="encoder")}
    assert len(rows) == 1 + 2 + 3 and rows["float32", 0]["off"] == [0.0]
    layers = 6 * 12 * 384**2  # weights of the encoder's Linear layers
    assert rows["float32", 0]["bytes"] == [4 * layers]
    for how in ("nearest", "GPTQ", "AWQ"):
        assert rows[how, 128]["bytes"] == [layers // 2 + 4 * layers // 128]
    assert rows["nearest", -1]["off"] > rows["nearest", 128]["off"] > [0.0]
    assert "GPTQ" in measurements.page(record)


def test_a_transformer_is_rounded_and_writes(record):
    losses = {(row.case["how"], row.case["group"]): row.results for row in record.select(table="characters")}
    assert set(losses) == {
        ("float32", 0),
        ("nearest", -1),
        ("nearest", 0),
        *((how, 128) for how in one_token.HOWS),
    }
    weights = 12 * 128**2
    assert losses["float32", 0]["bytes"] == [4 * weights]
    assert losses["GPTQ", 128]["bytes"] == [weights // 2 + 4 * weights // 128]
    assert losses["nearest", -1]["loss"] != losses["float32", 0]["loss"]
    rows = record.select(table="writing")
    assert [row.case["format"] for row in rows] == 2 * list(one_token.WAYS)
    assert all(row.error < 0.05 for row in rows)


@pytest.mark.oracle
def test_equal_numbers_share_a_rank():
    stats = pytest.importorskip("scipy.stats")
    a, b = np.random.default_rng(0).integers(0, 9, (2, 50))
    assert np.array_equal(one_token.ranks(a), stats.rankdata(a))
    assert one_token.spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
