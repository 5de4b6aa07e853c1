"""The front page's numbers, figure and list of chapters: `python -m tools.front`.

Every number in the findings is of a record, or was published. The command writes the findings, whose words
are in front.md, into index.md and README.md; the list of chapters into index.md; the figure, too.
"""

import json
import re
from functools import cache, partial
from types import SimpleNamespace

import matplotlib.pyplot as plt

from ed_lib import figures, records
from tools import notebooks
from tools.pages import ROOT, by_part

TEXTS, STATIC = ROOT / "tools" / "front.md", ROOT / "book" / "_static"
THEMES = {
    "front.png": ("#1f2328", "white"),
    "front-dark.png": ("#d5dae0", "#0d1117"),
}  # ink and page, GitHub's
# The article of 2024 (qiita2024): seconds of a forward pass and of an update of all layers, on an RTX 3070 in
# float64, and the FLOP/s that the card's data sheet allows there (nvidia_ga102). GFLOP/s of the card that
# NVIDIA's ladder was climbed on: cores, FMA, GHz (nvidia_m40).
FORWARD, UPDATE, RTX_3070, M40 = 3.02, 1.10e-3, 0.317e12, 3072 * 2 * 1.114


@cache
def on_cpu(benchmark):
    """The newest record of a benchmark on a machine without a GPU."""
    found = [record for record in records.load(benchmark).values() if not record.attrs["gpu"]]
    return max(found, key=lambda record: record.attrs["date"])


def at(benchmark, column="seconds", **case):
    """What stands in a column of the one row with this case."""
    return records.row(on_cpu(benchmark), **case)[column]


def numbers():
    """All numbers that the findings and the figure say, not yet rounded."""
    n = SimpleNamespace(published_s=FORWARD, published_ms=1e3 * UPDATE)
    ours = partial(at, "ed", depth=4096, table="paths", how="kernel", library="numpy")
    n.forward_ms, n.update_ms = 1e3 * ours(what="forward"), 1e3 * ours(what="update")
    n.floor_ms = 1e3 * ours("floor_flops", what="update") / RTX_3070
    n.published_limit, n.at_once = 1e3 * FORWARD / n.floor_ms, n.forward_ms / n.update_ms
    hand = partial(at, "ed", depth=4096, table="by hand")
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
    n.climb_limit, n.one_layer = (
        M40 / published["baseline"],
        published["combined_inputs"] / published["baseline"],
    )
    n.cpu_climb, n.cpu_torch = (
        start / four["seconds"].drop("nn.LSTM").min(),
        start / four["seconds"]["nn.LSTM"],
    )
    n.cpu_limit = start / min(four["floor"].min(), four["seconds"].min())  # a time below the floor moves it
    return n


def chapters():
    """All chapters by part: title, question, and the reading time that their box states."""
    lines, last = [], ""
    for part, name in by_part():
        if (ROOT / f"{name}.ipynb").exists():
            lines += ["", f"### {part}", ""] * (part != last)
            last, nb = part, notebooks.read(ROOT / f"{name}.ipynb")
            title, question = nb.cells[0].source.split("\n\n")[:2]
            time = next(
                re.findall(r"\*\*Time:\*\* (\d+) min", c.source) for c in nb.cells if "**Time:**" in c.source
            )
            lines.append(
                f"- [**{title.removeprefix('# ')}**]({name}.ipynb) {question.strip('*')} *{time[0]} min*"
            )
    return "\n".join(lines)


def blocks():
    """{page: {name of a block: its text}}: what the command writes into the pages."""
    labels = {
        f"{name}_machine": on_cpu(name).attrs["label"] for name in ("ed", "parallel", "precision", "lstm")
    }
    findings = TEXTS.read_text().format(**vars(numbers()), **labels)
    image = f'<img src="book/_static/front{{}}.png" alt="{alt()}" width="560{{}}">'
    dark = '<source media="(prefers-color-scheme: dark)" srcset="book/_static/front-dark.png">'
    themes = "\n\n".join(
        image.format(dash, f'px" class="only-{theme}') for dash, theme in (("", "light"), ("-dark", "dark"))
    )
    return {
        "index.md": {"figure": themes, "findings": findings, "chapters": chapters()},
        "README.md": {"figure": f"<picture>{dark}{image.format('', '')}</picture>", "findings": findings},
    }


def filled(page, texts):
    """``page`` with ``texts`` between its markers, <!-- name: … --> and <!-- end of name -->."""
    for name, text in texts.items():
        between = rf"(<!-- {name}: .*? -->\n).*(<!-- end of {name} -->)"
        page = re.sub(
            between, lambda ends, text=text: f"{ends[1]}\n{text.strip()}\n\n{ends[2]}", page, flags=re.S
        )
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
    return (
        "".join(f"{n:,.0f}× published, " for n in published)
        + "–".join(f"{n:.1f}" for n in measured)
        + "× measured"
    )


def alt():
    """What the figure shows, in words."""
    rows = []
    for title, published, its_limit, measured, limit in drawn():
        limits = {"where it was published": its_limit, "where we measured": limit}
        most = "".join(f", at most {n:,.1f}× {where}" for where, found in limits.items() for n in found)
        rows.append(f"{title}: {said(published, measured)}{most}")
    return f"How many times as fast, on a logarithmic scale. {'; '.join(rows)}."


def draw(name):
    """Draws the rows for a theme. They stand in the picture's metadata too, and a test compares."""
    ink, page = THEMES[name]
    with plt.rc_context(figures.STYLE | {key: ink for key, v in figures.STYLE.items() if v == figures.INK}):
        fig, ax = plt.subplots(figsize=(4.3, 3.15), facecolor=page)
        ring, dot, bar = (
            {"marker": "o", "ms": 11, "mfc": "none", "mew": 2},
            {"marker": "o"},
            {"marker": "|", "ms": 18},
        )
        for y, (title, published, its_limit, measured, limit) in enumerate(drawn()):
            ax.text(0, y - 0.36, title, weight="bold", transform=ax.get_yaxis_transform())
            ax.text(
                1, y - 0.36, said(published, measured), size=9, ha="right", transform=ax.get_yaxis_transform()
            )
            kinds = (
                (published, "orange", ring),
                (its_limit, "orange", bar),
                (measured, "blue", dot),
                (limit, "blue", bar),
            )
            for values, colour, style in kinds:
                colour = figures.ORANGE if colour == "orange" else figures.BLUE
                ax.plot(values, [y] * len(values), color=colour, ls="", **style)
        ax.set(xscale="log", xlim=(0.4, 4800), ylim=(3.4, -0.8), yticks=[], facecolor="none")
        ax.set_xticks([1, 10, 100, 1000], ["1×", "10×", "100×", "1,000×"])
        ax.set_xlabel("times as fast: ○ published (GPUs), ● measured (CPUs), | limit")
        fig.savefig(STATIC / name, dpi=200, metadata={"Software": None, "Description": json.dumps(drawn())})
        plt.close(fig)


if __name__ == "__main__":
    for name in THEMES:
        draw(name)
    for page, texts in blocks().items():
        (ROOT / page).write_text(filled((ROOT / page).read_text(), texts))
