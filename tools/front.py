"""The front page: `python -m tools.front` writes its numbers (of records, or published), its figure and the
list of chapters into index.md and README.md; the findings' words are in front.md.
"""

import json
import re
from functools import cache, partial
from types import SimpleNamespace

import matplotlib.pyplot as plt

from ed_lib import figures, records
from tools import notebooks
from tools.pages import ROOT, by_part

TEXTS, PICTURE = ROOT / "tools" / "front.md", ROOT / "book" / "_static" / "front.png"
PAGES, INK = ("index.md", "README.md"), "#7a7a7a"
# The article of 2024 (qiita2024): seconds of a forward pass and of an update of all layers, on an RTX 3070 in
# float64, and the FLOP/s that the card's data sheet allows there (nvidia_ga102). GFLOP/s of the card that
# NVIDIA's ladder was climbed on: cores, FMA, GHz (nvidia_m40).
FORWARD, UPDATE, RTX_3070, M40 = 3.02, 1.10e-3, 0.317e12, 3072 * 2 * 1.114


@cache
def on_cpu(benchmark):
    """The newest record of a benchmark on a machine without a GPU."""
    found = [record for record in records.by_machine(benchmark).values() if not record.attrs["gpu"]]
    return max(found, key=lambda record: record.attrs["date"])


def at(benchmark, column="seconds", **case):
    return records.row(on_cpu(benchmark), **case)[column]


def numbers():
    """All numbers that the findings and the figure say, not yet rounded."""
    n = SimpleNamespace(published_s=FORWARD, published_ms=1e3 * UPDATE)
    ours = partial(at, "ed", depth=4096, table="paths", how="kernel", threads=2)
    n.forward_ms, n.update_ms = 1e3 * ours(what="forward"), 1e3 * ours(what="update")
    n.floor_ms = 1e3 * ours("floor_flops", what="update") / RTX_3070
    n.published_limit, n.at_once = 1e3 * FORWARD / n.floor_ms, n.forward_ms / n.update_ms
    hand = partial(at, "ed", depth=4096, table="by hand", threads=1)
    first = hand(how="ED, layers", what="forward")  # the same in both
    back = hand(how="by hand", what="chain") + hand(how="by hand", what="update")
    n.step = (first + back) / (first + hand(how="ED, layers", what="update"))

    wait, free = ({"server": f"{kind}synchronous"} for kind in ("", "a"))
    even, slow = {"workers": "even"}, {"workers": "one slow by 5×"}
    work = partial(at, "parallel", table="asynchronous, throughput")
    n.wait, n.wait_slow = 1 / work(**wait, **even), 1 / work(**wait, **slow)  # gradients a second
    n.free, n.free_slow = 1 / work(**free, **even), 1 / work(**free, **slow)
    n.late = max(work("mean_staleness", **free, **slow))
    n.no_barrier = n.free_slow / n.wait_slow
    n.no_barrier_limit = work("floor", **wait, **slow) / work("floor", **free, **slow)

    step, gain = partial(at, "precision", table="training step", how="eager"), "against float32"
    bert, large = {"model": "encoder", "batch": 2}, {"model": "MLP", "batch": 4096}
    n.small = step(gain, model="MLP", batch=1, format="bfloat16")
    n.bert, n.large = (step(gain, **model, format="bfloat16") for model in (bert, large))
    n.float16 = step(gain, **large, format="float16")
    sixteen, full = {"format": "bfloat16"}, {"format": "float32"}
    n.activations = step("activations", **bert, **sixteen) / step("activations", **bert, **full)
    n.bits_limit = step("floor", **large, **full) / step("floor", **large, **sixteen)
    runs = records.rows(on_cpu("precision_accuracy"), table="accuracy of formats")
    runs = runs[runs["format"].isin(["float16", "bfloat16"])]
    n.points = max(abs(points) for seeds in runs["points"] for points in seeds)

    four, one = (records.rows(on_cpu("lstm"), table="ladder", layers=k).set_index("what") for k in (4, 1))
    start, published = four["seconds"]["baseline"], one["published"]
    n.climb = four["published"]["wavefront"] / published["baseline"]
    n.climb_limit, n.one_layer = (m / published["baseline"] for m in (M40, published["combined_inputs"]))
    ours, torchs = four["seconds"].drop("nn.LSTM").min(), four["seconds"]["nn.LSTM"]
    n.cpu_climb, n.cpu_torch = start / ours, start / torchs
    n.cpu_limit = start / min(four["floor"].min(), four["seconds"].min())  # a time below the floor moves it
    return n


def chapters():
    """All chapters by part: title, question, and the reading time that their box states."""
    lines, last = [], ""
    for part, name in by_part():
        if (path := ROOT / f"{name}.ipynb").exists():
            cells = [cell.source for cell in notebooks.read(path).cells]
            title, question = cells[0].removeprefix("# ").split("\n\n")[:2]
            time = re.search(r"\*\*Time:\*\* (\d+) min", "\n".join(cells))[1]
            lines += ["", f"### {part}", ""] * (part != last)
            lines.append(f"- [**{title}**]({name}.ipynb) {question.strip('*')} *{time} min*")
            last = part
    return "\n".join(lines)


def blocks():
    """{name of a block: its text}: what the command writes into index.md and README.md."""
    parts = "ed", "parallel", "precision", "lstm"
    labels = {f"{name}_machine": on_cpu(name).attrs["label"] for name in parts}
    return {
        "figure": f'<img src="book/_static/front.png" alt="{alt()}" width="560px" class="dark-light">',
        "findings": TEXTS.read_text().format(**vars(numbers()), **labels),
        "chapters": chapters(),
    }


def filled(page):
    """``page`` with the blocks between its markers, <!-- name: … --> and <!-- end of name -->."""
    for name, text in blocks().items():
        start, end = f"<!-- {name}: by python -m tools.front -->\n", f"<!-- end of {name} -->"
        if start in page:
            before, rest = page.split(start)
            page = f"{before}{start}\n{text.strip()}\n\n{end}{rest.split(end)[1]}"
    return page


def drawn():
    """The figure's rows: (title, published, its limit, [slowest, fastest measured], their limit)."""
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


def alt():
    """What the figure shows, in words."""
    rows = []
    for title, published, its_limit, measured, limit in drawn():
        most = [f", at most {most:,.{int(most < 100)}f}× where it was published" for most in its_limit]
        most += [f", at most {most:,.1f}× where we measured" for most in limit]
        rows.append(f"{title}: {said(published, measured)}{''.join(most)}")
    return f"How many times as fast, on a logarithmic scale. {'; '.join(rows)}."


def draw():
    """Draws the rows, in ink for light and dark pages alike. The picture's metadata tell them, to a test."""
    with plt.rc_context(
        figures.STYLE | {key: INK for key, ink in figures.STYLE.items() if ink == figures.INK}
    ):
        fig, ax = plt.subplots(figsize=(4.3, 3.15))
        ring = {"marker": "o", "ms": 11, "mfc": "none", "mew": 2}
        dot, bar = {"marker": "o", "ms": 8}, {"marker": "|", "ms": 18, "mew": 1.6}
        for y, (title, published, its_limit, measured, limit) in enumerate(drawn()):
            beside = {"y": y - 0.36, "transform": ax.get_yaxis_transform()}
            ax.text(0, s=title, weight="bold", **beside)
            ax.text(1, s=said(published, measured), size=9, ha="right", **beside)
            orange, blue = [(published, ring), (its_limit, bar)], [(measured, dot), (limit, bar)]
            for colour, kinds in ((figures.ORANGE, orange), (figures.BLUE, blue)):
                for values, style in kinds:
                    ax.plot(values, [y] * len(values), color=colour, ls="", **style)
        ax.set(xscale="log", xlim=(0.3, 5000), ylim=(3.4, -0.8), yticks=[], facecolor="none")
        ax.set_xticks([1, 10, 100, 1000], ["1×", "10×", "100×", "1,000×"])
        ax.set_xlabel("times as fast, published (○) and measured (●)", size=9.5)
        about = {"Software": None, "Description": json.dumps(drawn())}
        fig.savefig(PICTURE, dpi=200, transparent=True, metadata=about)
        plt.close(fig)


if __name__ == "__main__":
    draw()
    for page in PAGES:
        (ROOT / page).write_text(filled((ROOT / page).read_text()))
