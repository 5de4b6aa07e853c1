"""`make repository URL=...`: the book's address, in _config.yml, the README and every set-up
cell.
"""

import re
import sys

import ed_lib
from tools.notebooks import chapters
from tools.pages import ROOT

LINES = {
    "_config.yml": r"(?m)^(repository:\n\s+url: )(\S+)",
    "README.md": r"(?m)^(git clone )(\S+)",
}
CELL, VERSION = r'("REPOSITORY = \\")([^\\"]*)', r'("VERSION = \\"v)([^\\"]*)'


def addresses():
    """{file: address} for each place in which the address stands."""
    lines = LINES | {path.as_posix(): CELL for path in chapters()}
    return {file: re.search(line, (ROOT / file).read_text())[2] for file, line in lines.items()}


def change(url):
    """Writes ``url`` everywhere, and ed_lib's version into the set-up cells; ValueError for a bad
    one.
    """
    url = url.rstrip("/").removesuffix(".git")
    if not re.fullmatch(r"https://[\w.-]+(/[\w.~-]+)+", url):
        raise ValueError(
            f"URL is {url!r}; wanted an address like https://github.com/name/repository"
        )
    for file in addresses():
        text = re.sub(LINES.get(file, CELL), rf"\g<1>{url}", (ROOT / file).read_text())
        (ROOT / file).write_text(re.sub(VERSION, rf"\g<1>{ed_lib.__version__}", text))


if __name__ == "__main__":
    try:
        change(sys.argv[1])
    except ValueError as error:
        sys.exit(str(error))
    print(
        f"Written; git diff shows it. Colab installs what is tagged v{ed_lib.__version__}: tag it."
    )
