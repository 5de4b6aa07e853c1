"""The machine: its name, what tells it from others, and the memory that is left."""

import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from ed_lib import machine

GIB = 2**30
CPU = "vendor_id\t: {}\ncpu family\t: {}\nmodel\t: {}\nmodel name\t: {}\nflags\t: fpu {}\n\nflags: of another"


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """write(text) for a made-up description of the processor, on a machine of Linux with two
    threads.
    """
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
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


@pytest.mark.parametrize("held, left", [
    ("", ["avx512", "vnni"]), ("avx512", ["avx512", "vnni"]), ("avx2", ["avx2"]), ("default", []),
])  # fmt: skip
def test_a_processor_that_is_held_to_less_has_no_more(proc, monkeypatch, held, left):
    proc(CPU.format("GenuineIntel", 6, 85, "Xeon", "avx2 avx512f avx512_vnni"))
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", held)
    assert machine.flags() == left


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
    told = {
        "get_device_properties": SimpleNamespace(name="NVIDIA H200", total_memory=80 * GIB),
        "mem_get_info": (GIB, 80 * GIB), "memory_reserved": 5 * GIB, "memory_allocated": 3 * GIB,
    }  # fmt: skip
    for name, answer in told.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer)
    monkeypatch.setenv("PATH", os.defpath)
    assert machine.name("cuda:1") == "NVIDIA H200" and machine.slug("cuda") == "nvidia-h200"
    assert machine.memory("cuda:1") == 3 * GIB


KEEPS = """
import torch
from ed_lib import machine
def pages():
    before = machine.pages_handed_out()
    torch.empty(2**24).fill_(1.0)  # 64 MB, which are freed at once
    return machine.pages_handed_out() - before
pages()
plain, keeps, *kept = min(pages(), pages()), machine.keep_memory(), *[pages() for _ in range(9)]
print(plain, keeps, min(kept))  # once what is kept has room for it
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_memory_that_is_kept_is_not_handed_out_again():
    ran = subprocess.run([sys.executable, "-c", KEEPS], capture_output=True, text=True, check=True)
    plain, keeps, kept = ran.stdout.split()
    assert keeps == "True" and int(kept) < int(plain) / 10


def test_another_c_library_keeps_no_memory(monkeypatch):
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: object())
    assert machine.keep_memory() is False
