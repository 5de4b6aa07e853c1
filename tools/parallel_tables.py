"""The tables of part II on the page of measurements: of each, its heading and what makes its lines."""

import numpy as np

from ed_lib import timing
from ed_lib.parallel.costs import Link


def lines_of(columns):
    """A function of rows → the head and one line a row; columns: {head: a function of the row → text}."""
    return lambda rows: [list(columns), *([column(row) for column in columns.values()] for row in rows)]


def of_case(key):
    return lambda row: str(row.case.get(key, ""))


def quartiles(row):
    return f"{timing.text(row.completion.q1)} – {timing.text(row.completion.q3)}"


def against(key):
    """The measured time as a multiple of the median of some results."""

    def ratio(row):
        found = (row.results or {}).get(key)
        return f"{row.completion.median / np.median(found):.2f}" if found else ""

    return ratio


def middle(key):
    """The median of some results, where the row has them."""
    return lambda row: f"{np.median(row.results[key]):.2f}" if key in (row.results or {}) else ""


def accuracy_of_seeds(row):
    return f"{np.mean(row.results['accuracy']):.2%}"


def spread(row):
    found = row.results["accuracy"]
    return f"{min(found):.2%} – {max(found):.2%}"


def message_lines(rows):
    """One line for a size; the link that was fitted to all of them stands in the head."""
    link = Link(*rows[0].results["link"])
    model = {
        "model": lambda row: timing.text(row.results["predicted"][0]),
        "time / model": against("predicted"),
    }
    head, *lines = lines_of({"bytes": lambda row: f"{row.bytes:,}"} | TIME | model)(rows)
    return [[f"model: {link}" if name == "model" else name for name in head], *lines]


def all_reduce_lines(rows):
    """One line for a number of ranks and of bytes, one column for an algorithm."""
    names = list(dict.fromkeys(row.case["algorithm"] for row in rows))
    lines = {}
    for row in rows:
        text, multiple = timing.text(row.completion.median), against("predicted")(row)
        text += f" ({multiple})" if multiple else ""
        key = row.case["ranks"], row.case["bytes"]
        lines.setdefault(key, {})[row.case["algorithm"]] = text
    head = ["ranks", "bytes", *names]
    body = [[str(p), f"{n:,}", *(line.get(name, "") for name in names)] for (p, n), line in lines.items()]
    return [head, *body]


def rate_lines(keys, rate):
    """A function of rows → one line for each of what the keys name, with the accuracies at all rates."""

    def make(rows):
        lines = {}
        for row in rows:
            key = tuple(of_case(key)(row) for key in keys)
            text = f"{row.case[rate]:g}: {np.mean(row.results['accuracy']):.1%}"
            lines.setdefault(key, []).append(text)
        n = len(rows[0].results["accuracy"])
        head = [*(key.replace("_", " ") for key in keys), f"accuracy at each rate, mean of {n}"]
        return [head, *([*key, ", ".join(found)] for key, found in lines.items())]

    return make


def each(key, form):
    return lambda row: ", ".join(form.format(value) for value in row.results[key])


TIME = {"time": lambda row: timing.text(row.completion.median), "quartiles": quartiles}
DEVIATION = {"deviation": lambda row: f"{row.error:.1e}" if row.error is not None else ""}
PARALLEL = {
    "message": ("A message between two ranks", message_lines),
    "all-reduce": ("An all-reduce: the time, and in brackets as a multiple of the model's", all_reduce_lines),
    "data parallel step": (
        "A training step of LeNet, by the way in which gradients are summed",
        lines_of({"way": of_case("way"), "ranks": of_case("ranks"), "batch": of_case("batch")} | TIME
                 | {"time / DDP": middle("against DDP")} | DEVIATION),
    ),
    "pipeline": (
        "A batch through a pipeline, by schedule",
        lines_of({"schedule": of_case("schedule"), "$m$": of_case("microbatches")} | TIME
                 | {"time / simulator": middle("ratio")} | DEVIATION),
    ),
    "ED pipeline": (
        "A batch through an ED pipeline",
        lines_of({"how": of_case("how"), "$m$": of_case("microbatches")} | TIME
                 | {"time / formula": middle("ratio to formula")}
                 | {"time / simulator": middle("ratio to predicted")}
                 | DEVIATION),
    ),
    "asynchronous, throughput": (
        "A gradient, of four workers that sleep in place of computing",
        lines_of({"server": of_case("server"), "workers": of_case("workers")} | TIME
                 | {"floor": lambda row: timing.text(row.floor)}
                 | {"gradients of each": each("gradients", "{}")}
                 | {"mean staleness of each": each("mean_staleness", "{:.1f}")}),
    ),
    "asynchronous, lost updates": (
        "Hogwild: additions that were lost",
        lines_of({key: of_case(key) for key in ("parameters", "nonzeros", "workers", "steps")}
                 | {"time, with the start": TIME["time"], "lost": each("lost", "{:.2%}")}
                 | {"loss, of that at the start": each("loss", "{:.1e}")}),
    ),
    "source": (
        "LeNet on Fashion-MNIST as in the source (there on one GPU 0.82, 3.7 s an epoch; on two 0.82, 3.8 s)",
        lines_of({key: of_case(key) for key in ("how", "devices", "batch", "lr", "images", "epochs")}
                 | {"accuracy": accuracy_of_seeds, "an epoch": TIME["time"], "quartiles": quartiles}),
    ),
    "scaling": (
        "LeNet with a larger batch on more simulated devices",
        lines_of({key: of_case(key) for key in ("devices", "batch", "policy", "images", "epochs")}
                 | {"accuracy": accuracy_of_seeds, "lowest – highest": spread}
                 | {"n": lambda row: str(len(row.results["accuracy"]))}),
    ),
    "asynchronous, accuracy": (
        "Servers and workers on a virtual clock: accuracy after the same number of gradients",
        rate_lines(("method", "data", "gradients"), "lr"),
    ),
    "streaming ED": (
        "Streaming ED: accuracy by the number of stages, of which the first is the latest",
        rate_lines(("rule", "stages", "longest_delay", "images"), "rate"),
    ),
}  # fmt: skip
