"""`make repository URL=...`: the book's address, in _config.yml, the README and every chapter's set-up cell.

Without URL it says which address the clone's remote has, and the command that writes it.
"""

import re
import subprocess
import sys

import ed_lib
from tools import notebooks
from tools.notebooks import ROOT

CONFIG_LINE = re.compile(r"(?m)^(repository:\n\s+url: )(\S+)")
CLONE_LINE = re.compile(r"(?m)^(git clone )(\S+)")
CELL_LINE = re.compile(r'(?m)^(REPOSITORY = ")([^"]*)(")')
VERSION_LINE = re.compile(r'(?m)^(VERSION = ")[^"]*(")')


def addresses():
    """{file: address} for each place in which the address stands."""
    lines = {"_config.yml": CONFIG_LINE, "README.md": CLONE_LINE}
    found = {file: line.search((ROOT / file).read_text()).group(2) for file, line in lines.items()}
    for path in notebooks.chapters():
        for cell in notebooks.read(ROOT / path).cells:
            if "setup" in notebooks.tags(cell):
                found[str(path)] = CELL_LINE.search(cell.source).group(2)
    return found


def change(url):
    """Writes ``url`` everywhere, and ed_lib's version into the set-up cells. ValueError, before anything is
    written, unless it is a https:// address.
    """
    url = url.rstrip("/").removesuffix(".git")
    if not re.fullmatch(r"https://[\w.-]+(/[\w.~-]+)+", url):
        raise ValueError(f"URL is {url!r}; wanted an address like https://github.com/name/repository")
    config, readme = (ROOT / "_config.yml").read_text(), (ROOT / "README.md").read_text()
    (ROOT / "_config.yml").write_text(CONFIG_LINE.sub(rf"\g<1>{url}", config))
    (ROOT / "README.md").write_text(CLONE_LINE.sub(rf"\g<1>{url}", readme))
    for path in notebooks.chapters():
        nb = notebooks.read(ROOT / path)
        for cell in nb.cells:
            if "setup" in notebooks.tags(cell):
                cell.source = CELL_LINE.sub(rf"\g<1>{url}\g<3>", cell.source)
                cell.source = VERSION_LINE.sub(rf"\g<1>v{ed_lib.__version__}\g<2>", cell.source)
        notebooks.write(notebooks.canonical(nb), ROOT / path)


def proposal():
    """What to do when no address was given: the command with the clone's remote, if it has one."""
    ask = ["git", "remote", "get-url", "origin"]
    remote = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    web = re.fullmatch(r"(?:https://|ssh://git@|git@)([\w.-]+)[:/](.+?)(?:\.git)?/?", remote)
    url = f"https://{web[1]}/{web[2]}" if web else "https://github.com/name/repository"
    found = "This clone's remote is there" if web else "This clone has no remote on the web"
    return f"{found}. To write an address into the book:\n  make repository URL={url}"


if __name__ == "__main__":
    if not sys.argv[1]:
        print(proposal())
        sys.exit()
    try:
        change(sys.argv[1])
    except ValueError as error:
        sys.exit(str(error))
    for file, address in addresses().items():
        print(f"{address}  {file}")
    print(f"Colab installs ed_lib as it was tagged: git tag v{ed_lib.__version__}, git push --tags")
