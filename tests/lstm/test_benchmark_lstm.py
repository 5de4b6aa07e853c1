"""The benchmark of part IV: its counts against torch's, what it refuses, and the whole at a tiny size."""

import dataclasses
from time import perf_counter

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import formats, lstm
from benchmarks import lstm_subjects as subjects
from benchmarks import old_harness as harness
from benchmarks import old_pages as measurements
from benchmarks.lstm_subjects import AUTOCAST, IN_A_ROW, NN, Subject
from ed_lib import arrays, devices, roofline, timing
from ed_lib.lstm import BEYOND, LSTM, RUNGS, ladder
from tests.benchmark import measured

TINY = lstm.Size((8, 24), (1, 5), few=5, trained_layers=(1, 2), layers=(1, 4), steps=6, batch=3, hidden=16,
                 rounds=(2, 1), seconds=0.001)  # fmt: skip
ROOFS = {name: roofline.Ceilings("a machine", name, 1e10, 1e11) for name in subjects.DTYPES}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(formats, "ceilings", lambda device, forms: {f.name: ROOFS[f.name] for f in forms})
    with harness.one_thread():
        yield


@pytest.fixture
def host_clock(monkeypatch):
    """The host's clock in place of a GPU's, which no CPU has."""

    def elapsed(function, runs=1, blocks=1):
        found = []
        for _ in range(blocks):
            start = perf_counter()
            for _ in range(runs):
                function()
            found.append((perf_counter() - start) / runs)
        return found

    monkeypatch.setattr(timing, "elapsed", elapsed)


@pytest.fixture
def recorded(monkeypatch, host_clock):
    """CUDA graphs that are none, so that what a GPU would run can be seen on a CPU."""
    monkeypatch.setattr(devices, "record", lambda function, like: function)


def tiny(layers=2, **changes):
    return Subject(TINY.shape(layers=layers, **changes), "cpu")


def table_on(device):
    return harness.Table(ROOFS, TINY.seconds, device, lstm.compared)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """All of it at a tiny size, in float32 alone."""
    forms = [form for form in formats.formats("cpu") if form.name == "float32"]
    with harness.one_thread(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "ceilings", lambda device, forms: {f.name: ROOFS[f.name] for f in forms})
        patch.setattr(lstm, "formats_of", lambda subject: forms)  # without looking how slow others are
        return measured(lstm, TINY, tmp_path_factory.mktemp("records"))


def test_a_record_has_every_case_right_and_survives_a_round_trip(record):
    assert record.benchmark == "lstm" and record.parameters["few"] == 5
    keys = ("what", "layers", "hidden", "batch", "steps", "format", "combine")
    cases = {name: [tuple(row.case.get(key) for key in keys) for row in record.select(table=name)]
             for name in lstm.PAGE}  # fmt: skip
    exact = ("float32", None)
    assert cases == {
        "climb": [(RUNGS[0], 1, 16, 3, 6, *exact),
                  *((what, 4, 16, 3, 6, *exact) for what in ("wavefront", "batched_wavefront", NN))],
        "ladder": [(what, n, 16, 3, 6, *exact) for n in (1, 4) for what in (*RUNGS, *BEYOND, NN)],
        "formats": [(NN, n, 16, 3, 6, *exact) for n in (1, 4)],
        "training": [(what, n, 16, 3, 5, *exact) for n in (1, 2) for what in lstm.TRAINED],
        "hidden": [(what, 1, h, 3, 5, *exact) for h in (8, 24) for what in lstm.SWEPT],
        "batch": [(what, 1, 16, b, 5, *exact) for b in (1, 5) for what in lstm.SWEPT],
        "combine": [(what, n, 16, 3, 5, "float32", steps)
                    for what, n in (("combined_inputs", 1), ("wavefront", 4)) for steps in (1, 2, 4, 5)],
    }  # fmt: skip
    assert sum(map(len, cases.values())) == len(record.rows)
    for row in record.rows:
        assert row.case["how"] == "eager" and row.launch is None
        assert 0 < row.error < subjects.TOLERANCE["float32"]
        assert row.floor == pytest.approx(max(row.bytes / 1e10, row.flops / 1e11), rel=1e-3)
        assert row.results["GFLOP/s"] == [pytest.approx(row.flops / row.completion.median / 1e9, rel=1e-2)]
        counted = {name in row.results for name in ("products", "pointwise", "bytes", "waits")}
        assert counted == {row.case["what"] in (*RUNGS, *BEYOND)}
    page = measurements.page(record)
    titles = [shown.title for tables in lstm.PAGE.values() for shown in tables]
    assert all(f"## {title}\n" in page for title in titles) and "| H, what | time | × floor |" in page
    assert sum(line.startswith("| ") and " GFLOP/s" in line for line in page.splitlines()) == len(record.rows)


def test_the_climb_is_compared_by_operations_in_a_second(record):
    """Four layers have four times the operations of the baseline's one, so seconds would say nothing."""
    first, *others = rows = record.select(table="climb")
    assert first.results["against baseline, eager"] == [pytest.approx(1, rel=1e-3)]
    for row in others:
        assert row.flops == 4 * first.flops
        ratio = row.results["GFLOP/s"][0] / first.results["GFLOP/s"][0]
        assert row.results["against baseline, eager"] == [pytest.approx(ratio, rel=2e-3)]
        assert "against baseline" not in row.results and "published" not in row.results
    assert all("against baseline, CUDA graph" not in row.results for row in rows)
    page = measurements.page(record)
    assert "| time | × floor | × baseline, eager |" in page and "× baseline, CUDA graph" not in page


def test_the_climb_on_a_gpu_is_compared_with_the_baseline_in_either_way():
    first, top = tiny(1).version("climb", "baseline"), tiny(4).version("climb", lstm.LAST)
    graphs = [one.case | {"how": "CUDA graph"} for one in (first, top)]
    turns = [(first.case, 8.0), (top.case, 8.0), (graphs[0], 2.0), (graphs[1], 1.0)]
    found = [lstm.compared(case, s, turns) for case, s in turns]
    for how, wanted in (("eager", [1.0, 4.0, 4.0, 32.0]), ("CUDA graph", [0.25, 1.0, 1.0, 8.0])):
        assert [line[f"against baseline, {how}"] for line in found] == [[ratio] for ratio in wanted]


def test_rows_of_the_ladder_are_counted_and_beside_what_was_published(record):
    one, four = ({row.case["what"]: row for row in record.select(table="ladder", layers=n)} for n in (1, 4))
    published = {what: row.results["published"] for what, row in one.items() if "published" in row.results}
    assert published == {what: [ladder.PUBLISHED[what]] for what in RUNGS[:-1]}
    assert [what for what, row in four.items() if "published" in row.results] == [lstm.LAST]
    for rows, layers in ((one, 1), (four, 4)):
        products = [rows[what].results["products"][0] for what in RUNGS]  # of 6 steps, the last two in pairs
        assert products == [layers * n for n in (48, 12, 12, 12, 12, 9, 9)]
        launches = {what: rows[what].results["pointwise"][0] for what in RUNGS}
        assert launches["baseline"] == launches["combined_gemms"] == launches["streamed_gemms"]
        assert launches["baseline"] - launches["fused_pointwise"] == layers * 6 * (23 - 1)
        assert launches["pretransposed"] - launches["fused_pointwise"] == layers * 2
    page = measurements.page(record)
    assert ", published " in page and "| L = 4 · wavefront<br><small>" in page


def test_what_is_equal_but_for_one_thing_is_compared_and_nothing_else():
    def version(what, format="float32", how="eager"):
        return tiny().version("ladder", what, format).case | {"how": how}

    seconds = [(version("baseline"), 8.0), (version("combined_gemms"), 4.0), (version(NN), 1.0)]
    seconds += [(version("baseline", how="CUDA graph"), 2.0), (version(NN, how="CUDA graph"), 0.5)]
    seconds += [(version(NN, "tf32"), 0.25), (version(NN, "float16"), 0.125)]
    found = [lstm.compared(case, s, seconds) for case, s in seconds]
    ratios = [{key[8:]: n for key, (n,) in line.items() if key.startswith("against ")} for line in found]
    assert ratios == [
        {"baseline": 1.0, NN: 0.125},
        {"baseline": 2.0, "before": 2.0, NN: 0.25},
        {"baseline": 8.0, NN: 1.0},
        {"baseline": 1.0, NN: 0.25},
        {"baseline": 4.0, NN: 1.0},
        {NN: 1.0, "float32": 4.0},
        {NN: 1.0, "float32": 8.0, "tf32": 2.0},
    ]


@pytest.mark.oracle
@pytest.mark.parametrize("layers", [1, 3])
def test_operations_are_those_that_torch_counts_and_two_for_each_bias(layers):
    subject = tiny(layers)
    sizes = subject.shape
    biases = 2 * sizes.steps * sizes.batch * layers * 8 * sizes.hidden
    least = {table: subjects.least(subject.version(table, NN).case)[1] for table in ("ladder", "training")}
    x, ours = subject.x.requires_grad_(), LSTM.from_torch(subject.module, rung="pretransposed")
    with FlopCounterMode(display=False) as counter:
        output, _ = ours(x)
        assert least["ladder"] == counter.get_total_flops() + biases
        output.backward(subject.dy)  # the counter cannot watch torch.autograd.grad
        assert least["training"] == counter.get_total_flops() + 3 * biases


@pytest.mark.oracle
def test_bytes_are_those_of_the_arrays_in_each_format():
    subject = tiny(3)
    for format, width in (("float32", 4), ("tf32", 4), ("bfloat16", 2), ("float16", 2)):
        numbers = sum(p.numel() for p in subject.module.parameters()) + subject.x.numel() + subject.dy.numel()
        assert subjects.least(subject.version("formats", NN, format).case)[0] == width * numbers
        assert subjects.least(subject.version("training", NN, format).case)[0] == 2 * width * numbers


@pytest.mark.parametrize("table", ["ladder", "training"])
def test_what_is_wrong_gets_no_row(table, monkeypatch, capsys):
    right = ladder.pretransposed

    def wrong(layer):
        right(layer)
        layer.output[-1, -1, -1] += 1e-2

    monkeypatch.setattr(ladder, "pretransposed", wrong)
    subject, collected = tiny(), table_on("cpu")
    versions = [subject.version(table, what) for what in ("pretransposed", "combined_gemms")]
    lstm.measure(collected, subject, versions)
    assert [row.case["what"] for row in collected.rows] == ["combined_gemms"]
    assert f"{table}: pretransposed, layers 2" in capsys.readouterr().out


def test_a_wrong_gradient_is_seen():
    subject = tiny()
    found = [tensor.clone() for tensor in subject.version("training", NN).call()]
    for tensor in found:
        before = tensor.clone()
        tensor.view(-1)[0] += 1e-3 * tensor.abs().max()
        assert subjects.deviation(found, subject.right_gradients) == pytest.approx(1e-3, rel=0.05)
        tensor.copy_(before)
    assert len(found) == 1 + 1 + 4 * 2 and subjects.deviation(found, subject.right_gradients) < 1e-5


def test_tolerances_tell_float32_from_tf32():
    """TF32 by hand: numbers rounded to 10 bits behind the point before each product; so are the rungs' h."""

    def rounded(tensor):
        return ((tensor.detach().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    subject = Subject(ladder.Shape(10, 8, 128, 128), "cpu")
    version = subject.version("ladder", NN)
    assert version.error < subjects.TOLERANCE["float32"] / 10
    for parameter in subject.module.parameters():
        parameter.data = rounded(parameter)
    with torch.no_grad():
        output, (h, c) = subject.module(rounded(subject.x))
    error = subjects.deviation((output, h, c), subject.right)
    assert subjects.TOLERANCE["float32"] < error < subjects.TOLERANCE["tf32"]


def test_the_precision_of_float32_is_set_for_each_call_and_left_as_it_was():
    def precisions():
        cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        return [library.fp32_precision for library in (cuda, cudnn.rnn, cudnn.conv)]

    if not hasattr(torch.backends.cudnn, "rnn"):
        pytest.skip("this PyTorch has no setting for each kind of layer")
    before, seen, subject = precisions(), [], tiny()
    with formats.restored():
        assert precisions()[1] == torch.backends.mkldnn.rnn.fp32_precision == "ieee"
        for format in ("tf32", "float32"):
            version = subject.version("formats", NN, format)
            version.call()
            seen.append(precisions())
    assert seen == [["tf32"] * 3, ["ieee"] * 3] and precisions() == before


def test_formats_that_a_cpu_only_imitates_are_left_out(monkeypatch, capsys):
    times = {"float32": 1.0, "bfloat16": 0.5, "float16": 9.0}
    found = {name: timing.Timing(1.0, seconds, 1.0, 1) for name, seconds in times.items()}
    monkeypatch.setattr(timing, "compare", lambda calls, min_seconds: {name: found[name] for name in calls})
    assert [form.name for form in lstm.formats_of(tiny())] == ["float32", "bfloat16"]
    assert "nn.LSTM, float16: left out, 9 times as slow as float32" in capsys.readouterr().out


def test_on_a_gpu_there_are_graphs_launches_and_what_a_cpu_has_not(recorded, capsys):
    """On a CPU, whose tensors the subject has."""
    table, names = table_on("cuda"), ["float32", "tf32", "float16"]
    subject = tiny()
    lstm.ladder(table, subject, names, 2)
    hows = [(what, "float32") for what in (*RUNGS, *BEYOND, NN)] + [(lstm.LAST, "tf32"), (NN, "tf32")]
    cases = [(row.case["how"], row.case["what"], row.case["format"]) for row in table.rows]
    assert cases == [(how, *one) for how in ("eager", "CUDA graph") for one in hows]
    assert all(row.launch > 0 for row in table.rows)
    table.rows.clear()
    lstm.formats(table, subject, names)
    said = capsys.readouterr().out
    kinds = [(NN, name) for name in names] + [(AUTOCAST, "float16"), (IN_A_ROW, "float16")]
    kinds = [one for one in kinds if f"formats: {', '.join(one)}, 2 layers: left out, " not in said]
    cases = [(row.case["how"], row.case["what"], row.case["format"]) for row in table.rows]
    assert cases == [(how, *one) for how in ("eager", "CUDA graph") for one in kinds]
    assert all("against nn.LSTM" in row.results for row in table.rows)
    assert {NN, IN_A_ROW} <= {what for what, _ in kinds}  # autocast: not on any CPU


def test_a_graph_that_cannot_be_recorded_is_left_out(monkeypatch, host_clock, capsys):
    def record(function, like):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(devices, "record", record)
    table, subject = table_on("cuda"), tiny()
    lstm.measure(table, subject, [subject.version("ladder", NN)])
    assert [row.case["how"] for row in table.rows] == ["eager"]
    assert (
        "CUDA graph: left out, operation not permitted when stream is capturing\n" in capsys.readouterr().out
    )


def test_a_graph_is_checked_on_what_it_answers(recorded, capsys):
    subject = tiny()
    version = subject.version("ladder", NN)
    wrong = subject.checked(version.case, lambda: [tensor + 1 for tensor in version.call()])
    lstm.measure(table_on("cuda"), subject, [wrong])
    said = capsys.readouterr().out
    assert "float32, CUDA graph: deviates by" in said and said.count("not timed") == 2


@pytest.mark.oracle
def test_modules_in_a_row_answer_what_their_lstm_answers():
    subject = tiny(3)
    one, row = subject.module, subjects.InARow(subject.module)
    with torch.no_grad():
        (y, (h, c)), (y_row, (h_row, c_row)) = one(subject.x), row(subject.x)
    for mine, wanted in ((y_row, y), (h_row, h), (c_row, c)):
        torch.testing.assert_close(mine, wanted)
    assert all(layer.num_layers == 1 for layer in row.layers) and len(row.layers) == 3


@pytest.mark.gpu
@pytest.mark.skipif(not arrays.gpu_count("torch"), reason="needs a GPU")
def test_all_of_it_on_a_gpu(tmp_path, capsys):
    record = measured(lstm, dataclasses.replace(TINY, hidden=128, batch=8), tmp_path, "cuda")
    assert "CUDA graph: left out" not in capsys.readouterr().out
    assert len(record.select(how="CUDA graph")) == len(record.select(how="eager"))
    assert record.select(what=IN_A_ROW, layers=4)
