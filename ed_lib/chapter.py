"""What a chapter needs to start: the style, a line about the machine, tables, source, exercises."""

import functools
import html
import inspect
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ed_lib import gpu_cells, needs
from ed_lib.machine import card
from ed_lib.timing import three_digits


def setup() -> None:
    """Starts a chapter: the figures' style, the magics ``%%gpu`` and ``%%needs``, and one printed
    line about the machine.
    """
    from IPython import get_ipython

    from ed_lib import figures

    figures.use_style()
    if shell := get_ipython():
        shell.register_magic_function(gpu_cells.run, "cell", "gpu")
        shell.register_magic_function(needs.run, "cell", "needs")
    print(card())


def table(rows: Iterable, caption: str, columns: dict[str, Callable] | None = None) -> None:
    """Shows rows as a table with a caption. ValueError when there are none.

    columns: {heading: a function of a row that gives text or a number}; without, rows are dicts,
    and the columns those of the first. Numbers, NumPy's too, are set to the right, floats with
    three significant digits.
    """
    from IPython.display import HTML, display

    rows = list(rows)
    if not rows:
        raise ValueError("rows is empty; wanted at least one")
    if not columns:
        columns = {heading: operator.itemgetter(heading) for heading in rows[0]}
    headings = "".join(_cell(heading, "th") for heading in columns)
    body = ""
    for row in rows:
        cells = "".join(_cell(get(row), "td") for get in columns.values())
        body += f"<tr>{cells}</tr>"
    above = f"<caption>{html.escape(caption)}</caption><thead><tr>{headings}</tr></thead>"
    display(HTML(f'<table class="table">{above}<tbody>{body}</tbody></table>'))


def source(thing: Any) -> None:
    """Shows the source of a function, class or kernel of ``ed_lib``, highlighted."""
    from IPython.display import Code, display

    # Numba and Triton each wrap what they compile: the function is inside.
    for inside in ("py_func", "fn"):
        thing = getattr(thing, inside, thing)
    display(Code(inspect.getsource(thing), language="python"))


def exercise(number: int, returns: bool = True) -> Callable:
    """Decorates a check, which takes the reader's function and asserts what a solution does: it
    prints "solved" or what is missing, and never raises. returns: whether a function is to return
    something.
    """

    def decorate(check):
        def run(solution):
            @functools.wraps(solution)
            def answered(*args, **options):
                answer = solution(*args, **options)
                if answer is None and returns:
                    raise AssertionError("the function returns nothing")
                return answer

            # Whatever a reader's code does, exit() included, the chapter goes on.
            try:
                check(answered)
            except (Exception, SystemExit) as error:
                kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
                print(f"Exercise {number}: not yet. {kind}{error}")
            else:
                print(f"Exercise {number}: solved.")

        return run

    return decorate


def _cell(value, tag):
    """A cell of a table, "td" or "th": numbers to the right, what else there is to the left."""
    side = "right"
    if isinstance(value, (int, np.integer)):
        text = f"{value:,}"
    elif isinstance(value, (float, np.floating)):
        text = three_digits(value)
    else:
        text = str(value)
        side = "left"
    return f'<{tag} style="text-align:{side}">{html.escape(text)}</{tag}>'
