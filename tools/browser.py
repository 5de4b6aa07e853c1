"""Finds a Chromium for the tests of the pages; where there is none, installs one.

Debian's package where apt and the rights for it are at hand, else Playwright's download.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

# What it is called on Linux, where a search of PATH finds it,
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# and where it is on a Mac, which has it in no PATH.
MACOS = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"


def find():
    """The path of a Chromium or Chrome on this machine, or None."""
    from playwright.sync_api import sync_playwright

    if found := next(filter(None, map(shutil.which, (*NAMES, MACOS))), None):
        return found
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


def flags():
    """What it is started with."""
    # As root it runs without its sandbox, or not at all.
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return ["--disable-gpu", "--no-sandbox"]
    return ["--disable-gpu"]


def main():
    if find():
        return
    print("No Chromium found; installing one for the tests of the pages.", flush=True)
    # Debian's package brings the libraries that it needs; Playwright's download does not.
    if shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-q"], check=False)
        subprocess.run(
            ["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium"], check=False
        )
    if not find():
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)


if __name__ == "__main__":
    main()
