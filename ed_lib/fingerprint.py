"""Which of our files decide a result: those of the modules that it names, and all that these import in turn.

The machinery of two hashes that are kept elsewhere: a record's (``records.code_hash``, ``records.is_older``)
and that of a chapter's outputs (``tools.notebooks.fingerprint``). Code that changes makes them old.
Nothing is imported to find out; the sources are read.
"""

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OURS = ("ed_lib", "benchmarks")
PAGE = "\n# The page\n"  # a benchmark's lines from here on say how its rows are shown, not how they are made


def imported(source: str) -> set[str]:
    """The dotted names of ours that Python source imports: a.b for ``import a.b`` and ``from a import b``.

    ``import_module(f"a.{name}")`` may be any module of the package a: "a.*".
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            first = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else None
            names |= {f"{first.value!s}*"} if isinstance(first, ast.Constant) else set()
    return {name for name in names if name.split(".")[0] in OURS}


def reached(names: Iterable[str], root: Path = ROOT) -> list[Path]:
    """The files behind these names and behind all that they import in turn: sorted, relative to ``root``."""
    found, todo = set(), set(names)
    while todo:
        name = todo.pop()
        parts = name.removesuffix(".*").split(".")
        paths = [Path(*parts[:end]) for end in range(1, len(parts) + 1)]  # a.b.c runs a, a.b and a.b.c
        paths = [path for stem in paths for path in (stem / "__init__.py", stem.with_suffix(".py"))]
        if name.endswith(".*"):
            paths += [path.relative_to(root) for path in (root / Path(*parts)).glob("*.py")]
        for path in paths:
            if path not in found and (root / path).exists():
                found.add(path)
                todo |= imported((root / path).read_text(encoding="utf-8"))
    return sorted(found)


def digest(paths: Iterable[Path], root: Path = ROOT, begun: Any = None) -> Any:
    """SHA-256 over the names and sources of files, continuing the one ``begun``. Line ends do not count."""
    digest = begun or hashlib.sha256()
    for path in paths:
        source = (root / path).read_text(encoding="utf-8").partition(PAGE)[0]
        digest.update(path.as_posix().encode() + b"\0" + source.encode())
    return digest


def module(path: Path) -> str:
    """The dotted name of the module in a file."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")
