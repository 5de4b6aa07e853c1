"""NVRTC, which compiles CUDA C for any GPU and needs none: by ctypes, since CuPy would ask for a
driver.
"""

import ctypes
import functools
import re
from importlib import metadata

import pytest

CAPABILITIES = (75, 80, 89, 90, 100)
SHARED = 48 * 1024  # bytes that the threads of a block may share on any GPU, unless it is asked
REGISTERS = 64 * 1024  # that they have
THREADS = 1024  # of a block, at most


@functools.cache
def nvrtc():
    """The library that PyTorch's Linux wheels bring."""
    for wheel in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        try:
            files = metadata.files(wheel) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name.startswith("libnvrtc.so"):
                return ctypes.CDLL(str(file.locate()))
    pytest.skip("needs NVRTC, which PyTorch's wheels for Linux bring")


def compiled(source, capability, options=()):
    """What a kernel takes of a GPU of this capability: (registers of a thread, bytes that a block
    shares before the launch asks for more). AssertionError with NVRTC's words if it does not
    compile.
    """
    library, program, size = nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    options = [f"--gpu-architecture=sm_{capability}", "--ptxas-options=-v", *options]
    given = (ctypes.c_char_p * len(options))(*map(str.encode, options))
    failed = library.nvrtcCompileProgram(program, len(options), given)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    said = log.value.decode()
    assert not failed, f"{capability}: {said}"
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    library.nvrtcDestroyProgram(ctypes.byref(program))
    assert size.value, f"{capability}: no machine code"
    shared = re.search(r"(\d+) bytes smem", said)
    return int(re.search(r"Used (\d+) registers", said)[1]), int(shared[1]) if shared else 0
