"""The records that code reads, found in its tree: a page whose record has changed is made again."""

import ast
import functools

from ed_lib import records

CALLS = {"records.of", "records.by_machine"}
# What the GPU cells of all chapters printed: a chapter reads a few rows of this record.
CELLS = "cells"


@functools.cache
def read_by(source):
    """(benchmark, machine) of each record that Python source reads; "*", which is any, where no
    literal names it.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS:
            words = [word.value if isinstance(word, ast.Constant) else "*" for word in node.args]
            found.add((*words, "*", "*")[:2])
    return found


def texts_in(source):
    """The literal texts in Python source."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return {node.value for node in nodes if isinstance(node.value, str)}


def contents(cells, modules, ids):
    """What stands in all records that sources read, a chapter's cells and modules; of what GPU
    cells printed, in the rows of the cells with these ids, and of those that a source names.
    """
    read = set().union(*map(read_by, [*cells, *modules]))
    files = {
        path
        for benchmark, machine in read
        if benchmark != CELLS
        for path in records.ROOT.glob(f"records/{machine}/{benchmark}.csv")
    }
    texts = [f"{path.parent.name}\0{path.read_text(encoding='utf-8')}" for path in sorted(files)]
    return "\0".join([*texts, *printed(ids.union(*map(texts_in, cells)))])


def printed(names):
    """Each row of what GPU cells printed whose cell or chapter is one of the names, with its GPU
    and its day, which a page prints too.
    """
    for record in records.by_machine(CELLS).values():
        for _, row in record.iterrows():
            if {row.cell, row.table} & names:
                made = record.attrs["device"], record.attrs["dates"][row.table]
                yield f"{made} {row.cell} {row.code} {row.printed}"
