"""The front page: `python -m tools.front` writes its numbers (of records, or published), its figure and the
list of chapters into PAGES; the findings' words are in front.md, and in front_ja.md.
"""

import json
import re
from functools import cache, partial
from types import SimpleNamespace

import matplotlib.pyplot as plt

from ed_lib import figures, records, timing
from tools import notebooks
from tools.pages import ROOT, by_part

TEXTS, PICTURE = ROOT / "tools" / "front.md", ROOT / "book" / "_static" / "front.png"
PAGES, INK = ("index.md", "README.md", "index_ja.md", "README.ja.md"), "#404040"
CORE = "error_diffusion every_layer_at_once honest_timing fast_forward splitting_the_work data_parallel "
CORE += "ten_thousand_devices mixed_precision one_token_at_a_time many_steps"  # what one reads first
# qiita2024: its forward pass in seconds, and its GPU's float64 FLOP/s by the data sheet; NVIDIA's M40
# (nvidia_m40): cores, FMA, GHz
FORWARD, RTX_3070, M40 = 3.02, 0.317e12, 3072 * 2 * 1.114


@cache
def on_cpus(benchmark):
    """The records of a benchmark on machines without a GPU, the newest last."""
    found = [record for record in records.by_machine(benchmark).values() if not record.attrs["gpu"]]
    return sorted(found, key=lambda record: record.attrs["date"])


def in_16_bits():
    """[(how many times as fast as float32's a step in bfloat16 is, its limit, the machine), …], rising."""
    case = {"table": "training step", "how": "eager", "model": "MLP", "batch": 4096}
    gains = []
    for each in on_cpus("precision"):
        low, full = (records.row(each, **case, format=name) for name in ("bfloat16", "float32"))
        gains.append((low["against float32"], full["floor"] / low["floor"], each.attrs["label"]))
    return sorted(gains)


def at(benchmark, column="seconds", **case):
    return records.row(on_cpus(benchmark)[-1], **case)[column]


def numbers():
    """All numbers that the findings and the figure say, not yet rounded, by name."""
    ours = partial(at, "ed", depth=4096, table="paths", how="kernel", threads=2)
    work = partial(at, "parallel", table="asynchronous, throughput")  # seconds a gradient
    wait, free, even, slow = "synchronous", "asynchronous", "even", "one slow by 5×"
    (small, *_), (large, bits_limit, _) = in_16_bits()[0], in_16_bits()[-1]
    four, one = (
        records.rows(on_cpus("lstm")[-1], table="ladder", layers=k).set_index("what") for k in (4, 1)
    )
    start, published = four["seconds"]["baseline"], one["published"]
    late = work(server=wait, workers=slow)
    return SimpleNamespace(
        published_limit=FORWARD * RTX_3070 / ours("floor_flops", what="update"),
        at_once=ours(what="forward") / ours(what="update"),
        wait=work(server=wait, workers=even) / late,
        free=work(server=free, workers=even) / work(server=free, workers=slow),
        no_barrier=late / work(server=free, workers=slow),
        no_barrier_limit=work("floor", server=wait, workers=slow) / work("floor", server=free, workers=slow),
        small=small,
        large=large,
        bits_limit=bits_limit,
        climb=four["published"]["wavefront"] / published["baseline"],
        one_layer=published["combined_inputs"] / published["baseline"],
        climb_limit=M40 / published["baseline"],
        cpu_climb=start / four["seconds"].drop("nn.LSTM").min(),
        cpu_torch=start / four["seconds"]["nn.LSTM"],
        cpu_limit=start / min(four["floor"].min(), four["seconds"].min()),  # what is faster moves it
    )


def chapters():
    """All chapters by part: title, question, and the reading time that their box states."""
    lines, last = [], ""
    for part, name in by_part():
        if (path := ROOT / f"{name}.ipynb").exists():
            cells = [cell.source for cell in notebooks.read(path).cells]
            title, question = cells[0].removeprefix("# ").split("\n\n")[:2]
            time = re.search(r"\*\*Time:\*\* (\d+) min", "\n".join(cells))[1]
            lines += ["", f"### {part}", ""] * (part != last)
            bold = "**" if path.stem in CORE.split() else ""
            lines.append(f"- [{bold}{title}{bold}]({name}.ipynb) {question.strip('*')} *{time} min*")
            last = part
    return "\n".join(lines)


def measured():
    """A row for each machine with a record of ED; an LSTM's time stands where the machine has one too."""
    lines = ["| machine | date | a step of ED | 100 steps of an LSTM | float32, at most |", "|" + "---|" * 5]
    of_lstm = records.by_machine("lstm")
    for machine, ed in sorted(records.by_machine("ed").items()):
        paths = records.rows(ed, table="paths", depth=4096).groupby("what")["seconds"].min()
        case = {"table": "ladder", "layers": 1, "what": "nn.LSTM"}
        lstm = [timing.tell(records.row(of[machine], **case)["seconds"]) for of in [of_lstm] if machine in of]
        top = next(one for one in ed.attrs["ceilings"] if one["dtype"] == "float32")
        speed = f"{top['bandwidth'] / 1e9:.0f} GB/s, {top['rate'] / 1e9:.0f} GFLOP/s"
        when, step = ed.attrs["date"], timing.tell(paths.sum())
        lines.append(f"| {ed.attrs['device']} | {when} | {step} | {''.join(lstm)} | {speed} |")
    return "\n".join(lines)


def blocks():
    """{name of a block: its text}: what the command writes into PAGES."""
    machines = {f"{name}_machine": on_cpus(name)[-1].attrs["label"] for name in ("ed", "parallel")}
    machines["precision_machines"] = "; ".join(label for *_, label in in_16_bits()[::-1])
    found = vars(numbers()) | machines
    alt = "How many times as fast: " + "; ".join(f"{row[0]}: {said(row[1], row[3])}" for row in drawn())
    return {
        "figure": f'<img src="book/_static/front.png" alt="{alt}." width="560px" class="dark-light">',
        "findings": TEXTS.read_text().format(**found),
        "findings_ja": TEXTS.with_stem("front_ja").read_text().format(**found),
        "chapters": chapters(),
        "machines": measured(),
    }


def filled(page):
    """``page`` with the blocks between its markers, <!-- name: … --> and <!-- end of name -->."""
    for name, text in blocks().items():
        lines = rf"(<!-- {name}: .* -->\n)[\s\S]*(<!-- end of {name} -->)"
        page = re.sub(lines, lambda mark, text=text: f"{mark[1]}\n{text.strip()}\n\n{mark[2]}", page)
    return page


def drawn():
    """The figure's rows: (title, published, its limit, measured, its limit)."""
    n = numbers()
    return [
        ("All layers at once", [3000], [n.published_limit], [n.at_once], []),
        ("No wait for a slow worker", [], [], [n.no_barrier], [n.no_barrier_limit]),
        ("Training in 16 bits", [2], [], [n.small, n.large], [n.bits_limit]),
        ("The LSTM in cuDNN", [n.climb], [n.climb_limit], [n.cpu_climb, n.cpu_torch], [n.cpu_limit]),
    ]


def said(published, measured):
    """What the figure writes beside a row: "2× published, 0.6–2.0× measured"."""
    first = "".join(f"{value:,.0f}× published, " for value in published)
    return f"{first}{'–'.join(f'{value:.1f}' for value in measured)}× measured"


def draw():
    """Draws the rows, dark on white in either theme. The picture's metadata tell them, to a test."""
    ink = {key: INK for key, colour in figures.STYLE.items() if colour == figures.INK}
    colours = [figures.ORANGE] * 2 + [figures.BLUE] * 2  # of published, its limit, measured, its limit
    with plt.rc_context(figures.STYLE | ink):
        fig, ax = plt.subplots(figsize=(4.3, 3.15))
        for y, (title, *values) in enumerate(drawn()):
            beside = {"y": y - 0.36, "transform": ax.get_yaxis_transform()}
            ax.text(0, s=title, weight="bold", **beside)
            ax.text(1, s=said(values[0], values[2]), size=9, ha="right", **beside)
            for x, colour, marker in zip(values, colours, "o|o|", strict=True):
                face, size = colour if colour == figures.BLUE else "none", 10 if marker == "o" else 18
                ax.plot(x, [y] * len(x), marker, color=colour, mfc=face, ms=size, mew=1.8)
        ax.set(xscale="log", xlim=(0.3, 5000), ylim=(3.4, -0.8), yticks=[], facecolor="none")
        ax.set_xticks([1, 10, 100, 1000], ["1×", "10×", "100×", "1,000×"])
        ax.set_xlabel("times as fast, published (○) and measured (●); limits (|)", size=9.5)
        about = {"Software": None, "Description": json.dumps(drawn())}
        fig.savefig(PICTURE, dpi=200, facecolor="white", metadata=about)


if __name__ == "__main__":
    draw()
    for page in PAGES:
        (ROOT / page).write_text(filled((ROOT / page).read_text()))
