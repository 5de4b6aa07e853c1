"""The benchmark of depth: the whole at a tiny size."""

import pytest
import torch

from benchmarks import deep
from tests.benchmark import measured
from benchmarks import old_pages as measurements


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return measured(deep, deep.TINY, tmp_path_factory.mktemp("records"))


def test_a_record_has_every_case(record):
    size = deep.TINY
    by_depth, ablation = record.select(table="depth"), record.select(table="ablation")
    cases = [(*case, depth) for depth in size.depths for case in size.cases]
    names = ("network", "rule", "stack", "depth")
    assert [tuple(row.case[name] for name in names) for row in by_depth] == cases
    assert [(r.case["task"], r.case["part"]) for r in ablation] == [
        (t, p) for t in deep.TASKS for p in deep.PARTS
    ]
    for row in (*by_depth, *ablation):
        assert len(row.results["test"]) == size.seeds
        right = dict(zip(row.results["rates"], row.results["kept"], strict=True))
        assert right[row.case["rate"]] == max(right.values())
    assert all(len(row.results["cosine"][0]) == row.case["depth"] + 2 for row in by_depth)
    assert "## depth\n" in measurements.page(record)


def test_the_published_start_favours_excitatory_weights_but_not_into_the_output():
    plain, uneven = (deep.published(6, 30, uneven=each).parameters for each in (False, True))
    for name in ("input.weight", "hidden.weight"):
        ratio = uneven[name] / plain[name]
        assert torch.allclose(ratio[..., 0, :, :], torch.tensor(1.5))
        assert torch.allclose(ratio[..., 1, :, :], torch.tensor(0.5))
    assert torch.equal(plain["output.weight"], uneven["output.weight"])
