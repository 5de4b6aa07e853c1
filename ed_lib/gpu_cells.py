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
    """The magic ``%%gpu``: runs the cell, or says that there is no GPU to run it on, and what one
    printed.
    """
    from IPython import get_ipython

    if arrays.gpu_count():
        get_ipython().run_cell(cell).raise_error()
        return
    print("Skipped here: this cell needs a GPU, and this machine has none.")
    for made in records.by_machine("cells").values():
        for _, row in records.rows(made, code=hash_of(cell)).iterrows():
            when = made.attrs["dates"][row.table]
            print(f"It printed, on an {made.attrs['device']}, {when}:\n\n{row.printed}")


def hash_of(cell: str) -> str:
    """What the code of a ``%%gpu`` cell is known by, with or without the magic's line: 12 hex
    digits.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    code = TransformerManager().transform_cell(re.sub(rf"\A{MAGIC}.*\n", "", cell))
    return hashlib.sha256(_flat(ast.parse(code)).encode()).hexdigest()[:12]


def _flat(node: Any) -> str:
    """A tree as text. What is empty is left out, since each version of Python has fields of its
    own.
    """
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []))
        inside = ", ".join(f"{name}={_flat(value)}" for name, value in fields)
        return f"{type(node).__name__}({inside})"
    if isinstance(node, list):
        return f"[{', '.join(map(_flat, node))}]"
    return repr(node)
