"""Which line of the reader's code led to an operator, or to a wait."""

import contextlib
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch

LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
EVERY = 5e-4  # seconds between two looks at a thread


def line(frame: FrameType | None, libraries: tuple[str, ...] = LIBRARIES) -> str:
    """ "train.py:41", the innermost line that is not in these folders, by default PyTorch's and
    ours; of a backward pass, the line that asked for it. "" if there is none.
    """
    while frame is not None and frame.f_code.co_filename.startswith(libraries):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"


def _short(file):
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
        # ("Cell", "In[5]") for a cell, None for a file; IPython 7, which Colab has, cannot tell.
        named = getattr(shell.compile, "format_code_name", lambda _: None)(file)
        if named or "ipykernel" in file or file.startswith("<"):
            return named[1] if named else "a cell"
    return Path(file).name


@contextlib.contextmanager
def looked_at() -> Iterator[Counter]:
    """Meanwhile another thread looks every half millisecond at which line this thread is: how often
    at each, lines of installed libraries left out.
    """
    thread = threading.get_ident()
    here = sys._getframe().f_code  # noqa: SLF001
    found: Counter = Counter()
    ended = threading.Event()

    def look():
        while not ended.wait(EVERY):
            frame = sys._current_frames().get(thread)  # noqa: SLF001
            if frame is not None and frame.f_code is not here:
                found[line(frame, (*LIBRARIES, *INSTALLED))] += 1

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield found
    finally:
        ended.set()
        looking.join()
        del found[""]
