"""The cells of a chapter that show times which are measured as the page is made."""

import ast
import re

from IPython.core.inputtransformer2 import TransformerManager

from tools.notebooks import code_cells, tags

# What measures: `timing.tell` merely writes a time down.
CLOCKS = {"timing.apart", "timing.compare", "timing.elapsed", "timing.measure", "timing.now"}
CLOCKS |= {"time.monotonic", "time.perf_counter"}


SHOW_NOTHING = {"claim", "exercise", "exercise-check", "setup", "solution"}
LOOPS = (ast.For, ast.comprehension)
BLOCKS = (ast.With, ast.Try, ast.If)
# A module that a cell writes for other processes.
MODULE = re.compile(r"\b(\w+)\.py\b")


def live(nb):
    """The ids of the cells that show a time of this machine's, or what was made of one; a cell that
    reads a record is none of them.
    """
    found = set()
    # The names of functions that measure, and of what they gave; and of modules of such functions.
    timed = set()
    modules = set()
    for cell in code_cells(nb):
        if any(name in cell.source for name in (*CLOCKS, *modules)):
            modules.update(MODULE.findall(cell.source))
            timed |= modules
        if cell.source.startswith("%%"):
            continue
        tree = ast.parse(TransformerManager().transform_cell(cell.source))
        for statement in _statements(tree.body):
            if timed.isdisjoint(_read(statement)) and CLOCKS.isdisjoint(_attributes(statement)):
                timed -= _made(statement)
                continue
            timed |= _made(statement)
            if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                found.add(cell.id)
        if "records." in cell.source or SHOW_NOTHING & set(tags(cell)):
            found.discard(cell.id)
    return found


def _statements(body):
    """The statements, and in the place of a block those in it."""
    for one in body:
        if isinstance(one, BLOCKS):
            handlers = [each.body for each in getattr(one, "handlers", [])]
            for part in (one.body, *handlers, getattr(one, "orelse", [])):
                yield from _statements(part)
        else:
            yield one


def _read(node):
    """The names that a statement reads, without those of its own loops and functions."""
    nodes = [*ast.walk(node)]
    loops = [one.target for one in nodes if isinstance(one, LOOPS)]
    functions = [one for one in nodes if isinstance(one, ast.FunctionDef)]
    own = {one.id for scope in (*loops, *functions) for one in _names(scope, ast.Store)}
    own |= {one.arg for one in nodes if isinstance(one, ast.arg)}
    return {one.id for one in _names(node, ast.Load)} - own


def _attributes(node):
    return {ast.unparse(one) for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def _made(node):
    """The names that a statement defines, or puts something into."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    parts = [one for one in ast.walk(node) if isinstance(one, (ast.Subscript, ast.Attribute))]
    into = [one.value for one in parts if isinstance(one.ctx, ast.Store)]
    found = [*_names(node, ast.Store), *(one for one in into if isinstance(one, ast.Name))]
    return {one.id for one in found}


def _names(node, context):
    names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
    return [one for one in names if isinstance(one.ctx, context)]
