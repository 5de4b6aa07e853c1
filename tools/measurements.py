"""Writes the page that lists every recorded measurement: `python -m tools.measurements`."""

import numpy as np

from ed_lib import records, timing
from tools.lstm_tables import LSTM
from tools.notebooks import ROOT
from tools.parallel_tables import PARALLEL
from tools.precision_tables import PRECISION

PAGE = ROOT / "book" / "appendix" / "measurements.md"
INTRODUCTION = """# Measurements

Every recorded run, in full. A chapter measures on the machine in front of you, and draws these beside.

A record is written by `make records`, or on a machine with a GPU by `make gpu`. Each version first had to
agree with a float64 reference; its largest deviation stands in the last column. Times are medians of
repeated runs after a warm-up, with quartiles, until the work was done, on a GPU by its own clock; versions
under one heading took turns. *Launch* is the time until the call returned, where that is another one.
*Floor* is the time that
nothing can beat on that machine: the bytes that must be moved over its bandwidth, or the operations over
its rate, whichever is longer. The same case may stand under several headings, and differ there by as much as
other programs disturbed the machine: compare within a heading. $D$ is the depth, $W$ the width, $K$ the
number of networks.

The record `accuracy` holds what was learned: the accuracy on the test images, its mean over the seeds and the
lowest and highest of them. All choices (rates, optimizers) were made on training images that were held out,
by the short runs listed under *every rate*, which give the mean accuracy on those images. $W$ counts pairs of
cells in a hidden layer of one network; *one a class* has ten such networks. Runs shared the machine, one
thread each, so their seconds are only a guide; steps timed in turns stand last.

The records `parallel` and `parallel_accuracy` are of processes on one machine's CPU, with one thread each,
which send each other messages by gloo; more of them than there are cores take turns. *Model* is the time in
the α–β model of the link, *simulator* that of the pipeline on paper with each stage's measured times; $m$ is
the number of micro-batches. No choice was made by the accuracies: every rate stands there, with the accuracy
on the test images.

The records `precision` and `precision_accuracy` are of training in few bits. *2.10× float32* means: 2.1 times
as fast as float32 in the same turns. On a GPU float32 is computed as such, unless it says `tf32`. `bfloat16`
and `float16` are mixed precision by autocast, with float32 weights; `fp8` has linear layers in FP8, and the
rest in bfloat16. Every optimizer is fused. The deviation is that of the loss, or of all gradients as one
vector, relative to its size. A machine without a GPU has no rows for TF32, FP8 and CUDA graphs, and none for
the encoder in float16, where a step would take half a minute; *emulated* float16 is there in its place. The
record `precision_accuracy` is of emulated formats throughout; *alone* means that the weights too are in that
format, without masters and without loss scaling, and `fp8` leaves the rest in float32.

The record `lstm` is of LSTMs with as many inputs as hidden numbers: the rungs of NVIDIA's ladder, `nn.LSTM`,
and on a GPU a persistent kernel. $T$ is the number of steps, $B$ the batch, $H$ the hidden size, $L$ the
layers; where a table does not say, they are NVIDIA's: $T = 100$, $B = 64$, $H = 512$. GFLOP/s are the
operations of the matrix products as NVIDIA counted them, over the median time; *published* is its figure, of
a Tesla M40. *× baseline* means: so many times as fast as the baseline in the same turns; *before* is the rung
before. In the table of the whole climb, as NVIDIA compared, it is so many times the GFLOP/s of the baseline
with one layer. Products, other launches and the bytes that they touch were counted. float32 is computed as
such, in
cuDNN too, whose own choice would be TF32. The deviation is relative to the largest number of a result;
forward and backward, the gradients are among the results.
"""
BENCHMARKS = ("ed", "accuracy", "parallel", "parallel_accuracy", "precision", "precision_accuracy", "lstm")
NO_GPU = "\nNo GPU has been measured yet. There is no record of one, and none is estimated.\n"
TITLES = {
    "article": "The source article's formulas",
    "paths": "The paths through the network",
    "by hand": "ED and backpropagation by hand",
    "autograd": "ED and PyTorch's autograd",
    "depth": "A step, by depth",
    "width": "A step, by width",
    "networks": "A step, by number of networks",
    "variants": "How the kernels are cut, on a GPU",
}
ACCURACY_TITLES = {
    "rates": "Ten classes, every rate: short runs",
    "ten": "Ten classes, at the best rate: five passes",
    "rates, two classes": "Two classes, every rate: short runs",
    "tasks": "Two classes, at the best optimizer and rate: five passes; logistic regression: ten",
    "depth": "Even or odd, by depth, start and rate: short runs",
    "freeze": "Only some layers learn: one pass, constant rate",
    "rates, routing": "Routed errors, every rate: short runs",
    "routing": "Routed errors, at the best rate: five passes",
    "best": "Ten classes, wider, at the same rates: eight passes",
    "seconds": "A step of the ten-class task, in turns, one thread",
}
COLUMNS = (
    "what",
    "how",
    "arrays",
    "$D$",
    "$W$",
    "$K$",
    "time",
    "quartiles",
    "launch",
    "floor",
    "time / floor",
    "deviation",
)


def page(found):
    """The page's text for a list of :class:`ed_lib.records.Record`."""
    text = INTRODUCTION
    if not any(record.provenance["gpu"] for record in found):
        text += NO_GPU
    for record in found:
        text += f"\n## {record.device}: `{record.benchmark}`\n\n{provenance(record)}\n{tables(record)}"
    return text


def tables(record):
    """The tables of a record, each under its heading."""
    text = ""
    for name in dict.fromkeys(row.case["table"] for row in record.rows):
        rows = record.select(table=name)
        for title, (head, *lines) in sections(record.benchmark, name, rows):
            body = "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])
            text += f"\n### {title}\n\n{body}\n"
    return text


def sections(benchmark, name, rows):
    """[(heading, [head, line, …])] of one table of a record."""
    if benchmark == "ed":
        return [(TITLES[name], [COLUMNS, *map(cells, rows)])]
    if benchmark == "accuracy":
        return [(ACCURACY_TITLES[name], learned(name, rows))]
    if benchmark == "lstm":
        title, make = LSTM[name]
        return [(title, make(rows))]
    kinds = PRECISION.get(name) or [PARALLEL[name]]
    return [(title, make(rows)) for title, make in kinds]


def provenance(record):
    """What made a record, as a list."""
    made, gpu = record.provenance, record.provenance["gpu"]
    versions = ", ".join(f"{name} {number}" for name, number in made["versions"].items() if number)
    facts = [
        f"Date: {made['date']}",
        f"Processor: {made['cpu']}; PyTorch on {made['threads']}, BLAS on {made['blas_threads']}",
    ]
    if gpu:
        facts.append(
            f"GPU: {gpu['name']}, {gpu['memory'] / 2**30:.0f} GiB, driver {gpu['driver']}, CUDA {gpu['cuda']}"
        )
    facts += [f"Versions: {versions}", f"Operating system: {made['os']}", f"Command: `{made['command']}`"]
    facts += [f"Code: SHA-256 `{made['code'][:16]}…` over {', '.join(made['modules'])}"]
    for roof in record.ceilings:
        speeds = f"{roof.bandwidth / 1e9:.3g} GB/s ({roof.access}), {roof.rate / 1e9:.3g} GFLOP/s"
        facts.append(f"Ceilings: {speeds} in {roof.dtype}")
    return "\n".join(f"- {fact}" for fact in facts)


def cells(row):
    """A row of the record as texts, one for each of the COLUMNS."""
    case, time = row.case, row.completion
    return [
        case["what"],
        case["how"],
        f"{case['library']} {case['dtype']}",
        *(str(case[name]) for name in ("depth", "width", "n_outputs")),
        timing.text(time.median),
        f"{timing.text(time.q1)} – {timing.text(time.q3)}",
        timing.text(row.launch) if row.launch is not None else "",
        timing.text(row.floor),
        f"{time.median / row.floor:.1f}",
        f"{row.error:.1e}" if row.error is not None else "",
    ]


HOW = {
    "ed": "ED, {}",
    "squared": "backpropagation, squared error",
    "cross_entropy": "backpropagation, cross-entropy",
    "logistic": "logistic regression",
}
LEARNER = ("images", "task", "network", "learns by", "optimizer", "rate", "$W$", "$D$", "start", "layers that learn")  # fmt: skip  # noqa: E501


def learned(name, rows):
    """The head and the lines of a table of the record "accuracy"."""
    if name == "seconds":
        return [(*LEARNER[:5], "time", "quartiles"), *map(step_cells, rows)]
    if name == "depth" or name.startswith("rates"):
        return by_rate(rows)
    return [(*LEARNER, "accuracy", "lowest – highest", "n", "seconds"), *map(accuracy_cells, rows)]


def learner_cells(row):
    """What was trained and how, as texts, one for each of LEARNER."""
    case = row.case
    how, layers = HOW[case["method"]].format(case["rule"]), ", ".join(case["learns"] or ["all"])
    sizes = f"{case['rate']:g}", str(case["width"]), str(case["depth"])
    what = case["data"], case["task"], case["network"], how, case["optimizer"]
    return [*what, *sizes, case["init"].replace("_", "-"), layers]


def accuracy_cells(row):
    """The same, with the accuracy over the seeds and the median seconds of training."""
    found = row.results["accuracy"]
    texts = f"{np.mean(found):.2%}", f"{min(found):.2%} – {max(found):.2%}", str(len(found))
    return [*learner_cells(row), *texts, f"{row.completion.median:.3g}"]


def step_cells(row):
    """What was trained, and the time of a step."""
    time = row.completion
    quartiles = f"{timing.text(time.q1)} – {timing.text(time.q3)}"
    return [*learner_cells(row)[:5], timing.text(time.median), quartiles]


def by_rate(rows):
    """One line for each learner: its mean accuracy on the images held out, at each rate."""
    lines = {}
    for row in rows:
        key = tuple(text for n, text in enumerate(learner_cells(row)[:-1]) if n != 5)  # without the rate
        lines.setdefault(key, []).append(f"{row.case['rate']:g}: {np.mean(row.results['held_out']):.1%}")
    head = [name for n, name in enumerate(LEARNER[:-1]) if n != 5]
    return [[*head, "accuracy at each rate"], *([*key, ", ".join(found)] for key, found in lines.items())]


def main():
    PAGE.write_text(page(recorded()))
    print(f"{PAGE.relative_to(ROOT)} written")


def recorded():
    """All records, machine by machine."""
    found = [record for benchmark in BENCHMARKS for record in records.load(benchmark)]
    return sorted(found, key=lambda record: record.machine)


if __name__ == "__main__":
    main()
