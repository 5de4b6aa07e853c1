"""The tables of part III on the page of measurements: of each, its headings and what makes its lines."""

import numpy as np

from benchmarks.precision import BASELINES, crossovers
from ed_lib import timing
from tools.parallel_tables import DEVIATION, TIME, accuracy_of_seeds, lines_of, of_case, spread

COUNTED = ("parameters", "gradients", "optimizer", "activations", "casts", "peak")


def product_lines(rows):
    """One line for a size, one column for a format: the time, and how many times as fast as each baseline."""
    names = list(dict.fromkeys(row.case["format"] for row in rows))
    lines = {}
    for row in rows:
        lines.setdefault(row.case["n"], {})[row.case["format"]] = with_ratios(row)
    return [
        ["$n$", *names],
        *([str(n), *(line.get(name, "") for name in names)] for n, line in lines.items()),
    ]


def with_ratios(row):
    """A row's time, and in brackets how many times as fast as the baselines it is."""
    ratios = [f"{ratio:.2f}× {name}" for name, ratio in against(row).items()]
    return timing.text(row.completion.median) + (f" ({', '.join(ratios)})" if ratios else "")


def against(row):
    """{baseline: how many times as fast as it the row is}; float32 itself is compared with none."""
    known = {name: (row.results or {}).get(f"against {name}") for name in BASELINES}
    mine = row.case["format"]
    return {name: ratio[0] for name, ratio in known.items() if ratio and mine not in (name, "float32")}


def speed(baseline):
    return lambda row: f"{against(row)[baseline]:.2f}" if baseline in against(row) else ""


def crossover_lines(rows):
    """One line for a model, a format and a baseline."""
    head = ["network", "how", "format", "baseline", "faster from batch", "at best", "at batch"]
    lines = [
        [model, how, name, baseline, str(batch or "never"), f"{ratio:.2f}×", str(best)]
        for model, how, name, baseline, batch, best, ratio in crossovers(rows)
    ]
    return [head, *lines]


def memory_lines(rows):
    """One line for each step whose bytes were counted."""
    rows = [row for row in rows if "parameters" in (row.results or {})]
    parts = [part for part in COUNTED if any(part in row.results for row in rows)]
    columns = {"network": of_case("model"), "batch": of_case("batch"), "format": of_case("format")}
    return lines_of(columns | {part: megabytes(part) for part in parts})(rows)


def megabytes(part):
    return lambda row: f"{row.results[part][0] / 1e6:,.2f}" if part in row.results else ""


def launch(row):
    return timing.text(row.launch) if row.launch is not None else ""


def points(row):
    return ", ".join(f"{value:+.2f}" for value in row.results["points"])


def last_loss(row):
    """The mean over the seeds of the last piece of the curve."""
    found = [curve[-1] for curve in row.results["loss"]]
    return "not finite" if None in found else f"{np.mean(found):.4f}"


def each(key, form):
    return lambda row: ", ".join(form.format(value) for value in row.results.get(key, []))


STEP = {
    "network": of_case("model"),
    "how": of_case("how"),
    "batch": of_case("batch"),
    "format": of_case("format"),
}
PRECISION = {
    "product": [("Products of square matrices, by format", product_lines)],
    "training step": [
        ("From which batch on a format is faster", crossover_lines),
        (
            "Training steps, by format",
            lines_of(STEP | TIME | {"launch": launch}
                     | {"steps a second": lambda row: f"{float(f'{1 / row.completion.median:.3g}'):g}"}
                     | {f"× {name}": speed(name) for name in BASELINES}
                     | {"floor": lambda row: timing.text(row.floor)}
                     | {"time / floor": lambda row: f"{row.completion.median / row.floor:.1f}"} | DEVIATION),
        ),
        ("Memory of a training step, in MB (10⁶ bytes)", memory_lines),
    ],
    "accuracy of formats": [
        (
            "What is learned, by format",
            lines_of({"network": of_case("model"), "images": of_case("data")}
                     | {"optimizer": of_case("optimizer")}
                     | {"rate in each epoch": lambda row: ", ".join(f"{r:g}" for r in row.case["rates"])}
                     | {"format": of_case("format")}
                     | {"accuracy": accuracy_of_seeds, "lowest – highest": spread}
                     | {"points against float32, by seed": points, "loss at the end": last_loss}
                     | {"scale": each("scale", "{:g}"), "skipped steps": each("skipped", "{}")}),
        ),
    ],
    "smaller models": [
        (
            "Smaller models: LeNet on Fashion-MNIST",
            lines_of({"way": of_case("way"), "runs as": of_case("runs as"), "batch": of_case("batch")} | TIME
                     | {"accuracy": accuracy_of_seeds, "lowest – highest": spread}
                     | {"bytes": lambda row: f"{np.mean(row.results['bytes']):,.0f}"} | DEVIATION),
        ),
    ],
    "distillation": [
        (
            "A student of few images, by temperature; 0 is without a teacher",
            lines_of({key: of_case(key) for key in ("images", "temperature", "steps")}
                     | {"accuracy": accuracy_of_seeds, "lowest – highest": spread}
                     | {"n": lambda row: str(len(row.results["accuracy"]))}),
        ),
    ],
}  # fmt: skip
