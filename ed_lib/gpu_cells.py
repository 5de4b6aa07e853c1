"""Cells that begin with ``%%gpu``: they run where there is a GPU, and elsewhere show what a GPU
printed.

A record has that by the cell's id, which stays when its code is renamed, and by a hash of the code
as a tree, in which layout, comments and the magic's argument do not count. A page shows what was
printed by the very code that it has: a kernel is told a cell's text, and not its id.
"""

import ast
import hashlib
import re
from typing import Any

from ed_lib import arrays, records

MAGIC = "%%gpu"


def run(line: str, cell: str) -> None:
    """The magic ``%%gpu``: runs the cell, or says why not here, and what a GPU printed. line: the
    compute capability that the cell needs, such as "8.0"; "" if any GPU of the book's will do.
    """
    from IPython import get_ipython

    needed = needs(line)
    if needed is None:
        get_ipython().run_cell(cell).raise_error()
        return
    print(f"Skipped here: this cell needs {needed}.")
    code = hash_of(cell)
    for made in records.by_machine("cells").values():
        for _, row in records.rows(made, code=code).iterrows():
            # Each chapter's cells, a table of the record, have a day of their own.
            when = made.attrs["dates"][row.table]
            print(f"It printed, on an {made.attrs['device']}, {when}:\n\n{row.printed}")


def needs(line: str) -> str | None:
    """What a cell whose magic has this argument needs and does not find here, in words; None if it
    finds all. ValueError for what is no compute capability.
    """
    asked = line.strip()
    if asked and not re.fullmatch(r"\d+\.\d", asked):
        raise ValueError(
            f"the argument of {MAGIC} is {asked!r}; wanted a compute capability, such as 8.0, or "
            "none"
        )
    major, _, minor = asked.partition(".")
    capability = (int(major), int(minor)) if asked else arrays.CAPABILITY
    if lacks := arrays.gpu_lacks(max(capability, arrays.CAPABILITY)):
        return f"a GPU with {lacks}"
    if not arrays.gpu_count():
        which = f" with compute capability {asked} or more" if asked else ""
        return f"a GPU{which}, and this machine has none"
    return None


def hash_of(cell: str) -> str:
    """What the code of a ``%%gpu`` cell is known by, with or without the magic's line: 12 hex
    digits.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    body = re.sub(rf"\A{MAGIC}.*\n", "", cell)
    # What is no Python, such as !ls, becomes Python.
    code = TransformerManager().transform_cell(body)
    tree = tree_text(ast.parse(code))
    return hashlib.sha256(tree.encode()).hexdigest()[:12]


def tree_text(node: Any) -> str:
    """A tree as text, the same in every version of Python, as ``ast.unparse`` is not."""
    if isinstance(node, list):
        return f"[{', '.join(map(tree_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name, value in ast.iter_fields(node):
        # Each version of Python has fields of its own, empty in code that is older.
        if value not in (None, []):
            fields.append(f"{name}={tree_text(value)}")
    return f"{type(node).__name__}({', '.join(fields)})"
