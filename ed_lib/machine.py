"""The machine under the code: what it is, its libraries, and how much memory it has left."""

import contextlib
import ctypes
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from ed_lib import arrays, check

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

GIB = 2**30  # bytes
CPUINFO = Path("/proc/cpuinfo")
# What decides how fast a processor multiplies: our word, and Linux's
FLAGS = {"avx2": "avx2", "avx512": "avx512f", "vnni": "avx512_vnni avx_vnni"}
FLAGS |= {"bf16": "avx512_bf16", "amx": "amx_tile"}
# Which are left where the environment holds PyTorch to less (`make elsewhere`)
HELD = {"avx2": {"avx2"}, "default": set[str]()}
PACKAGES = {
    "NumPy": "numpy",
    "PyTorch": "torch",
    "CuPy": "cupy-cuda12x cupy-cuda13x",
    "Triton": "triton",
}


def card() -> str:
    """One line: the CPU, the GPU if there is one that will do, the versions of Python and of the
    libraries.
    """
    if lacks := arrays.gpu_lacks():
        graphics = f"no GPU with {lacks}"
    elif arrays.gpu_count():
        graphics = f"GPU: {name('cuda')}"
    else:
        graphics = "no GPU"
    libraries = [f"{library} {version}" for library, version in versions().items()]
    return " · ".join([f"CPU: {name()}", graphics, *libraries])


def versions() -> dict[str, str]:
    """{library: version} of Python and of those that are installed. Imports none of them."""
    found = {"Python": platform.python_version()}
    for library, packages in PACKAGES.items():
        for package in packages.split():
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[library] = importlib.metadata.version(package)
    return found


def name(device: str = "cpu") -> str:
    """A device's name: "NVIDIA H200", or the processor's with as many threads as this process may
    use. ValueError for a device that is not there.
    """
    if (found := gpu(device)) is not None:
        return found.name
    cpu = _processor().get("model name") or platform.processor() or platform.machine()
    # macOS has no /proc, and platform.processor() says no more than "arm" or "i386" there.
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        cpu = subprocess.run(command, capture_output=True, text=True).stdout.strip() or cpu
    count = threads()
    return f"{cpu}, {count} thread{'s' if count > 1 else ''}"


def slug(device: str = "cpu") -> str:
    """A device's name for a folder: "nvidia-h200"; "amd-25-17-avx512-vnni-bf16-2-threads", a
    processor's vendor, family, model, flags and threads, where /proc tells them.
    """
    words = name(device)
    cpu = _processor() if device == "cpu" else {}
    # A brand, such as "Intel(R) Xeon(R) Processor @ 2.10GHz", is that of many processors.
    if "cpu family" in cpu:
        vendor = re.sub("Authentic|Genuine", "", cpu["vendor_id"])
        numbers = [vendor, cpu["cpu family"], cpu["model"]]
        words = " ".join([*numbers, *flags(), f"{threads()} threads"])
    fillers = r"(\((r|tm|c)\)|\b(cpu|processor)\b|[^a-z0-9.])+"
    return re.sub(fillers, "-", words.lower()).strip("-.")


def flags() -> list[str]:
    """Which of FLAGS this processor has, AVX2 only without AVX-512; none where /proc is silent, nor
    what ATEN_CPU_CAPABILITY takes away.
    """
    there = set(_processor().get("flags", "").split())
    left = HELD.get(os.environ.get("ATEN_CPU_CAPABILITY", ""), FLAGS.keys())
    found = [flag for flag, words in FLAGS.items() if flag in left and there & {*words.split()}]
    # Whoever has AVX-512 has AVX2 as well.
    if "avx512" in found and "avx2" in found:
        found.remove("avx2")
    return found


def threads() -> int:
    """How many of the processor's threads this process may use."""
    # A container or a scheduler may leave it fewer than there are; only Linux tells.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory(device: str = "cpu") -> int:
    """Bytes that may still be allocated on "cpu" or "cuda:1": what the system calls available, or
    what a GPU has free. ValueError for a device that is not there.
    """
    if gpu(device) is None:
        # A bare machine with a GPU may lack psutil; then nothing is known, and nothing refused.
        try:
            import psutil
        except ImportError:
            return sys.maxsize
        return psutil.virtual_memory().available
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    # PyTorch keeps what was freed, for the next tensor.
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + unused


def pages_handed_out() -> int:
    """How often the system has given this process a page of memory, so far; always 0 on Windows,
    which does not tell.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt if resource else 0


def keep_memory() -> bool:
    """From now on the C library keeps the memory that this process frees, for its next tensors,
    where it gave large pieces back to the system. The process never shrinks then. → whether it can:
    False if the library is not glibc.

    Source: mallopt(3). The environment variables ``MALLOC_MMAP_MAX_`` and
    ``MALLOC_TRIM_THRESHOLD_`` do the same for a process that starts.
    """
    if os.name != "posix":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    trim_threshold, mmap_max = -1, -4  # as malloc.h numbers them
    return all([library.mallopt(trim_threshold, 2**31 - 1), library.mallopt(mmap_max, 0)])


def check_memory(what: str, needed: int, device: str = "cpu") -> None:
    """MemoryError unless ``needed`` bytes may be allocated on ``device``. ``what`` begins its
    message.
    """
    left = memory(device)
    if needed > left:
        wanted = f"{needed / GIB:.1f} GiB"
        there = f"{left / GIB:.1f} GiB"
        raise MemoryError(f"{what} needs {wanted} of memory on {device}; {there} is available")


def gpu(device: str) -> Any:
    """What PyTorch knows of a GPU; None for the device "cpu". ValueError for what is neither."""
    if device == "cpu":
        return None
    kind = str(device).partition(":")[0]
    check.choice("device", kind, ("cpu", "cuda"))
    import torch

    try:
        return torch.cuda.get_device_properties(device)
    except (RuntimeError, AssertionError, ValueError) as error:
        count = arrays.gpu_count()
        raise ValueError(
            f"device is {device!r}; wanted a GPU, of which PyTorch sees {count}"
        ) from error


def _processor():
    """What Linux tells of the first processor, as {key: value}; {} elsewhere."""
    if not CPUINFO.is_file():
        return {}
    # A paragraph for each thread, with a line for each key.
    first, _, _ = CPUINFO.read_text().partition("\n\n")
    found = {}
    for line in first.splitlines():
        key, _, value = line.partition(":")
        found[key.strip()] = value.strip()
    return found
