"""What GPU cells printed, and whether they still have the code that printed it.

python -m tools.gpu_cells           lists the records of cells whose code has changed since
python -m tools.gpu_cells --keep    says that they were only renamed: the records are theirs again

Where the code does something else, measure again (python -m benchmarks cells) or delete the row.
"""

import argparse

from ed_lib import records
from ed_lib.gpu_cells import MAGIC, hash_of
from tools import notebooks
from tools.pages import ROOT


def hashes():
    """{id: hash} of all GPU cells of the chapters."""
    nbs = (notebooks.read(ROOT / path) for path in notebooks.chapters())
    cells = (cell for nb in nbs for cell in notebooks.code_cells(nb))
    return {cell.id: hash_of(cell.source) for cell in cells if cell.source.startswith(MAGIC)}


def changed():
    """(file, chapter, id of a cell, the recorded hash, the one that it has now, or None) for each
    that differs.
    """
    now = hashes()
    for path in sorted(records.ROOT.glob("records/*/cells.csv")):
        for _, row in records.read(path).iterrows():
            if now.get(row.cell) != row.code:
                yield path, row.table, row.cell, row.code, now.get(row.cell)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_cells", description="What GPU cells printed."
    )
    parser.add_argument(
        "--keep", action="store_true", help="their code was only renamed: they keep it"
    )
    keep = parser.parse_args(arguments).keep
    for path, chapter, cell, old, new in [*changed()]:
        print(f"{chapter}, cell {cell} ({path.parent.name}): {old} → {new or 'no such cell'}")
        # The hash stands beside the cell's id; nothing else of the record changes.
        if keep and new:
            path.write_text(path.read_text().replace(f"{cell},{old}", f"{cell},{new}"))


if __name__ == "__main__":
    main()
