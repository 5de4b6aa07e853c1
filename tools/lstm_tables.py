"""The tables of part IV among the measurements: of each, its headings and what makes it from rows."""

from tools.tables import FLOOR, TIME, deviation, joined, of_case, table, under


def result(key, form="{:g}"):
    """The one number that a row has by this name, where it has it."""
    return lambda row: form.format(row.results[key][0]) if key in row.results else ""


def times(first, *others):
    """A column that says how many times as fast as the first a row is; as the others, in small print."""
    number = result(f"against {first}", "{:.2f}")
    below = [result(f"against {name}", f"{{:.2f}}× {name}") for name in others]
    return {f"× {first}": under(number, lambda row: joined("<br>", (text(row) for text in below)))}


def rate(row):
    published = f", published {row.results['published'][0]:g}" if "published" in row.results else ""
    return f"{row.results['GFLOP/s'][0]:g} GFLOP/s{published}"


LETTERS = {"layers": "L", "steps": "T", "batch": "B", "hidden": "H"}
WHAT = {"what": of_case("what"), "format": of_case("format"), "how": of_case("how")}
SMALL = [rate, deviation]
COUNTS = {
    "products": result("products", "{:,}"),
    "others": result("pointwise", "{:,}"),
    "MB": lambda row: f"{row.results['bytes'][0] / 1e6:,.1f}",
}


def sizes(*keys):
    return {LETTERS[key]: of_case(key) for key in keys}


def counted(names):
    """A table of what was counted, of the rows where something was."""
    make = table(names, COUNTS)
    return lambda rows: make([row for row in rows if "products" in row.results])


LADDER = sizes("layers") | WHAT
TRAINING = sizes("layers", "steps") | WHAT
COMBINE = TRAINING | {"combined": of_case("combine")}
LSTM = {
    "climb": [(
        "From one layer's first rung to four layers' last",
        table(LADDER, TIME | FLOOR | times("baseline, eager", "baseline, CUDA graph"), SMALL),
    )],
    "ladder": [(
        "The ladder, forward",
        table(LADDER, TIME | FLOOR | times("baseline", "before", "nn.LSTM"), SMALL),
    ), ("The ladder: products, other launches, MB touched", counted(LADDER))],
    "formats": [(
        "The same, by format",
        table(LADDER, TIME | FLOOR | times("float32", "tf32", "nn.LSTM"), SMALL),
    )],
    "training": [(
        "Forward and backward",
        table(TRAINING, TIME | FLOOR | times("nn.LSTM"), SMALL),
    ), ("Forward and backward: products, other launches, MB touched", counted(TRAINING))],
    "hidden": [(
        "One layer forward, by hidden size",
        table(sizes("hidden", "batch", "steps") | WHAT, TIME | FLOOR | times("baseline", "nn.LSTM"), SMALL),
    )],
    "batch": [(
        "One layer forward, by batch",
        table(sizes("batch", "hidden", "steps") | WHAT, TIME | FLOOR | times("baseline", "nn.LSTM"), SMALL),
    )],
    "combine": [(
        "By how many steps' input products are combined",
        table(COMBINE, TIME | FLOOR, SMALL),
    ), ("The same: products, other launches, MB touched", counted(COMBINE))],
}  # fmt: skip
