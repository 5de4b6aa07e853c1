"""The machine under the code: what it is, its libraries, how busy it is and how much memory it has left."""

import contextlib
import importlib.metadata
import math
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

from ed_lib import arrays, check

PROC = Path("/proc")  # where Linux describes the processor, its load and the memory
# What decides how fast a processor multiplies: our word, and those of /proc/cpuinfo.
FLAGS = {"avx2": "avx2", "avx512": "avx512f", "vnni": "avx512_vnni avx_vnni"}
FLAGS |= {"bf16": "avx512_bf16", "amx": "amx_tile"}
FORCED = re.compile("OPENBLAS|ONEDNN|DNNL|MKL|OMP_NUM|ATEN_CPU|NPY_DISABLE_CPU")  # by the environment
PACKAGES = {"NumPy": "numpy", "PyTorch": "torch", "CuPy": "cupy-cuda12x cupy-cuda13x", "Triton": "triton"}


def card() -> str:
    """One line: the CPU, the GPU if there is one, the versions of Python and of the libraries."""
    gpu = f"GPU: {name('cuda')}" if arrays.gpu_count() else "no GPU"
    return " · ".join([f"CPU: {name()}", gpu, *(" ".join(each) for each in versions().items())])


def versions() -> dict[str, str]:
    """{library: version} of Python and of those that are installed. Imports none of them."""
    found = {"Python": platform.python_version()}
    for library, packages in PACKAGES.items():
        for package in packages.split():
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[library] = importlib.metadata.version(package)
    return found


def name(device: str = "cpu") -> str:
    """A device's name: "NVIDIA H200", or the processor's with as many threads as this process may use."""
    if (gpu := _gpu(device)) is not None:
        return gpu.name
    cpu = _proc("cpuinfo").get("model name") or platform.processor() or platform.machine()
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        cpu = subprocess.run(command, capture_output=True, text=True).stdout.strip() or cpu
    return f"{cpu}, {threads()} thread{'s' if threads() > 1 else ''}"


def slug(device: str = "cpu") -> str:
    """A device's name for a folder: "nvidia-h200"; "amd-25-17-avx512-vnni-bf16-2-threads", a processor's
    vendor, family, model, flags and threads, where /proc tells them.
    """
    words, cpu = name(device), _proc("cpuinfo") if device == "cpu" else {}
    if "cpu family" in cpu:
        vendor = re.sub("Authentic|Genuine", "", cpu["vendor_id"])
        words = " ".join([vendor, cpu["cpu family"], cpu["model"], *flags(), f"{threads()} threads"])
    return re.sub(r"(\((r|tm|c)\)|\b(cpu|processor)\b|[^a-z0-9.])+", "-", words.lower()).strip("-.")


def flags() -> list[str]:
    """Which of FLAGS this processor has, AVX2 only without AVX-512; none where /proc is silent."""
    there = set(_proc("cpuinfo").get("flags", "").split())
    found = [flag for flag, words in FLAGS.items() if there & {*words.split()}]
    return [flag for flag in found if flag != "avx2" or "avx512" not in found]


def facts(device: str = "cpu") -> dict:
    """What made a measurement, for the head of its record. Names neither host, user nor folder."""
    import torch
    from threadpoolctl import threadpool_info

    keys = ("internal_api", "version", "architecture", "num_threads")
    blas = [[pool.get(key) for key in keys] for pool in threadpool_info() if pool["user_api"] == "blas"]
    command = " ".join(["python", *(re.sub(r"\S*/(?=\S)", "", word) for word in sys.orig_argv[1:])])
    forced = {key: value for key, value in sorted(os.environ.items()) if FORCED.match(key)}
    if (gpu := _gpu(device)) is not None:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True).stdout.split()[:1]
        gpu = {"memory": gpu.total_memory, "driver": driver, "cuda": torch.version.cuda}
    found = {"machine": slug(device), "device": name(device), "cpu": name(), "flags": flags(), "gpu": gpu}
    found |= {"threads": torch.get_num_threads(), "os": platform.platform(), "versions": versions()}
    found |= {"torch_kernels": torch.backends.cpu.get_cpu_capability(), "blas": blas}
    return found | {"forced": forced, "command": command}


def threads() -> int:
    """How many of the processor's threads this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load(seconds: float = 1.0) -> float:
    """How many of the machine's cores are at work, on average, in the next ``seconds``, which this sleeps."""
    if not (before := _proc("stat").get("cpu")):
        return os.getloadavg()[0]  # of the last minute
    time.sleep(seconds)
    ticks = zip(_proc("stat")["cpu"].split()[:8], before.split(), strict=False)
    spent = [int(after) - int(earlier) for after, earlier in ticks]
    return (os.cpu_count() or 1) * (1 - (spent[3] + spent[4]) / max(sum(spent), 1))  # idle, waiting for disks


def memory(device: str = "cpu") -> float:
    """Bytes that may still be allocated: what Linux calls available, or infinity; what a GPU has free."""
    if _gpu(device) is not None:
        import torch

        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserve
    available = _proc("meminfo").get("MemAvailable")  # "23879016 kB"
    return int(available.split()[0]) * 1024 if available else math.inf


def check_memory(what: str, needed: int, device: str = "cpu") -> None:
    """MemoryError unless ``needed`` bytes may be allocated on ``device``. ``what`` begins its message."""
    if needed > (left := memory(device)):
        wanted, there = (f"{size / 2**30:.1f} GiB" for size in (needed, left))
        raise MemoryError(f"{what} needs {wanted} of memory on {device}; {there} is available")


def _gpu(device):
    """What PyTorch knows of a GPU; None for the device "cpu". ValueError for what is neither."""
    check.choice("device", device if device == "cpu" else str(device).partition(":")[0], ("cpu", "cuda"))
    if device == "cpu":
        return None
    import torch

    try:
        return torch.cuda.get_device_properties(device)
    except (RuntimeError, AssertionError, ValueError) as error:
        count = arrays.gpu_count()
        raise ValueError(f"device is {device!r}; wanted a GPU, of which PyTorch sees {count}") from error


def _proc(file):
    """A file in /proc as {key: value}, of the first processor; {} where there is none."""
    try:
        lines = (PROC / file).read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    pairs = (re.split(r"\s*:\s*|  +", line, maxsplit=1) for line in lines)
    return {pair[0]: pair[-1].strip() for pair in pairs}
