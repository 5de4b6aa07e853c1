"""ED on several ranks against the serial network, step by step, with everything that is sent counted."""

import numpy as np
import pytest
import torch

from ed_lib.parallel import launch
from ed_lib.parallel.collectives import Traffic
from ed_lib.parallel.ed_stages import merge
from tests.parallel import ed_ranks

LONG = 120.0


@pytest.fixture(scope="module", params=[1, 2, 3])
def found(request):
    return launch(ed_ranks.pipelines, request.param, timeout=LONG)


@pytest.mark.parametrize("case", ed_ranks.CASES)
def test_the_pipeline_equals_the_serial_network_after_several_steps(found, case):
    microbatches, options = ed_ranks.CASES[case]
    serial, merged = ed_ranks.network(**options), ed_ranks.network(**options)
    right = [serial.step(x, target) for x, target in ed_ranks.batches(4, 10)]
    merge(merged, [rank[case][0] for rank in found])
    tolerance = 1e-12 if options.get("dtype") != "float32" else 1e-6
    for name, value in serial.state_dict().items():
        assert np.abs(merged.state_dict()[name] - value).max() < tolerance, name
        if microbatches == 1:
            np.testing.assert_array_equal(
                merged.state_dict()[name], value
            )  # the same products: the same bits
    for ours, output in zip(found[-1][case][1], right, strict=True):
        torch.testing.assert_close(ours, output, rtol=0, atol=tolerance)
    assert all(output is None for rank in found[:-1] for output in rank[case][1])


def test_only_activations_go_forward_and_one_error_a_sample_comes_back(found):
    p, steps, batch = len(found), 4, 10
    for case, (microbatches, options) in ed_ranks.CASES.items():
        size = 4 if options.get("dtype") == "float32" else 8
        forward = Traffic(steps * microbatches, steps * batch * ed_ranks.OUTPUTS * 2 * 6 * size)
        back = (p - 1) * steps * microbatches, (p - 1) * steps * batch * ed_ranks.OUTPUTS * size
        for number, rank in enumerate(found):
            is_last = number == p - 1
            sent = rank[case][2]
            assert sent["activation"] == (Traffic() if is_last else forward)
            assert sent["error"] == (Traffic(*back) if is_last else Traffic())


def test_bad_calls_are_errors_on_every_rank(found):
    p = len(found)
    for rank in found:
        shape, target, microbatches, shallow, backend = rank["errors"]
        assert shape == "x has the shape (10, 6); wanted (B, 7)"
        assert "outside [0, 1]" in target
        assert microbatches == "microbatches is 11; wanted at most 10, the samples of the batch"
        assert p == 1 or shallow == f"stages is {p}; wanted at most 1, one hidden layer for each"
        assert backend == "net's backend is 'numpy'; wanted one of 'torch'"
