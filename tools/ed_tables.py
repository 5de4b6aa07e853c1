"""The tables of part I among the measurements: of each, its headings and what makes it from rows."""

import numpy as np

from tools.tables import (
    ACCURACY,
    FLOOR,
    SEEDS,
    TIME,
    deviation,
    grouped,
    markdown,
    of_case,
    rates_table,
    table,
)

STEP = {
    "what": of_case("what"),
    "how": of_case("how"),
    "arrays": lambda row: f"{row.case['library']} {row.case['dtype']}",
    "D": of_case("depth"),
    "W": of_case("width"),
    "K": of_case("n_outputs"),
}
STEPS = table(STEP, TIME | FLOOR, [deviation])
ED = {
    "article": [("The source article's formulas", STEPS)],
    "paths": [("The paths through the network", STEPS)],
    "by hand": [("ED and backpropagation by hand", STEPS)],
    "autograd": [("ED and PyTorch's autograd", STEPS)],
    "depth": [("A step, by depth", STEPS)],
    "width": [("A step, by width", STEPS)],
    "networks": [("A step, by number of networks", STEPS)],
    "variants": [("How the kernels are cut, on a GPU", STEPS)],
}

HOW = {
    "ed": "ED, {}",
    "squared": "backpropagation, squared error",
    "cross_entropy": "backpropagation, cross-entropy",
    "logistic": "logistic regression",
}
LEARNER = {
    "images": of_case("data"),
    "task": of_case("task"),
    "network": of_case("network"),
    "learns by": lambda row: HOW[row.case["method"]].format(row.case["rule"]),
    "start": lambda row: row.case["init"].replace("_", "-"),
    "W": of_case("width"),
    "D": of_case("depth"),
}
OPTIMIZER = {"optimizer": of_case("optimizer")}
LAYERS = {"layers that learn": lambda row: ", ".join(row.case["learns"] or ["all"])}


def rate(row):
    return f"{row.case['rate']:g}"


def held_out(row):
    return np.mean(row.results["held_out"])


def best_by_depth(rows):
    """One line for each rule and start: at each depth the highest accuracy, whatever optimizer and rate."""
    head, common, lines = grouped(rows, {key: of for key, of in LEARNER.items() if key not in ("D", "task")})
    body = []
    for name, members in lines:
        best = {}
        for row in members:
            best[row.case["depth"]] = max(held_out(row), best.get(row.case["depth"], 0))
        body.append([name, ", ".join(f"{depth}: {found:.1%}" for depth, found in best.items())])
    return common + markdown([head, "highest at each D"], body)


SHORT_RUNS = rates_table(LEARNER | OPTIMIZER, rate, held_out)
LEARNED = table(LEARNER | OPTIMIZER | {"rate": of_case("rate")} | LAYERS | SEEDS, ACCURACY | {
    "seconds": lambda row: f"{row.completion.median:.3g}",
})  # fmt: skip
ACCURACIES = {
    "rates": [("Ten classes, every rate: short runs", SHORT_RUNS)],
    "ten": [("Ten classes, at the best rate: five passes", LEARNED)],
    "rates, two classes": [("Two classes, every rate: short runs", SHORT_RUNS)],
    "tasks": [
        ("Two classes, at the best optimizer and rate: five passes; logistic regression: ten", LEARNED)
    ],
    "depth": [
        ("Even or odd, by depth and start: short runs, the best rate", best_by_depth),
        ("Even or odd, by depth, start and rate: short runs", SHORT_RUNS),
    ],
    "freeze": [("Only some layers learn: one pass, constant rate", LEARNED)],
    "rates, routing": [("Routed errors, every rate: short runs", SHORT_RUNS)],
    "routing": [("Routed errors, at the best rate: five passes", LEARNED)],
    "best": [("Ten classes, wider, at the same rates: eight passes", LEARNED)],
    "seconds": [("A step of the ten-class task, in turns, one thread", table(LEARNER | OPTIMIZER, TIME))],
}
