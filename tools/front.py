"""The front page: `python -m tools.front` writes what it draws from records, the chapters and the
page of checked sources into PAGES, and the figure. The words of the table are in front.md and
front_ja.md. Their numbers are of records, or published.
"""

import re

from tools import notebooks, repository
from tools.front_figure import DRAWING, draw, drawn, times
from tools.front_numbers import numbers
from tools.pages import ROOT, by_part

TEXTS = ROOT / "tools" / "front.md"
CHECKED = ROOT / "book" / "appendix" / "sources_checked.md"
PAGES = ("index.md", "README.md", "index_ja.md", "README.ja.md")
# What one reads first.
CORE = (
    "your_own_step error_diffusion every_layer_at_once honest_timing fast_forward"
    " splitting_the_work"
    " data_parallel ten_thousand_devices mixed_precision one_token_at_a_time many_steps"
)
# What a newcomer can read in this order: a step's box "Know first" names steps before it alone.
ROUTES = (
    "your_own_step mixed_precision amp_in_practice training_in_eight_bits",
    "splitting_the_work data_parallel when_it_does_not_fit model_parallel ten_thousand_devices",
    "error_diffusion every_layer_at_once honest_timing fast_forward one_step many_steps",
)
SEEN = 4  # claims, before the fold
ROW = re.compile(r"^\| (.*?) \| (.*?) \| (.*) \|$", re.M)


def sentences(texts):
    """{name: text}: the lines "name: text" that follow the table in a file of texts."""
    _, _, lines = texts.read_text().strip().partition("\n\n")
    return dict(line.split(": ", 1) for line in lines.splitlines())


def claims(texts):
    """The rows of the table. A row of the file ``texts`` names a claim by words of its row in
    sources_checked.md: from there comes the verdict, and a chapter that the row links must be one
    that tests the claim.
    """
    checked = ROW.findall(CHECKED.read_text())
    said = sentences(texts)
    head, line, *rows = texts.read_text().partition("\n\n")[0].splitlines()
    # The first column, which names the claims, is not shown.
    made = [re.sub(r"^\|.*?\|", "|", row) for row in (head, line)]
    for row in rows:
        key, *cells = re.split(r" *\| *", row.strip("| "))
        ((_, tested, found),) = [one for one in checked if key in one[0]]
        (chapter,) = re.findall(r"\]\(book/(.*?)\)", row)
        if f"../{chapter}" not in tested:
            raise ValueError(f"{CHECKED.name} does not say that {chapter} tests {key!r}")
        verdict = re.search(r"\*\*(.*?)\*\*", found)[1]
        cells[1] = f"**{said[verdict]}** {cells[1]}"
        made.append(f"| {' | '.join(cells)} |")
    seen, more = made[: 2 + SEEN], [*made[:2], *made[2 + SEEN :]]
    fold = f"<details><summary>{said['more']}</summary>"
    table = "\n".join([*seen, "", fold, "", *more, "", "</details>"])
    return _per_cent(table.format(**vars(numbers())))


def _per_cent(text):
    """With the space that the book writes."""
    return re.sub(r"(\d)%", r"\1 %", text)


def counted():
    """How many of the articles' claims that page lists, and how many hold."""
    found = []
    for section in CHECKED.read_text().split("\n## ")[1:]:
        # What the papers claim comes after the articles.
        rows = ROW.findall(section.partition("\nThe papers")[0])
        found += [re.search(r"\*\*(.*?)\*\*", row[2])[1] for row in rows if row[0] != "claim"]
    hold, in_part, fail = map(found.count, ("holds", "holds in part", "does not hold"))
    said = {"hold": hold, "in_part": in_part, "fail": fail, "untested": found.count("not tested")}
    return said | {"all": len(found), "rest": len(found) - sum(said.values())}


def report(said):
    """The lines of code that diagnose a step, how to install what they need, a part of a report
    that the chapter printed, and what its words mean.
    """
    cells = notebooks.read(ROOT / "book/start/your_own_step.ipynb").cells
    code = re.search(r"```python\n.*?```", cells[0].source, re.S)[0]
    # As `ruff format` has it.
    code = code.replace("import diagnose\n", "import diagnose\n\n")
    install = f"```bash\npip install git+{repository.address()}\n```"
    code = f"<!-- published: -->\n{install}\n<!-- end of published -->\n\n{code}"
    printed = [
        output["text"] for cell in cells for output in cell.get("outputs", ()) if "text" in output
    ]
    machine = next(re.match("CPU: (.*?) ·", text)[1] for text in printed if text[:4] == "CPU:")
    told = next(text for text in printed if text.startswith("The step waits"))
    verdict, shares, cures, *_ = told.split("\n\n")
    verdict = verdict.replace(" (", "\n(").splitlines()
    head, first = cures.splitlines()[:2]
    shown = "\n\n".join(["\n".join(verdict[:2]), shares, f"{head}\n{first}"])
    compared = next(text for text in printed if "times as fast; it waits" in text)
    gain = re.search(r"([\d.]+) times as fast; it waits", compared)[1]
    words = "\n".join(f"- {said[name]}" for name in said if re.fullmatch(r"report \d", name))
    told = said["report"].format(machine=machine)
    end = said["report end"].format(gain=gain)
    words = f"{words}\n\n{said['report before']}"
    return f"{code}\n\n{said['install']}\n\n{told}\n\n{words}\n\n```text\n{shown}\n```\n\n{end}"


def boxes():
    """{name of a chapter: (its page, part, title, question, minutes to read)}, in reading order."""
    found = {}
    for part, name in by_part():
        if (path := ROOT / f"{name}.ipynb").exists():
            cells = [cell.source for cell in notebooks.read(path).cells]
            title, question = cells[0].removeprefix("# ").split("\n\n")[:2]
            time = re.search(r"\*\*Time:\*\* (\d+) min", "\n".join(cells))[1]
            page = f"{name}.ipynb"
            found[path.stem] = page, part, title, question.strip("*"), int(time)
    return found


def chapters(box=None):
    """All chapters by part: title, question, and the reading time that their box states."""
    lines = []
    last = ""
    for name, (page, part, title, question, time) in (box or boxes()).items():
        if part != last:
            lines += ["", f"### {part}", ""]
        last = part
        bold = "**" if name in CORE.split() else ""
        lines.append(f"- [{bold}{title}{bold}]({page}) {question} *{time} min*")
    return "\n".join(lines)


def routes(said, box):
    """A line for each route: its chapters, and the minutes that all of them take."""
    lines = []
    for number, steps in enumerate(ROUTES, 1):
        titles = {step: box[step][2].partition(":")[0] for step in steps.split()} | said
        links = [f"[{titles[step]}]({box[step][0]})" for step in steps.split()]
        time = sum(box[step][-1] for step in steps.split())
        name = said[f"route {number}"]
        lines.append(f"- **{name}** {' → '.join(links)} *{time} {said['minutes']}*")
    return "\n".join(lines)


IMAGE = f'<img src="book/_static/{DRAWING.name}" alt="{{alt}}" width="540px">'


def blocks():
    """{name of a block: its text}: what the command writes into PAGES."""
    told = "; ".join(
        f"{what}, against {beside}: {times([published])} published, {times(ours)} measured"
        for what, beside, published, ours in drawn()
    )
    box = boxes()
    made = {"chapters": chapters(box)}
    for texts, language in ((TEXTS, ""), (TEXTS.with_stem("front_ja"), "_ja")):
        said = sentences(texts)
        of_language = {
            "figure": IMAGE.format(alt=said["figure"].format(told=told)),
            "claims": f'<div class="claims">\n\n{claims(texts)}\n\n</div>',
            "counted": said["counted"].format(**counted()),
            "report": report(said),
            "routes": routes(said, box),
            "should_i": _per_cent(said["should_i"].format(**vars(numbers()))),
        }
        made |= {f"{name}{language}": text for name, text in of_language.items()}
    return made


def filled(page, made=None):
    """``page`` with the blocks between its markers, <!-- name: … --> and <!-- end of name -->."""
    for name, text in (made or blocks()).items():
        lines = rf"(<!-- {name}: .* -->\n)[\s\S]*(<!-- end of {name} -->)"
        page = re.sub(
            lines, lambda mark, text=text: f"{mark[1]}\n{text.strip()}\n\n{mark[2]}", page
        )
    return page


if __name__ == "__main__":
    draw()
    blocks_of_all = blocks()
    for page in PAGES:
        (ROOT / page).write_text(filled((ROOT / page).read_text(), blocks_of_all))
