"""ED on several ranks against the serial network, step by step, with everything that is sent counted."""

import numpy as np
import pytest
import torch

from benchmarks.parallel_accuracy import Delayed
from ed_lib.ed import learner
from ed_lib.parallel import launch
from ed_lib.parallel.ed.stages import delays, merge
from ed_lib.parallel.model_parallel import schedules, simulator
from ed_lib.parallel.ranks.collectives import Traffic
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


@pytest.mark.parametrize("method", learner.METHODS)
def test_the_delays_of_a_pipeline(method):
    assert delays(5, 1, method).tolist() == [0] * 7
    assert delays(5, 2, method).tolist() == [1, 1, 1, 1, 0, 0, 0]
    assert delays(4, 4, method).tolist() == ([2, 2, 1, 1, 0, 0] if method == "ed" else [3, 3, 2, 1, 0, 0])


def test_the_delays_are_those_of_the_schedules():
    """Counted in the instructions: the batches that a stage goes forward with before it learns from one."""
    for schedule, op, method in ((schedules.ed_streaming, "update", "ed"),
                                 (schedules.one_f_one_b, "backward", "squared")):  # fmt: skip
        for stages in range(1, 9):
            for stage in range(stages):
                program = [do for do in schedule(stage, stages, 40) if do.op in ("forward", op)]
                before = program[: program.index(schedules.Instruction(op, 19))]
                later = sum(do.op == "forward" and do.microbatch > 19 for do in before)
                assert later == delays(stages, stages, method)[stage + 1]


@pytest.mark.oracle
@pytest.mark.parametrize("stages", [1, 2, 3, 8, 64])
def test_streaming_fills_the_pipeline_with_half_the_activations_of_1f1b(stages):
    m = 4 * stages
    timeline = simulator.simulate(schedules.ed_streaming, stages, m, {"forward": 1, "update": 1})
    assert timeline.seconds == 2 * m + stages - 1  # the last stage starts p − 1 late, and no stage waits
    assert timeline.live == [1 + (stages - s) // 2 for s in range(stages)]


@pytest.mark.oracle
def test_late_directions_by_hand():
    """One step's direction, applied two steps later to the layers that are late by two."""
    net, shadow = ed_ranks.network(), ed_ranks.network()
    late, found = [2, 0, 1, 0, 0, 0, 3], []
    delayed, finder = Delayed(net, "ed", "sgd", 0.3, late=late), learner.Learner(shadow, "ed", "sgd", 0.3)
    for n, (x, target) in enumerate(ed_ranks.batches(6, 4)):
        finder.find_direction(target - shadow.forward(x))
        found.append({name: value.grad.clone() for name, value in shadow.parameters.items()})
        delayed.step(x, target)
        for name, value in shadow.parameters.items():
            layers = {"input": [0], "hidden": [1, 2, 3, 4, 5], "output": [6]}[name.split(".")[0]]
            for place, layer in enumerate(layers):
                part = place if len(layers) > 1 else ...
                if n >= late[layer]:
                    value[part] += 0.3 * found[n - late[layer]][name][part]
            torch.testing.assert_close(net.parameters[name], value, rtol=0, atol=1e-14)
