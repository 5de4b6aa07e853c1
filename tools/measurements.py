"""Writes the pages of the recorded measurements: `python -m tools.measurements`.

One page lists the records and says how to read them; below it each has a page of its own, at the same place
as its file: records/<machine>/<name>.json, book/appendix/measurements/<machine>/<name>.md.
"""

import os

from ed_lib import records
from tools.ed_tables import ACCURACIES, ED
from tools.lstm_tables import LSTM
from tools.pages import ROOT
from tools.parallel_tables import PARALLEL
from tools.precision_tables import PRECISION
from tools.tables import HYPHEN

OVERVIEW = ROOT / "book" / "appendix" / "measurements.md"
PAGES = OVERVIEW.with_suffix("")
LONG = 45  # lines of a table; a longer one is folded
INTRODUCTION = """# Measurements

A chapter measures on the machine in front of you, and draws beside it what was recorded on others. Each
record has a page here, with its tables, the machine, the versions and the code.

## How to read a record

A record is written by `make records`, or on a machine with a GPU by `make gpu`. Each version first had to
agree with a float64 reference; its *deviation* says how well it did.

- **time**: the median of repeated runs after a warm-up, until the work was done, on a GPU by its own
  clock. Under it are the quartiles, and the *launch* where that is another time: until the call returned.
- **× floor**: the time as a multiple of the *floor*, the time under it, which nothing can beat on that
  machine: the bytes that must be moved over its bandwidth, or the operations over its rate, whichever is
  longer.
- **× something else**: as the page says; a speed, so many times as fast, or the time as a multiple of a
  model's.
- **accuracy**: on the test images, the mean over the seeds; under it the lowest and highest, and how many
  there are.

Versions under one heading took turns. The same case may stand under several headings, and differ there by
as much as other programs disturbed the machine: compare within a heading. What is the same in all rows of
a table is said above it. *D* is the depth, *W* the width, *K* the number of networks.

## Records

A record keeps a hash of the code that it measured. *Changed* means that this code is no longer the
same, be it in a comment only, and nobody has measured again.
"""
NO_GPU = "\nNo GPU has been measured yet. There is no record of one, and none is estimated.\n"
KINDS = {
    "ed": (
        "Steps of ED",
        """Times of ED's forward pass, its update and whole steps, beside the source article's formulas and
beside backpropagation. *D* is the depth, *W* the width in pairs of cells, *K* the number of networks.""",
        ED,
    ),
    "accuracy": (
        "What ED learns",
        """The accuracy on the test images. All choices (rates, optimizers) were made on training images
that were held out, by the short runs listed under *every rate*, which give the mean accuracy on those
images. *W* counts pairs of cells in a hidden layer of one network; *one a class* has ten such networks.
Runs shared the machine, one thread each, so their seconds are only a guide; steps timed in turns stand
last.""",
        ACCURACIES,
    ),
    "parallel": (
        "Messages, steps and pipelines",
        """Processes on one machine's CPU, with one thread each, which send each other messages by gloo;
more of them than there are cores take turns. *Model* is the time in the α–β model of the link, *simulator*
that of the pipeline on paper with each stage's measured times; *m* is the number of micro-batches. *× DDP*,
*× model*, *× simulator* and *× formula* are the time as a multiple of theirs.""",
        PARALLEL,
    ),
    "parallel_accuracy": (
        "What is learned on many devices",
        """No choice was made by these accuracies: every rate stands there, with the accuracy on the test
images.""",
        PARALLEL,
    ),
    "precision": (
        "Steps in few bits",
        """*2.10× float32* means: 2.1 times as fast as float32 in the same turns. On a GPU float32 is
computed as such, unless it says `tf32`. `bfloat16` and `float16` are mixed precision by autocast, with
float32 weights; `fp8` has linear layers in FP8, and the rest in bfloat16. Every optimizer is fused. The
deviation is that of the loss, or of all gradients as one vector, relative to its size. A machine without a
GPU has no rows for TF32, FP8 and CUDA graphs, and none for the encoder in float16, where a step would take
half a minute; *emulated* float16 is there in its place.""",
        PRECISION,
    ),
    "precision_accuracy": (
        "What is learned in few bits",
        """The formats are emulated throughout; *alone* means that the weights too are in that format,
without masters and without loss scaling, and `fp8` leaves the rest in float32. Points against float32 are
given seed by seed.""",
        PRECISION,
    ),
    "lstm": (
        "Rungs of the LSTM",
        """LSTMs with as many inputs as hidden numbers: the rungs of NVIDIA's ladder, `nn.LSTM`, and on a
GPU a persistent kernel. *T* is the number of steps, *B* the batch, *H* the hidden size, *L* the layers;
where a table does not say, they are NVIDIA's: *T* = 100, *B* = 64, *H* = 512. GFLOP/s are the operations of
the matrix products as NVIDIA counted them, over the median time; *published* is its figure, of a Tesla M40.
*× baseline* means: so many times as fast as the baseline in the same turns; *before* is the rung before. In
the table of the whole climb, as NVIDIA compared, it is so many times the GFLOP/s of the baseline with one
layer. Products, other launches and the bytes that they touch were counted. float32 is computed as such, in
cuDNN too, whose own choice would be TF32. The deviation is relative to the largest number of a result;
forward and backward, the gradients are among the results.""",
        LSTM,
    ),
}


def overview(found):
    """The text of the page that lists the records."""
    text = INTRODUCTION
    if not any(record.provenance["gpu"] for record in found):
        text += NO_GPU
    for machine in dict.fromkeys(record.machine for record in found):
        mine = [record for record in found if record.machine == machine]
        text += f"\n### {mine[0].device}\n\n| record | measured | code since |\n| --- | --: | --: |\n"
        for record in mine:
            link = f"[{KINDS[record.benchmark][0]}]({PAGES.name}/{machine}/{record.benchmark}.md)"
            code = "changed" if records.is_older(record) else "the same"
            date = record.provenance["date"].replace("-", HYPHEN)
            text += f"| {link} | {date} | {code} |\n"
    return text


def page(record):
    """The text of a record's page."""
    title, meaning, _ = KINDS[record.benchmark]
    file = f"records/{record.machine}/{record.benchmark}.json"
    made = record.provenance
    return f"""# {title}: {record.label}

{meaning}

Measured on {made["date"]} on {record.device}. [How to read a record]({up(record)}). Numbers are rounded
here; all {len(record.rows):,} rows, with bytes, operations, and each seed's results, are in the repository in
`{file}`.{below_floor(record)}

:::{{dropdown}} What made this record
{provenance(record)}
:::
{tables(record)}"""


def below_floor(record):
    """A sentence about the rows that are faster than should be possible, where there are any."""
    number = sum(bool(row.floor) and row.completion.median < row.floor for row in record.rows)
    rows = "row is" if number == 1 else "rows are"
    return f" {number} {rows} below the floor: the ceilings were measured too low." if number else ""


def path(record):
    return PAGES / record.machine / f"{record.benchmark}.md"


def up(record):
    return os.path.relpath(OVERVIEW, path(record).parent)


def tables(record):
    """The tables of a record, each under its heading."""
    kinds, text = KINDS[record.benchmark][2], ""
    for name in dict.fromkeys(row.case["table"] for row in record.rows):
        for title, make in kinds[name]:
            text += f"\n## {title}\n\n{folded(make(record.select(table=name)))}\n"
    return text


def folded(table):
    """A table as it is, or if it is long, in a fold."""
    lines = sum(line.startswith("| ") for line in table.splitlines()) - 2
    return f":::{{dropdown}} All {lines} lines\n{table}\n:::" if lines > LONG else table


def provenance(record):
    """What made a record, as a list."""
    made, gpu = record.provenance, record.provenance["gpu"]
    versions = ", ".join(f"{name} {number}" for name, number in made["versions"].items() if number)
    facts = [f"Processor: {made['cpu']}; PyTorch on {made['threads']}, BLAS on {made['blas_threads']}"]
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


def recorded():
    """All records, machine by machine, in the order of the parts."""
    found = [record for benchmark in KINDS for record in records.load(benchmark)]
    return sorted(found, key=lambda record: record.machine)


def written(found):
    """{path: text} of all pages."""
    return {OVERVIEW: overview(found)} | {path(record): page(record) for record in found}


def main():
    pages = written(recorded())
    for old in set(PAGES.rglob("*.md")) - set(pages):
        old.unlink()
    for file, text in pages.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    print(f"{OVERVIEW.relative_to(ROOT)} and {len(pages) - 1} pages below it written")


if __name__ == "__main__":
    main()
