"""What a record says of itself: its machine, the libraries, the code that made it; and how it is
written.
"""

import ast
import csv
import functools
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import torch
from threadpoolctl import threadpool_info

from ed_lib import gpu_cells, machine, records

OURS = ("ed_lib", "benchmarks")
# Two threads at it can end in CPython's SystemError, "recursion depth mismatch".
PARSING = threading.Lock()
# Variables of the environment that force something on the libraries.
FORCED = re.compile("OPENBLAS|ONEDNN|DNNL|MKL|OMP_NUM|ATEN_CPU|NPY_DISABLE_CPU")
# Columns whose numbers are written with four significant digits.
ROUNDED = {"seconds", "q1", "q3", "launch", "floor", "error"}


def facts(device: str = "cpu") -> dict:
    """What made a measurement, for the head of its record. Names neither host, user nor folder."""
    keys = ("internal_api", "version", "architecture", "num_threads")
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    blas = [[pool.get(key) for key in keys] for pool in pools]
    # The command without the folders in it.
    command = " ".join(["python", *(re.sub(r".*/(?=.)", "", word) for word in sys.orig_argv[1:])])
    forced = {key: value for key, value in sorted(os.environ.items()) if FORCED.match(key)}
    if (gpu := machine.gpu(device)) is not None:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True).stdout.split()[:1]
        gpu = {"memory": gpu.total_memory, "driver": driver, "cuda": torch.version.cuda}
    return {
        "machine": machine.slug(device),
        "device": machine.name(device),
        "cpu": machine.name(),
        "flags": machine.flags(),
        "gpu": gpu,
        "threads": torch.get_num_threads(),
        "os": platform.platform(),
        "versions": machine.versions(),
        "torch_kernels": torch.backends.cpu.get_cpu_capability(),
        "blas": blas,
        "forced": forced,
        "command": command,
    }


def write(frame: pd.DataFrame, provenance: dict, folder: Path | str) -> Path:
    """Writes a record, without empty columns, to ``folder/<machine>/<benchmark>.csv``, named by its
    provenance, and returns the path. ValueError for an infinite number.
    """
    path = Path(folder, provenance["machine"], f"{provenance['benchmark']}.csv")
    table = {name: [_text(value, name in ROUNDED) for value in frame[name]] for name in frame}
    table = {name: texts for name, texts in table.items() if any(texts)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        made = {key: value for key, value in provenance.items() if key != "label"}
        made["rows"] = len(frame)
        file.writelines(f"# {key}: {_json(value)}\n" for key, value in made.items())
        csv.writer(file, lineterminator="\n").writerows([table, *zip(*table.values(), strict=True)])
    return path


def _text(value, is_rounded):
    # NaN, which alone is unlike itself, is written as nothing.
    if value is None or value != value:
        return ""
    if isinstance(value, str) and records.stands_as_it_is(value):
        return value
    return _json(float(f"{value:.4g}") if is_rounded and isinstance(value, float) else value)


def _json(value):
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)


def _plain(value):
    """The numbers of what is NumPy's, and the dict of a Size."""
    return value.tolist() if hasattr(value, "tolist") else vars(value)


def code_hash(names: Iterable[str], root: Path = records.ROOT, begun: str = "") -> str:
    """SHA-256 of ``begun`` and the code, without docstrings and comments, of all files that names
    reach.
    """
    digest = hashlib.sha256(begun.encode())
    for path in reached(names, root):
        code = _code((root / path).read_text(encoding="utf-8"))
        digest.update(f"{path.as_posix()}\0{code}\0".encode())
    return digest.hexdigest()


@functools.cache
def _code(source):
    """Python source without docstrings, comments and ``__version__``: a release by itself changes
    no result, so it makes no record another's.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if documented and ast.get_docstring(node):
            node.body = node.body[1:]
    tree.body = [node for node in tree.body if not _is_version(node)]
    return gpu_cells.tree_text(tree)


def _is_version(node):
    """Whether a statement sets ``__version__``."""
    targets = getattr(node, "targets", [])
    return [getattr(target, "id", "") for target in targets] == ["__version__"]


@functools.cache
def imported(source: str) -> set[str]:
    """The names of ours that Python source imports."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] in OURS}


def reached(names: Iterable[str], root: Path = records.ROOT) -> list[Path]:
    """The files behind names and behind all that they import in turn: sorted, relative to
    ``root``.
    """
    found = set()
    todo = set(names)
    while todo:
        parts = todo.pop().split(".")
        # Who imports a.b.c runs a, a.b and a.b.c.
        for end in range(1, len(parts) + 1):
            stem = Path(*parts[:end])
            for path in (stem / "__init__.py", stem.with_suffix(".py")):
                if path not in found and (root / path).is_file():
                    found.add(path)
                    todo |= imported((root / path).read_text(encoding="utf-8"))
    return sorted(found)
