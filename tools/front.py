"""The front page's numbers, figure and list of chapters: `python -m tools.front`.

Every number in the findings comes from a record or from a count. The command writes the findings, whose
words are in front.md, into index.md and README.md; the list of chapters into index.md; the figure into
book/_static.
"""

import contextlib
import hashlib
import io
import json
import re

from benchmarks import old_records as records
from ed_lib import figures
from ed_lib.ed import costs
from ed_lib.lstm.ladder import PUBLISHED
from tools import notebooks
from tools.notebooks import ROOT

FINDINGS = ROOT / "tools" / "front.md"
STATIC = ROOT / "book" / "_static"
SIZE = (4.3, 3.15)  # of the figure, in inches
INKS = {"light": "#1f2328", "dark": "#d5dae0"}
PAGES = {"light": "white", "dark": "#0d1117"}  # GitHub's

# The article of 2024 (qiita2024): seconds for a forward pass and an update of all layers, on an RTX 3070 in
# float64; and the FLOP/s that the card's data sheet allows there (nvidia_ga102).
ARTICLE = costs.Shape(n_inputs=784, width=32, depth=4096, batch=64, itemsize=8)
FORWARD, UPDATE, RTX_3070 = 3.02, 1.10e-3, 0.317e12
# GFLOP/s of the card that NVIDIA's ladder was climbed on: cores, FMA, GHz (nvidia_m40)
M40 = 3072 * 2 * 1.114

EASY = "error_diffusion honest_timing splitting_the_work amp_in_practice smaller_models".split()
HARD = "forward_at_once why_it_learns what_depth_does ed_on_many_devices many_steps".split()
FOLDED = {"claim", "hide-cell", "hide-input"}  # cells that a reader passes over


# The numbers.


def on_cpu(benchmark):
    """The newest record of a benchmark on a machine without a GPU."""
    found = [record for record in records.load(benchmark) if not record.provenance["gpu"]]
    return max(found, key=lambda record: (record.provenance["date"], record.machine))


def all_layers_at_once():
    record = on_cpu("ed")

    def seconds(**case):
        return record.find(**case).completion.median

    ours = {"table": "paths", "how": "kernel", "library": "numpy", "depth": ARTICLE.depth}
    part = {
        (how, what): seconds(table="by hand", how=how, what=what, depth=ARTICLE.depth)
        for how, what in (
            ("ED, layers", "forward"),
            ("ED, layers", "update"),
            ("by hand", "chain"),
            ("by hand", "update"),
        )
    }
    forward_pass = part["ED, layers", "forward"]  # the same in both
    backpropagation = forward_pass + part["by hand", "chain"] + part["by hand", "update"]
    floor = costs.update(ARTICLE)[1] / RTX_3070
    forward, update = seconds(what="forward", **ours), seconds(what="update", **ours)
    return {
        "layers": ARTICLE.depth,
        "published_ms": 1e3 * UPDATE,
        "published_s": FORWARD,
        "floor_ms": 1e3 * floor,
        "published_limit": FORWARD / floor,
        "forward_ms": 1e3 * forward,
        "update_ms": 1e3 * update,
        "at_once": forward / update,
        "step": backpropagation / (forward_pass + part["ED, layers", "update"]),
    }


def one_slow_worker():
    table = {"table": "asynchronous, throughput"}
    wait, wait_slow, free, free_slow = (
        on_cpu("parallel").find(**table, server=server, workers=workers)
        for server in ("synchronous", "asynchronous")
        for workers in ("even", "one slow by 5×")
    )
    rate = lambda row: 1 / row.completion.median  # gradients a second  # noqa: E731
    return {
        "wait": rate(wait),
        "wait_slow": rate(wait_slow),
        "free": rate(free),
        "free_slow": rate(free_slow),
        "late": max(free_slow.results["mean_staleness"]),
        "no_barrier": rate(free_slow) / rate(wait_slow),
        "no_barrier_limit": wait_slow.floor / free_slow.floor,
    }


def sixteen_bits():
    def step(model, batch, name):
        case = {"table": "training step", "how": "eager", "model": model, "batch": batch, "format": name}
        return on_cpu("precision").find(**case)

    def gain(model, batch, name="bfloat16"):
        return step(model, batch, name).results["against float32"][0]

    bert, bert_32 = step("encoder", 2, "bfloat16"), step("encoder", 2, "float32")
    kept = sum(bert.results[what][0] for what in ("parameters", "gradients", "optimizer"))
    runs = on_cpu("precision_accuracy").select(table="accuracy of formats")
    mixed = [row for row in runs if row.case["format"] in ("float16", "bfloat16")]
    return {
        "bert": gain("encoder", 2),
        "small": gain("MLP", 1),
        "large": gain("MLP", 4096),
        "float16": gain("MLP", 4096, "float16"),
        "bits_limit": step("MLP", 4096, "float32").floor / step("MLP", 4096, "bfloat16").floor,
        "activations": 100 * bert.results["activations"][0] / bert_32.results["activations"][0],
        "adam": 4 * kept / bert.results["parameters"][0],  # a parameter itself takes 4 bytes
        "points": max(abs(points) for row in mixed for points in row.results["points"]),
    }


def ladder():
    rows = on_cpu("lstm").select(table="ladder", layers=4)
    seconds = {row.case["what"]: row.completion.median for row in rows}
    start, best = seconds["baseline"], min(seconds[what] for what in seconds if what != "nn.LSTM")
    return {
        "climb": PUBLISHED["wavefront"] / PUBLISHED["baseline"],
        "climb_limit": M40 / PUBLISHED["baseline"],
        "one_layer": PUBLISHED["combined_inputs"] / PUBLISHED["baseline"],
        "cpu_climb": start / best,
        "cpu_torch": start / seconds["nn.LSTM"],
        "cpu_limit": start / min(rows[0].floor, *seconds.values()),  # a time below the floor moves the floor
    }


def ratios():
    """{name: number} of all that the findings and the figure say, not yet rounded."""
    return all_layers_at_once() | one_slow_worker() | sixteen_bits() | ladder()


def numbers():
    """{name: text}: the numbers as the page prints them, and the names of the machines."""
    digits = dict.fromkeys("published_ms published_s small float16".split(), 2)
    digits |= dict.fromkeys("layers forward_ms update_ms published_limit activations adam climb".split(), 0)
    digits |= dict.fromkeys("wait wait_slow free free_slow late".split(), 0)
    texts = {name: f"{value:,.{digits.get(name, 1)}f}" for name, value in ratios().items()}
    return texts | {f"{name}_machine": on_cpu(name).label for name in ("ed", "parallel", "precision", "lstm")}


# The pages.


def minutes(nb):
    """A chapter's reading time without its exercises, rounded up to five minutes: a minute for 200 words, and
    half a minute for each cell of code that is not folded away."""
    words = cells = 0
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            text, *exercises = cell.source.split("## Exercises")
            words += len(text.split())
            if exercises:
                break
        elif not FOLDED & set(notebooks.tags(cell)):
            cells += 1
    return 5 * -(-(words + 100 * cells) // 1000)


def stated_minutes(nb):
    """The reading time in the chapter's own box, which stands before its first section or at its head."""
    text = next(cell.source for cell in nb.cells if "**Time:**" in cell.source)
    return int(re.search(r"\*\*Time:\*\* (\d+) minutes to read", text)[1])


def chapters():
    """All chapters by part: title, question, minutes, level."""
    import yaml

    lines = []
    for part in yaml.safe_load((ROOT / "_toc.yml").read_text())["parts"]:
        files = [f"{chapter['file']}.ipynb" for chapter in part["chapters"]]
        files = [file for file in files if (ROOT / file).exists()]
        lines += ["", f"### {part['caption']}", ""] if files else []
        for file in files:
            nb = notebooks.read(ROOT / file)
            title, question = nb.cells[0].source.split("\n\n")[:2]
            name = file.rpartition("/")[2].removesuffix(".ipynb")
            level = "easy" if name in EASY else "hard" if name in HARD else "medium"
            about = f"{question.strip('*')} *{stated_minutes(nb)} min, {level}*"
            lines.append(f"- [**{title.removeprefix('# ')}**]({file}) {about}")
    return "\n".join(lines)


def blocks():
    """{page: {name of a block: its text}}: what the command writes into the pages."""
    findings = FINDINGS.read_text().format(**numbers())
    book = f'<img src="book/_static/front.svg" alt="{alt()}" class="dark-light" width="560px">'
    dark = '<source media="(prefers-color-scheme: dark)" srcset="book/_static/front-dark.png">'
    github = f'<picture>{dark}<img src="book/_static/front.png" alt="{alt()}" width="560"></picture>'
    return {
        "index.md": {"figure": book, "findings": findings, "chapters": chapters()},
        "README.md": {"figure": github, "findings": findings},
    }


def filled(page, texts):
    """``page`` with ``texts`` between its markers, <!-- name: … --> and <!-- end of name -->."""
    for name, text in texts.items():
        start, rest = page.split(f"<!-- {name}: by python -m tools.front -->\n")
        end = f"<!-- end of {name} -->"
        head = f"<!-- {name}: by python -m tools.front -->"
        page = f"{start}{head}\n\n{text.strip()}\n\n{end}{rest.split(end)[1]}"
    return page


# The figure.


def drawn():
    """The rows: (title, published, its limit, [slowest, fastest measured], their limit); None: not there."""
    r = ratios()
    return [
        ("All layers at once", 3000, r["published_limit"], [r["at_once"]], None),
        ("No wait for a slow worker", None, None, [r["no_barrier"]], r["no_barrier_limit"]),
        ("Training in 16 bits", 2, None, [r["small"], r["large"]], r["bits_limit"]),
        ("The LSTM in cuDNN", r["climb"], r["climb_limit"], [r["cpu_climb"], r["cpu_torch"]], r["cpu_limit"]),
    ]


def said(published, measured):
    """What the figure writes beside a row: "2× published   0.6–2.0× measured"."""
    before = f"{published:,.0f}× published   " if published else ""
    return before + "–".join(f"{value:.1f}" for value in measured) + "× measured"


def alt():
    """What the figure shows, in words."""
    rows = []
    for title, published, its_limit, measured, limit in drawn():
        row = f"{title}: {said(published, measured)}".replace("published   ", "published, ")
        limits = {"where it was published": its_limit, "where we measured": limit}
        rows.append(row + "".join(f", at most {n:,.1f}× {where}" for where, n in limits.items() if n))
    return f"How many times as fast, on a logarithmic scale. {'; '.join(rows)}."


def digest():
    """What the pictures were drawn from; each carries it in its metadata, and a test compares."""
    return hashlib.sha256(json.dumps(drawn()).encode()).hexdigest()


def plot(ax, ink, size=10.5):
    """Draws the rows: a ring for what was published, a dot for what was measured, a bar for the limit."""
    ring = {
        "marker": "o",
        "ms": 1.1 * size,
        "mfc": "none",
        "mec": figures.ORANGE,
        "mew": 0.2 * size,
        "ls": "",
    }
    dot = {"marker": "o", "ms": 0.75 * size, "mfc": figures.BLUE, "mec": "none", "ls": ""}
    bar = {"marker": "|", "ms": 1.7 * size, "mec": ink, "mew": 0.15 * size, "ls": ""}
    small = 0.92 * size
    for y, (title, published, its_limit, measured, limit) in enumerate(drawn()):
        above = {"y": y - 0.36, "transform": ax.get_yaxis_transform()}
        ax.text(0, s=title, size=size, weight="bold", **above)
        ax.text(1, s=said(published, measured), size=small, ha="right", **above)
        ax.axhline(y, color=ink, alpha=0.16, lw=1, zorder=0)
        ax.plot(measured, [y] * len(measured), color=figures.BLUE, lw=0.3 * size, alpha=0.5)
        if limit:
            ax.plot(limit, y, **bar | {"mec": figures.BLUE})
        if its_limit:
            ax.plot(its_limit, y, **bar | {"mec": figures.ORANGE})
        if published and published > 1.5 * measured[-1]:
            gap = [measured[-1], published / 1.12]  # up to the ring
            ax.plot(gap, [y, y], color=figures.ORANGE, lw=0.2 * size, ls=(0, (1, 2)))
        ax.plot(measured, [y] * len(measured), **dot)
        if published:
            ax.plot(published, y, **ring)
    ax.set(xscale="log", xlim=(0.5, 4800), ylim=(y + 0.35, -0.7), yticks=[])
    ax.set_xticks([1, 10, 100, 1000], ["1×", "10×", "100×", "1,000×"], size=small)
    ax.set_xlabel("times as fast; published: on GPUs; measured: on CPUs", size=small)
    ax.tick_params(which="both", length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.grid(False)
    names = {"published": ring, "measured": dot, "limit": bar}
    marks = [ax.plot([], [], label=name, **style)[0] for name, style in names.items()]
    where = {"loc": "lower right", "bbox_to_anchor": (1.015, 1), "ncols": 3, "borderpad": 0}
    ax.legend(handles=marks, **where, fontsize=small, handletextpad=0.1, columnspacing=1.4)


@contextlib.contextmanager
def canvas(size, ink, page="none"):
    """A figure and its axes in the house style, with lines and letters in ``ink``; closed when done."""
    import matplotlib.pyplot as plt

    style = {key: ink for key, value in figures.STYLE.items() if value == figures.INK}
    with plt.rc_context(figures.STYLE | style):
        figure, ax = plt.subplots(figsize=size, facecolor=page)
        ax.set_facecolor("none")
        figure.get_layout_engine().set(h_pad=0.08)
        yield figure, ax
        plt.close(figure)


def saved(figure, format, dpi=100):
    buffer, metadata = io.BytesIO(), {"Description": digest()}
    metadata |= {"Date": None, "Creator": None} if format == "svg" else {"Software": None}
    figure.savefig(buffer, format=format, dpi=dpi, facecolor=figure.get_facecolor(), metadata=metadata)
    return buffer.getvalue()


def svg():
    """The book's figure. An image's theme is that of the page around it, so one file serves both."""
    with canvas(SIZE, figures.INK) as (figure, ax):
        plot(ax, figures.INK)
        text = saved(figure, "svg").decode().replace(figures.INK, "currentColor")
    dark = f"@media (prefers-color-scheme: dark) {{ svg {{ color: {INKS['dark']} }} }}"
    style = f"<style>svg {{ color: {INKS['light']} }} {dark}</style>"
    return text.replace("<defs>", f"{style}\n <defs>", 1).encode()


def png(theme):
    """The README's figure, for either of GitHub's themes."""
    with canvas(SIZE, INKS[theme], PAGES[theme]) as (figure, ax):
        plot(ax, INKS[theme])
        return saved(figure, "png", dpi=200)


def card():
    """1200 × 630 pixels, for those who share a link: the title, and the figure."""
    with canvas((12, 6.3), INKS["light"], "white") as (figure, ax):
        figure.get_layout_engine().set(rect=(0.375, 0.06, 0.59, 0.86))
        plot(ax, INKS["light"], size=16)
        title = "Why training\ncode is as fast\nas it is"
        figure.text(0.04, 0.64, title, size=31, weight="bold", linespacing=1.3, va="center")
        below = "An executable book:\nwhat was published,\nand what we measured."
        figure.text(0.04, 0.32, below, size=18, linespacing=1.5, va="center")
        return saved(figure, "png")


def draw():
    """{file name: its bytes}"""
    pngs = {"front.png": png("light"), "front-dark.png": png("dark"), "card.png": card()}
    return {"front.svg": svg()} | pngs


if __name__ == "__main__":
    for name, picture in draw().items():
        (STATIC / name).write_bytes(picture)
    for page, texts in blocks().items():
        (ROOT / page).write_text(filled((ROOT / page).read_text(), texts))
