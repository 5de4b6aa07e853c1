"""Exercises' checks against wrong answers: the stub, 0, None, NaN, and mutants of each solution: four,
or twelve with the tests marked slow.
"""

import ast
import contextlib
import io
import signal
import symtable

import pytest

from tools import notebooks
from tools.notebooks import ROOT, code_cells, tags

SWAPS = {"Add": ast.Sub, "Sub": ast.Add, "Mult": ast.Div, "Div": ast.Mult, "FloorDiv": ast.Mult}
SWAPS |= {
    "Lt": ast.GtE,
    "GtE": ast.Lt,
    "Gt": ast.LtE,
    "LtE": ast.Gt,
    "Eq": ast.NotEq,
    "USub": ast.UAdd,
}
FEW, MANY = 4, 12  # mutants of a solution at most
SECONDS = 30  # for a statement that an exercise needs of its chapter, and for its solution; a mutant has one
ANEW = ast.Assign | ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom  # define for sure
SHORTER = "steps=250", "steps=5"  # training whose result the check takes as it is
ALIKE = {  # mutants that are as right, by what their line holds, and why
    "linspace(": "one more point of time",
    "range(1, T + 2)": "a block longer than the sequence is never better",
    "EDNetwork(2, 1": "one pair of cells more",
    "max_epochs=": "one epoch more",
    "rng.choice(": "both signs are drawn all the same",
    "return ((0.5, -0.2)": "other numbers of the reader's choice",
    "range(T + L + 1)": "slots after the last hold nothing to do",
    "zeros_like(x[1])": "only the shape of a row counts",
}


def symbols(*nodes):
    """The names that statements need of what stands before them, and those that they define."""
    text = ast.unparse(ast.Module(list(nodes), []))
    top, needed = symtable.symtable(text, "cell", "exec"), set()
    for table in (tables := [top]):
        tables += table.get_children()
        wanted = [one for one in table.get_symbols() if one.is_referenced()]
        needed |= {one.get_name() for one in wanted if table is top or one.is_global()}
    return needed, {
        one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()
    }


def behind(wanted, before):
    """The statements that define these names, and what they need themselves, in order."""
    found, size = set(), -1
    while size < len(found):  # once more for what functions need that is defined after them
        size = len(found)
        for place, node in reversed([*enumerate(before)]):
            needs, makes = symbols(node)
            if wanted & makes:
                found.add(place)
                wanted = (wanted - makes if isinstance(node, ANEW) else wanted) | needs
    return [before[place] for place in sorted(found)]


def exercises():
    """Each exercise: its chapter, the statements before its check, the check, the solution."""
    for path in notebooks.tested():
        before, checks = [], []
        for cell in code_cells(notebooks.read(ROOT / path)):
            if {"gpu", "setup", "exercise", "claim"} & {*tags(cell)} or "%%" in cell.source:
                continue
            body = [node for node in ast.parse(cell.source).body if not isinstance(node, ast.Expr)]
            if "solution" in tags(cell):
                yield pytest.param(
                    path, *checks.pop(0), body, id=f"{path.stem} {cell.source.split()[3]}"
                )
            checks += [(before[:], body)] * ("exercise-check" in tags(cell))
            before += body


def mutants(body, most):
    """The statements with one operation, or one whole number by one, changed: at most ``most`` of
    them, from all over the solution.
    """
    # Parsed anew, not copied: all trees share the nodes of operations, and what IPython hangs on
    # those when it shows an error, a whole tree of its own, would be copied each time.
    text = ast.unparse(ast.Module(body, []))
    places = [place for place, node in enumerate(ast.walk(ast.parse(text))) if can_change(node)]
    found = []
    for place in places[:: max(1, -(-len(places) // most))]:
        new = ast.parse(text)
        change([*ast.walk(new)][place])
        found.append(ast.fix_missing_locations(new))
    return found


def operation(node):
    """The operation of a node, of a comparison its first; None where it has none."""
    return node.ops[0] if isinstance(node, ast.Compare) else getattr(node, "op", None)


def is_whole_number(node):
    return isinstance(node, ast.Constant) and type(node.value) is int


def can_change(node):
    return type(operation(node)).__name__ in SWAPS or is_whole_number(node)


def change(node):
    """One operation for another, or a whole number for the next."""
    if is_whole_number(node):
        node.value += 1
    elif isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0]).__name__]()
    else:
        node.op = SWAPS[type(node.op).__name__]()


def said(function, *arguments, seconds=SECONDS):
    """What it prints; an error's name where it fails, or takes too long."""
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            function(*arguments)
        return out.getvalue()
    except (Exception, KeyboardInterrupt) as error:
        return repr(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.mark.parametrize("most", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path, before, check, solution", exercises())
def test_a_check_fails_what_is_wrong(path, before, check, solution, most, monkeypatch):
    text = ast.unparse(ast.Module(behind(symbols(*check, *solution)[0], before), []))
    chapter, needed = {}, ast.parse(text.replace(*SHORTER)).body
    monkeypatch.chdir((ROOT / path).parent), monkeypatch.setenv("KERAS_BACKEND", "torch")
    name, by = solution[-1].name, check[-1].name
    run = lambda tree: said(exec, compile(tree, "chapter", "exec"), chapter)  # noqa: E731
    for node in [*needed, *check, *solution]:
        run(ast.Module([node], []))
    passes = lambda answer, **of: "solved" in said(chapter[by], answer, **of)  # noqa: E731
    if name not in chapter or by not in chapter or not passes(chapter[name]):
        pytest.fail(f"it needs more: {said(chapter[by], chapter.get(name))}")
    wrong = [n for n in (..., 0, None, float("nan")) if passes(lambda *_, n=n, **__: n)]
    for mutant in mutants(solution, most):
        if not run(mutant) and passes(chapter[name], seconds=1):
            right, text = (
                ast.unparse(tree).split("\n") for tree in (ast.Module(solution, []), mutant)
            )
            changed = [line for line in text if line not in right]
            wrong += [line for line in changed if not any(like in line for like in ALIKE)]
    assert wrong == []
