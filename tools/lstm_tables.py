"""The tables of part IV on the page of measurements: of each, its heading and what makes its lines."""

from ed_lib import timing
from tools.parallel_tables import DEVIATION, TIME, lines_of, of_case


def result(key, form="{:g}"):
    """The one number that a row has by this name, where it has it."""
    return lambda row: form.format(row.results[key][0]) if key in row.results else ""


def times(*names):
    """Columns that say how many times as fast as each of these a row is."""
    return {f"× {name}": result(f"against {name}", "{:.2f}") for name in names}


def launch(row):
    return timing.text(row.launch) if row.launch is not None else ""


LETTERS = {"layers": "L", "steps": "T", "batch": "B", "hidden": "H"}
WHAT = {"what": of_case("what"), "format": of_case("format"), "how": of_case("how")}
SPEED = TIME | {"GFLOP/s": result("GFLOP/s")}
COUNTED = {
    "products": result("products", "{:,}"),
    "other launches": result("pointwise", "{:,}"),
    "MB touched": lambda row: f"{row.results['bytes'][0] / 1e6:,.1f}" if "bytes" in row.results else "",
}
FLOOR = {
    "floor": lambda row: timing.text(row.floor),
    "time / floor": lambda row: f"{row.completion.median / row.floor:.1f}",
}
REST = FLOOR | DEVIATION


def sizes(*keys):
    return {f"${LETTERS[key]}$": of_case(key) for key in keys}


LSTM = {
    "climb": (
        "From one layer's first rung to four layers' last",
        lines_of(sizes("layers") | WHAT | SPEED | times("baseline, eager", "baseline, CUDA graph") | REST),
    ),
    "ladder": (
        "The ladder, forward",
        lines_of(sizes("layers") | WHAT | SPEED | {"published": result("published")} | {"launch": launch}
                 | times("baseline", "before", "nn.LSTM") | COUNTED | REST),
    ),
    "formats": (
        "The same, by format",
        lines_of(sizes("layers") | WHAT | SPEED | times("nn.LSTM", "float32", "tf32") | REST),
    ),
    "training": (
        "Forward and backward",
        lines_of(sizes("layers", "steps") | WHAT | SPEED | times("nn.LSTM") | COUNTED | REST),
    ),
    "hidden": (
        "One layer forward, by hidden size",
        lines_of(sizes("hidden", "batch", "steps") | WHAT | SPEED | times("baseline", "nn.LSTM") | REST),
    ),
    "batch": (
        "One layer forward, by batch",
        lines_of(sizes("batch", "hidden", "steps") | WHAT | SPEED | times("baseline", "nn.LSTM") | REST),
    ),
    "combine": (
        "By how many steps' input products are combined",
        lines_of(sizes("layers", "steps") | WHAT | {"combined": of_case("combine")} | SPEED | COUNTED | REST),
    ),
}  # fmt: skip
