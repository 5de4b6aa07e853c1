"""The machine under the code: its name, its libraries and how much memory it has left."""

import importlib.metadata
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from ed_lib import arrays, check

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")  # where Linux reports memory, and the limits on it
# A limit and what is used of it, under the names of the second and of the first version of control groups.
LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")  # the packages that CuPy comes in


def card() -> str:
    """One line: the CPU, the GPU if there is one, the versions of Python and of the libraries."""
    return " · ".join([cpu(), gpu(), f"Python {platform.python_version()}", *versions()])


def cpu() -> str:
    """The processor's name and how many of its threads this process may use."""
    return f"CPU: {name('cpu')}"


def gpu() -> str:
    """The first GPU's name, or "no GPU"."""
    return f"GPU: {name('cuda')}" if arrays.gpu_count() else "no GPU"


def versions() -> list[str]:
    """("NumPy 2.4.1", ...) for the libraries of the book that are installed."""
    packages = {"NumPy": ("numpy",), "PyTorch": ("torch",), "CuPy": CUPY}
    found = {library: version(*names) for library, names in packages.items()}
    return [f"{library} {number}" for library, number in found.items() if number]


def version(*packages: str) -> str | None:
    """The version of the first of these packages that is installed, or None. Imports none of them."""
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def name(device: str = "cpu") -> str:
    """A device's name: "NVIDIA H200", or the processor's and how many of its threads this process may use.

    ValueError for a device that is neither "cpu" nor a GPU that PyTorch or CuPy sees.
    """
    if (gpu := _gpu(device)) is None:
        count = threads()
        return f"{_cpu_name()}, {count} thread{'s' if count != 1 else ''}"
    library, index = gpu
    if library.__name__ == "torch":
        return library.cuda.get_device_name(index)
    return library.cuda.runtime.getDeviceProperties(index)["name"].decode()


def threads() -> int:
    """How many of the processor's threads this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load(seconds: float = 1.0) -> float:
    """How many of the machine's cores are at work, on average, in the next ``seconds``, which this sleeps."""
    if not (stat := PROC / "stat").exists():
        return os.getloadavg()[0]  # of the last minute
    before = _ticks(stat)
    time.sleep(seconds)
    spent = [after - earlier for after, earlier in zip(_ticks(stat), before, strict=True)]
    return (os.cpu_count() or 1) * (1 - (spent[3] + spent[4]) / max(sum(spent), 1))  # idle, waiting for disks


def _ticks(stat):
    return [int(number) for number in stat.read_text().split("\n", 1)[0].split()[1:9]]


def gpu_facts(device: str) -> dict | None:
    """A GPU's name, memory (bytes), driver and CUDA version as a dict; None for the device "cpu".

    What cannot be found out is None. ValueError for a device that does not exist.
    """
    if (gpu := _gpu(device)) is None:
        return None
    library, index = gpu
    if library.__name__ == "torch":
        total, cuda = library.cuda.get_device_properties(index).total_memory, library.version.cuda
    else:
        runtime = library.cuda.runtime
        total, number = runtime.getDeviceProperties(index)["totalGlobalMem"], runtime.runtimeGetVersion()
        cuda = f"{number // 1000}.{number % 1000 // 10}"  # 12090 is 12.9
    return {"name": name(device), "memory": total, "driver": _driver(), "cuda": cuda}


def memory(device: str = "cpu") -> float:
    """Bytes of memory that may still be allocated on "cpu" or "cuda:1".

    On Linux what the kernel calls available, or what control groups leave of it (a container, a batch
    system); elsewhere all the memory there is; infinity where even that is unknown. On a GPU what is free,
    together with what PyTorch holds in reserve. ValueError for a device that does not exist.
    """
    if (gpu := _gpu(device)) is None:
        return min([_cpu_memory(), *_left_by_control_groups()])
    library, index = gpu
    if library.__name__ == "torch":
        reserve = library.cuda.memory_reserved(index) - library.cuda.memory_allocated(index)
        return library.cuda.mem_get_info(index)[0] + reserve
    with library.cuda.Device(index):
        return library.cuda.runtime.memGetInfo()[0]


def check_memory(what: str, needed: int, device: str = "cpu") -> None:
    """MemoryError unless ``needed`` bytes may be allocated on ``device``. ``what`` begins its message."""
    if needed > (available := memory(device)):
        raise MemoryError(
            f"{what} needs {_in_words(needed)} of memory on {device}; {_in_words(available)} is available"
        )


def _in_words(size):
    """Bytes as "8.0 GiB", or in MiB when they are few."""
    return f"{size / 2**30:.1f} GiB" if size >= 0.1 * 2**30 else f"{size / 2**20:.1f} MiB"


def _gpu(device):
    """The module that sees the GPU (torch before cupy) and its index there; None for the device "cpu"."""
    kind, _, index = device.partition(":") if isinstance(device, str) else (device, "", "")
    check.choice("device", kind, ("cpu", "cuda"))
    if kind == "cpu":
        return None
    for library in ("torch", "cupy"):
        if (index or "0").isdigit() and int(index or 0) < arrays.gpu_count(library):
            return importlib.import_module(library), int(index or 0)
    counts = " and ".join(f"{library} sees {arrays.gpu_count(library)}" for library in ("torch", "cupy"))
    raise ValueError(f"device is {device!r}; wanted a GPU of this machine, of which {counts}")


def _driver():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return lines[0] if lines else None  # one driver serves all GPUs


def _cpu_name():
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or platform.machine()
    names = _values(PROC / "cpuinfo", "model name")
    return names[0] if names else platform.processor() or platform.machine()


def _cpu_memory():
    if available := _values(PROC / "meminfo", "MemAvailable"):
        return int(available[0].split()[0]) * 1024  # "23879016 kB"
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return math.inf


def _left_by_control_groups():
    """For each limit on this process's memory: what is left of it, in bytes.

    Used memory counts less the files that the kernel has cached and can drop ("inactive_file").
    """
    left = []
    for folder in _control_groups():
        for limit, used in LIMITS:
            try:
                room = int((folder / limit).read_text()) - int((folder / used).read_text())
            except (OSError, ValueError):  # no such file, or "max"
                continue
            stat = dict(line.split()[:2] for line in _lines(folder / "memory.stat"))
            left.append(max(0, room + int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))))
    return left


def _control_groups():
    """The folders of the control groups that this process is in, each with those above it."""
    folders = {CGROUP, CGROUP / "memory"}
    for line in _lines(PROC / "self" / "cgroup"):  # "0::/a/b" in version 2, "4:memory:/a/b" in version 1
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            folder = CGROUP / ("memory" if controllers else "") / path.strip("/")
            folders |= {f for f in [folder, *folder.parents] if f.is_relative_to(CGROUP)}
    return folders


def _values(path, key):
    """The values of the lines "key : value" in a file; none if it cannot be read."""
    pairs = [line.partition(":") for line in _lines(path)]
    return [value.strip() for left, _, value in pairs if left.strip() == key]


def _lines(path):
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
