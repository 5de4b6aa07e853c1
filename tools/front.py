"""The front page: `python -m tools.front` writes its findings, figure and list of chapters into PAGES; the
findings' words are in front.md, and in front_ja.md.
"""

import re

from ed_lib import records, timing
from tools import findings, notebooks
from tools.pages import ROOT, by_part

TEXTS = ROOT / "tools" / "front.md"
PAGES = ("index.md", "README.md", "index_ja.md", "README.ja.md")
CORE = "error_diffusion every_layer_at_once honest_timing fast_forward splitting_the_work data_parallel "
CORE += "ten_thousand_devices mixed_precision one_token_at_a_time many_steps"  # what one reads first


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
    lines = ["| machine | date | a step of ED | 100 steps of an LSTM | float32, reached |", "|" + "---|" * 5]
    of_lstm = records.by_machine("lstm")
    for machine, ed in sorted(records.by_machine("ed").items()):
        paths = records.rows(ed, table="paths", depth=4096)
        case = {"table": "ladder", "layers": 1, "what": "nn.LSTM", "how": "eager"}
        lstm = [timing.tell(records.row(of[machine], **case)["seconds"]) for of in [of_lstm] if machine in of]
        top = next(one for one in ed.attrs["ceilings"] if one["dtype"] == "float32")
        speed = f"{top['bandwidth'] / 1e9:.0f} GB/s, {top['rate'] / 1e9:,.0f} GFLOP/s"
        when, step = ed.attrs["date"], "–"
        if len(paths):
            step = timing.tell(paths.groupby("what")["seconds"].min().sum())
        lines.append(f"| {ed.attrs['device']} | {when} | {step} | {''.join(lstm)} | {speed} |")
    return "\n".join(lines)


def blocks():
    """{name of a block: its text}: what the command writes into PAGES."""
    found = vars(findings.numbers())
    alt = "How many times as fast: " + "; ".join(
        f"{row[0]}: {findings.said(row[1], row[3])}" for row in findings.drawn()
    )
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


if __name__ == "__main__":
    findings.draw()
    for page in PAGES:
        (ROOT / page).write_text(filled((ROOT / page).read_text()))
