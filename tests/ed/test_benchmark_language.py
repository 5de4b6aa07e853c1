"""The benchmark of the language models: the whole at a tiny size."""

import pytest

from benchmarks import language
from tests.benchmark import measured
from benchmarks import old_pages as measurements


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    data = pytest.importorskip("ed_lib.data")
    try:
        data.text()
    except OSError as error:
        pytest.skip(f"no text: {error}")
    return measured(language, language.TINY, tmp_path_factory.mktemp("records"))


def test_a_record_has_every_case(record):
    size = language.TINY
    kinds = {"transformer": ("attention", "mlp"), "window": ("rule", "hidden")}
    for (table, names), cases in zip(kinds.items(), (size.transformers, size.window_models), strict=True):
        rows = record.select(table=table)
        assert [tuple(row.case[name] for name in (*names, "one_signed")) for row in rows] == list(cases)
        for row in rows:
            assert {len(row.results[name]) for name in ("loss", "curve", "sample")} == {size.seeds}
            tried = dict(zip(row.results["rates"], row.results["tried"], strict=True))
            assert tried[row.case["rate"]] == min(tried.values())
            assert all(len(curve) == -(-size.steps // size.every) for curve in row.results["curve"])
    assert "## transformer\n" in measurements.page(record).lower()


def test_a_matrix_taught_by_gradient_has_a_cosine_of_one(record):
    row = record.select(table="transformer", attention="backprop")[0]
    assert set(row.results["cosine"][0].values()) == {1.0}
    row = record.select(table="transformer", attention="frozen")[0]
    cosine = row.results["cosine"][0]
    assert cosine["scores"] == 1 and abs(cosine["0.up"]) < 1 and "0.ask" not in cosine
