"""What a chapter needs to start: the style, a line about the machine, progress, source, exercises."""

import html
import inspect
import sys

from ed_lib import arrays
from ed_lib.machine import card, cpu, gpu, versions  # noqa: F401  offered here as well


def setup():
    """Starts a chapter: the figures' style, the ``%%gpu`` magic, and one printed line about the machine."""
    from IPython import get_ipython

    from ed_lib import figures

    figures.use_style()
    if shell := get_ipython():
        shell.register_magic_function(_gpu_cell, "cell", "gpu")
    print(card())


def progress(iterable, what):
    """``iterable`` with a progress bar on stderr, gone when it ends. TQDM_DISABLE=1 switches the bars off."""
    from tqdm.std import tqdm

    return tqdm(iterable, desc=what, leave=False, file=sys.stderr)


def table(rows, caption):
    """Shows rows, dicts {column: text or number} with the columns of the first, as a table with a caption.

    Numbers are set to the right, floats with three significant digits. ValueError when there are no rows.
    """
    from IPython.display import HTML, display

    if not rows:
        raise ValueError("rows is empty; wanted at least one")

    def cell(value, tag="td"):
        number = isinstance(value, (int, float))
        short = f"{value:,.0f}" if number and abs(value) >= 1000 else f"{value:.3g}" if number else str(value)
        text = f"{value:,}" if isinstance(value, int) else short
        side = "right" if number else "left"
        return f'<{tag} style="text-align:{side}">{html.escape(text)}</{tag}>'

    head = "".join(cell(column, "th") for column in rows[0])
    body = "".join("<tr>" + "".join(cell(row[column]) for column in rows[0]) + "</tr>" for row in rows)
    caption = f"<caption>{html.escape(caption)}</caption>"
    parts = f"{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    display(HTML(f'<table class="table">{parts}</table>'))


def source(thing):
    """Shows the source of a function, class or kernel of ``ed_lib``, highlighted."""
    from IPython.display import Code, display

    thing = getattr(thing, "py_func", getattr(thing, "fn", thing))  # inside Numba's and Triton's wrappers
    display(Code(inspect.getsource(thing), language="python"))


def exercise(number):
    """Decorates a check of an exercise, so that it prints "solved", or what is missing, and never raises.

    The check takes the reader's function and asserts what a solution does.
    """

    def decorate(check):
        def run(solution):
            try:
                check(solution)
            except Exception as error:  # whatever a reader's code does, the chapter goes on
                kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
                print(f"Exercise {number}: not yet. {kind}{error}")
            else:
                print(f"Exercise {number}: solved.")

        return run

    return decorate


def _gpu_cell(line, cell):
    """What ``%%gpu`` at the top of a cell does: runs the cell, or says that there is no GPU to run it on."""
    from IPython import get_ipython

    if not arrays.gpu_count():
        print("Skipped here: this cell needs a GPU, and this machine has none.")
        return
    get_ipython().run_cell(cell).raise_error()
