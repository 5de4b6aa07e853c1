"""Writes the page that lists every recorded measurement: `python -m tools.measurements`."""

from ed_lib import records, timing
from tools.notebooks import ROOT

PAGE = ROOT / "book" / "appendix" / "measurements.md"
INTRODUCTION = """# Measurements

Every recorded run, in full. A chapter measures on the machine in front of you, and draws these beside.

A record is written by `make records`, or on a machine with a GPU by `make gpu`. Each version first had to
agree with a float64 reference; its largest deviation stands in the last column. Times are medians of
repeated runs after a warm-up, with quartiles, until the work was done; versions under one heading took
turns. *Launch* is the time until the call returned, where that is another one. *Floor* is the time that
nothing can beat on that machine: the bytes that must be moved over its bandwidth, or the operations over
its rate, whichever is longer. The same case may stand under several headings, and differ there by as much as
other programs disturbed the machine: compare within a heading. $D$ is the depth, $W$ the width, $K$ the
number of networks.
"""
NO_GPU = "\nNo GPU has been measured yet. There is no record of one, and none is estimated.\n"
TITLES = {
    "article": "The source article's formulas",
    "paths": "The paths through the network",
    "by hand": "ED and backpropagation by hand",
    "autograd": "ED and PyTorch's autograd",
    "depth": "A step, by depth",
    "width": "A step, by width",
    "networks": "A step, by number of networks",
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
        text += f"\n## {record.device}: `{record.benchmark}`\n\n{provenance(record)}\n"
        for name in dict.fromkeys(row.case["table"] for row in record.rows):
            lines = [COLUMNS, ["---"] * len(COLUMNS), *map(cells, record.select(table=name))]
            body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
            text += f"\n### {TITLES[name]}\n\n{body}\n"
    return text


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


def main():
    PAGE.write_text(page(records.load("ed")))
    print(f"{PAGE.relative_to(ROOT)} written")


if __name__ == "__main__":
    main()
