"""What all functions have in common that Numba compiles: their machine code is kept on disk until a
source changes that may be in it, and a process that was forked does not run them.

Numba's own cache asks whether the file of the function has changed. But what a function calls is
compiled into it, from other files: a change of ``registers`` would leave ED and the LSTM with the
old product. So here the folder has the name of what all these files hold.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba

PACKAGE = Path(__file__).parent
CONFIG: Any = numba.config
KEPT = 8  # folders, the last that were used
USED = "used"  # a file in each folder, whose time is that of the folder's last use


def sources() -> list[Path]:
    """The files of this package that may be compiled: those that name Numba, or this file."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_bytes()
        if b"numba" in text or b"ed_lib.compiled" in text:
            found.append(path)
    return found


def fingerprint() -> str:
    """What the sources are called and hold, as sixteen hexadecimal digits."""
    found = hashlib.sha256()
    for path in sources():
        text = path.read_bytes()
        name = path.relative_to(PACKAGE).as_posix()
        # the length, so that no byte can go from one file to the next unseen
        found.update(f"{name} {len(text)} ".encode())
        found.update(text)
    return found.hexdigest()[:16]


def places() -> Iterator[Path]:
    """Where the folder may be: in NUMBA_CACHE_DIR where that is set; else beside the package, as
    Numba has it, or in the user's cache where the package cannot be written to.
    """
    if CONFIG.CACHE_DIR:
        yield Path(CONFIG.CACHE_DIR)
        return
    yield PACKAGE / "__pycache__"
    import pooch  # only here, since it takes a quarter of a second

    yield pooch.os_cache("ed_lib")


def choose_folder() -> Path | None:
    """The folder of these sources, made and marked as used; None where nothing can be written."""
    name = f"ed_lib-{fingerprint()}"
    for place in places():
        folder = place / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # remove_old goes by this file's time; and where nothing can be written, this fails
            (folder / USED).touch()
        except OSError:
            continue
        remove_old(folder)
        return folder
    return None


def remove_old(folder: Path) -> None:
    """Removes the folders beside ``folder`` but for the KEPT last used, or they would pile up.

    Several are kept since one who compares two versions goes to and fro between them, and another
    checkout may use the same NUMBA_CACHE_DIR. A process whose folder goes makes it anew. A folder
    without the mark is somebody else's.
    """
    marks = folder.parent.glob(f"ed_lib-*/{USED}")
    # another process may remove them meanwhile
    times = {mark: mark.stat().st_mtime for mark in marks if mark.exists()}
    for old in sorted(times, key=times.__getitem__)[:-KEPT]:
        shutil.rmtree(old.parent, ignore_errors=True)


FOLDER = choose_folder()


def cached(**options: Any) -> Callable:
    """``numba.njit`` with these options, for a function of this package; its code is kept."""

    def decorate(function: Callable) -> Callable:
        if FOLDER is None:
            return numba.njit(**options)(function)
        # Numba looks where to keep a function when it is decorated. The setting goes back at once,
        # since it holds for the functions of all packages.
        before = CONFIG.CACHE_DIR
        CONFIG.CACHE_DIR = str(FOLDER)
        try:
            return numba.njit(cache=True, **options)(function)
        finally:
            CONFIG.CACHE_DIR = before

    return decorate


lost_threads = False  # whether this process has lost Numba's threads by a fork


def look_after_fork() -> None:
    """In a process that has just been forked: do threads of OpenMP run in its parent?"""
    global lost_threads
    # an error says that no parallel function has run yet, so that there are no threads
    with contextlib.suppress(ValueError):
        lost_threads = numba.threading_layer() == "omp"


# Windows has no fork
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=look_after_fork)


def check_threads() -> None:
    """RuntimeError in a process that was forked from one in which Numba's threads ran: GNU's OpenMP
    does not survive a fork, and Numba would end the process without an error.
    """
    if lost_threads:
        raise RuntimeError(
            "this process was forked after Numba's OpenMP threads had started, and they do not "
            "survive a fork; wanted a process that is spawned, or NUMBA_THREADING_LAYER=workqueue"
        )
