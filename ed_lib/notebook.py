"""What a chapter needs to start: the style, a line about the machine, progress, source, exercises."""

import importlib.metadata
import inspect
import os
import platform
import subprocess
import sys

from tqdm.std import tqdm

from ed_lib import arrays


def setup():
    """Starts a chapter: the figures' style, the ``%%gpu`` magic, and one printed line about the machine."""
    from IPython import get_ipython

    from ed_lib import figures

    figures.use_style()
    if shell := get_ipython():
        shell.register_magic_function(_gpu_cell, "cell", "gpu")
    print(card())


def card():
    """One line: the CPU, the GPU if there is one, the versions of Python and of the libraries."""
    return " · ".join([cpu(), gpu(), f"Python {platform.python_version()}", *versions()])


def cpu():
    """The processor's name and how many of its threads this process may use."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"CPU: {_cpu_name()}, {threads} thread{'s' if threads != 1 else ''}"


def gpu():
    """The first GPU's name, or "no GPU"."""
    if not arrays.gpu_count():
        return "no GPU"
    import torch

    return f"GPU: {torch.cuda.get_device_name(0)}"


def versions():
    """("NumPy 2.4.1", ...) for the libraries of the book that are installed."""
    names = {"NumPy": ("numpy",), "PyTorch": ("torch",), "CuPy": ("cupy-cuda13x", "cupy-cuda12x", "cupy")}
    found = []
    for name, packages in names.items():
        for package in packages:
            try:
                found.append(f"{name} {importlib.metadata.version(package)}")
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def progress(iterable, what):
    """``iterable`` with a progress bar on stderr, gone when it ends. TQDM_DISABLE=1 switches the bars off."""
    return tqdm(iterable, desc=what, leave=False, file=sys.stderr)


def source(thing):
    """Shows the source of a function or class of ``ed_lib``, highlighted."""
    from IPython.display import Code, display

    display(Code(inspect.getsource(thing), language="python"))


def exercise(number):
    """Decorates a check of an exercise, so that it prints "solved", or what is missing, and never raises.

    The check takes the reader's function and asserts what a solution does.
    """

    def decorate(check):
        def run(solution):
            try:
                check(solution)
            except Exception as error:  # whatever a reader's code does, the chapter goes on
                kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
                print(f"Exercise {number}: not yet. {kind}{error}")
            else:
                print(f"Exercise {number}: solved.")

        return run

    return decorate


def _gpu_cell(line, cell):
    """What ``%%gpu`` at the top of a cell does: runs the cell, or says that there is no GPU to run it on."""
    from IPython import get_ipython

    if not arrays.gpu_count():
        print("Skipped here: this cell needs a GPU, and this machine has none.")
        return
    get_ipython().run_cell(cell).raise_error()


def _cpu_name():
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
