"""The ``%%gpu`` cells of chapters as a plain program: `python -m tools.cells [--tiny] [a chapter ...]`.

Needs no Jupyter. Of each chapter the GPU cells are run, and of the cells before them those that make what
they use. What would be shown in the page is printed.
"""

import ast
import contextlib
import json
import os
import re
import sys
import time
import traceback
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAGIC = "%%gpu\n"
TINY = {4096: 3, 512: 16, 100: 2}  # what layers, sizes and steps become in a rehearsal


def chapters():
    """The chapters that have such cells."""
    return sorted(path for path in ROOT.glob("book/*/*.ipynb") if MAGIC[:-1] in path.read_text("utf-8"))


def cells_of(path):
    """[(tags, source)] of the code cells of a notebook."""
    cells = json.loads(Path(path).read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    return [(cell["metadata"].get("tags", []), python("".join(cell["source"]))) for cell in code]


def python(source):
    """A cell without what only IPython understands, such as ``%pip``; it still says that it is for a GPU."""
    head = MAGIC if source.startswith(MAGIC) else ""
    return head + re.sub(r"^(\s*)[%!].*$", r"\1pass", source.removeprefix(head), flags=re.MULTILINE)


def needed(cells):
    """The numbers of the GPU cells, of the set-up, and of all cells that make a name that they use."""
    sources = [source.removeprefix(MAGIC) for _, source in cells]
    used, made = zip(*(names(source) for source in sources), strict=True)
    wanted = {n for n, (tags, _) in enumerate(cells) if "setup" in tags}
    todo = [n for n, (_, source) in enumerate(cells) if source.startswith(MAGIC)]
    while todo:
        wanted.add(n := todo.pop())
        for name in used[n]:
            makers = [before for before in range(n) if name in made[before]]
            todo += [before for before in makers if before not in wanted]
    return sorted(wanted)


def names(source):
    """(names that a cell uses, names that it binds, or changes as ``runs[n] = …`` does)."""
    used, made = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            made.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            made |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            made |= {inner.id for inner in ast.walk(node.value) if isinstance(inner, ast.Name)}
    return used, made


def without_jupyter():
    """Stands in for IPython where it is missing: there is no shell, and what is displayed is printed."""
    if "IPython" in sys.modules:
        return
    with contextlib.suppress(ImportError):
        import IPython  # noqa: F401

        return
    module, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    module.get_ipython, module.version_info = lambda: None, (9, 0)  # Matplotlib asks for both
    module.display = display
    display.display = lambda thing, raw=False: print(thing["text/plain"] if raw else thing)
    display.HTML = display.Code = display.Markdown = lambda data=None, **options: (
        f"[{len(data or '')} characters]"
    )
    sys.modules |= {"IPython": module, "IPython.display": display}


class Smaller(ast.NodeTransformer):
    """Makes the large numbers of a GPU cell small."""

    def visit_Constant(self, node):
        return ast.copy_location(ast.Constant(TINY.get(node.value, node.value)), node)


def run(path, tiny=False):
    """Runs the cells of one chapter, in its folder → "ok", or why it was left, or what failed."""
    cells, space = cells_of(path), {"__name__": "__main__"}
    with contextlib.chdir(Path(path).parent):
        for number in needed(cells):
            source = cells[number][1]
            if source.startswith(MAGIC):
                print(f"--- {Path(path).stem}, code cell {number + 1}", flush=True)
            try:
                tree = ast.parse(source.removeprefix(MAGIC))
                tree = Smaller().visit(tree) if tiny and source.startswith(MAGIC) else tree
                exec(compile(tree, f"{Path(path).name}[{number + 1}]", "exec"), space)
            except ImportError as error:  # a bare machine has not all that a chapter shows
                return f"left: {error}"
            except Exception as error:
                traceback.print_exc()
                message = f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.150}"
                return f"failed: code cell {number + 1}: {message}"
    return "ok"


def main(paths):
    tiny, paths = "--tiny" in paths, [path for path in paths if path != "--tiny"]
    without_jupyter()
    os.environ.setdefault("MPLBACKEND", "Agg")
    failed = False
    for path in [Path(name).resolve() for name in paths] or chapters():
        start, state = time.monotonic(), run(path, tiny)
        failed |= state.startswith("failed")
        seconds = f"{time.monotonic() - start:.0f} s"
        print(f"{path.stem}: {state} ({seconds})", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
