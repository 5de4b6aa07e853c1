"""The tables of part III among the measurements: of each, its headings and what makes it from rows."""

import itertools

import numpy as np

from benchmarks.precision import BASELINES, crossovers
from ed_lib import timing
from tools.tables import (
    ACCURACY,
    FLOOR,
    SEEDS,
    TIME,
    accuracy_of_seeds,
    deviation,
    joined,
    markdown,
    of_case,
    small,
    spread,
    table,
    under,
    whole,
)

COUNTED = ("parameters", "gradients", "optimizer", "casts")


def against(row):
    """{baseline: how many times as fast as it the row is}; float32 itself is compared with none."""
    known = {name: (row.results or {}).get(f"against {name}") for name in BASELINES}
    mine = row.case["format"]
    return {name: ratio[0] for name, ratio in known.items() if ratio and mine not in (name, "float32")}


def speed(baseline):
    return lambda row: f"{against(row)[baseline]:.2f}" if baseline in against(row) else ""


def speed_of_others(row):
    return joined(
        "<br>", (f"{ratio:.2f}× {name}" for name, ratio in against(row).items() if name != "float32")
    )


def product(row):
    """A format's time, and in brackets how many times as fast as the baselines it is."""
    ratios = [f"{ratio:.2f}× {name}" for name, ratio in against(row).items()]
    text = f"{row.case['format']}: {timing.text(row.completion.median)}"
    return text + (f" ({', '.join(ratios)})" if ratios else "")


def crossing(rows):
    """One line for a model, a format and a baseline."""
    lines = []
    for model, how, name, baseline, batch, best, ratio in crossovers(rows):
        case = f"{model} · {how} · {name} against {baseline}"
        lines.append([case, str(batch or "never"), f"{ratio:.2f}×" + small(f"batch {best}")])
    return markdown(["network, how, format", "faster from batch", "at best"], lines)


def memory(rows):
    """One line for each step whose bytes were counted."""
    rows = [row for row in rows if "parameters" in (row.results or {})]
    numbers = {part: megabytes(part) for part in ("activations", "peak")}
    numbers = {part: number for part, number in numbers.items() if any(map(number, rows))}
    names = {"network": of_case("model"), "batch": of_case("batch"), "format": of_case("format")}
    return table(names, numbers, [labelled(part, megabytes(part)) for part in COUNTED])(rows)


def megabytes(part):
    return lambda row: f"{row.results[part][0] / 1e6:,.2f}" if part in row.results else ""


def labelled(label, text):
    """For the small print: a text under what it is, where there is one."""
    return lambda row: f"{label} {text(row)}" if text(row) else ""


def points(row):
    return ", ".join(f"{value:+.2f}" for value in row.results["points"])


def last_loss(row):
    """The mean over the seeds of the last piece of the curve."""
    found = [curve[-1] for curve in row.results["loss"]]
    return "not finite" if None in found else f"{np.mean(found):.4f}"


def each(key, form):
    return lambda row: ", ".join(form.format(value) for value in row.results.get(key, []))


def time_by_batch(row):
    return whole(timing.text(row.completion.median)) + small(whole(f"batch {row.case['batch']}"))


def stored(row):
    return f"{np.mean(row.results['bytes']):,.0f}"


def rates(row):
    """The rate in each epoch: "5 × 0.1, 0.01"."""
    runs = [(rate, len(list(same))) for rate, same in itertools.groupby(row.case["rates"])]
    return ", ".join(f"{n} × {rate:g}" if n > 1 else f"{rate:g}" for rate, n in runs)


STEP = {
    "network": of_case("model"),
    "how": of_case("how"),
    "batch": of_case("batch"),
    "format": of_case("format"),
}
PRECISION = {
    "product": [("Products of square matrices, by format", table({"n": of_case("n")}, {"time": product}))],
    "training step": [
        ("From which batch on a format is faster", crossing),
        (
            "Training steps, by format",
            table(STEP, TIME | FLOOR | {"× float32": under(speed("float32"), speed_of_others)}, [deviation]),
        ),
        ("Memory of a training step, in MB (10⁶ bytes)", memory),
    ],
    "accuracy of formats": [(
        "What is learned, by format",
        table({"network": of_case("model"), "images": of_case("data"), "optimizer": of_case("optimizer"),
               "rate in each epoch": rates, "format": of_case("format")} | SEEDS,
              {"accuracy": under(accuracy_of_seeds, spread), "points against float32": points},
              [labelled("loss at the end", last_loss), labelled("scale", each("scale", "{:g}")),
               labelled("skipped steps", each("skipped", "{}"))]),
    )],
    "smaller models": [(
        "Smaller models: LeNet on Fashion-MNIST",
        table({"way": of_case("way"), "runs as": of_case("runs as")} | SEEDS,
              ACCURACY | {"bytes": stored, "time": time_by_batch}, [deviation]),
    )],
    "distillation": [(
        "A student of few images, by temperature; 0 is without a teacher",
        table({key: of_case(key) for key in ("images", "temperature", "steps")} | SEEDS, ACCURACY),
    )],
}  # fmt: skip
