"""The page of calculators: its formulas are the package's, and it answers in words whatever is
typed.
"""

import random

import pytest

from ed_lib.parallel import ledger, links, schedules
from ed_lib.parallel.simulator import simulate
from ed_lib.roofline import Ceilings
from tests import pages

browser, site, tab = pages.browser, pages.site, pages.tab
N = 500


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
    "formula", [memory, pipeline, roofline, traffic], ids=lambda formula: formula.__name__
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


@pytest.mark.parametrize(
    "formula, field, typed, said",
    [("memory", "parameters", "many", "Wanted a number"), ("memory", "devices", "0", "Wanted 1 or more"),
     ("memory", "layers", "2.5", "whole number"), ("memory", "heads", "7", "divisor of 4096"),
     ("memory", "parameters", "1e300", "at most"), ("pipeline", "devices", "-4", "Wanted 1 or more"),
     ("pipeline", "microbatches", "1e18", "256 at most"), ("roofline", "rate", "", "Wanted a number"),
     ("traffic", "server", "9", "divisor of 64")],
)  # fmt: skip
def test_what_makes_no_sense_is_said_beside_the_field(page, formula, field, typed, said):
    form = page.locator(f"form[data-formula={formula}]")
    assert form.locator("output").inner_text()
    box = form.locator(f"[name={field}]")
    box.fill(typed)
    words = page.locator(f"#{formula}-{field}-wrong")
    assert said in words.inner_text() and box.get_attribute("aria-invalid") == "true"
    assert form.locator("output").inner_text() == ""
    box.fill(box.evaluate("box => box.defaultValue"))
    assert words.inner_text() == "" and form.locator("output").inner_text()


def test_by_keyboard_alone_and_with_the_largest_numbers(page):
    page.locator("form[data-formula=memory] [name=parameters]").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("1e18")
    assert "2 EB a device" in page.locator("form[data-formula=memory] output").inner_text()
    machine = page.locator("form[data-formula=roofline] [name=machine]")
    machine.select_option(label="RTX 3070, float32 (data sheet)")
    assert (
        "35.7 ms at the least, bound by its bytes"
        in page.locator("form[data-formula=roofline] output").inner_text()
    )
    assert "NaN" not in page.locator("article").inner_text()
