"""The benchmark of part III: its counts against torch's, and the whole at a tiny size."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import formats, precision, smaller
from benchmarks import old_harness as harness
from benchmarks import old_pages as measurements
from benchmarks import precision_accuracy as accuracy
from benchmarks import precision_subjects as subjects
from benchmarks.old_records import Row
from ed_lib import data, devices, roofline, training
from ed_lib.precision import fp8, scaler
from ed_lib.timing import Timing
from tests.benchmark import measured

BERT = dict(layers=2, hidden=32, heads=2, vocabulary=50, positions=16, classes=3)
TINY = precision.Size((16, 33), (1, 8), (1, 5), (1, 3), (), (48, 32, 10), BERT, tokens=8, seconds=0.001)


def ceilings(device, dtype, seconds):
    rates = {"float32": 1e11, "bfloat16": 2e11}
    return roofline.Ceilings("a machine", dtype, 1e10, rates.get(dtype, 4e11))


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """All of it at a tiny size."""
    with harness.one_thread(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(roofline, "raised", ceilings)
        return measured(precision, TINY, tmp_path_factory.mktemp("steps"))


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """What is learned by format, in very short runs on scikit-learn's digits."""
    return measured(
        accuracy, accuracy.TINY, tmp_path_factory.mktemp("learned"), wanted=["accuracy of formats"]
    )


@pytest.fixture
def roofs(monkeypatch):
    monkeypatch.setattr(roofline, "raised", ceilings)
    with harness.one_thread():
        yield


@pytest.mark.oracle
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    "subject",
    [subjects.mlp(), subjects.mlp((17, 32, 16, 5)), subjects.lenet(), subjects.encoder("cpu"),
     subjects.encoder("cpu", 7, **BERT)],
)  # fmt: skip
def test_flops_are_those_that_torch_counts(subject, n):
    """On the device "meta", which computes nothing; attention as two products, counted as such."""
    with torch.device("meta"):
        model = subject.make()
    x, y = subject.batch(n, "meta")
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        F.cross_entropy(model(x), y).backward()
    assert sum(subject.flops(n)) == counter.get_total_flops()


@pytest.mark.oracle
def test_flops_in_fp8_are_those_of_the_layers_that_it_swaps():
    for subject in (subjects.mlp((48, 32, 64, 10)), subjects.encoder("cpu", 7, **BERT)):
        model = subject.make()
        linears = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
        swapped = [m for m in linears if not (m.in_features % 16 or m.out_features % 16)]
        rows = {m: 1 for m in linears}  # how many rows go through each, for one sample

        def count(module, inputs, output, rows=rows):
            rows[module] = inputs[0].numel() // module.in_features

        for m in linears:
            m.register_forward_hook(count)
        x, _ = subject.batch(1, "cpu")
        model(x)
        first = linears[0] if subject.name == "MLP" else None  # whose input has no gradient
        wanted = sum((2 if m is first else 3) * 2 * m.weight.numel() * rows[m] for m in swapped)
        assert subject.flops(1)[0] == wanted > 0


@pytest.mark.oracle
def test_bytes_of_a_step_are_what_the_optimizer_touches():
    model = torch.nn.Linear(10, 3)
    for subject, states in ((subjects.mlp(), 0), (subjects.encoder("cpu"), 2)):
        optimizer = getattr(torch.optim, subject.optimizer)(model.parameters(), 1e-3)
        model(torch.ones(1, 10)).sum().backward()
        optimizer.step()
        kept = [v for s in optimizer.state.values() for v in s.values() if v is not None and v.dim()]
        assert sum(v.numel() for v in kept) == states * 33
        assert subjects.step_bytes(subject, 33) == 4 * 33 * (2 + 2 + 2 * states)


def row(model, format, batch, seconds, how="eager"):
    case = {"table": "training step", "model": model, "format": format, "batch": batch, "how": how}
    return Row(case, Timing(seconds, seconds, seconds, 3))


def test_the_crossover_is_where_a_format_begins_to_be_faster():
    times = {
        "float32": {1: 1.0, 4: 2.0, 16: 8.0, 64: 32.0},
        "bfloat16": {1: 2.0, 4: 1.9, 16: 9.0, 64: 8.0},  # at 4 it wins, at 16 it loses again
        "float16": {1: 3.0, 4: 3.0, 16: 16.0},  # never wins, and was not measured at 64
        "fp8": {1: 0.5, 4: 1.0, 16: 1.0, 64: 16.0},  # wins from the first
        "tf32": {256: 1.0},  # has no batch in common
    }
    rows = [row("m", name, batch, s) for name, line in times.items() for batch, s in line.items()]
    rows.reverse()  # the order does not matter
    assert precision.crossover(rows, "bfloat16", "float32") == (64, 64, 4.0)
    assert precision.crossover(rows, "float16", "float32") == (None, 4, 2 / 3)
    assert precision.crossover(rows, "fp8", "float32") == (1, 16, 8.0)
    assert precision.crossover(rows, "fp8", "tf32") is None
    found = precision.crossovers([*rows, row("other", "float32", 1, 1.0), row("other", "bfloat16", 1, 2.0)])
    assert set(found) == {
        ("m", "eager", "bfloat16", "float32", 64, 64, 4.0),
        ("m", "eager", "float16", "float32", None, 4, 2 / 3),
        ("m", "eager", "fp8", "float32", 1, 16, 8.0),
        ("other", "eager", "bfloat16", "float32", None, 1, 0.5),
    }


def test_tf32_is_compared_with_float32_and_the_others_with_both():
    rows = [row("m", name, 1, s, how) for how in ("eager", "CUDA graph")
            for name, s in (("float32", 4.0), ("tf32", 2.0), ("bfloat16", 1.0))]  # fmt: skip
    assert precision.crossovers(rows) == [
        ("m", how, *compared, 1, 1, ratio)
        for how in ("eager", "CUDA graph")
        for *compared, ratio in (
            ("tf32", "float32", 2.0), ("bfloat16", "float32", 4.0), ("bfloat16", "tf32", 2.0)
        )
    ]  # fmt: skip


def test_a_record_has_every_format_right_and_survives_a_round_trip(record):
    assert set(record.parameters["parts"]) == {"encoder", "products", "MLP", "LeNet"}
    names = [form.name for form in formats.formats("cpu")]
    assert names == ["float32", "bfloat16", "float16", "float16, emulated"]
    cases = [tuple(row.case.values()) for row in record.rows]
    wanted = [("product", n, name) for n in (16, 33) for name in names]
    assert {
        (c["table"], c["n"], c["format"]) for c in (r.case for r in record.select(table="product"))
    } == set(wanted)
    assert len(cases) == len(set(cases))
    for model, batches in (("MLP", (1, 8)), ("LeNet", (1, 5)), ("encoder", (1, 3))):
        for batch in batches:
            rows = record.select(model=model, batch=batch, how="eager")
            there = [n for n in names if (model, n) != ("encoder", "float16")]
            assert [r.case["format"] for r in rows] == there
            base = rows[0]
            for one in rows:
                assert one.error < 0.1 and one.completion.median > 0 and one.launch is None
                ratio = base.completion.median / one.completion.median
                assert one.results["against float32"][0] == pytest.approx(ratio, rel=1e-2)
                assert one.flops == base.flops and one.bytes == base.bytes
                name = one.case["format"]
                rate = "float32" if "emulated" in name else name
                assert one.results[f"FLOPs, {rate}"] == [one.flops]
    mlp = record.find(model="MLP", batch=8, format="bfloat16").results
    params = 4 * (48 * 32 + 32 + 32 * 10 + 10)
    assert (
        mlp["parameters"] == mlp["gradients"] == [params] and mlp["optimizer"] == [0] and mlp["casts"][0] > 0
    )
    assert record.find(model="MLP", batch=8, format="float32").results["casts"] == [0]
    assert "parameters" not in record.find(model="MLP", batch=8, format="float16, emulated").results


def test_floors_come_from_each_formats_own_and_the_higher_ceiling(monkeypatch, tmp_path):
    seen = iter([1e10, 1e11, 1e12] + [2e10, 5e10, 3e12])
    monkeypatch.setattr(
        roofline, "raised", lambda device, dtype, seconds: roofline.Ceilings("m", dtype, 1e3, next(seen))
    )
    size = dataclasses.replace(TINY, products=(16,), mlp=(), lenet=(), encoder=())
    record = measured(precision, size, tmp_path)
    rates = {"float32": 2e10, "bfloat16": 1e11, "float16": 3e12, "float16, emulated": 2e10}
    for one in record.rows:
        assert one.flops == 2 * 16**3 and one.bytes / 16**2 == (
            6 if "float16" == one.case["format"][-7:] else 12
        )
        least = max(one.bytes / 1e3, one.flops / rates[one.case["format"]])
        assert one.floor == pytest.approx(least, rel=1e-3)
    assert {c.dtype: c.rate for c in record.ceilings} == {"float32": 2e10, "bfloat16": 1e11, "float16": 3e12}


def test_a_wrong_gradient_is_seen():
    subject = subjects.mlp((48, 32, 10))
    model, (x, y) = subject.make(), subject.batch(70, "cpu")
    loss, gradients = subjects.exactly(model, x, y)  # in two pieces
    run = subjects.Training(subject, formats.formats("cpu")[0], model, "cpu")
    assert run.deviation(x, y, (loss, gradients)) < 1e-6
    for p, g in zip(run.model.parameters(), gradients, strict=True):
        assert p.grad is None and g.dtype == torch.float64
    norm = sum(float(g.square().sum()) for g in gradients) ** 0.5
    gradients[0][3, 4] += 0.01 * norm
    assert run.deviation(x, y, (loss, gradients)) == pytest.approx(0.01, rel=0.01)
    assert run.deviation(x, y, (loss * 1.5, gradients)) == pytest.approx(1 / 3, rel=1e-3)


@pytest.mark.parametrize("form", formats.formats("cpu"), ids=lambda form: form.name)
def test_a_step_is_an_ordinary_one_and_hardly_moves(form, monkeypatch):
    subject = subjects.mlp((48, 32, 10))
    model, (x, y) = subject.make(), subject.batch(9, "cpu")
    run = subjects.Training(subject, form, model, "cpu")
    run.step(x, y)
    for p, q in zip(model.parameters(), run.model.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=0, atol=1e-10) and q.grad.any()
    monkeypatch.setattr(subjects, "RATE", 0.5)
    run = subjects.Training(subject, form, model, "cpu")
    losses = []
    for _ in range(5):
        losses.append(run.loss(x, y).item())
        run.step(x, y)
    assert losses[-1] < losses[0] - 0.1


def test_the_precision_of_products_is_left_as_it_was():
    libraries = torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.mkldnn.conv
    before = [library.fp32_precision for library in libraries]
    for how in ("tf32", "ieee"):
        with formats.restored():
            formats.set_float32(how)
            assert [library.fp32_precision for library in libraries] == [how, how, "ieee"]
    assert [library.fp32_precision for library in libraries] == before


def test_accuracies_are_complete_and_survive_a_round_trip(learned):
    record = learned
    cases = [(r.case["model"], r.case["optimizer"], r.case["format"]) for r in record.rows]
    lenets = ["float32", "float16", "bfloat16", "float16 alone"]
    assert cases == [
        ("MLP", optimizer, name) for optimizer in ("SGD", "Adam") for name in accuracy.FORMATS
    ] + [("LeNet", "SGD", name) for name in lenets]
    for one in record.rows:
        found = one.results
        assert len(found["accuracy"]) == len(found["loss"]) == len(found["points"]) == one.completion.n == 2
        assert all(len(curve) == 5 for curve in found["loss"])
        base = record.find(**one.case | {"format": "float32"}).results["accuracy"]
        for mine, right, points in zip(found["accuracy"], base, found["points"], strict=True):
            assert points == pytest.approx(100 * (mine - right), abs=1e-3)
        assert ("scale" in found) == (one.case["format"] == "float16")
    steps = 2 * 256 // 32
    sgd = {name: record.find(model="MLP", optimizer="SGD", format=name).results for name in accuracy.FORMATS}
    assert len({str(found["loss"]) for found in sgd.values()}) == len(sgd), "two formats learned the same"
    for name in ("float16", "bfloat16", "fp8"):  # the same start, the same batches
        assert sgd[name]["loss"][0][0] == pytest.approx(sgd["float32"]["loss"][0][0], rel=0.02)
        assert min(sgd[name]["accuracy"]) > 0.5
    assert all(0 <= skipped < steps for skipped in sgd["float16"]["skipped"])
    adam = record.find(optimizer="Adam", format="float16 alone").results
    assert adam["loss"][0][-1] is None, "1e-8, Adam's epsilon, is 0 in float16"


def test_float32_is_plain_training(capsys):
    found = accuracy.trained("MLP", "mnist", "SGD", (0.5, 0.05), "float32", 1, accuracy.TINY)
    (x, y), test = harness.images("mnist", True, data.tensors)
    net, losses = accuracy.MODELS["MLP"](seed=1), []
    for epoch, rate in enumerate((0.5, 0.05)):
        optimizer = torch.optim.SGD(net.parameters(), rate)
        losses += training.train(net, optimizer, x[:256], y[:256], test, batch=32, seed=2 + epoch).loss
    assert found["loss"] == accuracy.thinned(losses, 5)
    assert found["accuracy"] == training.accuracy(net, *test)


def test_without_masters_everything_is_in_few_bits():
    for name, dtype in (("float16 alone", torch.float16), ("bfloat16 alone", torch.bfloat16)):
        net = accuracy.MODELS["MLP"](seed=0)
        accuracy.FORMATS[name].change(net)
        with accuracy.FORMATS[name].context():
            F.cross_entropy(net(torch.rand(2, 1, 28, 28)), torch.tensor([1, 2])).backward()
        assert {t.dtype for p in net.parameters() for t in (p, p.grad)} == {dtype}


def test_a_curve_is_thinned_to_means():
    assert accuracy.thinned([1.0, 2.0, 3.0, 4.0, 6.0], 2) == [2.0, 5.0]
    assert accuracy.thinned([1.0, float("nan"), 3.0, float("inf")], 4) == [1.0, None, 3.0, None]
    assert accuracy.thinned([1.0], 4) == [1.0]


def test_skipped_steps_are_counted():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], 0.1)
    counted = accuracy.Counting(scaler.GradScaler("cpu", init_scale=4.0))
    for factor in (1.0, float("inf"), 1.0, float("nan")):
        training.optimizer_step((factor * parameter).sum(), optimizer, counted)
    assert counted.skips == 2 and counted.get_scale() == 1.0


def test_the_smaller_models_are_in_the_same_record(monkeypatch, tmp_path):
    found = {"smaller models": "int8", "distillation": "float32"}
    for function, (table, format) in zip(("smaller", "distillation"), found.items(), strict=True):
        made = row("LeNet", format, 1, 1.0)
        made.case["table"] = table
        monkeypatch.setattr(smaller, function, lambda size, made=made: [made])
    record = measured(accuracy, accuracy.TINY, tmp_path, wanted=found)
    assert {row.case["table"]: row.case["format"] for row in record.rows} == found
    assert record.parameters["smaller"]["images"] == smaller.TINY.images
    assert all("part" not in row.case for row in record.rows), "the table says it"


def test_the_page_shows_every_row_and_where_formats_cross(record, learned):
    text = measurements.page(record)
    steps = record.select(table="training step")
    assert all(shown.title in text for found in precision.PAGE.values() for shown in found)
    for one in steps:
        start = (
            f"| {one.case['model']} · batch {one.case['batch']} · {one.case['format']}<br><small>deviation"
        )
        assert text.count(start) == 1
    assert sum(line.startswith(("| n = 16 |", "| n = 33 |")) for line in text.splitlines()) == 2
    for model, how, name, baseline, batch, *_ in precision.crossovers(record.rows):
        assert f"| {model} · {how} · {name} against {baseline} | {batch or 'never'} |" in text
    text = measurements.page(learned)
    assert "What is learned, by format" in text and text.count("\n| LeNet · SGD · 0.1 · ") == 4


def test_the_page_names_the_baseline_of_each_ratio():
    rows = []
    for n, (name, seconds) in enumerate({"float32": 8e-3, "tf32": 2e-3, "fp8": 1e-3}.items()):
        results = {
            "against float32": [8e-3 / seconds],
            "against tf32": [2e-3 / seconds],
            "parameters": [10**7 * n],
        }
        case = row("encoder", name, 4, seconds).case
        timing = Timing(seconds, seconds, seconds, 3)
        rows.append(Row(case, timing, launch=1e-4, floor=5e-4, error=0.01, results=results))
    lines = table_lines(measurements.render(precision.PAGE["training step"][1], rows))
    assert lines[0] == ["format", "time", "× floor", "× float32"]
    assert [line[3] for line in lines[2:]] == [
        "",
        "4.00",
        "8.00<br><small>2.00×\N{NO-BREAK SPACE}tf32</small>",
    ]
    assert "launch\N{NO-BREAK SPACE}100\N{NO-BREAK SPACE}µs" in lines[4][1] and lines[4][2].startswith(
        "2.0<br>"
    )
    assert "fp8<br><small>parameters 20.00</small>" in measurements.render(
        precision.PAGE["training step"][2], rows
    )
    for one, case in zip(rows, ("float32", "tf32", "fp8"), strict=True):
        one.case.update({"table": "product", "n": 32, "format": case})
    line = table_lines(measurements.render(precision.PAGE["product"][0], rows))[-1]
    wanted = "float32: 8 ms", "tf32: 2 ms (4.00× float32)", "fp8: 1 ms (8.00× float32, 2.00× tf32)"
    assert line == ["n = 32", "<br>".join(wanted)]


def table_lines(text):
    """The cells of a table in Markdown, line by line."""
    return [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]


def test_fp8_is_measured_where_the_machine_has_it(roofs, monkeypatch, tmp_path, capsys):
    """As on a GPU that multiplies FP8, with torch's scaled product for CPUs."""
    if not scaled_products_on_cpu():
        pytest.skip("torch._scaled_mm does not run on this CPU")
    monkeypatch.setattr(fp8, "in_hardware", lambda device: True)
    monkeypatch.setattr(roofline, "SIZES", {"cuda": (32, 64)})
    calls = []
    right = torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda *a, **k: calls.append(1) or right(*a, **k))
    size = dataclasses.replace(TINY, products=(32,), mlp=(8,), lenet=(5,), encoder=(2,))
    record = measured(precision, size, tmp_path)
    assert "not timed" not in capsys.readouterr().out and calls
    assert [row.case.get("model", "product") for row in record.select(format="fp8")] == [
        "encoder",
        "product",
        "MLP",
    ]
    mlp = record.find(model="MLP", format="fp8")
    rates = {c.dtype: c.rate for c in record.ceilings}
    linear, others = 2 * 2 * 8 * 48 * 32, 3 * 2 * 8 * 32 * 10
    least = linear / rates["fp8"] + others / rates["bfloat16"]
    assert mlp.floor == pytest.approx(max(least, mlp.bytes / 1e10), rel=1e-3) and mlp.flops == linear + others
    assert mlp.results["FLOPs, fp8"] == [linear] and mlp.results["FLOPs, bfloat16"] == [others]


def scaled_products_on_cpu():
    a = torch.ones(16, 16).to(torch.float8_e4m3fn)
    try:
        torch._scaled_mm(a, a.t(), scale_a=torch.ones(()), scale_b=torch.ones(()), out_dtype=torch.float32)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def test_formats_of_a_gpu_by_its_generation(monkeypatch):
    old = ["float32", "float16"]
    for capability, names in (
        ((7, 5), old),
        ((8, 0), ["float32", "tf32", "bfloat16", "float16"]),
        ((9, 0), ["float32", "tf32", "bfloat16", "float16", "fp8"]),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        found = formats.formats("cuda")
        assert [form.name for form in found] == names
        assert [form.float32 for form in found] == ["tf32" if name == "tf32" else "ieee" for name in names]
        assert found[0].tolerance < found[-1].tolerance


def test_a_graph_is_of_a_step_without_a_scaler(monkeypatch, capsys):
    """What is recorded, on a machine that records nothing."""
    subject = subjects.encoder("cpu", 8, **BERT)
    model, data, forms = subject.make(), subject.batch(2, "cpu"), formats.formats("cpu")
    case = {"table": "training step", "model": "encoder", "batch": 2, "how": "eager"}
    versions = [harness.Version(case | {"format": form.name}, None, (1, {}), 0.0) for form in forms[:3]]
    recorded = []

    def record(function, like):
        if len(recorded) == 1:
            raise RuntimeError("no room\nand more")
        recorded.append(function)
        return function

    monkeypatch.setattr(devices, "record", record)
    made = precision.graphs(subject, model, versions, forms, data)
    assert [v.case["format"] for v in made] == ["float32"] and made[0].case["how"] == "CUDA graph"
    assert made[0].call is recorded[0] and recorded[0].func.__name__ == "step"
    assert "encoder, batch 2, CUDA graph, bfloat16: left out, no room" in capsys.readouterr().out
