"""The chapters as files: which there are, what their outputs depend on, how they are executed and written.

python -m tools.notebooks [book/ed/error_diffusion.ipynb ...]

executes the chapters (all of them, or those named) and writes them back with their outputs, in canonical
form. It waits for a quiet machine before each, and refuses times that no quiet machine shows. A fingerprint
in their metadata says which code made the outputs; a test fails when it no longer fits.

Jupyter's libraries are imported where they are used: the page of measurements needs none of them.
"""

import argparse
import asyncio
import contextlib
import copy
import datetime
import functools
import hashlib
import importlib.util
import os
import re
import sys
import time
from pathlib import Path

from ed_lib import data, gates, notebook, records, roofline
from tools import citations
from tools.pages import ROOT, pages

FOLDED = {"hide-input", "hide-cell"}  # the tags of cells that the page shows folded


def chapters():
    """The notebooks of the table of contents, as paths relative to the root, in reading order."""
    paths = (Path(f"{name}.ipynb") for name in pages(ROOT))
    return [path for path in paths if (ROOT / path).exists()]


class BrokenNotebook(ValueError):
    """A file that holds no notebook."""


def read(path):
    """The notebook in a file; :class:`BrokenNotebook`, which names the file, if it holds none."""
    import nbformat

    with open(path, encoding="utf-8") as file:
        try:
            return nbformat.read(file, as_version=4)
        except Exception as error:  # no text, no JSON, no notebook
            raise BrokenNotebook(f"{path} is no notebook: {error}") from error


def read_copy(path):
    """The notebook in a file that can be made again; None if there is none, or it is broken."""
    with contextlib.suppress(FileNotFoundError, BrokenNotebook):
        return read(path)


def tags(cell):
    return cell.metadata.get("tags", [])


def folded_in_colab(cell):
    """What the page folds, but for the cells that one opens Colab's GPU for."""
    return bool(FOLDED & set(tags(cell))) and "gpu" not in tags(cell)


def plain(error):
    """What a cell's error prints, without the terminal's colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", str(error))


def code_cells(nb):
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def missing(nb):
    """What this notebook needs and this machine lacks, a data set or JAX, in a line; None if nothing."""
    loads = "".join(cell.source for cell in code_cells(nb))
    if "simulate_devices(" in loads and not importlib.util.find_spec("jax"):
        return "jax is missing; install it with: pip install jax"
    if "training.by_stage" in loads and (problem := _why_missing(data.text, "tinyshakespeare")):
        return problem  # other chapters do without the text
    images = re.findall(r'data\.load\("([\w-]+)"\)', loads)
    return next(filter(None, (_why_missing(data.load, name) for name in images)), None)


@functools.cache
def _why_missing(load, name):
    try:
        load(name)
    except FileNotFoundError:  # ED_DATA names no folder
        raise
    except OSError as error:  # ConnectionError, and what requests raises
        return str(error)


def fingerprint(nb):
    """SHA-256 of what of ours decides the outputs: the code cells and the ed_lib modules that they reach.

    The set-up cell's text is left out, since the book's address stands in it and changes no output.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    code, modules = "", set()
    for cell in code_cells(nb):
        if "setup" not in tags(cell):
            code += cell.source + "\0"
        body = cell.source.removeprefix("%%gpu\n")  # inside this magic is Python
        modules |= records.imported(TransformerManager().transform_cell(body))
    return records.code_hash(modules, ROOT, code)


QUIET = {"TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore:IProgress not found"}  # no bars in outputs


def execute(nb, path, **environment):
    """A copy of the notebook ``path`` (relative to the root) with the outputs that this machine gives.

    Shows progress on a terminal. Raises CellExecutionError when a cell fails, and KeyboardInterrupt at a
    SIGINT, once the kernel has ended.
    """
    from nbclient import NotebookClient
    from tqdm import tqdm

    nb = copy.deepcopy(nb)
    with tqdm(total=len(code_cells(nb)), desc=path.stem, unit="cell", ascii=" #", disable=None) as bar:
        client = NotebookClient(
            nb,
            timeout=600,  # seconds for a cell; generous, for a machine that is busy
            kernel_name="python3",
            shutdown_kernel="immediate",  # a kernel that is asked to end in the middle of a cell complains
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": str((ROOT / path).parent)}},
            record_timing=False,
            on_cell_executed=lambda **_: bar.update(),
        )
        asyncio.run(_run(client, environment))
    nb.metadata["ed_lib"] = {
        "executed": datetime.date.today().isoformat(),
        "machine": " · ".join(notebook.card().split(" · ")[:2]),
        "versions": notebook.card().split(" · ")[2:],
        "fingerprint": fingerprint(nb),
    }
    return canonical(nb)


async def _run(client, environment):
    """Executes all cells. At a SIGINT asyncio cancels this, and nbclient ends its kernel."""
    from nbclient.exceptions import DeadKernelError

    def refuse(*_):  # nbclient's own handlers, which end the kernel and then trip over its absence
        raise RuntimeError

    asyncio.get_running_loop().add_signal_handler = refuse
    try:
        await client.async_execute(env=os.environ | QUIET | environment)
    except DeadKernelError:  # which nbclient says when it is cancelled within a cell
        if asyncio.current_task().cancelling():
            raise asyncio.CancelledError from None
        raise


def canonical(nb):
    """The notebook with nothing in it that depends on who saved it: our metadata, ids from the sources."""
    import nbformat

    nb = copy.deepcopy(nb)
    nb.metadata = nbformat.from_dict({
        "accelerator": "GPU",  # what Colab offers when it opens the chapter
        "ed_lib": nb.metadata.get("ed_lib", {}),
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    })  # fmt: skip
    seen = {}
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = citations.as_links(citations.as_roles(cell.source))  # as the bibliography is now
        digest = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        seen[digest] = seen.get(digest, 0) + 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        cell.metadata = nbformat.from_dict(
            {key: cell.metadata[key] for key in ("tags", "mystnb") if key in cell.metadata}
        )
        if cell.cell_type == "code":
            cell.outputs = _merged(cell.outputs)
            if folded_in_colab(cell):
                cell.metadata["cellView"] = "form"
    nb.nbformat_minor = 5
    return nb


def _merged(outputs):
    """Outputs with neighbouring pieces of one stream put together, which arrive cut at random."""
    merged = []
    for output in outputs:
        if merged and output.output_type == "stream" and output.name == merged[-1].get("name"):
            merged[-1].text += output.text
        else:
            merged.append(output)
    return merged


def write(nb, path):
    """Writes the file whole or not at all, whatever ends this process."""
    import nbformat

    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(nbformat.writes(nb).rstrip("\n") + "\n", encoding="utf-8")
    os.replace(beside, path)


SHARED = 0.5  # of its ceilings: what a machine that others share may reach when a page is made, whose cells
# check their times themselves; a record waits for ``gates.REACHED``


def make(path, patience, tries=3):
    """The chapter with outputs of a quiet machine. ``gates.Busy`` if it gets none in so many tries."""
    from nbclient.exceptions import CellExecutionError

    for left in reversed(range(tries)):
        gates.wait_for_quiet(patience)
        try:
            return execute(read(ROOT / path), path, ED_GATES="strict")
        except CellExecutionError as error:
            if error.ename != "Busy":
                raise
            if not left:
                raise gates.Busy(f"{tries} tries, and still: {error.evalue}") from None
            print(f"{path}: {error.evalue}; once more", flush=True)
            raise_ceilings()  # what is faster than they are may be right


def raise_ceilings():
    for dtype in ("float32", "float64"):
        print(roofline.raised(dtype=dtype), flush=True)


def main(arguments=None):
    from nbclient.exceptions import CellExecutionError

    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description="Executes chapters.")
    parser.add_argument("chapter", nargs="*", help="paths of notebooks; without: all chapters")
    parser.add_argument("--patience", type=float, default=600, help="seconds to wait for a quiet machine")
    options = parser.parse_args(arguments)
    paths, path = [Path(name).resolve().relative_to(ROOT) for name in options.chapter] or chapters(), None
    of_records, gates.REACHED = gates.REACHED, SHARED
    try:
        if not options.chapter:  # all pages print the same ones
            raise_ceilings()
        for path in paths:
            if problem := missing(read(ROOT / path)):
                print(f"{path}: left as it is. {problem}", flush=True)
                continue
            start = time.monotonic()
            write(make(path, options.patience), ROOT / path)
            print(f"{path}: outputs written after {time.monotonic() - start:.0f} s", flush=True)
    except CellExecutionError as error:
        sys.exit(f"\n{path}: a cell failed, and the file stays as it was.\n{plain(error)}")
    except gates.Busy as error:
        sys.exit(f"\n{path}: refused, and the file stays as it was. {error}")
    except BrokenNotebook as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        print(f"Interrupted: {path} stays as it was.", file=sys.stderr)
        sys.exit(130)
    finally:
        gates.REACHED = of_records


if __name__ == "__main__":
    main()
