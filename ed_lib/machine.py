"""The machine under the code: what it is, its libraries, and how much memory it has left."""

import contextlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from ed_lib import arrays, check

CPUINFO = Path("/proc/cpuinfo")
# What decides how fast a processor multiplies: our word, and Linux's
FLAGS = {"avx2": "avx2", "avx512": "avx512f", "vnni": "avx512_vnni avx_vnni"}
FLAGS |= {"bf16": "avx512_bf16", "amx": "amx_tile"}
PACKAGES = {
    "NumPy": "numpy",
    "PyTorch": "torch",
    "CuPy": "cupy-cuda12x cupy-cuda13x",
    "Triton": "triton",
}


def card() -> str:
    """One line: the CPU, the GPU if there is one, the versions of Python and of the libraries."""
    graphics = f"GPU: {name('cuda')}" if arrays.gpu_count() else "no GPU"
    return " · ".join(
        [f"CPU: {name()}", graphics, *(" ".join(each) for each in versions().items())]
    )


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
    use.
    """
    if (found := gpu(device)) is not None:
        return found.name
    cpu = _processor().get("model name") or platform.processor() or platform.machine()
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        cpu = subprocess.run(command, capture_output=True, text=True).stdout.strip() or cpu
    return f"{cpu}, {threads()} thread{'s' if threads() > 1 else ''}"


def slug(device: str = "cpu") -> str:
    """A device's name for a folder: "nvidia-h200"; "amd-25-17-avx512-vnni-bf16-2-threads", a
    processor's vendor, family, model, flags and threads, where /proc tells them.
    """
    words, cpu = name(device), _processor() if device == "cpu" else {}
    if "cpu family" in cpu:
        vendor = re.sub("Authentic|Genuine", "", cpu["vendor_id"])
        words = " ".join(
            [vendor, cpu["cpu family"], cpu["model"], *flags(), f"{threads()} threads"]
        )
    return re.sub(r"(\((r|tm|c)\)|\b(cpu|processor)\b|[^a-z0-9.])+", "-", words.lower()).strip("-.")


def flags() -> list[str]:
    """Which of FLAGS this processor has, AVX2 only without AVX-512; none where /proc is silent."""
    there = set(_processor().get("flags", "").split())
    found = [flag for flag, words in FLAGS.items() if there & {*words.split()}]
    return [flag for flag in found if flag != "avx2" or "avx512" not in found]


def threads() -> int:
    """How many of the processor's threads this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory(device: str = "cpu") -> int:
    """Bytes that may still be allocated: what the system calls available, or what a GPU has
    free.
    """
    if gpu(device) is None:
        try:
            import psutil
        except ImportError:  # on a bare machine with a GPU: not known
            return sys.maxsize
        return psutil.virtual_memory().available
    import torch

    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(
        device
    )  # PyTorch holds it
    return torch.cuda.mem_get_info(device)[0] + unused


def check_memory(what: str, needed: int, device: str = "cpu") -> None:
    """MemoryError unless ``needed`` bytes may be allocated on ``device``. ``what`` begins its
    message.
    """
    if needed > (left := memory(device)):
        wanted, there = (f"{size / 2**30:.1f} GiB" for size in (needed, left))
        raise MemoryError(f"{what} needs {wanted} of memory on {device}; {there} is available")


def gpu(device: str) -> Any:
    """What PyTorch knows of a GPU; None for the device "cpu". ValueError for what is neither."""
    check.choice(
        "device", device if device == "cpu" else str(device).partition(":")[0], ("cpu", "cuda")
    )
    if device == "cpu":
        return None
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
    pairs = (line.partition(":") for line in CPUINFO.read_text().partition("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
