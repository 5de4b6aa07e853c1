"""The machine: its name, the memory that is left, and that the ground floor asks for little."""

import contextlib
import math
import subprocess
import sys
from types import SimpleNamespace

import pytest

from conftest import ROOT
from ed_lib import arrays, machine, notebook

GIB = 2**30


@pytest.fixture
def linux(tmp_path, monkeypatch):
    """write(name, text) for files of a made-up /proc and /sys/fs/cgroup; 16 GiB are available at first."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "CGROUP", tmp_path / "cgroup")
    write("proc/meminfo", f"MemTotal: {32 * 2**20} kB\nMemFree: 5 kB\nMemAvailable: {16 * 2**20} kB")
    return write


def test_the_memory_is_what_linux_calls_available(linux):
    assert machine.memory() == machine.memory("cpu") == 16 * GIB


@pytest.mark.parametrize("limit, wanted", [(8 * GIB, 5), ("max", 16), (2**63 - 4096, 16), (2 * GIB, 0)])
@pytest.mark.parametrize("folder, inside", [("", "0::/"), ("a/b", "0::/a/b"), ("a", "1:cpu:/x\n0::/a/b")])
def test_a_limit_of_control_groups_bounds_it(linux, limit, wanted, folder, inside):
    linux("proc/self/cgroup", inside)
    linux(f"cgroup/{folder}/memory.max", limit)
    linux(f"cgroup/{folder}/memory.current", 3 * GIB)
    assert machine.memory() == wanted * GIB


@pytest.mark.parametrize(
    "folder, inside", [("", "4:memory:/not/in/the/container"), ("/a", "4:cpu,memory:/a")]
)
def test_a_limit_of_the_older_control_groups_bounds_it(linux, folder, inside):
    linux("proc/self/cgroup", inside)
    linux(f"cgroup/memory{folder}/memory.limit_in_bytes", 8 * GIB)
    linux(f"cgroup/memory{folder}/memory.usage_in_bytes", 3 * GIB)
    assert machine.memory() == 5 * GIB
    linux(f"cgroup/memory{folder}/memory.stat", f"inactive_file 1\ntotal_inactive_file {GIB}")
    assert machine.memory() == 6 * GIB


def test_cached_files_count_as_available(linux):
    linux("cgroup/memory.max", 8 * GIB)
    linux("cgroup/memory.current", 7 * GIB)
    linux("cgroup/memory.stat", f"anon 7\nfile {6 * GIB}\ninactive_file {4 * GIB}")
    assert machine.memory() == 5 * GIB


def test_elsewhere_it_is_all_the_memory_there_is_or_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "PROC", tmp_path)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(machine.os, "sysconf", sizes.__getitem__, raising=False)
    assert machine.memory() == 4096000
    monkeypatch.delattr(machine.os, "sysconf")
    assert machine.memory() == math.inf
    machine.check_memory("anything", 2**60)


def fake_gpu(monkeypatch, library):
    """A machine whose second GPU is seen by "torch" or "cupy" only."""
    cuda = {
        "mem_get_info": lambda index: (index * GIB, 80 * GIB),
        "memory_reserved": lambda index: 5 * GIB,
        "memory_allocated": lambda index: 3 * GIB,
        "get_device_name": lambda index: f"GPU {index}",
        "get_device_properties": lambda index: SimpleNamespace(total_memory=80 * GIB),
    }
    torch = SimpleNamespace(
        __name__="torch", cuda=SimpleNamespace(**cuda), version=SimpleNamespace(cuda="13.2")
    )
    runtime = {
        "memGetInfo": lambda: (2 * GIB, 80 * GIB),
        "getDeviceProperties": lambda i: {"name": f"GPU {i}".encode(), "totalGlobalMem": 80 * GIB},
        "runtimeGetVersion": lambda: 13020,
    }
    cupy = SimpleNamespace(
        __name__="cupy",
        cuda=SimpleNamespace(Device=contextlib.nullcontext, runtime=SimpleNamespace(**runtime)),
    )
    monkeypatch.setattr(arrays, "gpu_count", lambda backend="torch": 2 * (backend == library))
    monkeypatch.setattr(machine, "_driver", lambda: "580.1")
    monkeypatch.setitem(sys.modules, library, {"torch": torch, "cupy": cupy}[library])


@pytest.mark.parametrize("library, left", [("torch", 3 * GIB), ("cupy", 2 * GIB)])
def test_a_gpu_is_known_through_either_library(monkeypatch, library, left):
    fake_gpu(monkeypatch, library)
    facts = {"name": "GPU 1", "memory": 80 * GIB, "driver": "580.1", "cuda": "13.2"}
    assert machine.name("cuda:1") == "GPU 1" and machine.gpu_facts("cuda:1") == facts
    assert machine.memory("cuda:1") == left
    with pytest.raises(MemoryError, match=r"cuda:1; \d\.0 GiB is available"):
        machine.check_memory("a state", 4 * GIB, "cuda:1")


def test_too_little_memory_is_an_error_before_anything_is_allocated(linux):
    machine.check_memory("two networks", 16 * GIB)
    wanted = "^two networks needs 16.5 GiB of memory on cpu; 16.0 GiB is available$"
    with pytest.raises(MemoryError, match=wanted):
        machine.check_memory("two networks", 16.5 * GIB, "cpu")
    linux("proc/meminfo", "MemAvailable: 2048 kB")
    with pytest.raises(MemoryError, match="a needs 3.0 MiB of memory on cpu; 2.0 MiB is available"):
        machine.check_memory("a", 3 * 2**20)


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "cuda:x", None, 0])
@pytest.mark.parametrize("function", [machine.name, machine.memory, machine.gpu_facts])
def test_a_device_that_does_not_exist_is_named(function, device):
    with pytest.raises(ValueError, match=f"device is {device!r}; wanted|device is 'tpu'; wanted"):
        function(device)


def test_the_cpu_has_a_name_and_no_facts_of_a_gpu(linux):
    linux("proc/cpuinfo", "processor\t: 0\nmodel name\t: Good CPU @ 3 GHz\n\nmodel name\t: Good CPU @ 3 GHz")
    if sys.platform == "linux":
        assert machine.name().startswith("Good CPU @ 3 GHz, ") and machine.name() in machine.card()
    assert machine.gpu_facts("cpu") is None and machine.threads() >= 1


def test_a_driver_that_cannot_be_asked_is_unknown(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert machine._driver() is None


def test_what_chapters_and_tools_call_is_still_in_notebook():
    assert (notebook.card, notebook.cpu, notebook.gpu) == (machine.card, machine.cpu, machine.gpu)
    assert notebook.versions() == machine.versions() and machine.version("no-such-package") is None


def test_the_ground_floor_runs_with_nothing_but_numpy_and_torch():
    code = """
import sys
for name in ("array_api_compat", "tqdm", "matplotlib", "IPython", "scipy", "sklearn", "threadpoolctl",
             "pooch", "requests", "cupy", "triton"):
    sys.modules[name] = None
from ed_lib import machine, roofline, timing
timing.measure(lambda: None, min_seconds=0.001), timing.apart(lambda: None, min_seconds=0.001)
assert "torch" in sys.modules and machine.card()
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
