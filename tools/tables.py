"""Tables that a phone can show: in the first column what was measured, then two or three numbers.

Each benchmark declares its tables, as ``benchmarks.harness.Shown``; here they become Markdown. What is the
same in all rows is said once, above; what matters less stands in small print, under the number to which it
belongs. Rows that bear the same name share a line.
"""

import numpy as np

from ed_lib import timing

HYPHEN = "\N{NON-BREAKING HYPHEN}"


def render(shown, rows):
    """A table of a record's rows, in Markdown."""
    rows = [row for row in rows if shown.where(row)]
    if shown.lines:
        head, *body = shown.lines(rows)
        return markdown(head, body)
    names = dict(named(name) for name in shown.names)
    head, common, lines = grouped(rows, names)
    if shown.above:
        common = f"{shown.above(rows)}\n\n{common}"
    if shown.best or shown.together:
        title, of = shown.together or ("highest, at its rate; at others", best_of(*shown.best))
        return common + markdown([head, title], [[name, of(members)] for name, members in lines])
    numbers = dict(numbered(number) for number in shown.numbers)
    numbers = {title: of for title, of in numbers.items() if any(map(of, rows))}
    details = [KNOWN.get(of, of) for of in shown.details]
    body = []
    for name, members in lines:
        below = small(joined("; ", (of(row) for row in members for of in details)))
        body.append([name + below, *(joined("<br>", map(of, members)) for of in numbers.values())])
    return common + markdown([head, *numbers], body)


def named(name):
    """(head, function of a row) of a name, which may be a key of the case."""
    head, of = (name.replace("_", " "), name) if isinstance(name, str) else name
    if of == "seeds":
        return "n", lambda row: len(row.results["accuracy"])
    return head, of if callable(of) else lambda row: row.case.get(of, "")


def numbered(number):
    """(head, function of a row → text) of a number, which may be one that is known."""
    head, of = (number, number) if isinstance(number, str) else number
    of = KNOWN.get(of, of)
    return head, lambda row: cell(of(row))


def cell(text):
    """A text as it is; or a number with what belongs to it in small print below, neither of which wraps."""
    return text if isinstance(text, str) else whole(text[0]) + small(whole(text[1]))


def best_of(key, accuracy):
    """Of some rows the highest accuracy, with its rate, and then the others."""

    def text(rows):
        best = max(rows, key=accuracy)
        others = (f"{row.case[key]:g}: {accuracy(row):.1%}" for row in rows if row is not best)
        return f"{accuracy(best):.1%} at {best.case[key]:g}" + small(", ".join(others))

    return text


def grouped(rows, names):
    """The head of the first column, a sentence on what all rows share, and [(name, its rows), …]."""
    values = {head: [of(row) for row in rows] for head, of in names.items()}
    telling = [head for head, found in values.items() if len(set(found)) > 1] or [next(iter(names))]
    same = {head: found[0] for head, found in values.items() if head not in telling and found[0] != ""}
    shared = [f"{head} {v}" if isinstance(v, str) else called(head, v) for head, v in same.items()]
    lines = {}
    for n, row in enumerate(rows):
        name = " · ".join(called(head, values[head][n]) for head in telling if values[head][n] != "")
        lines.setdefault(name, []).append(row)
    common = f"In all rows: {'; '.join(shared)}.\n\n" if shared else ""
    return ", ".join(telling), common, list(lines.items())


def called(head, value):
    """A value as part of a name; a number is told with its head, and text speaks for itself."""
    if isinstance(value, str):
        return value.replace("_", "_<wbr>")  # where a long name may be broken
    return f"{head} = {value}" if len(head) == 1 else f"{head} {value:,}"


def markdown(head, lines):
    marks = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, marks, *lines])


def joined(mark, texts):
    """Texts in one, each of them once, without the empty ones."""
    return mark.join(filter(None, dict.fromkeys(texts)))


def small(text):
    """Small print on a line of its own; nothing, of nothing."""
    return f"<br><small>{text}</small>" if text else ""


def whole(text):
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def time(row):
    """The median; under it the quartiles, with the unit once where it is the same: "7.32 – 7.82 ms"."""
    low, high = timing.text(row.completion.q1), timing.text(row.completion.q3)
    number, _, unit = low.partition(" ")
    quartiles = f"{number if unit and high.endswith(f' {unit}') else low} – {high}"
    launch = f"launch {timing.text(row.launch)}" if row.launch is not None else ""
    return timing.text(row.completion.median), joined("<br>", (quartiles, launch))


def floor(row):
    """The time as a multiple of the floor, and under it the floor."""
    return (f"{row.completion.median / row.floor:.1f}", f"of {timing.text(row.floor)}") if row.floor else ""


def accuracy(row):
    """The mean over the seeds; under it the lowest and the highest."""
    found = row.results["accuracy"]
    return f"{np.mean(found):.2%}", f"{100 * min(found):.2f} – {max(found):.2%}" if len(found) > 1 else ""


def deviation(row):
    return f"deviation {row.error:.1e}".replace("-", HYPHEN) if row.error is not None else ""


KNOWN = {"time": time, "× floor": floor, "accuracy": accuracy, "deviation": deviation}
