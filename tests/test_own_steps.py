"""The benchmark of readers' own steps: what is left out, what is not timed, and what a gain is."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from benchmarks import own_steps
from benchmarks.shared import apart, cures, harness, steps
from ed_lib import machine, roofline
from ed_lib.diagnose import diagnosing, machine_costs
from ed_lib.timing import Timing

SIZE = own_steps.TINY
CELLS = "LSTM cell by cell, batch 1"
LOADED = "MLP, slow loader"


@pytest.fixture
def timed(monkeypatch):
    """Versions in turns take 1, 2, 3 … seconds, or what is put here, and a tenth less or more."""
    seconds = []

    def compare(calls, **options):
        medians = seconds or range(1, len(calls) + 1)
        return {n: Timing(t, 0.9 * t, 1.1 * t, 7) for n, t in zip(calls, medians, strict=True)}

    monkeypatch.setattr(harness.timing, "compare", compare)
    monkeypatch.setattr(torch, "compile", lambda model: model)
    return seconds


def test_a_gain_is_per_example_and_seconds_are_of_a_step(timed):
    one_call, larger, _ = own_steps.gains(SIZE, "cpu", CELLS)
    assert (one_call["seconds"], one_call["gained"]) == (1, 1 / 2)
    assert (one_call["cure"], larger["cure"]) == ("one call in place of many", "a larger batch")
    assert larger["gained"] == cures.TIMES / 3
    assert larger["at least"] == pytest.approx(cures.TIMES * 0.9 / 3.3)
    assert larger["at most"] == pytest.approx(cures.TIMES * 1.1 / 2.7)
    workers, *_ = own_steps.gains(SIZE, "cpu", LOADED)
    assert workers["seconds"] == 1 / SIZE.loaded and workers["gained"] == 1 / 2


def test_what_a_report_promises_is_found_by_the_cures_name():
    parts = {"calls": 2.0, "arithmetic": 3.0, "copies": 1.0}
    offered = [SimpleNamespace(name="bfloat16", bound=2.5), SimpleNamespace(name="other", bound=2)]
    report = SimpleNamespace(parts=parts, verdict="arithmetic", cures=offered)
    told = {"verdict": "arithmetic", "second": "calls"}
    assert own_steps.promise(report, "other") == told | {"promised": 2, "rank": 2}
    assert own_steps.promise(report, "channels last") == told | {"promised": None, "rank": None}


@pytest.fixture
def quick(monkeypatch):
    """Diagnoses of few runs, by ceilings that are not measured and that no other test sees."""
    roofs = partial(roofline.Ceilings, bandwidth=1e10, rate=1e11)
    monkeypatch.setattr(roofline, "ceilings", lambda device, dtype="", **_: roofs(device, dtype))
    monkeypatch.setattr(diagnosing, "SECONDS", 0)
    machine_costs.memory.cache_clear()
    yield
    machine_costs.memory.cache_clear()


def test_what_is_diagnosed_is_the_plain_step_with_its_loader(quick):
    assert own_steps.diagnosis(SIZE, "cpu", LOADED).parts["data"] > 0
    report = own_steps.diagnosis(SIZE, "cpu", CELLS)
    loops = [one for one in report.operators if one.calls >= SIZE.cells]
    assert loops, "the loop over the cell is in the report"


def test_what_trains_otherwise_is_not_timed(timed, monkeypatch, capsys):
    """A cure that forgets the update has the plain step's first loss, but not its second."""

    def forgets(plain):
        plain.optimizer.step = lambda: None
        return plain

    names = cures.NAMES | {forgets: "forgets"}
    monkeypatch.setattr(own_steps, "NAMES", names)
    make, tried = own_steps.STEPS[CELLS]
    monkeypatch.setitem(own_steps.STEPS, CELLS, (make, [forgets, *tried]))
    assert len([*own_steps.gains(SIZE, "cpu", CELLS)]) == len(tried)
    said = capsys.readouterr().out
    assert said.count("not timed") == 1 and "'cure': 'forgets'" in said


def test_what_a_machine_lacks_is_left_out_with_a_line(timed, monkeypatch, capsys):
    monkeypatch.setattr(machine, "flags", lambda: ["avx2"])
    monkeypatch.setattr(cures.shutil, "which", lambda program: None)
    rows = [*own_steps.gains(SIZE, "cpu", "encoder, fused attention")]
    assert [row["cure"] for row in rows] == ["a larger batch", "a fused optimizer"]
    said = capsys.readouterr().out
    assert "torch.compile: left out, since this machine lacks a C++ compiler" in said
    assert "bfloat16: left out, since this machine lacks instructions for bfloat16" in said


def test_in_bfloat16_a_step_is_within_that_formats_tolerance(timed, monkeypatch, capsys):
    """Any processor computes in it, if slowly."""
    monkeypatch.setattr(machine, "flags", lambda: ["bf16"])
    with_it = [name for name, (_, tried) in own_steps.STEPS.items() if cures.autocast in tried]
    for name in with_it:
        rows = {row["cure"]: row for row in own_steps.gains(SIZE, "cpu", name)}
        assert 1e-6 < rows["bfloat16"]["error"] < 0.05
    assert len(with_it) >= 5 and "not timed" not in capsys.readouterr().out


@pytest.mark.oracle
def test_one_call_is_torchs_lstm_and_the_loop_is_a_loop_by_hand():
    torch.manual_seed(0)
    loop = steps.CellByCell(5)
    x = torch.randn(3, 4, 5)
    h = c = torch.zeros(3, 5)
    cell = loop.cell
    for t in range(4):
        sums = x[:, t] @ cell.weight_ih.T + cell.bias_ih + h @ cell.weight_hh.T + cell.bias_hh
        i, f, g, o = sums.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    for model in (loop, cures.InOneCall(loop)):
        torch.testing.assert_close(model(x), loop.classes(h))


@pytest.mark.oracle
def test_attention_by_hand_is_torchs():
    q, k, v = torch.randn(3, 2, 4, 7, 8)
    torch.testing.assert_close(
        steps.by_hand(q, k, v), torch.nn.functional.scaled_dot_product_attention(q, k, v)
    )


@pytest.mark.oracle
def test_gelu_written_out_is_torchs():
    x = torch.randn(5, 6)
    torch.testing.assert_close(
        steps.Pointwise(6)(x), torch.nn.functional.gelu(x, approximate="tanh")
    )


def test_lenet_is_as_large_as_d2ls():
    model = own_steps.made(own_steps.STEPS["LeNet, d2l's, batch 8"][0], SIZE, "cpu").model
    assert sum(p.numel() for p in model.parameters()) == 61_706


@pytest.mark.parametrize("name", own_steps.STEPS)
def test_a_step_and_each_of_its_cures_go_whole_to_another_device(name):
    make, tried = own_steps.STEPS[name]
    # on "meta" there is nothing to compile, and no weights to copy
    for cure in {own_steps.as_it_is, *tried} - {cures.compiled, cures.one_call}:
        one = own_steps.made(make, SIZE, "meta", cure)
        held = [*one.model.parameters(), *one.model.buffers(), *one.batch]
        assert {each.device.type for each in held} == {"meta"}
        optimized = [each for group in one.optimizer.param_groups for each in group["params"]]
        assert {*map(id, optimized)} == {*map(id, one.model.parameters())}


def test_processes_that_get_memory_otherwise_take_turns(monkeypatch):
    asked = []

    def tried(name, *, size, cure=None):
        asked.append(cure)
        seconds = {None: 3.0, "keep memory": 1.0, "larger pages": 2.0}[cure]
        return seconds, {} if cure else {"promised": 2.5, "rank": 1}

    monkeypatch.setattr(apart, "tried", tried)
    kept, larger = own_steps.of_memory(SIZE(processes=2), "GPT-2")
    assert asked == 2 * [None, "keep memory", "larger pages"]
    assert (kept["cure"], kept["seconds"], kept["n"], kept["gained"]) == ("keep memory", 3, 2, 3)
    assert (larger["cure"], larger["gained"], larger["at least"]) == ("larger pages", 1.5, 1.5)
    assert kept["promised"] == larger["promised"] == 2.5


def test_a_step_in_a_process_of_its_own_takes_its_time_and_has_its_report():
    seconds, promise = apart.tried("scale, shift and GELU", size=SIZE)
    assert 0 < seconds < 1 and promise.keys() == {"verdict", "second", "promised", "rank"}
