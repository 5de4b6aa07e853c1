"""How readable the code is: what the limits refuse, and the densities that `make status` tells.

Ruff checks columns, complexity and positional arguments (pyproject.toml). The rest is here.
"""

import ast
from collections import Counter
from pathlib import Path

# The lines of a file, at most.
LONGEST = 300
NESTS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LITERALS = (ast.List, ast.Tuple, ast.Set, ast.Dict)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def faults(tree: ast.Module) -> list[tuple[int, str]]:
    """(line, what is wrong there) for each construct that a reader has to take apart."""
    found = []
    for node in ast.walk(tree):
        # ast.walk begins with the node itself.
        _, *inside = ast.walk(node)
        if isinstance(node, ast.IfExp) and any(isinstance(one, ast.IfExp) for one in inside):
            found.append((node.lineno, "a conditional expression inside another"))
        if isinstance(node, NESTS) and any(two_loops(one) for one in inside):
            found.append((node.lineno, "a comprehension with two loops inside another"))
        if isinstance(node, ast.Assign) and assigns_three(node):
            found.append((node.lineno, "an assignment of three values at once"))
        if isinstance(node, (ast.Call, *LITERALS)):
            parts = map(holds, ast.iter_child_nodes(node))
            if any(isinstance(part, ast.NamedExpr) for part in parts):
                found.append((node.lineno, "a walrus inside a literal or a call"))
    return sorted(set(found))


def holds(part: ast.AST) -> ast.AST:
    """What is given: the value of a keyword or of a starred part."""
    return part.value if isinstance(part, (ast.keyword, ast.Starred)) else part


def two_loops(node: ast.AST) -> bool:
    return isinstance(node, NESTS) and len(node.generators) > 1


def assigns_three(node: ast.Assign) -> bool:
    """Three or more values to as many names; to exchange what names hold is one thought."""
    targets = [target for target in node.targets if isinstance(target, ast.Tuple)]
    if not targets or not isinstance(node.value, ast.Tuple) or len(node.value.elts) < 3:
        return False
    # The same names on both sides: they are exchanged.
    names = {ast.unparse(name) for name in targets[0].elts}
    values = {ast.unparse(value) for value in node.value.elts}
    return names != values


def counts(path: Path) -> Counter:
    """What the densities of a file are made of: lines of each kind, expressions,
    tuple-assignments.
    """
    text = path.read_text(encoding="utf-8")
    nodes = [*ast.walk(ast.parse(text))]
    docstrings = {line for node in nodes for line in docstring_lines(node)}
    # An empty file has no lines, but is counted.
    found = Counter(lines=0)
    for number, line in enumerate(text.splitlines(), 1):
        found["lines"] += 1
        if number not in docstrings and line.strip():
            kind = "comments" if line.strip().startswith("#") else "code"
            found[kind] += 1
    found["expressions"] = sum(isinstance(node, ast.expr) for node in nodes)
    found["tuples"] = sum(assigns_tuple(node) for node in nodes)
    return found


def docstring_lines(node: ast.AST) -> range:
    if not isinstance(node, DOCUMENTED) or ast.get_docstring(node) is None:
        return range(0)
    return range(node.body[0].lineno, node.body[0].end_lineno + 1)


def assigns_tuple(node: ast.AST) -> bool:
    """Whether it is like ``a, b = x, y``."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return any(isinstance(target, ast.Tuple) for target in node.targets)


def densities(folder: Path) -> str:
    """The lines of a folder's code, and how dense they are, in one line."""
    found = Counter()
    for path in folder.rglob("*.py"):
        found += counts(path)
    expressions = found["expressions"] / found["code"]
    tuples = 100 * found["tuples"] / found["code"]
    comments = 100 * found["comments"] / found["lines"]
    return (
        f"{folder.name}: {found['lines']:,} lines; {expressions:.2f} expressions a line of code; "
        f"{tuples:.1f} tuple-assignments in 100; {comments:.1f} % comment lines"
    )
