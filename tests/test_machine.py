"""The machine: its name, what tells it from others, its load, the memory that is left; and that nothing else
is needed to find out.
"""

import math
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from conftest import ROOT
from ed_lib import machine

GIB = 2**30
CPU = """processor\t: 0
vendor_id\t: {}
cpu family\t: {}
model\t\t: {}
model name\t: {}
flags\t\t: fpu {}

processor\t: 1
flags\t\t: none
"""


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """write(name, text) for the files of a made-up /proc, on a machine of Linux with two threads."""
    monkeypatch.setattr(machine, "PROC", tmp_path)
    monkeypatch.setattr(machine, "threads", lambda: 2)
    monkeypatch.setattr(sys, "platform", "linux")
    return lambda name, text: (tmp_path / name).write_text(text)


@pytest.mark.parametrize("vendor, family, model, name, flags, slug", [
    ("AuthenticAMD", 25, 17, "AMD EPYC", "avx2 avx512f avx512_vnni avx512_bf16",
     "amd-25-17-avx512-vnni-bf16-2-threads"),
    ("AuthenticAMD", 25, 1, "AMD EPYC", "avx2", "amd-25-1-avx2-2-threads"),
    ("GenuineIntel", 6, 143, "Intel(R) Xeon(R) Processor @ 2.10GHz", "avx2 avx512f avx512_vnni amx_tile",
     "intel-6-143-avx512-vnni-amx-2-threads"),
])  # fmt: skip
def test_a_machine_is_its_processor(proc, vendor, family, model, name, flags, slug):
    proc("cpuinfo", CPU.format(vendor, family, model, name, flags))
    assert machine.slug() == slug and machine.name() == f"{name}, 2 threads"
    assert machine.card().startswith(f"CPU: {name}, 2 threads · ") and "\n" not in machine.card()


def test_a_processor_that_nobody_describes_has_a_plain_name(proc, monkeypatch):
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert machine.name() == "riscv64, 2 threads" and machine.slug() == "riscv64-2-threads"
    assert machine.flags() == [] and machine.memory() > 0 and machine.load() >= 0
    proc("cpuinfo", "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n")  # an ARM in a container
    assert machine.slug() == "riscv64-2-threads"
    monkeypatch.setattr(sys, "platform", "darwin")
    said = SimpleNamespace(stdout="Apple M1 (TM) CPU\n")
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: said)
    assert machine.slug() == "apple-m1-2-threads"


def test_facts_name_libraries_and_kernels_and_what_is_forced_but_no_host_user_or_folder(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    words = ["/opt/x/python", "-m", "benchmarks", "--out", "/home/me/deep/records", f"--b={ROOT}/c", "a/b"]
    monkeypatch.setattr(sys, "orig_argv", words)
    made = machine.facts()
    assert made["command"] == "python -m benchmarks --out records c b"
    assert made["forced"]["OPENBLAS_CORETYPE"] == "Haswell" and made["gpu"] is None
    assert (
        made["versions"]["PyTorch"] == torch.__version__.partition("+")[0]
        and made["versions"]["Python"] in sys.version
    )
    assert made["machine"] == machine.slug() and made["threads"] == torch.get_num_threads()
    assert any(library == "openblas" and kernels for library, _, kernels, _ in made["blas"])
    assert platform.node() not in str(made) and str(ROOT) not in str(made)


@pytest.mark.oracle
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_memory_and_threads_are_those_that_psutil_sees():
    assert abs(machine.memory() / psutil.virtual_memory().available - 1) < 0.2  # others are at work
    assert machine.threads() == len(psutil.Process().cpu_affinity())


@pytest.mark.oracle
def test_the_load_counts_a_busy_loop(proc, monkeypatch):
    proc("stat", "cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2\n")
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 4)
    later = "cpu  150 0 50 950 50 0 0 0 0 0\ncpu0 1 2\n"
    monkeypatch.setattr(machine.time, "sleep", lambda seconds: proc("stat", later))
    assert machine.load() == pytest.approx(4 * 50 / 200)


def test_too_little_memory_is_an_error_before_anything_is_allocated(proc):
    proc("meminfo", f"MemTotal: {32 * 2**20} kB\nMemAvailable:   {16 * 2**20} kB\n")
    machine.check_memory("two networks", 16 * GIB)
    with pytest.raises(
        MemoryError, match="^two networks needs 16.5 GiB of memory on cpu; 16.0 GiB is availab"
    ):
        machine.check_memory("two networks", 16.5 * GIB)
    proc("meminfo", "")
    assert machine.memory() == math.inf


def test_a_gpu_is_known_through_torch(monkeypatch):
    cuda = {
        "get_device_properties": lambda device: SimpleNamespace(name="NVIDIA H200", total_memory=80 * GIB),
        "mem_get_info": lambda device: (GIB, 80 * GIB),
        "memory_reserved": lambda device: 5 * GIB,
        "memory_allocated": lambda device: 3 * GIB,
    }
    for name, function in cuda.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setenv("PATH", os.defpath)
    assert machine.name("cuda:1") == "NVIDIA H200" and machine.slug("cuda") == "nvidia-h200"
    assert machine.memory("cuda:1") == 3 * GIB


def test_the_ground_floor_runs_with_nothing_but_numpy_and_torch():
    code = """
import sys
for name in ("array_api_compat", "tqdm", "matplotlib", "IPython", "scipy", "sklearn", "threadpoolctl",
             "pooch", "requests", "cupy", "triton", "pandas"):
    sys.modules[name] = None
from ed_lib import machine, roofline, timing
timing.measure(lambda: None, min_seconds=0.001), timing.apart(lambda: None, min_seconds=0.001)
assert "torch" in sys.modules and machine.card()
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
