"""Writes the pages of the recorded measurements: `python -m tools.measurements`.

One page lists the records and says how to read them; below it each has a page of its own, at the same place
as its file: records/<machine>/<name>.json, book/appendix/measurements/<machine>/<name>.md.

Its tables suit a phone: in the first column what was measured, then two or three numbers. Each benchmark
declares them, as ``benchmarks.harness.Shown``. What is the same in all rows is said once, above; what matters
less stands in small print, under the number to which it belongs. Rows that bear the same name share a line.
"""

import importlib
import importlib.util
import os

import numpy as np

from benchmarks import old_records as records
from ed_lib import timing
from tools.pages import ROOT

HYPHEN = "\N{NON-BREAKING HYPHEN}"

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
- **× floor**: the time as a multiple of the *floor*, the time under it, the least that the work could take
  on that machine: the bytes that must be moved over its bandwidth, or the operations over its rate,
  whichever is longer.
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
BENCHMARKS = ("ed", "accuracy", "relatives", "deep", "language", "controls", "parallel", "parallel_accuracy",
              "precision", "precision_accuracy", "finetuning", "few_bits", "optimizer_states", "one_token",
              "lstm", "lstm_cpu", "recurrences", "critical_batch")  # fmt: skip
KINDS = {}
for name in BENCHMARKS:  # those that still declare their pages
    if importlib.util.find_spec(f"benchmarks.{name}"):
        KINDS[name] = importlib.import_module(f"benchmarks.{name}")


def overview(found):
    """The text of the page that lists the records."""
    text = INTRODUCTION
    if not any(record.provenance["gpu"] for record in found):
        text += NO_GPU
    for machine in dict.fromkeys(record.machine for record in found):
        mine = [record for record in found if record.machine == machine]
        text += f"\n### {mine[0].device}\n\n| record | measured | code since |\n| --- | --: | --: |\n"
        for record in mine:
            link = f"[{KINDS[record.benchmark].TITLE}]({PAGES.name}/{machine}/{record.benchmark}.md)"
            code = "changed" if records.is_older(record) else "the same"
            date = record.provenance["date"].replace("-", HYPHEN)
            text += f"| {link} | {date} | {code} |\n"
    return text


def page(record):
    """The text of a record's page."""
    of = KINDS[record.benchmark]
    file = f"records/{record.machine}/{record.benchmark}.json"
    made = record.provenance
    return f"""# {of.TITLE}: {record.label}

{of.MEANING}

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
    text = ""
    for name in dict.fromkeys(row.case["table"] for row in record.rows):
        for shown in KINDS[record.benchmark].PAGE[name]:
            text += f"\n## {shown.title}\n\n{folded(render(shown, record.select(table=name)))}\n"
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
    for roof in dict.fromkeys(record.ceilings):  # one for each time that a part was measured
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


# The tables.


def render(shown, rows):
    """A table of a record's rows, in Markdown."""
    rows = [row for row in rows if shown.where(row)]
    if shown.lines:
        head, *body = shown.lines(rows)
        return markdown(head, body)
    names = dict(named(name) for name in shown.names)
    head, common, lines = grouped(rows, names)
    if shown.above:
        common = f"{shown.above(rows)}\n\n{common}"
    if shown.best or shown.together:
        title, of = shown.together or ("highest, at its rate; at others", best_of(*shown.best))
        return common + markdown([head, title], [[name, of(members)] for name, members in lines])
    numbers = dict(numbered(number) for number in shown.numbers)
    numbers = {title: of for title, of in numbers.items() if any(map(of, rows))}
    details = [KNOWN.get(of, of) for of in shown.details]
    body = []
    for name, members in lines:
        below = small(joined("; ", (of(row) for row in members for of in details)))
        body.append([name + below, *(joined("<br>", map(of, members)) for of in numbers.values())])
    return common + markdown([head, *numbers], body)


def named(name):
    """(head, function of a row) of a name, which may be a key of the case."""
    head, of = (name.replace("_", " "), name) if isinstance(name, str) else name
    if of == "seeds":
        return "n", lambda row: len(row.results["accuracy"])
    return head, of if callable(of) else lambda row: row.case.get(of, "")


def numbered(number):
    """(head, function of a row → text) of a number, which may be one that is known."""
    head, of = (number, number) if isinstance(number, str) else number
    of = KNOWN.get(of, of)
    return head, lambda row: cell(of(row))


def cell(text):
    """A text as it is; or a number with what belongs to it in small print below, neither of which wraps."""
    return text if isinstance(text, str) else whole(text[0]) + small(whole(text[1]))


def best_of(key, accuracy):
    """Of some rows the highest accuracy, with its rate, and then the others."""

    def text(rows):
        best = max(rows, key=accuracy)
        others = (f"{row.case[key]:g}: {accuracy(row):.1%}" for row in rows if row is not best)
        return f"{accuracy(best):.1%} at {best.case[key]:g}" + small(", ".join(others))

    return text


def grouped(rows, names):
    """The head of the first column, a sentence on what all rows share, and [(name, its rows), …]."""
    values = {head: [of(row) for row in rows] for head, of in names.items()}
    telling = [head for head, found in values.items() if len(set(found)) > 1] or [next(iter(names))]
    same = {head: found[0] for head, found in values.items() if head not in telling and found[0] != ""}
    shared = [f"{head} {v}" if isinstance(v, str) else called(head, v) for head, v in same.items()]
    lines = {}
    for n, row in enumerate(rows):
        name = " · ".join(called(head, values[head][n]) for head in telling if values[head][n] != "")
        lines.setdefault(name, []).append(row)
    common = f"In all rows: {'; '.join(shared)}.\n\n" if shared else ""
    return ", ".join(telling), common, list(lines.items())


def called(head, value):
    """A value as part of a name; a number is told with its head, and text speaks for itself."""
    if isinstance(value, str):
        return value.replace("_", "_<wbr>")  # where a long name may be broken
    return f"{head} = {value}" if len(head) == 1 else f"{head} {value:,}"


def markdown(head, lines):
    marks = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, marks, *lines])


def joined(mark, texts):
    """Texts in one, each of them once, without the empty ones."""
    return mark.join(filter(None, dict.fromkeys(texts)))


def small(text):
    """Small print on a line of its own; nothing, of nothing."""
    return f"<br><small>{text}</small>" if text else ""


def whole(text):
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def time(row):
    """The median; under it the quartiles, with the unit once where it is the same: "7.32 – 7.82 ms"."""
    low, high = timing.text(row.completion.q1), timing.text(row.completion.q3)
    number, _, unit = low.partition(" ")
    quartiles = f"{number if unit and high.endswith(f' {unit}') else low} – {high}"
    launch = f"launch {timing.text(row.launch)}" if row.launch is not None else ""
    return timing.text(row.completion.median), joined("<br>", (quartiles, launch))


def floor(row):
    """The time as a multiple of the floor, and under it the floor."""
    return (f"{row.completion.median / row.floor:.1f}", f"of {timing.text(row.floor)}") if row.floor else ""


def accuracy(row):
    """The mean over the seeds; under it the lowest and the highest."""
    found = row.results["accuracy"]
    return f"{np.mean(found):.2%}", f"{100 * min(found):.2f} – {max(found):.2%}" if len(found) > 1 else ""


def deviation(row):
    return f"deviation {row.error:.1e}".replace("-", HYPHEN) if row.error is not None else ""


KNOWN = {"time": time, "× floor": floor, "accuracy": accuracy, "deviation": deviation}


# The command.


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
