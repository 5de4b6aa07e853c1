"""`make mutants MODULE=precision/low_bit_training`: the small mistakes that a module's tests miss.

A mutant is the module with one operator, number, truth value or short word changed. Each is written
into a copy of the repository, and the module's tests run there, in a process of their own. A mutant
that no test catches is either as right as the original, or shows a test that is missing.
"""

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools.pages import ROOT

PAIRS = [  # each becomes the other
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
    (ast.FloorDiv, ast.Mod),
    (ast.BitOr, ast.BitAnd),
    (ast.LShift, ast.RShift),
    (ast.And, ast.Or),
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    ("min", "max"),
    ("amin", "amax"),
    ("minimum", "maximum"),
    ("all", "any"),
]
OTHER = dict(PAIRS) | {b: a for a, b in PAIRS} | {ast.Pow: ast.Mult, ast.USub: ast.UAdd}
WORD = re.compile("[A-Za-z]{2,8}")  # a key or a code, such as the order of gates "ifgo"
# Types, settings of a compiler or a class, and the messages of errors: no result hangs on them.
SKIPPED = {"annotation", "returns", "decorator_list", "exc", "msg", "format_spec"}
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "_build", "edit", "*.egg-info")
WIDEST = 72  # letters of what is printed of a mutant
# A mutant hangs when it takes longer than so many times what the original took, and so much more.
TIMES = 3
SPARE = 30  # seconds
LONGEST = 900  # seconds for the tests of the original


class Mutant(NamedTuple):
    line: int
    before: str
    after: str
    source: str  # of the whole module


def mutants(source: str) -> list[Mutant]:
    """Each mutant of a module, from its first line to its last."""
    tree = ast.parse(source)
    found = []
    for node, parent in places(tree, tree):
        # A number or a name alone says little, so what it stands in is printed with it.
        shown = parent if isinstance(node, (ast.Constant, ast.Name)) else node
        for field, value in changes(node):
            original = getattr(node, field)
            before = text(shown)
            setattr(node, field, value)
            found.append(Mutant(node.lineno, *cut(before, text(shown)), ast.unparse(tree)))
            # The next mutant begins with the original again.
            setattr(node, field, original)
    return sorted(found, key=lambda mutant: mutant.line)


def places(node: ast.AST, parent: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """(node, what it stands in) for all that computes, a node before its parts."""
    yield node, parent
    for field, value in ast.iter_fields(node):
        if field in SKIPPED:
            continue
        parts = value if isinstance(value, list) else [value]
        for part in parts:
            if isinstance(part, ast.AST) and not is_prose(part, node):
                yield from places(part, node)


def is_prose(node: ast.AST, parent: ast.AST) -> bool:
    """Whether it is a docstring, the text of an f-string, ``__all__``, a word for a check's
    message, or zip's ``strict``, which only says that nothing is amiss.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        checks = isinstance(parent, ast.Call) and ast.unparse(parent.func).startswith("check.")
        return checks or isinstance(parent, (ast.Expr, ast.JoinedStr))
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"


def changes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """(field, another value of it) for each change of a node."""
    operator = getattr(node, "op", None)
    if type(operator) in OTHER:
        yield "op", OTHER[type(operator)]()
    if isinstance(operator, ast.Not):
        # Twice "not" is none, and the result is a truth value as before.
        yield "operand", ast.UnaryOp(ast.Not(), node.operand)
    comparisons = getattr(node, "ops", [])  # of a < b < c two
    for i, comparison in enumerate(comparisons):
        other = OTHER[type(comparison)]()
        yield "ops", [*comparisons[:i], other, *comparisons[i + 1 :]]
    for field in ("id", "attr"):
        name = getattr(node, field, None)
        if name in OTHER:
            yield field, OTHER[name]
    if isinstance(node, ast.Constant) and (other := another(node.value)) is not None:
        yield "value", other


def another(value: Any) -> Any:
    """Another constant of the same type; None where a change says nothing."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return 1.25 * value or 1.0
        case str() if WORD.fullmatch(value) and value[0] != value[1]:
            return value[1] + value[0] + value[2:]
    return None


def text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def cut(before: str, after: str) -> list[str]:
    """Both, as far as they stand near their first difference."""
    same = len(os.path.commonprefix([before, after]))
    first = max(0, same - WIDEST // 2)
    return ["…" * (first > 0) + one[first : first + WIDEST] for one in (before, after)]


def caught_by(root: Path, module: Path, source: str, tests: list[str], limit: float) -> str:
    """The test that fails when the module is ``source``, "" if none does; tried in a copy of the
    repository, whose files stay as they are.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(root, copy, ignore=LEFT_OUT)
        (copy / module).write_text(source, encoding="utf-8")
        # Half of a short run would be the import of pytest's plugins.
        settings = {"PYTHONPATH": str(copy), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        # A compiled kernel in a cache hides a change of what it calls. So no copy shares a cache,
        # and for a module that has no kernels nothing is compiled, which is quicker.
        if "numba" in source:
            settings["NUMBA_CACHE_DIR"] = f"{folder}/numba"
        else:
            settings["NUMBA_DISABLE_JIT"] = "1"
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
            cwd=copy,
            env=os.environ | settings,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                return f"the limit of {limit:.0f} s"
            finally:
                if process.poll() is None:
                    # The whole session, since a test may have begun processes of its own.
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (?:\S*/)?(.*?)(?: - .*)?$", said, re.MULTILINE)
    return failed[1] if failed else f"exit code {process.returncode}: {said[-500:]}"


def sample(every: list[Mutant], number: int, seed: int) -> list[Mutant]:
    """So many of them, or all if there are fewer, in their order; the same for the same seed."""
    drawn = random.Random(seed).sample(range(len(every)), min(number, len(every)))
    return [every[i] for i in sorted(drawn)]


def survey(root: Path, module: str, more: list[str], number: int, seed: int) -> list[Mutant]:
    """Tries a sample of the mutants of ed_lib/``module``.py, and prints a line for each → those
    that survive.
    """
    path = Path("ed_lib") / f"{module}.py"
    mirrored = Path("tests") / Path(module).parent / f"test_{path.name}"
    tests = [mirrored.as_posix()] if (root / mirrored).exists() else []
    tests += more
    if not tests:
        raise SystemExit(f"There is no {mirrored}. Name the files that test it: TESTS=...")
    source = (root / path).read_text(encoding="utf-8")

    # The original goes the way of a mutant, so that what is caught later is the change.
    began = time.monotonic()
    if problem := caught_by(root, path, ast.unparse(ast.parse(source)), tests, LONGEST):
        raise SystemExit(f"The tests fail already: {problem}")
    seconds = time.monotonic() - began

    every = mutants(source)
    drawn = sample(every, number, seed)
    print(f"{path}: {len(drawn)} of {len(every)} mutants, {seconds:.0f} s for all of", *tests)
    survivors = []
    for mutant in drawn:
        found = caught_by(root, path, mutant.source, tests, SPARE + TIMES * seconds)
        if not found:
            survivors.append(mutant)
        outcome = f"caught by {found}" if found else "SURVIVED"
        print(f"{mutant.line:4}  {mutant.before} → {mutant.after}   {outcome}", flush=True)
    print(f"{path}: {len(drawn) - len(survivors)} of {len(drawn)} caught")
    return survivors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", help="a file of ed_lib, without .py")
    parser.add_argument("tests", nargs="*", help="files, besides tests/<part>/test_<name>.py")
    parser.add_argument("--number", type=int, default=50, help="of mutants (50)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    given = parser.parse_args()
    survey(ROOT, given.module, given.tests, given.number, given.seed)
