"""The machine: its name, what tells it from others, its load, the memory that is left; and that nothing else
is needed to find out.
"""

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
    """write(text) for a made-up description of the processor, on a machine of Linux with two threads."""
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "threads", lambda: 2)
    monkeypatch.setattr(sys, "platform", "linux")
    return (tmp_path / "cpuinfo").write_text


@pytest.mark.parametrize("vendor, family, model, name, flags, slug", [
    ("AuthenticAMD", 25, 17, "AMD EPYC", "avx2 avx512f avx512_vnni avx512_bf16",
     "amd-25-17-avx512-vnni-bf16-2-threads"),
    ("AuthenticAMD", 25, 1, "AMD EPYC", "avx2", "amd-25-1-avx2-2-threads"),
    ("GenuineIntel", 6, 143, "Intel(R) Xeon(R) Processor @ 2.10GHz", "avx2 avx512f avx512_vnni amx_tile",
     "intel-6-143-avx512-vnni-amx-2-threads"),
])  # fmt: skip
def test_a_machine_is_its_processor(proc, vendor, family, model, name, flags, slug):
    proc(CPU.format(vendor, family, model, name, flags))
    assert machine.slug() == slug and machine.name() == f"{name}, 2 threads"
    assert machine.card().startswith(f"CPU: {name}, 2 threads · ") and "\n" not in machine.card()


def test_a_processor_that_nobody_describes_has_a_plain_name(proc, monkeypatch):
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert machine.name() == "riscv64, 2 threads" and machine.slug() == "riscv64-2-threads"
    assert machine.flags() == []
    proc("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n")  # an ARM in a container
    assert machine.slug() == "riscv64-2-threads"
    monkeypatch.setattr(sys, "platform", "darwin")
    said = SimpleNamespace(stdout="Apple M1 (TM) CPU\n")
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: said)
    assert machine.slug() == "apple-m1-2-threads"


@pytest.mark.oracle
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_memory_and_threads_are_those_that_psutil_sees():
    assert abs(machine.memory() / psutil.virtual_memory().available - 1) < 0.2  # others are at work
    assert machine.threads() == len(psutil.Process().cpu_affinity())


def test_too_little_memory_is_an_error_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=16 * GIB))
    machine.check_memory("two networks", 16 * GIB)
    message = "^two networks needs 16.5 GiB of memory on cpu; 16.0 GiB is available"
    with pytest.raises(MemoryError, match=message):
        machine.check_memory("two networks", 16.5 * GIB)


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
for name in ("tqdm", "matplotlib", "IPython", "scipy", "sklearn", "threadpoolctl",
             "pooch", "requests", "cupy", "triton", "pandas"):
    sys.modules[name] = None
from ed_lib import machine, roofline, timing
timing.measure(lambda: None, min_seconds=0.001), timing.apart(lambda: None, min_seconds=0.001)
assert "torch" in sys.modules and machine.card()
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
