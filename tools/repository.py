"""`make repository URL=...`: the book's address, in _config.yml, the README and every set-up cell."""

import re
import sys

import ed_lib
from tools import notebooks
from tools.notebooks import ROOT

LINES = {"_config.yml": re.compile(r"(?m)^(repository:\n\s+url: )(\S+)"),
         "README.md": re.compile(r"(?m)^(git clone )(\S+)")}  # fmt: skip
CELL_LINE = re.compile(r'(?m)^(REPOSITORY = ")([^"]*)(")')
VERSION_LINE = re.compile(r'(?m)^(VERSION = ")[^"]*(")')


def addresses():
    """{file: address} for each place in which the address stands."""
    found = {file: line.search((ROOT / file).read_text()).group(2) for file, line in LINES.items()}
    for path in notebooks.chapters():
        for cell in notebooks.read(ROOT / path).cells:
            if "setup" in notebooks.tags(cell):
                found[str(path)] = CELL_LINE.search(cell.source).group(2)
    return found


def change(url):
    """Writes ``url`` everywhere, and ed_lib's version into the set-up cells; ValueError for a bad one."""
    url = url.rstrip("/").removesuffix(".git")
    if not re.fullmatch(r"https://[\w.-]+(/[\w.~-]+)+", url):
        raise ValueError(f"URL is {url!r}; wanted an address like https://github.com/name/repository")
    for file, line in LINES.items():
        (ROOT / file).write_text(line.sub(rf"\g<1>{url}", (ROOT / file).read_text()))
    for path in notebooks.chapters():
        nb = notebooks.read(ROOT / path)
        for cell in nb.cells:
            if "setup" in notebooks.tags(cell):
                cell.source = CELL_LINE.sub(rf"\g<1>{url}\g<3>", cell.source)
                cell.source = VERSION_LINE.sub(rf"\g<1>v{ed_lib.__version__}\g<2>", cell.source)
        notebooks.write(notebooks.canonical(nb), ROOT / path)


if __name__ == "__main__":
    try:
        change(sys.argv[1])
    except ValueError as error:
        sys.exit(str(error))
    for file, address in addresses().items():
        print(f"{address}  {file}")
    print(f"Colab installs ed_lib as it was tagged: git tag v{ed_lib.__version__}, git push --tags")
