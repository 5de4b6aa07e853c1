"""Cells that begin with ``%%needs SICK MiniLM``: they run where these published sets can be had.

Elsewhere such a cell prints that it is left out, and why. The later ones of a section, which begin
with ``%%needs SICK MiniLM, as above``, print nothing.
"""

import functools

from ed_lib import check, published

MAGIC = "%%needs"
AGAIN = ", as above"
# How the line begins; a build finds by it what a page leaves out.
LEFT_OUT = "This part is left out here, because"


def run(line: str, cell: str) -> None:
    """The magic ``%%needs``: runs the cell, or says which of the sets that the line names cannot be
    had. ValueError for a line that names none, or an unknown one.
    """
    from IPython import get_ipython

    names = line.strip().removesuffix(AGAIN).split()
    if not names:
        raise ValueError(f"the line of {MAGIC} is empty; wanted names of sets, such as SICK")
    reasons = {name: why_not(name) for name in names}
    lacking = [name for name in names if reasons[name]]
    if not lacking:
        get_ipython().run_cell(cell).raise_error()
    elif not line.endswith(AGAIN):
        print(f"{LEFT_OUT} {' and '.join(lacking)} cannot be had. {reasons[lacking[0]]}.")


@functools.cache
def why_not(name: str) -> str:
    """Why a set, such as "SICK", cannot be had, in a line; "" if it can. It is asked for once: a
    host that does not answer takes seconds. Errors as :func:`published.find`'s, but for
    ConnectionError.
    """
    check.choice("name", name.lower(), published.SETS)
    try:
        for file in published.SETS[name.lower()][1]:
            published.find(name.lower(), file)
    except ConnectionError as error:
        return str(error)
    return ""
