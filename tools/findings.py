"""The findings of the front page: their numbers, of records or published, and the figure that shows them."""

import json
from functools import cache, partial
from types import SimpleNamespace

import matplotlib.pyplot as plt

from ed_lib import figures, records
from tools.pages import ROOT

PICTURE, INK = ROOT / "book" / "_static" / "front.png", "#404040"
# qiita2024: its forward pass in seconds, and its GPU's float64 FLOP/s by the data sheet; NVIDIA's M40
# (nvidia_m40): cores, FMA, GHz
FORWARD, RTX_3070, M40 = 3.02, 0.317e12, 3072 * 2 * 1.114


@cache
def on_cpus(benchmark):
    """The records of a benchmark on machines without a GPU, the newest last; of one day, from Z to A."""
    found = [record for record in records.by_machine(benchmark).values() if not record.attrs["gpu"]]
    return sorted(found[::-1], key=lambda record: record.attrs["date"])


def in_16_bits():
    """[(how many times as fast as float32's a step in bfloat16 is, its limit, the machine), …], rising."""
    gains, case = [], {"table": "training step", "how": "eager", "model": "MLP", "batch": 4096}
    for each in on_cpus("precision"):
        low, full = (records.row(each, **case, format=name) for name in ("bfloat16", "float32"))
        gains.append((low["against float32"], full["seconds"] / low["floor"], each.attrs["label"]))
    return sorted(gains)


def at(benchmark, column="seconds", **case):
    return records.row(on_cpus(benchmark)[-1], **case)[column]


def numbers():
    """All numbers that the findings and the figure say, not yet rounded, by name."""
    ours = partial(at, "ed", depth=4096, table="paths", how="kernel", threads=2)
    (small, *_), (large, bits_limit, _) = in_16_bits()[0], in_16_bits()[-1]
    four, one = (
        records.rows(on_cpus("lstm")[-1], table="ladder", layers=k).set_index("what") for k in (4, 1)
    )
    start, published = four["seconds"]["baseline"], one["published"]
    return SimpleNamespace(
        published_limit=FORWARD * RTX_3070 / ours("floor_flops", what="update"),
        at_once=ours(what="forward") / ours(what="update"),
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


def drawn():
    """The figure's rows: (title, published, its limit, measured, its limit)."""
    n = numbers()
    return [
        ("All layers at once", [3000], [n.published_limit], [n.at_once], []),
        ("Training in 16 bits", [2], [], [n.small, n.large], [n.bits_limit]),
        ("An LSTM, optimised", [n.climb], [n.climb_limit], [n.cpu_climb, n.cpu_torch], [n.cpu_limit]),
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
        fig, ax = plt.subplots(figsize=(4.3, 2.55))
        for y, (title, *values) in enumerate(drawn()):
            beside = {"y": y - 0.36, "transform": ax.get_yaxis_transform()}
            ax.text(0, s=title, weight="bold", **beside)
            ax.text(1, s=said(values[0], values[2]), size=9, ha="right", **beside)
            for x, colour, marker in zip(values, colours, "o|o|", strict=True):
                face, size = colour if colour == figures.BLUE else "none", 10 if marker == "o" else 18
                ax.plot(x, [y] * len(x), marker, color=colour, mfc=face, ms=size, mew=1.8)
        ax.set(xscale="log", xlim=(0.2, 5000), ylim=(2.4, -0.8), yticks=[], facecolor="none")
        ax.set_xticks([1, 10, 100, 1000], ["1×", "10×", "100×", "1,000×"])
        ax.set_xlabel("times as fast, published (○) and measured (●); limits (|)", size=9.5)
        about = {"Software": None, "Description": json.dumps(drawn())}
        fig.savefig(PICTURE, dpi=200, facecolor="white", metadata=about)
