"""What a chapter needs to start: the house style, one line about the machine, progress, showing source, exercises."""

import importlib.metadata
import inspect
import os
import platform
import subprocess
import sys

from tqdm.std import tqdm

from ed_lib import arrays


def setup():
    """Starts a chapter: the figures' style, and one printed line about the machine and the versions."""
    from ed_lib import figures

    figures.use_style()
    print(card())


def card():
    """One line: the CPU, the GPU if there is one, and the versions of Python and of the libraries that compute."""
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
    """Decorates a check: the checked function is passed in; it prints "solved", or what is missing, and never raises.

    ``@exercise(1) def check(solution): assert ...`` gives ``check(my_function)`` → True when every assertion held.
    """

    def decorate(check):
        def run(solution):
            try:
                check(solution)
            except Exception as error:  # whatever a reader's code does, the chapter goes on
                reason = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
                print(f"Exercise {number}: not yet. {reason}")
                return False
            print(f"Exercise {number}: solved.")
            return True

        return run

    return decorate


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
