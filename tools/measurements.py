"""The pages of the recorded measurements: one for each record, made of it when the book is built.

A page has a table for each ``table`` of its record. Lists are told by their mean, lowest and
highest number; longer ones, and curves, stay in the record.
"""

import re
from pathlib import Path

import pandas as pd

from ed_lib import records, timing
from tools.pages import ROOT, first_sentence

OVERVIEW = Path("book/appendix/measurements.md")
# Where that page lists the records.
HERE = "<!-- records -->"
# The columns that are seconds.
TIMES = ("seconds", "q1", "q3", "launch", "floor")
# A table of more rows is folded.
LONG = 25
# A list of more numbers is not told by its mean.
FEW = 30
# Of a code's hash so many digits are enough to tell it from others.
DIGITS = 12


def pages():
    """{path in the book: text} of the overview and of every record's page."""
    names = sorted({path.stem for path in (ROOT / "records").glob("*/*.csv")})
    found = {}
    for name in names:
        for machine, record in records.by_machine(name).items():
            found[machine, name] = record
    made = {}
    lists = {}
    for machine, name in sorted(found):
        record = found[machine, name]
        made[OVERVIEW.with_suffix("") / machine / f"{name}.md"] = page(record)
        head = f"\n### {record.attrs['device']}\n\nIn `records/{machine}/`:\n"
        link = f"{OVERVIEW.stem}/{machine}/{name}.md"
        about = first_sentence(ROOT / f"benchmarks/{name}.py")
        line = f"- [{name}]({link}), {record.attrs['date']}: {about}."
        lists.setdefault(machine, [head]).append(line)
    lines = "\n".join(line for of_machine in lists.values() for line in of_machine)
    return {OVERVIEW: (ROOT / OVERVIEW).read_text().replace(HERE, lines)} | made


def page(record):
    """The text of a record's page."""
    made = record.attrs
    code = {table: str(hash)[:DIGITS] for table, hash in made["code"].items()}
    facts = []
    for key, value in (made | {"code": code}).items():
        facts.append(f"- {key.replace('_', ' ')}: {words(value)}")
    facts = "\n".join(facts)
    parts = []
    for name in record["table"].unique():
        rows = records.rows(record, table=name)
        # The first letter alone: capitalize() would change the others too.
        heading = name[:1].upper() + name[1:]
        parts.append(f"## {heading}\n\n{table(rows)}\n")
    tables = "\n".join(parts)
    about = first_sentence(ROOT / f"benchmarks/{made['benchmark']}.py")
    return f"""# {made["benchmark"]}: {made["label"]}

{about}. {made.get("note", "")}

Measured on {made["date"]}. All numbers in full:
`records/{made["machine"]}/{made["benchmark"]}.csv`.
[How to read a record](../../measurements.md).

:::{{dropdown}} What made this record
{facts}
:::

{tables}"""


def table(rows):
    """The rows of a table, as csv-table: the columns that differ, under what is the same in all of
    them.
    """
    if "floor" in rows:
        after = rows.columns.get_loc("seconds") + 1
        rows.insert(after, "× floor", rows["seconds"] / rows["floor"])
    columns = {key: [cell(key, value) for value in column] for key, column in rows.items()}
    shown = pd.DataFrame(columns).drop(columns=["table", "part"], errors="ignore")
    # A column in which no row has anything belongs to other tables of the record.
    shown = shown.loc[:, (shown != "").any()]
    # A single row has all its columns shown.
    same = {}
    if len(rows) > 1:
        same = {key: column[0] for key, column in shown.items() if column.nunique() == 1}
    lines = shown.drop(columns=list(same)).to_csv(index=False)
    text = f"```{{csv-table}}\n:header-rows: 1\n:class: record\n\n{lines}```"
    if len(rows) > LONG:
        text = f"::::{{dropdown}} All {len(rows)} rows\n{text}\n::::"
    if same:
        told = "; ".join(f"{key} {value}" for key, value in same.items())
        text = f"In all rows: {told}.\n\n{text}"
    return text


def cell(key, value):
    """A value as a short text; "" for none, and for what is too long to be read here."""
    if isinstance(value, list):
        numbers = all(isinstance(one, int | float) for one in value)
        if not numbers or not 0 < len(value) <= FEW:
            return ""
        mean = words(sum(value) / len(value))
        low = words(min(value))
        high = words(max(value))
        return mean if low == high else f"{mean} ({low} – {high})"
    # NaN alone is unlike itself.
    if value is None or isinstance(value, dict) or value != value:
        return ""
    return timing.tell(value) if key in TIMES else words(value)


def words(value):
    """A value in words, with nothing in it that Markdown would take for its own."""
    if isinstance(value, dict):
        return "; ".join(f"{words(key)} {words(one)}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(words, value))
    if isinstance(value, str | bool | None):
        return re.sub(r"([\\`*_{}\[\]<>$|~^])", r"\\\1", str(value))
    # A count is written out.
    if value == round(value) and abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.4g}"
