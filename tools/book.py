"""`make book`: executes every chapter on this machine, renders the book, and says where it is.

The chapters under book/ stay as they are: copies are executed and rendered in _build/source. A chapter whose
code, machine and data are those of its last execution keeps the outputs it has there.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from nbclient.exceptions import CellExecutionError

from ed_lib import data, notebook
from tools import notebooks
from tools.notebooks import ROOT

BUILD = ROOT / "_build"
SOURCE = BUILD / "source"
PAGE = BUILD / "html" / "index.html"


def main():
    start = time.monotonic()
    stage()
    for path in notebooks.chapters():
        try:
            prepare(path)
        except CellExecutionError as error:
            sys.exit(f"\n{path}: a cell failed, so there is no new book.\n{error}")
    render()
    print(f"The book is ready ({time.monotonic() - start:.0f} s): {PAGE.as_uri()}")


def stage():
    """Brings _build/source up to date with what the book is made of, chapters apart; keeps files' times."""
    wanted = {path.relative_to(ROOT) for path in (ROOT / "book").rglob("*") if path.is_file()}
    wanted = {path for path in wanted if path.suffix != ".ipynb" and ".ipynb_checkpoints" not in path.parts}
    wanted |= {ROOT.joinpath(name).relative_to(ROOT) for name in ("_config.yml", "_toc.yml")}
    keep = wanted | set(notebooks.chapters())
    for old in list(SOURCE.rglob("*")):
        if old.is_file() and old.relative_to(SOURCE) not in keep:
            old.unlink()
    for path in wanted:
        (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
        if not (SOURCE / path).exists() or (SOURCE / path).read_bytes() != (ROOT / path).read_bytes():
            shutil.copy2(ROOT / path, SOURCE / path)


def prepare(path):
    """Puts the executed copy of one chapter into _build/source; executes it only if something has changed."""
    nb, copy = notebooks.read(ROOT / path), SOURCE / path
    made_on = f"{notebook.card()} · data: {os.environ.get('ED_DATA', '')}"
    old = notebooks.read(copy) if copy.exists() else None
    made_of = notebooks.fingerprint(nb)
    same = old and old.metadata.get("made_on") == made_on and old.metadata.ed_lib.fingerprint == made_of
    if same and not better_data_has_come(old):
        for cell, done in zip(notebooks.code_cells(nb), notebooks.code_cells(old), strict=True):
            cell.outputs, cell.execution_count = done.outputs, done.execution_count
        made = notebooks.canonical(nb)
        made.metadata["ed_lib"] = old.metadata["ed_lib"]
        print(f"{path.stem}: unchanged since it was executed here on {old.metadata.ed_lib.executed}")
    else:
        made = notebooks.execute(nb, path)
    made.metadata["made_on"] = made_on
    if made != old:
        notebooks.write(made, copy)


def better_data_has_come(nb):
    """True when the outputs were made with the offline digits, and the real data can be had now."""
    made_offline = "using scikit-learn's 8×8 digits" in str(nb)
    return made_offline and data.load("mnist").source != "scikit-learn"


def render():
    """Jupyter Book 1, with warnings as errors; what it prints is shown when it fails."""
    print("rendering ...", flush=True)
    program = Path(sys.executable).with_name("jupyter-book")
    options = ["--path-output", ROOT, "--builder", "html", "-W", "--keep-going", "-q"]
    result = subprocess.run(
        [program, "build", SOURCE, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode:
        for folder in ("html", ".doctrees"):  # so that the next build does not pass over the same fault
            shutil.rmtree(BUILD / folder, ignore_errors=True)
        sys.exit(f"{result.stdout}\nThe book was not rendered; the reason is above.")


if __name__ == "__main__":
    main()
