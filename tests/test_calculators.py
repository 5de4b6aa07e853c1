"""The page of calculators: its formulas are the package's, its numbers those of records and data
sheets.
"""

import random

import pytest

from benchmarks import precision
from ed_lib import records
from ed_lib.lstm.counters import count_work
from ed_lib.parallel import hardware, ledger, links, schedules
from ed_lib.parallel.simulator import simulate
from ed_lib.roofline import Ceilings
from tests import pages

browser, site, tab = pages.browser, pages.site, pages.tab
N = 500
H100 = "nvidia-h100-80gb-hbm3"


def step(flops, bytes, calls, rate, bandwidth, each, measured):
    device = Ceilings("any", "float32", bandwidth, rate).floor(bytes, flops)
    host = calls * each
    parts = {"memory traffic": bytes / bandwidth, "arithmetic": flops / rate}
    floor, apart = max(host, device), max(host, sum(parts.values()))
    return parts | {"calls": host, "floor": floor, "apart": apart, "times": measured / floor}


def memory(parameters, format, devices, stage, layers, hidden, heads, tokens, sequences, recompute):
    each = {"mixed": ledger.MIXED, "float32": ledger.FULL}[format]
    kept = ledger.activations(tokens, sequences, hidden, heads, recompute, each.weights)
    return ledger.state(parameters, devices, stage, each) | {"activations": layers * kept}


def pipeline(devices, microbatches, schedule, chunks):
    parts = chunks if schedule == "interleaved" else 1
    chosen = schedules.interleaved(chunks) if parts > 1 else schedules.SCHEDULES[schedule]
    split = {"backward_input": 1, "backward_weight": 1}
    found = simulate(
        chosen, devices, microbatches, split | {"forward": 1 / parts, "backward": 2 / parts}
    )
    return {"seconds": found.seconds, "busy": found.busy} | {
        f"live {n}": m for n, m in enumerate(found.live)
    }


def roofline(bytes, flops, bandwidth, rate):
    floor = Ceilings("any", "float32", bandwidth, rate).floor(bytes, flops)
    return {"moving": bytes / bandwidth, "computing": flops / rate, "seconds": floor}


def traffic(parameters, itemsize, devices, server, alpha, inside, between, rate):
    fast, slow = links.Link(alpha, 1 / inside), links.Link(alpha, 1 / between)
    link, servers = slow if devices > server else fast, devices // server
    fsdp = ledger.sent(parameters, devices, 3) * itemsize * link.beta
    return {
        "flat": links.all_reduce_seconds(parameters * itemsize, devices, link),
        "two_levels": links.two_levels(parameters * itemsize, servers, server, fast, slow),
        "fsdp": fsdp, "tokens": fsdp * rate / (6 * parameters),
    }  # fmt: skip


def drawn(name, at):
    """Random arguments of the formula ``name``; ``at`` is a random.Random."""
    size, few = lambda low, high: 10 ** at.uniform(low, high), lambda *values: at.choice(values)
    p, v, kind = at.randint(2, 6), at.randint(2, 4), few("gpipe", "1f1b", "interleaved", "zb_h1")
    devices, numbers = 2 ** at.randint(0, 12), {"parameters": round(size(3, 15)), "devices": p}
    return {
        "memory": numbers
        | {
            "format": few("mixed", "float32"),
            "stage": few(0, 1, 2, 3),
            "layers": at.randint(1, 200),
            "hidden": 128 * at.randint(1, 99),
            "heads": few(1, 16, 128),
            "tokens": at.randint(1, 10**6),
            "sequences": at.randint(1, 64),
            "recompute": few("none", "selective", "full"),
        },
        "pipeline": {
            "schedule": kind,
            "devices": p,
            "chunks": v,
            "microbatches": at.randint(1, 4) * p if kind == "interleaved" else at.randint(1, 20),
        },
        "step": {
            "flops": size(0, 18),
            "bytes": size(0, 15),
            "calls": at.randint(1, 10**5),
            "rate": size(9, 16),
            "bandwidth": size(9, 13),
            "each": size(-7, -3),
            "measured": size(-6, 3),
        },
        "roofline": {
            "bytes": size(0, 15),
            "flops": size(0, 18),
            "bandwidth": size(9, 13),
            "rate": size(9, 16),
        },
        "traffic": numbers
        | {
            "itemsize": few(1, 2, 4),
            "devices": devices,
            "server": min(devices, few(1, 8, 64)),
            "alpha": size(-7, -3),
            "inside": size(9, 12),
            "between": size(8, 11),
            "rate": size(12, 15),
        },
    }[name]


@pytest.fixture
def page(tab, site):
    tab.goto(f"{site}book/appendix/calculators.html")
    yield tab
    assert tab.faults == []


@pytest.mark.parametrize(
    "formula", [step, memory, pipeline, roofline, traffic], ids=lambda formula: formula.__name__
)
def test_the_page_computes_what_the_package_does(page, formula):
    name, at = formula.__name__, random.Random(0)
    inputs = [drawn(name, at) for _ in range(N)]
    without_events = (
        f"inputs => inputs.map(given => ({{ ...formulas.{name}(given), events: undefined }}))"
    )
    answers = page.evaluate(without_events, inputs)
    for given, answer in zip(inputs, answers, strict=True):
        answer.pop("events", None)
        answer |= {f"live {n}": live for n, live in enumerate(answer.pop("live", []))}
        assert answer == pytest.approx(formula(**given), rel=1e-9), given


def test_the_cards_are_those_of_the_data_sheets_and_of_the_records(page):
    cards = {
        name: tuple(map(float, numbers.split())) for name, numbers in page.evaluate("CARDS").items()
    }
    for name, known in (("H100", hardware.H100), ("A100", hardware.A100)):
        sheets = [n for n in cards if n.startswith(name) and n.endswith("(data sheet)")]
        assert len(sheets) == 3 and {cards[n][0] for n in sheets} == {known.memory}
    attrs = records.by_machine("precision")[H100].attrs["ceilings"]
    measured = {c["dtype"]: (c["bandwidth"], c["rate"]) for c in attrs}
    for dtype in ("bfloat16", "float32"):
        assert cards[f"H100 SXM, {dtype} (measured)"] == pytest.approx(measured[dtype], rel=5e-3)
        sheet = cards[f"H100 SXM, {dtype} (data sheet)"]
        assert all(most > one for most, one in zip(sheet, measured[dtype], strict=True))
    for form in ("step", "roofline"):
        listed = page.locator(f"form[data-formula={form}] [name=machine] option")
        assert listed.all_inner_texts() == ["numbers of your own", *cards]


def test_the_example_is_the_records(page):
    """A step of BERT-base in bfloat16: calls do not depend on widths, so they are counted of a
    narrow one.
    """
    rows = records.rows(records.of("precision", H100), model="encoder", format="bfloat16")
    rows = rows.set_index("batch")
    row, alone = rows.loc[64], rows.loc[1]
    narrow = precision.BERT | {"hidden": 24, "vocabulary": 50, "positions": 16}
    (subject, *_) = precision.subjects(precision.CPU(bert=narrow, tokens=8, encoder=(2,)))
    run = precision.Run(subject, "bfloat16", subject.make(), "cpu")
    batch = subject.batch(2, "cpu")
    run.step(*batch)
    calls = count_work(lambda: run.step(*batch)).launches
    expected = {
        "flops": row["floor_flops"], "bytes": row["floor_bytes"], "calls": calls,
        "each": alone["seconds"] / calls, "measured": row["seconds"],
    }  # fmt: skip
    form = page.locator("form[data-formula=step]")
    shown = {name: form.locator(f"[name={name}]").evaluate("read") for name in expected}
    assert shown == pytest.approx(expected, rel=0.02)
    said = form.locator("output").inner_text()
    assert "the time of its calls" in said and "arithmetic" in said
    assert "1.18 times" in said and "the floor is 85% of its time" in said
    assert f"its {shown['calls']} calls" in page.locator("article").inner_text()


def test_a_step_below_its_floor_is_no_good_news(page):
    form = page.locator("form[data-formula=step]")
    form.locator("[name=measured]").fill("1e-6")
    assert "below its floor" in form.locator("output").inner_text()
