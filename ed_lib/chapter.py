"""What a chapter needs to start: the style, a line about the machine, tables, source, exercises."""

import functools
import html
import inspect
import operator
from collections.abc import Callable, Iterable
from typing import Any

from ed_lib import gpu_cells
from ed_lib.machine import card


def setup() -> None:
    """Starts a chapter: the figures' style, the ``%%gpu`` magic, and one printed line about the
    machine.
    """
    from IPython import get_ipython

    from ed_lib import figures

    figures.use_style()
    if shell := get_ipython():
        shell.register_magic_function(gpu_cells.run, "cell", "gpu")
    print(card())


def table(rows: Iterable, caption: str, columns: dict[str, Callable] | None = None) -> None:
    """Shows rows as a table with a caption. ValueError when there are none.

    columns: {heading: a function of a row that gives text or a number}; without, rows are dicts,
    and the columns those of the first. Numbers are set to the right, floats with three significant
    digits.
    """
    from IPython.display import HTML, display

    if not (rows := list(rows)):
        raise ValueError("rows is empty; wanted at least one")
    columns = columns or {heading: operator.itemgetter(heading) for heading in rows[0]}
    lines = ["".join(_cell(get(row), "td") for get in columns.values()) for row in rows]
    head = "".join(_cell(heading, "th") for heading in columns)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    head = f"<caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead>"
    display(HTML(f'<table class="table">{head}<tbody>{body}</tbody></table>'))


def source(thing: Any) -> None:
    """Shows the source of a function, class or kernel of ``ed_lib``, highlighted."""
    from IPython.display import Code, display

    thing = getattr(
        thing, "py_func", getattr(thing, "fn", thing)
    )  # inside Numba's and Triton's wrappers
    display(Code(inspect.getsource(thing), language="python"))


def exercise(number: int, returns: bool = True) -> Callable:
    """Decorates a check, which takes the reader's function and asserts what a solution does: it
    prints "solved" or what is missing, and never raises. returns: whether a function is to return
    something.
    """

    def decorate(check):
        def run(solution):
            def answered(*args, **options):
                if (answer := solution(*args, **options)) is None and returns:
                    raise AssertionError("the function returns nothing")
                return answer

            try:
                check(functools.wraps(solution)(answered))
            except (
                Exception,
                SystemExit,
            ) as error:  # whatever a reader's code does, the chapter goes on
                kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
                print(f"Exercise {number}: not yet. {kind}{error}")
            else:
                print(f"Exercise {number}: solved.")

        return run

    return decorate


def _cell(value, tag):
    number = isinstance(value, (int, float))
    short = (
        f"{value:,.0f}"
        if number and abs(value) >= 1000
        else f"{value:.3g}"
        if number
        else str(value)
    )
    text = f"{value:,}" if isinstance(value, int) else short
    return f'<{tag} style="text-align:{"right" if number else "left"}">{html.escape(text)}</{tag}>'
