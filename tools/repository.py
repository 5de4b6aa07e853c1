"""`make repository URL=...`: the book's address, in _config.yml, the README and every set-up cell.

The set-up cell has one original, setup_cell.ipy; the address in it is that of _config.yml, and the
version ed_lib's.
"""

import re
import sys

import ed_lib
from tools import notebooks
from tools.pages import ROOT

SETUP = ROOT / "tools" / "setup_cell.ipy"
LINES = {
    "_config.yml": r"(?m)^(repository:\n\s+url: )(\S+)",
    "README.md": r"(?m)^(git clone )(\S+)",
}
ADDRESS = re.compile(r"https://[\w.-]+(/[\w.~-]+)+")


def address(file="_config.yml"):
    """The book's address, as it stands in a file."""
    return re.search(LINES[file], (ROOT / file).read_text())[2]


def setup_cell():
    """The code of every chapter's set-up cell."""
    cell = SETUP.read_text().replace("{repository}", address())
    return cell.replace("{version}", ed_lib.__version__).rstrip("\n")


def change(url):
    """Writes ``url`` everywhere, and the set-up cell that follows from it into every chapter and
    draft; ValueError for a bad one.
    """
    url = url.rstrip("/").removesuffix(".git")
    if not ADDRESS.fullmatch(url):
        wanted = "an address like https://github.com/name/repository"
        raise ValueError(f"URL is {url!r}; wanted {wanted}")
    for file, line in LINES.items():
        text = re.sub(line, rf"\g<1>{url}", (ROOT / file).read_text())
        (ROOT / file).write_text(text)
    for path in [*notebooks.chapters(), *notebooks.drafts()]:
        nb = notebooks.read(ROOT / path)
        for cell in nb.cells:
            if "setup" in notebooks.tags(cell):
                cell.source = setup_cell()
        notebooks.write(nb, ROOT / path)


if __name__ == "__main__":
    try:
        change(sys.argv[1])
    except ValueError as error:
        sys.exit(str(error))
    tag = f"v{ed_lib.__version__}"
    print(f"Written; git diff shows it. Colab installs what is tagged {tag}: tag it.")
