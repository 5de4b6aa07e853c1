"""The front page: `python -m tools.front` writes its findings, figure and list of chapters into
PAGES; the findings' words are in front.md, and in front_ja.md. Their numbers are of records, or
published.
"""

import json
import re
from types import SimpleNamespace

import matplotlib.pyplot as plt

from ed_lib import figures, records, timing
from tools import notebooks
from tools.pages import ROOT, by_part

TEXTS = ROOT / "tools" / "front.md"
PAGES = ("index.md", "README.md", "index_ja.md", "README.ja.md")
# What one reads first.
CORE = (
    "your_own_step error_diffusion every_layer_at_once honest_timing fast_forward"
    " splitting_the_work"
    " data_parallel ten_thousand_devices mixed_precision one_token_at_a_time many_steps"
)
PICTURE = ROOT / "book" / "_static" / "front.png"
INK = "#404040"
# qiita2024: its forward pass in seconds, and its GPU's float64 FLOP/s by the data sheet.
FORWARD = 3.02
RTX_3070 = 0.317e12
# NVIDIA's M40 (nvidia_m40), in GFLOP/s: cores, FMA, GHz.
M40 = 3072 * 2 * 1.114
GPU = "nvidia-h100-80gb-hbm3"


def numbers():
    """All numbers that the findings and the figure say, not yet rounded, by name; ours are of one
    GPU.
    """
    ed, lstm, steps = (records.of(benchmark, GPU) for benchmark in ("ed", "lstm", "precision"))
    listing = records.rows(ed, table="article", dtype="float64").set_index("what")
    # By rung, of four layers and of one.
    four = records.rows(lstm, table="ladder", layers=4, how="graph").set_index("what")
    one = records.rows(lstm, table="ladder", layers=1, how="graph").set_index("what")
    # In FLOP/s: the most operations that a rung was counted for are those of all.
    rate = one["floor_flops"].max() / one["seconds"]
    last = four["floor_flops"].max() / four["seconds"]
    full = records.row(steps, model="encoder", batch=256, format="float32")
    tf32 = records.row(steps, model="encoder", batch=256, format="tf32")
    low = records.row(steps, model="encoder", batch=256, format="bfloat16")
    # NVIDIA's, in GFLOP/s.
    published = one["published"]
    # A second run of the article's listing was printed by a chapter's cells.
    printed = "\n".join(records.of("cells", GPU)["printed"])
    again = re.findall(r"^(?:forward|update), the listing.*GPU-0: *(\S+)", printed, re.M)
    forward, update = listing["seconds"][["forward", "update"]]
    ratios = [forward / update, float(again[0]) / float(again[1])]
    climb = four["published"]["wavefront"] / published["baseline"]
    return SimpleNamespace(
        gpu=ed.attrs["label"],
        published_limit=FORWARD * RTX_3070 / listing["floor_flops"]["update"],
        returned=1e3 * listing["launch"]["update"],
        done=1e3 * listing["seconds"]["update"],
        at_once=[round(ratio, -1) for ratio in ratios],
        beside_tf32=tf32["seconds"] / low["seconds"],
        beside_float32=full["seconds"] / low["seconds"],
        bits_limit=full["seconds"] / low["floor"],
        climb=climb,
        one_layer=published["combined_inputs"] / published["baseline"],
        climb_limit=M40 / published["baseline"],
        gpu_layer=rate["combined_inputs"] / rate["baseline"],
        gpu_climb=last["wavefront"] / rate["baseline"],
        gpu_cudnn=last["nn.LSTM"] / rate["baseline"],
        gpu_limit=lstm.attrs["ceilings"][0]["rate"] / rate["baseline"],
    )


def drawn():
    """The figure's rows: (title, published, its limit, measured, its limit)."""
    n = numbers()
    return [
        ("All layers at once", [3000], [n.published_limit], n.at_once, []),
        ("Training in 16 bits", [2], [], [n.beside_tf32, n.beside_float32], [n.bits_limit]),
        (
            "An LSTM, optimised",
            [n.climb],
            [n.climb_limit],
            [n.gpu_climb, n.gpu_cudnn],
            [n.gpu_limit],
        ),
    ]


def said(published, measured):
    """What the figure writes beside a row: "2× published, 1.9–6.0× measured"."""
    first = "".join(f"{value:,.0f}× published, " for value in published)
    ours = "–".join(f"{value:.0f}" if value > 100 else f"{value:.1f}" for value in measured)
    return f"{first}{ours}× measured"


def draw():
    """Draws the rows, dark on white in either theme. The picture's metadata tell them, to a
    test.
    """
    # A picture on the front page has no theme of its own.
    ink = {key: INK for key, colour in figures.STYLE.items() if colour == figures.INK}
    # What was published and its limit; what was measured and its limit.
    looks = (
        ("o", figures.ORANGE, "none"),
        ("|", figures.ORANGE, "none"),
        ("o", figures.BLUE, figures.BLUE),
        ("|", figures.BLUE, figures.BLUE),
    )
    with plt.rc_context(figures.STYLE | ink):
        fig, ax = plt.subplots(figsize=(4.3, 2.55))
        for y, (title, *values) in enumerate(drawn()):
            beside = {"y": y - 0.36, "transform": ax.get_yaxis_transform()}
            ax.text(0, s=title, weight="bold", **beside)
            ax.text(1, s=said(values[0], values[2]), size=9, ha="right", **beside)
            for x, (marker, colour, face) in zip(values, looks, strict=True):
                size = 10 if marker == "o" else 18
                ax.plot(x, [y] * len(x), marker, color=colour, mfc=face, ms=size, mew=1.8)
        ax.set(xscale="log", xlim=(0.7, 5000), ylim=(2.4, -0.8), yticks=[], facecolor="none")
        ax.set_xticks([1, 10, 100, 1000], ["1×", "10×", "100×", "1,000×"])
        ax.set_xlabel("times as fast, published (○) and measured (●); limits (|)", size=9.5)
        # A picture that names no version of Matplotlib is the same from all of them.
        about = {"Software": None, "Description": json.dumps(drawn())}
        fig.savefig(PICTURE, dpi=200, facecolor="white", metadata=about)


def chapters():
    """All chapters by part: title, question, and the reading time that their box states."""
    lines = []
    last = ""
    for part, name in by_part():
        if (path := ROOT / f"{name}.ipynb").exists():
            cells = [cell.source for cell in notebooks.read(path).cells]
            title, question = cells[0].removeprefix("# ").split("\n\n")[:2]
            time = re.search(r"\*\*Time:\*\* (\d+) min", "\n".join(cells))[1]
            if part != last:
                lines += ["", f"### {part}", ""]
            last = part
            bold = "**" if path.stem in CORE.split() else ""
            link = f"[{bold}{title}{bold}]({name}.ipynb)"
            lines.append(f"- {link} {question.strip('*')} *{time} min*")
    return "\n".join(lines)


def measured():
    """A row for each machine with a record of ED; an LSTM's time stands where the machine has one
    too.
    """
    lines = [
        "| machine | date | a step of ED | 100 steps of an LSTM | float32, reached |",
        "|" + "---|" * 5,
    ]
    of_lstm = records.by_machine("lstm")
    for machine, ed in sorted(records.by_machine("ed").items()):
        paths = records.rows(ed, table="paths", depth=4096)
        lstm = ""
        if machine in of_lstm:
            case = {"table": "ladder", "layers": 1, "what": "nn.LSTM", "how": "eager"}
            lstm = timing.tell(records.row(of_lstm[machine], **case)["seconds"])
        top = next(one for one in ed.attrs["ceilings"] if one["dtype"] == "float32")
        speed = f"{top['bandwidth'] / 1e9:.0f} GB/s, {top['rate'] / 1e9:,.0f} GFLOP/s"
        step = "–"
        if len(paths):
            # Forward pass and update, each by its fastest path.
            step = timing.tell(paths.groupby("what")["seconds"].min().sum())
        device, when = ed.attrs["device"], ed.attrs["date"]
        lines.append(f"| {device} | {when} | {step} | {lstm} | {speed} |")
    return "\n".join(lines)


def blocks():
    """{name of a block: its text}: what the command writes into PAGES."""
    found = vars(numbers())
    told = "; ".join(f"{row[0]}: {said(row[1], row[3])}" for row in drawn())
    picture = 'src="book/_static/front.png"'
    alt = f'alt="How many times as fast: {told}."'
    return {
        "figure": f'<img {picture} {alt} width="560px" class="dark-light">',
        "findings": TEXTS.read_text().format(**found),
        "findings_ja": TEXTS.with_stem("front_ja").read_text().format(**found),
        "chapters": chapters(),
        "machines": measured(),
    }


def filled(page):
    """``page`` with the blocks between its markers, <!-- name: … --> and <!-- end of name -->."""
    for name, text in blocks().items():
        lines = rf"(<!-- {name}: .* -->\n)[\s\S]*(<!-- end of {name} -->)"
        page = re.sub(
            lines, lambda mark, text=text: f"{mark[1]}\n{text.strip()}\n\n{mark[2]}", page
        )
    return page


if __name__ == "__main__":
    draw()
    for page in PAGES:
        (ROOT / page).write_text(filled((ROOT / page).read_text()))
