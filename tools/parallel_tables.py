"""The tables of part II among the measurements: of each, its headings and what makes it from rows."""

import numpy as np

from ed_lib import timing
from ed_lib.parallel.costs import Link
from tools.tables import (
    ACCURACY,
    FLOOR,
    SEEDS,
    TIME,
    deviation,
    median_of,
    of_case,
    rates_table,
    table,
    under,
    whole,
)


def names(*keys):
    return {key.replace("_", " "): of_case(key) for key in keys}


def against_model(row):
    """The measured time as a multiple of the median of what the model predicts."""
    found = (row.results or {}).get("predicted")
    return f"{row.completion.median / np.median(found):.2f}" if found else ""


def predicted(row):
    return f"of {timing.text(row.results['predicted'][0])}"


def messages(rows):
    """The link that was fitted to all of them is told first."""
    make = table(names("bytes"), TIME | {"× model": under(against_model, predicted)})
    return f"The model: {Link(*rows[0].results['link'])}.\n\n{make(rows)}"


def algorithm(row):
    """One algorithm's time, and in brackets as a multiple of the model's."""
    multiple = against_model(row)
    text = f"{row.case['algorithm']} {timing.text(row.completion.median)}"
    return whole(f"{text} ({multiple})" if multiple else text)


def each(label, key, form):
    """For the small print: all values of a result, under what they are."""
    return lambda row: f"{label} " + ", ".join(form.format(value) for value in row.results[key])


def one(key, form):
    return lambda row: ", ".join(form.format(value) for value in row.results[key])


def by_rate(keys, rate):
    accuracy = lambda row: np.mean(row.results["accuracy"])  # noqa: E731
    return rates_table(names(*keys), lambda row: f"{row.case[rate]:g}", accuracy)


PARALLEL = {
    "message": [("A message between two ranks", messages)],
    "all-reduce": [(
        "An all-reduce: the time, and in brackets as a multiple of the model's",
        table(names("ranks", "bytes"), {"time (× model)": algorithm}),
    )],
    "data parallel step": [(
        "A training step of LeNet, by the way in which gradients are summed",
        table(names("way", "ranks", "batch"), TIME | {"× DDP": median_of("against DDP")}, [deviation]),
    )],
    "pipeline": [(
        "A batch through a pipeline, by schedule",
        table({"schedule": of_case("schedule"), "m": of_case("microbatches")},
              TIME | {"× simulator": median_of("ratio")}, [deviation]),
    )],
    "ED pipeline": [(
        "A batch through an ED pipeline",
        table({"how": of_case("how"), "m": of_case("microbatches")},
              TIME | {"× formula": median_of("ratio to formula")}
              | {"× simulator": median_of("ratio to predicted")}, [deviation]),
    )],
    "asynchronous, throughput": [(
        "A gradient, of four workers that sleep in place of computing",
        table(names("server", "workers"), TIME | FLOOR,
              [each("gradients of each", "gradients", "{}"),
               each("mean staleness of each", "mean_staleness", "{:.1f}")]),
    )],
    "asynchronous, lost updates": [(
        "Hogwild: additions that were lost",
        table(names("parameters", "nonzeros", "workers", "steps"),
              {"lost": one("lost", "{:.2%}"), "time": TIME["time"]},
              [each("loss, of that at the start", "loss", "{:.1e}")]),
    )],
    "source": [(
        "LeNet on Fashion-MNIST as in the source (there on one GPU 0.82, 3.7 s an epoch; on two 0.82, 3.8 s)",
        table(names("how", "devices", "batch", "lr", "images", "epochs") | SEEDS,
              ACCURACY | {"an epoch": TIME["time"]}),
    )],
    "scaling": [(
        "LeNet with a larger batch on more simulated devices",
        table(names("devices", "batch", "policy", "images", "epochs") | SEEDS, ACCURACY),
    )],
    "asynchronous, accuracy": [(
        "Servers and workers on a virtual clock: accuracy after the same number of gradients",
        by_rate(("method", "data", "gradients"), "lr"),
    )],
    "streaming ED": [(
        "Streaming ED: accuracy by the number of stages, of which the first is the latest",
        by_rate(("rule", "stages", "longest_delay", "images"), "rate"),
    )],
}  # fmt: skip
