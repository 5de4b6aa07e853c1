"""Tables that a phone can show: in the first column what was measured, then two or three numbers.

A table is a function of a record's rows → text in Markdown. What is the same in all rows is said once, above
it; what matters less stands in small print, under the number to which it belongs. Rows that bear the same
name share a line.
"""

import numpy as np

from ed_lib import timing

HYPHEN = "\N{NON-BREAKING HYPHEN}"


def table(names, numbers, details=()):
    """A table with a line for each name, so that nothing of a row is lost.

    names: {head: function of a row → what it is called}; numbers: {head: function of a row → text}; details:
    functions of a row → text for the small print under the name. Any of them may give "", for nothing.
    """

    def make(rows):
        head, common, lines = grouped(rows, names)
        body = []
        for name, members in lines:
            cells = [joined("<br>", map(number, members)) for number in numbers.values()]
            body.append([name + small(joined("; ", (of(row) for row in members for of in details))), *cells])
        return common + markdown([head, *numbers], body)

    return make


def rates_table(names, rate, accuracy):
    """A table of accuracies at several rates: for each name the highest, with its rate, and then the others.

    rate and accuracy: functions of a row → text and number.
    """

    def make(rows):
        head, common, lines = grouped(rows, names)
        body = []
        for name, members in lines:
            best = max(members, key=accuracy)
            others = (f"{rate(row)}: {accuracy(row):.1%}" for row in members if row is not best)
            body.append([name, f"{accuracy(best):.1%} at {rate(best)}" + small(", ".join(others))])
        return common + markdown([head, "highest, at its rate; at others"], body)

    return make


def grouped(rows, names):
    """The head of the first column, a sentence on what all rows share, and [(name, its rows), …]."""
    values = {head: [of(row) for row in rows] for head, of in names.items()}
    telling = [head for head, found in values.items() if len(set(found)) > 1] or [next(iter(names))]
    same = {head: found[0] for head, found in values.items() if head not in telling and found[0] != ""}
    shared = [
        f"{head} {value}" if isinstance(value, str) else called(head, value) for head, value in same.items()
    ]
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


def under(number, print_below):
    """A column that has a number, and under it in small print what belongs to it; neither wraps."""
    return lambda row: whole(number(row)) + small(whole(print_below(row)))


def whole(text):
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def of_case(key, default=""):
    return lambda row: row.case.get(key, default)


def between(low, high):
    """A range, with the unit once where it is the same: "7.32 – 7.82 ms"."""
    number, _, unit = low.partition(" ")
    return f"{number if unit and high.endswith(f' {unit}') else low} – {high}"


def quartiles(row):
    return between(timing.text(row.completion.q1), timing.text(row.completion.q3))


def launch(row):
    return f"launch {timing.text(row.launch)}" if row.launch is not None else ""


def floor(row):
    return f"of {timing.text(row.floor)}" if row.floor else ""


def times_floor(row):
    return f"{row.completion.median / row.floor:.1f}" if row.floor else ""


def deviation(row):
    return f"deviation {row.error:.1e}".replace("-", HYPHEN) if row.error is not None else ""


def median_of(key):
    """The median of some results, where the row has them."""
    return lambda row: f"{np.median(row.results[key]):.2f}" if key in (row.results or {}) else ""


def accuracy_of_seeds(row):
    return f"{np.mean(row.results['accuracy']):.2%}"


def spread(row):
    """The lowest and the highest accuracy."""
    found = row.results["accuracy"]
    return f"{100 * min(found):.2f} – {max(found):.2%}" if len(found) > 1 else ""


TIME = {"time": under(lambda row: timing.text(row.completion.median),
                      lambda row: joined("<br>", (quartiles(row), launch(row))))}  # fmt: skip
FLOOR = {"× floor": under(times_floor, floor)}
ACCURACY = {"accuracy": under(accuracy_of_seeds, spread)}
SEEDS = {"n": lambda row: len(row.results["accuracy"])}
