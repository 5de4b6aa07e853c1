"""Exercises' checks against wrong answers: 0, NaN, and mutants of each solution."""

import ast
import copy
import signal

import pytest

from tools import notebooks
from tools.notebooks import ROOT, code_cells, tags

SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
SWAPS |= {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.USub: ast.UAdd,
}
SAME = (
    "linspace(",
    "range(1, T + 2)",
    "EDNetwork(2, 1",
    "max_epochs=",
    "rng.choice(",
    "return ((0.5, -0.2)",
)  # as right
SECONDS = 4  # for what an exercise needs of its chapter, and for a check


def names(node, kind=ast.expr_context):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, kind)}


def defined(node):
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return {node.name} if hasattr(node, "name") else names(node, ast.Store)


def exercises():
    """Each exercise: its chapter, the statements before its check, the check, the solution."""
    for path in notebooks.chapters():
        before, checks = [], []
        for cell in code_cells(notebooks.read(ROOT / path)):
            if {"gpu", "setup", "exercise", "claim"} & {*tags(cell)} or "%%" in cell.source:
                continue
            body = [node for node in ast.parse(cell.source).body if not isinstance(node, ast.Expr)]
            if "solution" in tags(cell):
                yield pytest.param(path, *checks.pop(0), body, id=f"{path.stem} {cell.source.split()[3]}")
            checks += [(before[:], body)] * ("exercise-check" in tags(cell))
            before += body


def mutants(body):
    """The statements with one operation, or one whole number by one, changed."""
    for place, node in enumerate(ast.walk(tree := ast.Module(body, []))):
        at = [*ast.walk(new := copy.deepcopy(tree))][place]
        if type(getattr(node, "op", None)) in SWAPS:
            at.op = SWAPS[type(node.op)]()
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            at.ops[0] = SWAPS[type(node.ops[0])]()
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            at.value += 1
        else:
            continue
        yield ast.fix_missing_locations(new)


def works(function, *arguments):
    """Whether it comes to its end, in time."""
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.alarm(SECONDS)
    try:
        function(*arguments)
        return True
    except (Exception, KeyboardInterrupt):
        return False
    finally:
        signal.alarm(0)


@pytest.mark.slow
@pytest.mark.parametrize("path, before, check, solution", exercises())
def test_a_check_fails_what_is_wrong(path, before, check, solution, monkeypatch):
    used, needed, chapter = set().union(*map(names, check + solution)), [], {}
    for node in reversed(before):
        if used & defined(node):
            used, needed = used | names(node), [node, *needed]
    *_, function = check = copy.deepcopy(check)
    function.decorator_list, name = [], solution[-1].name
    monkeypatch.chdir((ROOT / path).parent)
    run = lambda tree: exec(compile(tree, "chapter", "exec"), chapter)  # noqa: E731
    for node in [*needed, *check, *solution]:
        works(run, ast.Module([node], []))
    passes = lambda answer: works(chapter[function.name], answer)  # noqa: E731
    if name not in chapter or function.name not in chapter or not passes(chapter[name]):
        pytest.skip("it needs more of its chapter, or longer")
    wrong = [number for number in (0, float("nan")) if passes(lambda *_, n=number, **__: n)]
    for mutant in mutants(solution):
        if works(run, mutant) and passes(chapter[name]):
            right, text = (ast.unparse(tree).split("\n") for tree in (ast.Module(solution, []), mutant))
            wrong += [line for line in text if line not in right and not any(same in line for same in SAME)]
    assert wrong == []
